"""The one writer of this process: every change of the journal file goes through it.

An act is a function that checks first and writes after, inside a transaction that the writer opens and commits; it
raises a HoldfastError only before its first write. Acts that wait at the same moment share one transaction and so one
sync of the disk; an act that is refused does not disturb its neighbours. A lone act is committed at once on the event
loop. When the disk is slow (half of the commits over 2 ms) commits move to a thread.

What a failure means, three-valued:

* refused by the act, or the file system is full: the transaction is rolled back: *aborted*;
* the disk reports an I/O error: *unknown*. The kernel may have dropped the pages and called them
  clean, so nothing on this file is tried again (`broken`): this process stops writing, leaves the
  stop flag for the others, and the next one to open the journal alone rewrites it to a new file.

While space is short, acts that begin an effect are refused before anything is sent, and the
reserve file is given up so that results of effects already under way can still be recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import apsw
import msgspec

from holdfast.core.reading_ring import only_read
from holdfast.errors import CommitUnknown, HoldfastError, InvariantViolated, JournalBusy, JournalFull, JournalStopped
from holdfast.host.sqlite import CommitTimes, Db
from holdfast.journal.sqlite.host.high_water import raise_stamp
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.sql_errors import translated, unreadable
from holdfast.journal.sqlite.totals import read_total
from holdfast.journal.sqlite.txn import NEWEST, StaleHold, Txn
from holdfast.journal.steady import Moment, SteadyTime
from holdfast.journal.total import RunningTotal

T = TypeVar("T")

BUSY_WAIT_MS = 20  # short: the event loop waits with it
BUSY_RETRY_S = 0.01
BUSY_MAX_S = 30.0
VERY_SLOW_COMMIT_S = 0.025
RESERVE_RETRY_S = 1.0
GIVE_WAY_S = 0.005
WAL_PAGES = 2_000  # about 8 MiB between two wal_checkpoints
GROUP_MAX = 2_000  # acts in one transaction; bounds its memory and the time it holds the lock


def _nothing(_result: object) -> None:
    return None


Act = Callable[[Txn], T]


class _Op(msgspec.Struct, eq=False, gc=False):  # no cycle outlives the wait for it
    act: Callable[[Txn], object]
    begins: bool
    adds_only: bool
    since: float
    future: asyncio.Future[object] | None = None
    result: object = None
    error: BaseException | None = None
    decided: bool = False

    def decide(self, error: BaseException | None) -> None:
        """Tell the waiting caller; a caller that was cancelled reads `decided` and `error` itself."""
        self.decided, self.error = True, error
        if self.future is None or self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(self.result)


class _ActBroke(Exception):
    def __init__(self, op: _Op, error: Exception) -> None:
        super().__init__(str(error))
        self.op = op
        self.error = error


class Writer:
    def __init__(self, db: Db, instance: Instance, running: RunningTotal, *, reads_only: bool = False) -> None:
        self._db = db
        self._running = running
        self._total: int = 0  # what the file said last
        self._stored: bytes = b""  # the same as it is there
        self._instance = instance
        self._clock = instance.clock
        self._steady = SteadyTime(instance.clock)
        self._wal_pages = 0
        db.set_wal_hook(self._note_wal)
        self._queue: deque[_Op] = deque()
        self._scheduled = False
        self.committing = False
        self._times = CommitTimes()
        self._pool: ThreadPoolExecutor | None = None
        self._full_since: float | None = None
        self._gave_way = 0.0
        self.lone = True  # at most one task runs here: there is no other to share a commit with
        self.broken = ""
        self._refusal: HoldfastError | None = None
        self.sequence = 0
        self.newest = Moment(0, 0)
        self.commits = 0
        if reads_only:
            self.refuse(only_read())

    async def write(
        self, act: Act[T], *, begins: bool = False, adds_only: bool = False, then: Callable[[T], None] = _nothing
    ) -> T:
        """Run the act in a transaction; on return it is durable.

        `adds_only`: it moves its task and adds records, and reads no records.

        A cancel waits until the act is decided: a write that is broken off would be in doubt.
        `then` gets the result of a committed act in either case.

        Raises what the act raised; JournalFull, JournalBusy (nothing written); CommitUnknown.
        """
        if self.broken or self._full_since is not None:
            self._check_usable(begins=begins)
        op = _Op(act, begins, adds_only, time.monotonic())
        loop = asyncio.get_running_loop()
        # A lone task waits for its commit anyway; only a very slow disk holds up the rest. What others ask for waits
        # for the end of the loop's turn: 500 submits of one turn share a commit.
        at_once = (
            adds_only
            and self.lone
            and not (self._queue or self.committing or self._times.median_s > VERY_SLOW_COMMIT_S)
        )
        if at_once and self._commit([op]):
            if op.error is not None:
                raise op.error
            then(cast(T, op.result))
            await self._give_way(loop)
            return cast(T, op.result)
        op.future = loop.create_future()
        self._queue.append(op)
        if not self._scheduled and not self.committing:
            self._scheduled = True
            loop.call_soon(self._flush)
        try:
            result: Any = await op.future  # Any: what the act gave
        except asyncio.CancelledError:
            # The cancel has ended that future. If the act was not decided by then, it is waited for with another one.
            if not op.decided:
                op.future = loop.create_future()
                await _decided(op.future)
            if not op.future.cancelled():
                op.future.exception()  # seen: the cancel goes before it
            if op.error is None:
                then(cast(T, op.result))
            raise
        then(result)
        return result

    async def drain(self) -> None:
        """Wait until nothing is queued or being committed."""
        while self._queue or self.committing or self._scheduled:  # noqa: ASYNC110 - when closing
            await asyncio.sleep(0.001)

    async def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        """A task of quick steps would never let the lease be renewed: yield now and then."""
        now = loop.time()
        if now - self._gave_way > GIVE_WAY_S:
            await asyncio.sleep(0)
            self._gave_way = loop.time()

    def close(self) -> None:
        """End. A process that has written lets SQLite move the log, under a stamp of its own; one that only
        read leaves the log as it is."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self.commits and not self.broken:
            try:
                self._raise_stamp()
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            except apsw.IOError as error:  # the next process would write on behind lost pages
                self._roll_back()
                self._break(f"the disk reported an error: {error}")
            except apsw.Error:
                self._roll_back()  # the log stays; the next one to write moves it

    @property
    def busy(self) -> bool:
        return bool(self._queue) or self.committing

    def refuse(self, error: HoldfastError) -> None:
        """Write no more: the file is not the journal any more."""
        self.broken, self._refusal = error.message, error

    def remember_newest(self) -> None:
        """Start from the newest record of the file."""
        self.sequence, self.newest, _ = self._newest()

    @property
    def full(self) -> bool:
        """Whether space is short. Checked again here, because an idle process begins no step to find out."""
        if self._full_since is not None:
            with contextlib.suppress(JournalFull):
                self._try_leave_full()
        return self._full_since is not None

    def _check_usable(self, *, begins: bool) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message)
        if self.broken:
            raise JournalStopped(f"the journal accepts no writes: {self.broken}")
        if begins and self._full_since is not None:
            self._try_leave_full()

    def _try_leave_full(self) -> None:
        now = time.monotonic()
        if self._full_since is not None and now - self._full_since < RESERVE_RETRY_S:
            raise JournalFull("no space left for the journal: no new step begins")
        if not self._instance.reserve.try_restore():
            self._full_since = now
            raise JournalFull("no space left for the journal: no new step begins")
        self._full_since = None

    def _flush(self) -> None:
        self._scheduled = False
        if self.committing or not self._queue:
            return
        ops = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX))]
        if self._times.slow:
            self.committing = True
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-journal")
            loop = asyncio.get_running_loop()
            loop.run_in_executor(self._pool, self._commit, ops).add_done_callback(
                lambda done: self._finish(ops, done.result())
            )
        else:
            self._finish(ops, self._commit(ops))

    def _finish(self, ops: list[_Op], done: bool) -> None:
        self.committing = False
        loop = asyncio.get_running_loop()
        if not done:
            self._requeue(ops, loop)
            return
        for op in ops:
            op.decide(op.error)
        if self._queue and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)

    def _requeue(self, ops: list[_Op], loop: asyncio.AbstractEventLoop) -> None:
        limit = time.monotonic() - BUSY_MAX_S
        for op in reversed(ops):
            if op.since > limit:
                self._queue.appendleft(op)
            else:
                op.decide(JournalBusy("another process holds the write lock of the journal"))
        self._scheduled = True
        loop.call_later(BUSY_RETRY_S, self._flush)

    def _commit(self, ops: list[_Op], *, one_by_one: bool = False) -> bool:
        """One transaction for these acts. False: the lock is held elsewhere, try again."""
        try:
            wrote = self._transact(ops, one_by_one=one_by_one)
        except StaleHold:
            self._roll_back()
            return self._commit(ops, one_by_one=True)
        except apsw.BusyError:
            self._roll_back()
            return False
        except _ActBroke as broke:
            self._roll_back()
            broke.op.result, broke.op.error = None, broke.error
            rest = [op for op in ops if op is not broke.op]
            return self._commit(rest, one_by_one=one_by_one) if rest else True
        except apsw.FullError as error:
            self._roll_back()
            return self._commit_in_need(ops, error)
        except apsw.Error as error:
            self._fail(ops, self._judge(error))
            return True
        if wrote:
            self.commits += 1
            self._instance.raise_mark(self.sequence)
            if self._wal_pages >= WAL_PAGES:
                self._move_wal()
        return True

    def _transact(self, ops: list[_Op], *, one_by_one: bool) -> bool:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            number, newest, stored = self._newest()
            if stored != self._stored:  # another process wrote it
                self._total, self._stored = read_total(db, self._running), stored
            at_ms = self._steady.now_ms(newest)
            txn = Txn(
                db,
                number=number,
                at_ms=at_ms,
                boot_ms=self._clock.boot_ms(),
                running=self._running,
                total=self._total,
                stored=stored,
                one_by_one=one_by_one or len(ops) == 1,
                records=2 * len(ops),
            )
            refused = 0
            for op in ops:
                op.error = None
                if not op.adds_only:
                    txn.write_out()  # it may read them
                try:
                    op.result = op.act(txn)
                except HoldfastError as error:
                    op.error = error
                    refused += 1
                except apsw.Error:
                    raise
                except UnicodeDecodeError as error:
                    op.error = unreadable(error)
                    refused += 1
                except Exception as error:  # a defect in one act must not strand the others
                    raise _ActBroke(op, error) from error
                txn.write_part()
            if refused == len(ops):
                db.execute("ROLLBACK")
                return False
            txn.close()
            # Only this waits for the disk; what came before is work of our own.
            began = time.perf_counter()
            db.execute("COMMIT")
            self._times.add(time.perf_counter() - began)
        except apsw.Error:
            raise
        except BaseException:  # whatever it is, no transaction may stay open
            self._roll_back()
            raise
        if txn.number < self.sequence:
            raise InvariantViolated("I8", "the journal's sequence fell")
        self.sequence = txn.number
        self.newest = Moment(at_ms, txn.boot_ms)
        self._total, self._stored = txn.total, txn.stored
        return True

    def _note_wal(self, _db: object, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _move_wal(self) -> None:
        """A wal_checkpoint under a stamp of its own; where it is complete, the stamp is noted."""
        try:
            stamp = self._raise_stamp()
            pages, moved = self._db.wal_checkpoint()
            if pages == moved:
                self._instance.note_stamp(stamp)
        except apsw.IOError as error:
            self._break(f"the disk reported an error: {error}")
        except (apsw.Error, OSError, HoldfastError):
            self._roll_back()  # busy or full: the next commit tries again

    def _raise_stamp(self) -> int:
        self._db.execute("BEGIN IMMEDIATE")
        stamp = raise_stamp(self._db)
        self._db.execute("COMMIT")
        return stamp

    def _newest(self) -> tuple[int, Moment, bytes]:
        row = self._db.execute(NEWEST).fetchone()
        number, at_ms, boot_ms, stored = (0, 0, 0, b"") if row is None else cast("tuple[int, int, int, bytes]", row)
        return number, Moment(at_ms, boot_ms), stored

    def _commit_in_need(self, ops: list[_Op], error: apsw.Error) -> bool:
        """No space: refuse what begins an effect, record the rest with the reserve's space."""
        self._full_since = time.monotonic()
        refused = JournalFull(f"no space left for the journal ({error}): nothing was written")
        rest = [op for op in ops if not op.begins]
        self._fail([op for op in ops if op.begins], refused)
        if not rest:
            return True
        if self._instance.reserve.held:
            self._instance.reserve.release()
            return self._commit(rest)
        self._fail(rest, refused)
        return True

    def _judge(self, error: apsw.Error) -> HoldfastError:
        """What a failed transaction means. Only the disk's own errors leave it unknown."""
        in_doubt = isinstance(error, apsw.IOError)
        self._roll_back()
        if in_doubt:
            self._break(f"the disk reported an error: {error}")
            return CommitUnknown(f"the disk reported an error while committing: {error}")
        return translated(error)

    def _break(self, why: str) -> None:
        self.broken = why
        self._instance.stop(why)

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except apsw.Error as error:
            self.broken = f"cannot roll back: {error}"

    @staticmethod
    def _fail(ops: list[_Op], error: HoldfastError) -> None:
        for op in ops:
            op.result, op.error = None, error


async def _decided(future: asyncio.Future[object]) -> None:
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            continue  # one cancel is raised afterwards, for all of them
