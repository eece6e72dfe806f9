"""The store of a relay: one SQLite file, one commit at a time, and no answer before the sync.

True at all times: what `write` or `written` has returned is committed and synced. Acts that wait together share one
transaction and one sync: while the disk is quick, those of one turn of the event loop, which commits them itself; else,
and for callers in other threads, those that a thread finds waiting. Each runs in a savepoint of its own, so one that
fails undoes nothing of the others. If the commit fails, none of them has happened and each caller gets the error. A
kill before the commit forgets acts that no caller has heard of; a kill after it leaves acts whose callers ask again,
and every act may be repeated.

Acts get the connection and nothing else; they are the transactions of the modules beside this one (logs, registry,
mail). Readers use a second connection and see what is committed. What every request asks and seldom changes is kept in
memory (`known`) until a commit that may have changed it: every commit but those of acts that say that they change
nothing but mail.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.errors import HoldfastError, RelayBusy, RelayUnfit, WitnessDamaged
from holdfast.host import private_files
from holdfast.host.sqlite import CommitTimes, Db, log_ahead, open_or_create, open_to_read

FILE = "relay.db"
LOCK = "lock"
FORMAT = "3"
FORMATS_READ = ("1", "2", FORMAT)  # 1: without `bd`, and envelopes without it; 2: without `sender`
BATCH_MAX = 256  # acts in one transaction
WAITING_MAX = 4_096  # acts that wait; more are refused, so memory has a bound
KNOWN_MAX = 8_192

T = TypeVar("T")
Act = Callable[[Db], T]
_Job = tuple[Act[Any], "Future[Any] | asyncio.Future[Any]", bool]  # Any: what an act returns is its caller's matter
_NONE = object()


class Store:
    """Opens or makes the store in a private folder. Raises RelayUnfit where another process serves it."""

    def __init__(self, folder: Path) -> None:
        private_files.ensure_private_folder(folder)
        self.path = folder / FILE
        self._lock = _locked(folder / LOCK)
        try:
            self._db = open_store(folder)
        except BaseException:  # a cancel too: the next opener needs the lock
            os.close(self._lock)
            raise
        self._reader = open_to_read(self.path)
        self._reading = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # without a lock held in Python code
        self._turn: list[_Job] = []  # what the event loop commits at the end of its turn
        self._writing, self._times = threading.Lock(), CommitTimes()
        self.failed: str = ""  # why nothing is written any more
        self.on_change: Callable[[str], None] = lambda _why: None  # of `failed`
        self.commits = 0
        self._known: dict[tuple[str, ...], Any] = {}
        self._changes, self._knowing = 0, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="relay-store", daemon=True)
        self._thread.start()

    def write(self, act: Act[T]) -> T:
        """The act's result, after its changes are synced. Blocks; called from a worker thread. Raises what the act
        raises, RelayBusy where the disk is full or too many acts wait, WitnessDamaged where the file is damaged."""
        return self._begun(act, only_mail=False).result()

    async def written(self, act: Act[T], *, only_mail: bool = False) -> T:
        """The same without a thread that waits. `only_mail`: nothing that `known` is asked for changes by it."""
        if self._times.slow:
            return await asyncio.wrap_future(self._begun(act, only_mail=only_mail))
        if len(self._turn) >= WAITING_MAX:
            raise RelayBusy("too many changes wait to be written")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if not self._turn:
            loop.call_soon(self._end_turn, loop)
        self._turn.append((act, done, only_mail))
        return await done

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs, self._turn = self._turn[:BATCH_MAX], self._turn[BATCH_MAX:]
        if self._turn:
            loop.call_soon(self._end_turn, loop)
        self._commit(jobs)

    def _begun(self, act: Act[T], *, only_mail: bool) -> Future[T]:
        if self._jobs.qsize() >= WAITING_MAX:
            raise RelayBusy("too many changes wait to be written")
        done: Future[T] = Future()
        self._jobs.put((act, done, only_mail))
        return done

    def read(self, act: Act[T]) -> T:
        """The act's result over what is committed. Blocks for the time of the query."""
        with self._reading:
            try:
                return act(self._reader)
            except apsw.Error as error:
                raise explained(error) from error

    def known(self, name: tuple[str, ...], act: Act[T]) -> T:
        """The same from memory, where nothing has changed since it was read under this name."""
        found = self._known.get(name, _NONE)
        if found is not _NONE:
            return found
        before = self._changes
        result = self.read(act)
        with self._knowing:
            if self._changes == before:  # else a commit came between, and what was read may be older
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[name] = result
        return result

    def close(self) -> None:
        """Writes what waits, then closes. Safe to repeat."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
            self._reader.close()
            self._db.close()
            os.close(self._lock)

    def _work(self) -> None:
        ends = False
        while not ends:
            first = self._jobs.get()
            jobs = [] if first is None else [first]
            ends = first is None
            while len(jobs) < BATCH_MAX and not ends:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                ends = more is None
                if more is not None:
                    jobs.append(more)
            if jobs:
                self._commit(jobs)

    def _commit(self, jobs: list[_Job]) -> None:
        # An act whose caller has left before it began is not done; from here on no caller can take its own back.
        jobs = [job for job in jobs if _is_wanted(job[1])]
        with self._writing:
            results = self._transacted(jobs)
        for done, result, error in results:
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

    def _transacted(self, jobs: list[_Job]) -> list[tuple[Any, Any, BaseException | None]]:  # Any: as in _Job
        results: list[tuple[Any, Any, BaseException | None]] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for act, done, _ in jobs:
                results.append((done, *self._acted(act)))
            began = time.perf_counter()
            self._db.execute("COMMIT")
            self._times.add(time.perf_counter() - began)
            self.commits += 1
            if not all(only_mail for _, _, only_mail in jobs):
                with self._knowing:
                    self._changes += 1
                    self._known.clear()
            self._now("")
        except apsw.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            why = explained(error)
            self._now(why.message)
            return [(done, None, why) for _, done, _ in jobs]
        return results

    def _now(self, failed: str) -> None:
        if failed != self.failed:
            self.failed = failed
            self.on_change(failed)

    def _acted(self, act: Act[Any]) -> tuple[Any, BaseException | None]:
        self._db.execute("SAVEPOINT act")
        try:
            result = act(self._db)
        except apsw.Error:
            raise  # the disk or the file: the whole transaction fails
        except Exception as error:  # noqa: BLE001 - it is raised where the act was asked for
            self._db.execute("ROLLBACK TO act")
            self._db.execute("RELEASE act")
            return None, error
        self._db.execute("RELEASE act")
        return result, None


def _is_wanted(done: Future[Any] | asyncio.Future[Any]) -> bool:
    return not done.done() if isinstance(done, asyncio.Future) else done.set_running_or_notify_cancel()


def open_store(folder: Path) -> Db:
    """The file with its tables, each commit synced. Raises RelayUnfit for a newer format."""
    path = folder / FILE
    if os.path.lexists(path):
        private_files.check_private_file(path)
    else:
        private_files.create_durably(path, b"")
    try:
        db = open_or_create(path)
        log_ahead(db, synchronous="FULL")
        db.pragma("foreign_keys", True)
        found = _format_of(db)
        if found in FORMATS_READ:
            db.execute("BEGIN IMMEDIATE")
            _upgrade(db)
            db.execute(files("holdfast.relay.server").joinpath("schema.sql").read_text("utf-8"))
            db.execute("INSERT OR REPLACE INTO meta VALUES ('format', ?)", (FORMAT,))
            db.execute("COMMIT")
            return db
    except apsw.Error as error:
        raise explained(error) from error
    db.close()
    raise RelayUnfit(f"{path} was written by a newer version of Holdfast", hint="install that version")


def _format_of(db: Db) -> str:
    """Of a new file: the newest."""
    if not _columns(db, "meta"):
        return FORMAT
    row = db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    return FORMAT if row is None else str(row[0])


def _upgrade(db: Db) -> None:
    """A store from before `bd`: no agent can read the envelopes that wait there now, so each leaves a tombstone without
    the name of its message. Its sender has no delivery note, and sends it again; then it is a new entry."""
    columns = _columns(db, "mail")
    if columns and "bd" not in columns:
        db.execute("ALTER TABLE mail ADD COLUMN bd BLOB NOT NULL DEFAULT x''")
        db.execute("UPDATE mail SET state = 2, envelope = NULL, dk = NULL, why = 'replaced' WHERE state = 0")
    if columns and "sender" not in columns:  # older entries count for no sender's share
        db.execute("ALTER TABLE mail ADD COLUMN sender BLOB NOT NULL DEFAULT x''")


def _columns(db: Db, table: str) -> set[str]:
    return {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})").fetchall()}


def explained(error: apsw.Error) -> HoldfastError:
    if isinstance(error, apsw.FullError | apsw.IOError | apsw.ReadOnlyError | apsw.CantOpenError):
        return RelayBusy(f"the relay cannot write to its disk ({error})")
    return WitnessDamaged(f"the relay's store cannot be used: {error}")


def _locked(path: Path) -> int:
    """One process serves a store: two would hold two copies of what they signed in memory."""
    fd = private_files.open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise RelayUnfit(
            f"another process serves the relay in {path.parent}", hint="stop it first, or give another --folder"
        ) from None
    return fd
