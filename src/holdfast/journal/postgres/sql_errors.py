"""Errors of PostgreSQL and its driver as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from holdfast.errors import (
    HoldfastError,
    JournalBusy,
    JournalDamaged,
    JournalFull,
    JournalRefused,
    NotAJournal,
    ReadOnly,
)

AGAIN = (  # the transaction was rolled back, and may simply be tried again
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.LockNotAvailable,
    pg.ReadOnlySqlTransaction,  # a standby that is not promoted yet
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.QueryCanceled,
    pg.IdleInTransactionSessionTimeout,  # this process was stopped for a while
)

_REFUSED = re.compile(
    r'FATAL: +(database|role) ".*" does not exist|authentication failed|no password supplied|no pg_hba\.conf entry'
    r"|permission denied for database|is not permitted to log in|certificate|does not support SSL|definition of service"
)


def translated(error: psycopg.Error, *, opening: bool = False) -> HoldfastError:
    """Our word for an error outside a commit: nothing was written. A server that refuses us when the journal is opened
    is a matter for a person; one that did not before may be in the middle of a change, and is asked again."""
    match error:
        case pg.DiskFull() | pg.OutOfMemory():
            return JournalFull(f"the database server has no space left: {_text(error)}")
        case pg.ReadOnlySqlTransaction():
            return ReadOnly(
                f"the database is read only: {_text(error)}",
                hint="it may be a standby: give the url of the primary, or all hosts in one url",
            )
        case pg.InsufficientPrivilege():
            return ReadOnly(
                f"the database user may not use the journal: {_text(error)}",
                hint="use the database user that made the journal, or grant its rights to this one",
            )
        case pg.UndefinedTable() | pg.UndefinedColumn() | pg.InvalidSchemaName():
            return NotAJournal(
                f"the schema is not a journal: {_text(error)}",
                hint="name another schema in the url (`schema=NAME`); Holdfast makes the journal in it, and changes no "
                "schema that it did not make",
            )
        case psycopg.OperationalError() if opening and is_refused(error):
            return JournalRefused(f"the database server refuses the connection: {_text(error)}")
        case psycopg.OperationalError() | psycopg.InterfaceError() | pg.IdleInTransactionSessionTimeout():
            return JournalBusy(
                f"the database cannot be reached: {_text(error)}",
                hint="check that the server runs and that its address is right; Holdfast tries again",
            )
        case psycopg.DataError():
            return JournalDamaged(f"a row of the journal cannot be understood: {_text(error)}")
        case _:
            return JournalDamaged(f"the database failed: {type(error).__name__}: {_text(error)}")


def is_refused(error: psycopg.Error) -> bool:
    """Whether the server, or the check of its certificate, said no to this connection for good. libpq gives no code
    for a connection that was not made, so its text is read; what is not recognized counts as "not reached"."""
    return error.sqlstate is None and _REFUSED.search(str(error)) is not None


@contextmanager
def in_our_words() -> Generator[None]:
    """Raises what `translated` says of an error of PostgreSQL in the block."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, opening=True) from error


def _text(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error)
    return " ".join(said.split())
