"""A durable table of idempotency keys: what was asked under a key, and what was answered.

One row per key, inserted before the work begins and completed before the answer is sent, each in a
synced commit of its own. So of any number of requests with one key exactly one does the work, in
however many processes, and a repeat after any crash meets one of these:

* answered: the stored answer is given again;
* in flight: the process that does the work lives, and has not answered yet;
* in doubt: that process is gone, or its work ended in an error. Whether anything was done is
  known to the service alone; it is asked, or the key stays in doubt. It is never guessed.

Whether a process lives is told by its lock on a file beside the table, which ends with it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import cast

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.host.private_files import FILE_MODE, ensure_private_folder
from holdfast.host.sqlite import log_ahead, open_or_create

_SCHEMA = """
CREATE TABLE IF NOT EXISTS asked (
  scope       BLOB    NOT NULL,   -- hash of who asks and of which route
  key         TEXT    NOT NULL,
  fingerprint BLOB    NOT NULL,
  task        TEXT    NOT NULL,   -- '' where the request names none
  step        TEXT    NOT NULL,
  first_ms    INTEGER NOT NULL,
  owner       TEXT    NOT NULL,   -- the process at work; '' once answered or in doubt
  status      INTEGER,            -- of the answer
  headers     BLOB,
  body        BLOB,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS asked_step ON asked (scope, task, step) WHERE task != '';
CREATE INDEX IF NOT EXISTS asked_age ON asked (first_ms);
"""
_FORGET_AT_ONCE = 100  # rows past their retention that one request cleans away


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the table knows it."""

    scope: bytes
    key: str
    fingerprint: bytes
    task: str = ""
    step: str = ""


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


Answer = StoredAnswer  # its name until 0.2


class KeyState(Enum):
    """What a key is, for a request that asks under it."""

    NEW = auto()  # this request does the work
    ANSWERED = auto()
    IN_FLIGHT = auto()
    IN_DOUBT = auto()
    OTHER_BODY = auto()


class KeyStore:
    """The table of one service, shared by its processes. Blocks: call it from one thread."""

    def __init__(self, path: Path, *, retention_s: float, wall_ms: Callable[[], int]) -> None:
        ensure_private_folder(path.parent)
        self._retention_ms = int(retention_s * 1000)
        self._wall_ms = wall_ms
        self._owners = path.with_name(f"{path.name}.owners")
        ensure_private_folder(self._owners)
        self.owner = os.urandom(8).hex()
        self._mine: set[tuple[bytes, str]] = set()  # what this process is working on
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock_fd = os.open(self._owners / self.owner, flags, FILE_MODE)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))
        self._db = open_or_create(path.resolve())
        log_ahead(self._db)
        self._db.execute(_SCHEMA)

    def close(self) -> None:
        """Let go. What this process was working on is in doubt from now on."""
        self._db.close()
        os.close(self._lock_fd)
        (self._owners / self.owner).unlink(missing_ok=True)

    def ask(self, asked: Asked) -> tuple[KeyState, StoredAnswer | None]:
        """Take the key, or find what became of it."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            self._forget()
            found = self._find(asked)
            if found is None:
                db.execute(
                    "INSERT INTO asked (scope, key, fingerprint, task, step, first_ms, owner) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (asked.scope, asked.key, asked.fingerprint, asked.task, asked.step, self._wall_ms(), self.owner),
                )
            db.execute("COMMIT")
        except BaseException:  # a full disk, a cancel: whatever it is, no transaction may stay open
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if found is not None:
            return found
        self._mine.add((asked.scope, asked.key))
        return KeyState.NEW, None

    def answer(self, asked: Asked, answer: StoredAnswer) -> None:
        """Keep the answer; only then may it be sent."""
        self._mine.discard((asked.scope, asked.key))  # also where this fails: then it is in doubt
        self._keep(asked, answer)

    def _keep(self, asked: Asked, answer: StoredAnswer) -> None:
        headers = json.dumps([[name.hex(), value.hex()] for name, value in answer.headers])
        self._db.execute(
            "UPDATE asked SET owner = '', status = ?, headers = ?, body = ? "
            "WHERE scope = ? AND key = ? AND status IS NULL",
            (answer.status, headers.encode(), answer.body, asked.scope, asked.key),
        )

    def doubt(self, asked: Asked) -> None:
        """No process works on it any more, and what was done is not known."""
        self._mine.discard((asked.scope, asked.key))
        self._db.execute(
            "UPDATE asked SET owner = '' WHERE scope = ? AND key = ? AND status IS NULL", (asked.scope, asked.key)
        )

    def free(self, asked: Asked) -> None:
        """Nothing was done: as if it had never been asked."""
        self._mine.discard((asked.scope, asked.key))
        self._db.execute("DELETE FROM asked WHERE scope = ? AND key = ? AND status IS NULL", (asked.scope, asked.key))

    def take_over(self, asked: Asked) -> bool:
        """Work on a key in doubt; False where another process was faster."""
        self._db.execute(
            "UPDATE asked SET owner = ? WHERE scope = ? AND key = ? AND status IS NULL AND owner = ''",
            (self.owner, asked.scope, asked.key),
        )
        if self._db.changes() != 1:
            return False
        self._mine.add((asked.scope, asked.key))
        return True

    def _find(self, asked: Asked) -> tuple[KeyState, StoredAnswer | None] | None:
        row = self._db.execute(
            "SELECT key, fingerprint, owner, status, headers, body FROM asked WHERE scope = ? "
            "AND (key = ? OR (task != '' AND task = ? AND step = ?)) ORDER BY key = ? DESC",
            (asked.scope, asked.key, asked.task, asked.step, asked.key),
        ).fetchone()
        if row is None:
            return None
        key, fingerprint, owner, status, headers, body = row
        if fingerprint != asked.fingerprint:
            return KeyState.OTHER_BODY, None
        if status is not None:
            pairs = decode_json(cast(bytes, headers), list[tuple[str, str]])
            given = tuple((bytes.fromhex(name), bytes.fromhex(value)) for name, value in pairs)
            return KeyState.ANSWERED, StoredAnswer(status=cast(int, status), headers=given, body=cast(bytes, body))
        if owner and self._is_alive(str(owner), (asked.scope, str(key))):
            return KeyState.IN_FLIGHT, None
        if owner:
            self._db.execute("UPDATE asked SET owner = '' WHERE scope = ? AND key = ?", (asked.scope, key))
        return KeyState.IN_DOUBT, None

    def _is_alive(self, owner: str, row: tuple[bytes, str]) -> bool:
        if owner == self.owner:
            return row in self._mine
        try:
            fd = os.open(self._owners / owner, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        (self._owners / owner).unlink(missing_ok=True)
        return False

    def _forget(self) -> None:
        """Past their retention; but a key in doubt or in flight is never forgotten by time."""
        self._db.execute(
            "DELETE FROM asked WHERE (scope, key) IN (SELECT scope, key FROM asked "
            "WHERE first_ms < ? AND status IS NOT NULL ORDER BY first_ms LIMIT ?)",
            (self._wall_ms() - self._retention_ms, _FORGET_AT_ONCE),
        )
