"""Statements of Transactional tools: applied in the commit that closes their step, or not at all.

They may do what they like with the user's own tables. They may not touch the journal's tables or
anything by which those could be reached later (a trigger, an index, a renamed or shadowed
table, raw pages), and they may not end, nest or leave the transaction they are part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import apsw

from holdfast.errors import StatementFailed
from holdfast.host.sqlite import Db
from holdfast.journal.contract import Statement

OWN_TABLES = frozenset(("meta", "session", "task", "record", "inbox", "notice", "blob", "blob_use"))


def apply_statements(db: Db, statements: Sequence[Statement]) -> None:
    """All or none. Raises StatementFailed, having undone them."""
    db.execute("SAVEPOINT tool")
    db.authorizer = _authorize
    try:
        for statement in statements:
            rows = db.execute(statement.sql, tuple(cast("Sequence[Any]", statement.params)))
            for _ in rows:  # a second statement in the same text runs only when this is read
                pass
    except _OF_THE_DISK:
        raise
    except Exception as error:
        db.authorizer = None
        db.execute("ROLLBACK TO tool")
        db.execute("RELEASE tool")
        raise StatementFailed(f"the statement was refused: {error}") from error
    finally:
        db.authorizer = None
    db.execute("RELEASE tool")


_OF_THE_DISK = (apsw.FullError, apsw.IOError, apsw.CorruptError)
_FORBIDDEN = frozenset(
    (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA)
)
_HARMLESS = frozenset((apsw.SQLITE_FUNCTION, apsw.SQLITE_SELECT))
_WRITES = frozenset((apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE))
_TABLE_SECOND = frozenset(
    (
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
    )
)
_INNER_TABLES = frozenset(("sqlite_sequence", "sqlite_dbpage"))  # inbox numbers; the raw file


def _authorize(operation: int, first: str | None, second: str | None, _database: str | None, _by: str | None) -> int:
    if operation in _FORBIDDEN:
        return apsw.SQLITE_DENY
    if operation in _HARMLESS:
        return apsw.SQLITE_OK
    table = (second if operation in _TABLE_SECOND else first) or ""
    name = table.lower()  # a name is ours in any spelling: a temporary TASK would hide the real one
    if name in OWN_TABLES or (operation in _WRITES and name in _INNER_TABLES):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
