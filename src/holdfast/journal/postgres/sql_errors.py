"""Errors of PostgreSQL and its driver as errors of ours."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Generator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors as pg
from psycopg import pq

from holdfast.errors import (
    BadInput,
    HoldfastError,
    JournalBusy,
    JournalDamaged,
    JournalFull,
    JournalGone,
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
    pg.TransactionTimeout,
)

# Codes with which a server says no for good: invalid authorization, no such database, no right to connect to it, a
# setting in the url (`options`) that it does not know or that cannot have this value.
_REFUSING = re.compile(r"28...|3D000|42501|42704|22023")
_CODE = re.compile(rb'ErrorResponse\t.*? C "([0-9A-Z]{5})"')
# What libpq finds itself has no code: a certificate, a service file. The rest is for systems on which a server's code
# cannot be had.
_REFUSED = re.compile(
    r"certificate|does not support SSL|definition of service|no password supplied"
    r'|FATAL: +(database|role) ".*" does not exist|authentication failed|no pg_hba\.conf entry'
    r"|permission denied for database|is not permitted to log in"
)
# What libpq finds wrong with the url before it asks any server.
_WRONG = re.compile(r"invalid port number|invalid \S+ value: |invalid integer value|could not match \d+ (port|host)")
ASK_S_MAX = 5.0
GONE_HINT = (
    "bring the database back; if all you have is an older dump, load it and run `holdfast recover --journal URL`. If "
    "no copy is left: `holdfast recover --journal URL --begin-anew`"
)
_CERTIFICATE_HINT = (
    "give the host by a name that is in its certificate, and with `sslrootcert=FILE` in the url the authority that has "
    "signed it; or look whether this is the server that you mean"
)
NONE_HINT = (
    "check the url and its `schema`; `holdfast worker APP` and `holdfast submit APP REQUEST` make a journal where "
    "there is none"
)


def translated(error: psycopg.Error, *, opening: bool = False, live: bool = False) -> HoldfastError:
    """Our word for an error outside a commit: nothing was written. A server that refuses us when the journal is opened
    is a matter for a person; one that did not before may be in the middle of a change, and is asked again. `live`: of a
    journal that this process has open."""
    match error:
        case pg.UndefinedTable() | pg.InvalidSchemaName() if live:
            return JournalGone(f"the journal is no longer in its database: {_text(error)}", hint=GONE_HINT)
        case pg.DiskFull() | pg.OutOfMemory():
            return JournalFull(f"the database server has no space left: {_text(error)}")
        case pg.ReadOnlySqlTransaction():
            return ReadOnly(
                f"the database is read only: {_text(error)}",
                hint="it may be a standby: give the url of the primary, or all hosts in one url. Or it is set to be "
                "read only (default_transaction_read_only), as some services do when their disk is full",
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
        case pg.LockNotAvailable() | pg.DeadlockDetected() | pg.SerializationFailure() | pg.QueryCanceled():
            return JournalBusy(f"the database is busy: {_text(error)}")
        case _ if opening and _is_wrong(error):
            return BadInput(
                f"the url of the journal is not valid: {_text(error)}",
                hint="its options are those of libpq, `schema` and `direct`: see `holdfast explain settings`",
            )
        case psycopg.OperationalError() if opening and is_refused(error):
            hint = _CERTIFICATE_HINT if "certificate" in str(error) else JournalRefused.default_hint
            return JournalRefused(f"the database server refuses the connection: {_text(error)}", hint=hint)
        case (
            psycopg.OperationalError()
            | psycopg.InterfaceError()
            | pg.IdleInTransactionSessionTimeout()
            | pg.TransactionTimeout()
        ):
            return JournalBusy(
                f"the database cannot be reached: {_text(error)}",
                hint="check that the server runs and that its address is right; a worker tries again by itself",
            )
        case psycopg.DataError():
            return JournalDamaged(f"a row of the journal cannot be understood: {_text(error)}")
        case _:
            return JournalDamaged(f"the database failed: {type(error).__name__}: {_text(error)}")


def _is_wrong(error: psycopg.Error) -> bool:
    """Whether the url itself is wrong: no server was asked."""
    if isinstance(error, psycopg.ProgrammingError):  # the driver reads some options itself
        return error.sqlstate is None
    return isinstance(error, psycopg.OperationalError) and _WRONG.search(str(error)) is not None


def is_refused(error: psycopg.Error) -> bool:
    """Whether the server, or the check of its certificate, said no to this connection for good. Asks the server once
    more, and blocks meanwhile. What is not recognized counts as "not reached"."""
    if error.sqlstate is not None:
        return False
    code = _code_of_refusal(error)
    return (_REFUSING.fullmatch(code) if code else _REFUSED.search(str(error))) is not None


def _code_of_refusal(error: psycopg.Error) -> str:
    """The code with which the server refuses the connection that failed; empty where it does not answer, or it cannot
    be had. The driver gives only the text, which is in the language of the server. So the same is asked once more, and
    libpq notes down what the server says."""
    if error.pgconn is None:
        return ""
    given = {one.keyword: one.val for one in error.pgconn.info if one.val and not one.dispchar.startswith(b"D")}
    words = b" ".join(b"%s='%s'" % (name, re.sub(rb"(['\\])", rb"\\\1", value)) for name, value in given.items())
    with suppress(psycopg.Error, OSError, AttributeError), open(os.memfd_create("asked"), "r+b") as asked:
        conn = pq.PGconn.connect_start(words)
        try:
            conn.trace(asked.fileno())
            _finish(conn)
            conn.untrace()
        finally:
            conn.finish()
        asked.seek(0)
        found = _CODE.findall(asked.read())
        return found[-1].decode() if found else ""
    return ""


def _finish(conn: pq.abc.PGconn) -> None:
    """Until the connection is made or refused."""
    waits = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}
    while (wanted := waits.get(pq.PollingStatus(conn.connect_poll()))) is not None:
        poll = select.poll()
        poll.register(conn.socket, wanted)
        if not poll.poll(ASK_S_MAX * 1000):
            return


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
