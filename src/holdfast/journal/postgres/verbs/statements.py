"""Statements of Transactional tools: run in the commit that closes their step, with no right to the journal.

They run as a role of their own (`<schema>_tools_<journal id>`), which has no right to the journal's schema, through a
function that this role owns and that is SECURITY DEFINER. Plain `SET ROLE` would not do: `RESET ROLE` inside a DO block
takes it back, and the journal lies open. Inside such a function PostgreSQL refuses to change the role. The function
lies in the journal's schema, which its owner may not enter: so no statement can replace it by one that runs as us.

What a statement can leave behind for the rest of the transaction:

* settings, by SET or set_config, and locks and channels of the session: all of them are reset, and what the commit
  must be is said again;
* work for the moment of the commit, which would run as us: deferred constraints are checked before the function
  returns, and deferrable ones that may call code of the tool's are refused: constraint triggers, exclusion and unique
  constraints, foreign keys between types of its own (a cast is code, which may put off its constraint once more).
  Other deferred foreign keys are fine. Cursors are closed: the rows of one WITH HOLD are computed at the commit;
* names that our next statements would take for something else: types and tables in the connection's temporary schema,
  which is searched before all others, are refused; prepared statements are dropped, ours too. No rollback undoes those,
  so the connection is closed where the transaction cannot go on. Where the role may make functions in a schema that
  our statements search (`public`, in a database from before PostgreSQL 15; one with the name of our user, if the role
  may make schemas), or may enter that of the journal (if it is `public`: the owner of a function may change it), no
  statement is run;
* code in a table of ours that it was granted: the check of a foreign key to it, and its triggers, run as the owner of
  the table or as who changes it. Where the role has one of these two rights, no statement is run either;
* the end of the transaction: PostgreSQL refuses COMMIT and ROLLBACK inside a function.

The tool's tables are in the schema `<schema>_tools`, which is the role's own; for tables elsewhere grant it the rights.
Values are written into the text as literals, by the driver: a function cannot be given any number of typed values.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg
from psycopg.sql import Literal

from holdfast.errors import StatementFailed
from holdfast.journal.contract import Statement
from holdfast.journal.postgres.links import BEGIN, Link, transact

if TYPE_CHECKING:
    from holdfast.journal.postgres.writer import Append

_RULES = 3  # one more where the function refuses more: one of a newer Holdfast is left as it is
_FUNCTION = f"""
CREATE FUNCTION $s.run_statement(given text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = $tools, public SET standard_conforming_strings = on AS $body$
-- rules {_RULES}
BEGIN
  EXECUTE given;
  SET CONSTRAINTS ALL IMMEDIATE;
  -- The statement may have set another one, in which = is an operator of its own.
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF EXISTS (
    SELECT 1 FROM pg_catalog.pg_class
    WHERE relpersistence = 't' AND pg_catalog.pg_get_userbyid(relowner) = CURRENT_USER
  ) OR EXISTS (
    SELECT 1 FROM pg_catalog.pg_type
    WHERE typnamespace = pg_catalog.pg_my_temp_schema() AND pg_catalog.pg_get_userbyid(typowner) = CURRENT_USER
  ) THEN
    RAISE EXCEPTION 'temporary tables, views and types are not allowed: the connection is shared';
  END IF;
  IF EXISTS (
    SELECT 1 FROM pg_catalog.pg_trigger g
    JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid
    LEFT JOIN pg_catalog.pg_constraint n ON n.oid = g.tgconstraint
    WHERE g.tgdeferrable AND (coalesce(n.contype, 't') <> 'f' OR EXISTS (
      SELECT 1 FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
      WHERE y.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace
      AND (a.attrelid = n.conrelid AND a.attnum = ANY (n.conkey)
        OR a.attrelid = n.confrelid AND a.attnum = ANY (n.confkey))
    ))
    AND CURRENT_USER IN (pg_catalog.pg_get_userbyid(c.relowner), pg_catalog.pg_get_userbyid(p.proowner))
  ) THEN
    RAISE EXCEPTION 'deferrable constraints and triggers other than foreign keys are not allowed in tables of tools, '
      'nor deferrable foreign keys between types of your own';
  END IF;
END $body$
"""
_SET_APART = 160_000
# What a tool's statement may have left in the connection is undone, and said again what the commit must be.
AFTER_STATEMENTS = (
    b"RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; SELECT pg_catalog.pg_advisory_unlock_all(); "
    + BEGIN.partition(b"; ")[2]
)
STATEMENT_MS_MAX = 30_000  # meanwhile no other task of the process can commit
_OUR_DISK = (pg.DiskFull, pg.OutOfMemory, pg.SerializationFailure, pg.DeadlockDetected)
_PLACEHOLDER = re.compile(
    r"""\?\?|\?|(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/"""
    r"""|(?<![\w$])(\$(?:[A-Za-z_]\w*)?\$).*?\1""",
    re.DOTALL,
)


def names(schema: str, journal_id: str) -> tuple[str, str]:
    """The role that statements run as, and the schema of their tables."""
    return f"{schema}_tools_{journal_id[:8]}", f"{schema}_tools"


async def prepare(link: Link, journal_id: str) -> str:
    """Make what statements need, where it is not there; why they cannot be run, or nothing."""
    (role, tools), user = names(link.place.schema, journal_id), link.db.info.user
    if await link.one(f"SELECT 1 WHERE to_regclass('\"{tools}\".incarnation') IS NOT NULL"):
        return f"Transactional tools are off: the schema {tools}, where their tables would be, holds another journal"
    if await _find(link, journal_id) is None:
        try:
            await transact(link, lambda link: _make(link, journal_id))
        except (pg.DuplicateObject, pg.DuplicateFunction, pg.UniqueViolation):
            pass  # another process makes the same at this moment
        except (pg.InsufficientPrivilege, pg.InternalError) as error:
            return (
                f"Transactional tools are off: the database user {user} may not make the role {role} that their "
                f"statements run as ({error.diag.message_primary or error}). As an administrator of the database: "
                f'CREATE ROLE "{role}" NOLOGIN; GRANT "{role}" TO "{user}"; or, for all journals of this user: '
                f'ALTER ROLE "{user}" CREATEROLE; then start the workers again'
            )
    if right := await _find(link, journal_id):
        return (
            f"Transactional tools are off: with the right {right} their statements could change what the journal runs. "
            f'As an administrator of the database: REVOKE {right} FROM PUBLIC, "{role}"; or give the journal a schema '
            "of its own (`schema=NAME` in the url); then start the workers again"
        )
    return ""


async def _find(link: Link, journal_id: str) -> str | None:
    """Where they are sound: a right that the role of the statements must not have, or nothing. It may not enter the
    journal's schema, nor make anything in one that our own statements search, nor put code of its own into a table of
    somebody who may enter it. None: they are not there, or an older Holdfast has made them."""
    row = await link.one(
        "SELECT p.prosecdef AND coalesce(substring(p.prosrc FROM '-- rules ([0-9]+)')::integer, 1) >= %s "
        "AND r.rolname = %s AND NOT r.rolsuper AND to_regnamespace(%s) IS NOT NULL, "
        "CASE WHEN has_schema_privilege(r.oid, p.pronamespace, 'USAGE') THEN 'USAGE ON SCHEMA $s' "
        "WHEN has_database_privilege(r.oid, current_database(), 'CREATE') "
        "THEN format('CREATE ON DATABASE %%I', current_database()) ELSE coalesce("
        "(SELECT min(format('CREATE ON SCHEMA %%I', n)) FROM unnest(current_schemas(false)) AS w(n) "
        "WHERE has_schema_privilege(r.oid, n, 'CREATE')), "
        "(SELECT min(format('REFERENCES, TRIGGER ON %%s', c.oid::regclass)) FROM pg_class c "
        "WHERE c.relacl IS NOT NULL AND c.relkind IN ('r', 'p', 'f', 'v') AND c.relowner <> r.oid "
        "AND has_schema_privilege(c.relowner, p.pronamespace, 'USAGE') "
        "AND (has_any_column_privilege(r.oid, c.oid, 'REFERENCES') OR has_table_privilege(r.oid, c.oid, 'TRIGGER')))) "
        "END "
        "FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner WHERE p.oid = to_regprocedure('$s.run_statement(text)')",
        (_RULES, *names(link.place.schema, journal_id)),
    )
    return (row[1] or "") if row is not None and row[0] else None


async def _make(link: Link, journal_id: str) -> None:
    role, tools = names(link.place.schema, journal_id)
    if await link.one("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)) is None:
        await link.run(f'CREATE ROLE "{role}" NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOBYPASSRLS')
    row = await link.one("SELECT rolsuper OR rolcanlogin FROM pg_roles WHERE rolname = %s", (role,))
    if row is None or row[0]:
        raise pg.InsufficientPrivilege(f"the role {role} is there and has rights that it must not have")
    # Since PostgreSQL 16, who makes a role is a member of it that may only grant it.
    needed = "SET" if link.db.info.server_version >= _SET_APART else "MEMBER"
    member = await link.one(f"SELECT pg_has_role(current_user, %s, '{needed}')", (role,))
    if member is None or not member[0]:
        await link.run(f'GRANT "{role}" TO CURRENT_USER')
    if await link.one("SELECT 1 FROM pg_namespace WHERE nspname = %s", (tools,)) is None:
        await link.run(f'CREATE SCHEMA "{tools}"')
    await link.run(f'ALTER SCHEMA "{tools}" OWNER TO "{role}"')
    await link.run("DROP FUNCTION IF EXISTS $s.run_statement(text)")
    await link.run(_FUNCTION.replace("$tools", f'"{tools}"'))
    await link.run("REVOKE ALL ON FUNCTION $s.run_statement(text) FROM PUBLIC")
    await link.run("GRANT EXECUTE ON FUNCTION $s.run_statement(text) TO CURRENT_USER")
    await link.run(f'GRANT CREATE ON SCHEMA $s TO "{role}"')  # an owner must have it, at this moment
    await link.run(f'ALTER FUNCTION $s.run_statement(text) OWNER TO "{role}"')
    await link.run(f'REVOKE ALL ON SCHEMA $s FROM "{role}"')


async def apply_statements(link: Link, act: Append) -> bool:
    """All or none: False where they were refused, and undone; the act then has the error."""
    await link.run(f"SAVEPOINT tool; SET LOCAL statement_timeout = {STATEMENT_MS_MAX}")
    try:
        for statement in act.statements:
            await link.run("SELECT $s.run_statement(%s)", (rendered(statement, link.db),))
    except _OUR_DISK:
        await link.close()
        raise
    except psycopg.Error as error:
        if link.lost:
            raise
        act.error = StatementFailed(f"the journal rejected the SQL statement: {error}")
    except (ValueError, TypeError) as error:
        act.error = StatementFailed(f"the journal rejected the SQL statement: {error}")
    if act.error is None:
        await link.run("RELEASE SAVEPOINT tool")
        return True
    await link.run("ROLLBACK TO SAVEPOINT tool; RELEASE SAVEPOINT tool")
    return False


def rendered(statement: Statement, db: psycopg.AsyncConnection[Any]) -> str:
    """The statement with its values in the places of `?`; `??` is a question mark. Raises ValueError, TypeError."""
    values = tuple(statement.params)
    if not values:
        return statement.sql
    used = 0

    def put(found: re.Match[str]) -> str:
        nonlocal used
        text = found.group()
        if text == "??":
            return "?"
        if text.startswith("/*") and text.count("/*") > 1:
            raise ValueError("it has a comment inside a comment")
        if text != "?":
            return text
        used += 1
        if used > len(values):
            raise ValueError(f"it has more places for values than the {len(values)} that were given")
        return Literal(_checked(values[used - 1])).as_string(db)

    text = _PLACEHOLDER.sub(put, statement.sql)
    if used != len(values):
        raise ValueError(f"it has {used} places for values, but {len(values)} were given")
    return text


def _checked(value: object) -> object:
    """What every journal takes."""
    if isinstance(value, bool | None | str | bytes):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise TypeError(f"a value of type {type(value).__name__} cannot be bound, or is out of range")
