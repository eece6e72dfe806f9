"""The schema of the embedded journal: read from its `.sql` files, and nowhere written a second time.

What the journal calls its own follows from it: a definition that is added to the schema is guarded when a journal is
opened (`opening/open.py`) and against the statements of Transactional tools (`verbs/tasks.py`), without a list to keep.
"""

from __future__ import annotations

import functools
import re
from contextlib import closing
from importlib import resources

from holdfast.errors import JournalDamaged
from holdfast.host.sqlite import Db, open_in_memory
from holdfast.journal.sqlite.sql_errors import unreadable

SCHEMA = 4
_COMMENT = re.compile(r"--[^\n]*")


def schema_step(number: int) -> str:
    """What leads from the schema before to this one; the first makes it from nothing."""
    return resources.files("holdfast.journal.sqlite").joinpath(f"schema_{number}.sql").read_text()


def whole_schema() -> str:
    return "".join(schema_step(number) for number in range(1, SCHEMA + 1))


def definitions(db: Db) -> dict[str, str]:
    """Tables, indexes and triggers with their SQL; spaces and comments do not count."""
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOTNULL").fetchall()
    return {str(name): " ".join(_COMMENT.sub("", str(sql)).split()) for name, sql in rows}


@functools.cache
def shipped() -> dict[str, str]:
    """The definitions of a new journal."""
    with closing(_new()) as db:
        return definitions(db)


@functools.cache
def own_tables() -> frozenset[str]:
    """The journal's tables, in small letters. SQLite's own (`sqlite_...`) are not among them."""
    with closing(_new()) as db:
        rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOTNULL").fetchall()
    return frozenset(name for (name,) in rows if not name.startswith("sqlite_"))


def find_tool_tables(db: Db) -> list[str]:
    """Tables that are not the journal's own: statements of Transactional tools made them."""
    rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOTNULL ORDER BY name").fetchall()
    return [str(name) for (name,) in rows if str(name).lower() not in own_tables() and not name.startswith("sqlite_")]


def _new() -> Db:
    db = open_in_memory()
    db.execute(whole_schema()).fetchall()
    return db


def check_schema(db: Db) -> None:
    """Refuse a journal whose tables, indexes or triggers are not as they were made.
    They lie in the file as text: one changed letter, and a rule that guards the records is
    another one. Spaces and comments do not count; what users have added is theirs."""
    try:
        found = definitions(db)
    except UnicodeDecodeError as error:
        raise unreadable(error) from error
    for name, definition in shipped().items():
        if found.get(name) != definition:
            raise JournalDamaged(f"the journal's table or index {name} was changed: its definition is not Holdfast's")
