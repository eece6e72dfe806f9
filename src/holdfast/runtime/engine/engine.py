"""The engine: claims tasks, runs them, renews the lease, sweeps up after the dead.

One engine serves one session. It is the same in `holdfast worker` and inside a program that called `holdfast.open`;
what differs is what happens when the lease is lost: a worker process is killed by its timer or ends, an embedded engine
fences its runs and begins a new session.

Tasks are claimed in the order they became due, a batch at a time. A task whose last runs killed their process is a
suspect; see suspects.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast import errors
from holdfast.core.clock import Clock, Entropy
from holdfast.core.ids import EffectKeys, TaskId, fingerprint_key
from holdfast.core.mail import Post
from holdfast.core.notices import Notices
from holdfast.core.ports import KeyRing, Memory
from holdfast.core.waiting import ALONE, Pacing
from holdfast.host.log import Log
from holdfast.journal.builds import NO_BUILD, Build
from holdfast.journal.contract import Claimed, Hold, Journal, Session, Submission, Submitted
from holdfast.journal.durability import Durability
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine.claimer import CLAIM_EVERY_S, Claimer, Room
from holdfast.runtime.engine.suspects import Suspects
from holdfast.runtime.engine.upkeep import Upkeep
from holdfast.runtime.scratch.scratch import Scratch, ScratchFolders, chained
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.session.deadlines import Deadlines
from holdfast.runtime.session.deadman import Timer
from holdfast.runtime.session.lease import BoundLease, Right, SessionLease
from holdfast.runtime.session.task_writer import Flusher, TaskWriter
from holdfast.runtime.step.attempt import Caller, WatchedCaller
from holdfast.runtime.step.steps import Steps
from holdfast.runtime.task.execute import execute, rest_as_defect, why_ended
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.task import SCOPE_NAME, TaskType
from holdfast.runtime.tool.blocking import ChildPool, Threads
from holdfast.runtime.tool.file_watch import FileWatch

TROUBLE_EVERY_S, AGAIN_S = 5.0, 0.5
ENDED_MAX, ENDED_RECORDS_MAX = 20, 100  # views of tasks that have ended: so many, each with at most so many records
CANCELS_MAX, CANCEL_EVERY_S = 3, 1.0  # for a run whose code swallows the first ones


class Engine:
    """Serves the tasks of one journal with a set of task functions."""

    def __init__(
        self,
        *,
        journal: Journal,
        keys: KeyRing,
        clock: Clock,
        entropy: Entropy,
        tasks: Iterable[TaskType],
        tools: Iterable[Any] = (),
        settings: Settings,
        notices: Notices | None = None,
        log: Log | None = None,
        dead_man: Timer | None = None,
        secrets: Secrets = NO_SECRETS,
        scratch_root: Path | None = None,
        memory: Memory | None = None,
        post: Post | None = None,
        right: Right | None = None,
        build: Build = NO_BUILD,
        room: Room | None = None,
        pacing: Pacing = ALONE,
        files: FileWatch | None = None,
    ) -> None:
        self._pacing, self._files, self._memory, self._post = pacing, files, memory, post
        self._right, self._build = right, build
        self.journal = journal
        self._scratch_folders = None if scratch_root is None else ScratchFolders(scratch_root)
        self.clock, self.entropy, self.settings = clock, entropy, settings
        self.tasks = {task.name: task for task in tasks}
        self.tools = {tool.name: tool for tool in tools}
        self.log = log or Log()
        self.lease: SessionLease | None = None
        self._effect_keys, self._fingerprint_key = EffectKeys(keys.k_effect), fingerprint_key(keys.k_effect)
        self._dead_man, self._secrets = dead_man, secrets
        self._writers: dict[TaskId, TaskWriter] = {}
        self._running: dict[TaskId, asyncio.Task[None]] = {}
        self._suspects = Suspects(self._writers)
        self._claimer = Claimer(
            journal, settings, self._suspects, names=self._served(), active=lambda: self.active, room=room, pace=pacing
        )
        self._strays: list[Hold] = []  # of runs that ended without a record of their own
        self._children: ChildPool | None = None
        self._threads = Threads()
        self._upkeep = Upkeep(
            journal=journal,
            settings=settings,
            log=self.log,
            notices=notices,
            secrets=secrets,
            folders=self._scratch_folders,
            on_trouble=self._on_trouble,
            pacing=pacing,
        )
        self._deadlines = Deadlines(self._upkeep.tell_stuck)
        self._flusher = Flusher()
        self._wanted: dict[TaskId, list[asyncio.Future[Claimed]]] = {}
        self._inbox_seen = 0
        self.ended: deque[TaskView] = deque(maxlen=ENDED_MAX)  # here, until the hand-off has taken them
        self._stopping, self._fatal = asyncio.Event(), cast("asyncio.Future[None] | None", None)
        self._troubled: dict[str, float] = {}
        self.finished: Callable[[TaskId, TaskState], None] = lambda _task, _state: None
        self.counts: dict[str, int] = {"runs": 0, "finished": 0, "fenced": 0, "claims": 0}

    @property
    def active(self) -> int:
        return len(self._running)

    @property
    def durability(self) -> Durability | None:  # as it was last seen
        return self._upkeep.durability

    def views(self) -> list[TaskView]:  # of the tasks that this engine holds now, as it knows them
        return [writer.view for writer in self._writers.values()]

    async def serve(self) -> None:
        """Work until `stop`; raises SessionLost or what made further work impossible."""
        self._fatal = asyncio.get_running_loop().create_future()
        stopping = asyncio.create_task(self._stopping.wait())
        # Beside the session: it cannot begin while the journal's standby is gone, and that is what they tell.
        told = (self._upkeep.watch_durability, self._upkeep.tell_notices)
        helpers = [asyncio.create_task(self._guarded(work)) for work in told]
        session: Session | None = None
        self._claimer.join()
        try:
            session = await self.open_session()
            helpers += [asyncio.create_task(self._guarded(work)) for work in self._loops()]
            await asyncio.wait((stopping, self._fatal), return_when=asyncio.FIRST_COMPLETED)
            await self._end_runs(lost=self._fatal.done())
        finally:
            for helper in (*helpers, stopping):
                helper.cancel()
            await asyncio.wait((*helpers, stopping))
            self._claimer.leave()
            if session is not None:
                await self._close_session(session, orderly=not self._fatal.done())
        if self._fatal.done():
            self._fatal.result()

    async def open_session(self) -> Session:
        name = self.settings.worker_name or f"{socket.gethostname()}:{os.getpid()}"
        self._arm_for_write()
        ttl_ms = int(self.settings.lease_ttl_s * 1000)
        session = await self.journal.open_session(worker=name, ttl_ms=ttl_ms, serves=self._served(), build=self._build)
        right = self._right
        self.lease = SessionLease(session, self.clock) if right is None else BoundLease(session, self.clock, right)
        self._arm()
        self._children = ChildPool(session.lock_fd(), watch=self._files)
        self.log.event("session-begun", session=session.session_id, worker=name)
        return session

    async def submit(self, submission: Submission) -> Submitted:
        """Accept a task of this agent; it may begin with the same commit."""
        may_claim = self.lease is not None and self.lease.ok() and not self._stopping.is_set()
        session = self.lease.session if self.lease is not None and may_claim else None
        return await self._claimer.submit(session, submission, self._begin)

    def stop(self) -> None:
        """Finish what is under way, give the rest back, end."""
        self._stopping.set()

    def give_up(self) -> None:
        """The lease is about to end: nothing that runs here may act any more."""
        if self.lease is not None:
            self.lease.lost = True
        self._fail(errors.SessionLost("the lease could not be renewed in time"))

    def writer_for(self, claimed: Claimed) -> tuple[TaskWriter, Steps]:
        if self.lease is None or self._children is None:
            raise errors.SessionLost("no session is open")
        writer = TaskWriter(
            journal=self.journal,
            hold=claimed.hold,
            view=claimed.view,
            inbox=list(claimed.inbox),
            clock=self.clock,
            on_trouble=self._on_trouble,
            flusher=self._flusher,
            secrets=self._secrets,
            log=self.log,
        )
        make = Caller if self._files is None else partial(WatchedCaller, files=self._files)
        caller = make(
            lease=self.lease,
            children=self._children,
            threads=self._threads,
            deadlines=self._deadlines,
            secrets=self._secrets,
            memory=self._memory,
            post=self._post,
        )
        folders, limits = self._scratch_folders, self.settings.scratch_limits
        steps = Steps(
            writer=writer,
            caller=caller,
            clock=self.clock,
            effect_keys=self._effect_keys,
            fingerprint_key=self._fingerprint_key,
            pace=self.settings.pace,
            open_scratch=None if folders is None else partial(Scratch, folders=folders, limits=limits),
        )
        return writer, steps

    def watch(self, writer: TaskWriter) -> None:
        """Hand inbox items of this task to the writer while it is held here."""
        self._writers[writer.view.task_id] = writer

    def unwatch(self, writer: TaskWriter, *, rested: bool) -> None:
        """Let go of it. A hold that no record has given back is released by the next sweep. Not where the lease is
        lost: then the next claim counts it as a death."""
        self._writers.pop(writer.view.task_id, None)
        self._suspects.left(writer.view.task_id)
        if not rested and self.lease is not None and not self.lease.lost:
            self._strays.append(writer.hold)

    # the loops

    def _loops(self) -> list[Callable[[], Any]]:
        loops = [self._renew, self._sweep, self._upkeep.tidy, self._upkeep.watch_unserved]
        if self._right is not None:
            loops.append(self._watch_right)
        if self._build.drains:
            loops.append(self._end_drained)
        return loops if self._secrets is NO_SECRETS else [*loops, self._upkeep.watch_secrets]

    async def _watch_right(self) -> None:
        """The agent's lease moves on beside this session's: the timer follows it."""
        while self._right is not None and self.lease is not None:
            self._arm()
            if self.lease.left_ms() <= 0:
                raise errors.SessionLost("the agent's lease is over: another instance may act")
            await asyncio.sleep(self._right.look_every_s)

    async def _end_drained(self) -> None:
        await self._upkeep.wait_drained(self._build, lambda: (self.active, self.counts["claims"]))
        self.stop()

    async def _guarded(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
                return
            except asyncio.CancelledError:
                raise
            except (errors.JournalBusy, errors.JournalFull) as error:
                self._on_trouble(error)
                await asyncio.sleep(AGAIN_S)
            except BaseException as error:  # noqa: BLE001 - ends the session, with the reason
                self._fail(error)
                return

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pacing.renew_in_s(self.settings.renew_every_s, now_s=loop.time()))
            if self.lease is None:
                return
            # Lost once is lost: a wall clock that was set back since must not hide it.
            if self.lease.was_frozen() or self.lease.lost:
                raise errors.SessionLost("this machine was paused: its clocks stopped")
            try:
                await self.journal.renew(self.lease.session)
                self._arm()
            except (errors.JournalBusy, errors.JournalFull) as error:
                self._on_trouble(error)
            if self.lease.left_ms() <= 0:
                raise errors.SessionLost("the lease could not be renewed in time")

    async def _sweep(self) -> None:
        last, seen, loop = -1.0, 0, asyncio.get_running_loop()
        while not self._stopping.is_set():
            wait_s = CLAIM_EVERY_S - (loop.time() - last)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            last = loop.time()
            try:
                await self._release_strays()
                await self.journal.check_total()
                claimed = await self._claim()
                await self._read_inbox()
            except (errors.JournalBusy, errors.JournalFull) as error:
                self._on_trouble(error)
                claimed = 0
            if self._claimer.lacks_places():
                await self._claimer.wait_places()
            elif not claimed or self._claimer.took_all or self.active >= self.settings.concurrency:
                seen = await self.journal.wait_change(timeout_s=await self._claimer.pause_s(claimed), seen=seen)

    async def _claim(self) -> int:
        if self.lease is None or not self.lease.ok() or self._stopping.is_set():
            return 0
        with self._claimer.places() as places:
            claimed = await self._claimer.claim(self.lease.session, places)
            for one in claimed:
                self._begin(one)
        return len(claimed)

    def _served(self) -> list[str]:
        """The names of the tasks that this engine claims."""
        return [*self.tasks, SCOPE_NAME] if self.tools else [*self.tasks]

    async def _release_strays(self) -> None:
        """No other session may claim what this one holds: give back what it has lost."""
        while self._strays:
            await self.journal.release(self._strays[0])
            self._strays.pop(0)

    @contextlib.contextmanager
    def wanted(self, task_id: TaskId) -> Generator[asyncio.Future[Claimed]]:
        """While code of this process waits for a scope, a claim of it is given to that code."""
        given: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
        waiting = self._wanted.setdefault(task_id, [])
        waiting.append(given)
        try:
            yield given
        except BaseException:  # a cancel of the one who waits, most of all: the claim must not be lost with it
            if given.done() and not given.cancelled():
                self._strays.append(given.result().hold)  # theirs, and they have left
                self._suspects.left(task_id)
            raise
        finally:
            waiting.remove(given)
            if not waiting:
                del self._wanted[task_id]

    def _begin(self, claimed: Claimed) -> None:
        if self._stopping.is_set() or self.lease is None or self.lease.lost:
            return  # the end of the session gives it back
        try:
            self._start(claimed)
        except BaseException as error:  # noqa: BLE001 - as in `_guarded`, whoever asked for the claim
            self._fail(error)
        self.counts["claims"] += 1

    def _start(self, claimed: Claimed) -> None:
        task_id = claimed.hold.task_id
        for given in self._wanted.get(task_id, ()):
            if not given.done():
                given.set_result(claimed)
                return
        writer, steps = self.writer_for(claimed)
        self.watch(writer)  # at once: the inbox is read next
        self._running[task_id] = asyncio.create_task(self._run(claimed, writer, steps), name=f"task {task_id}")

    async def _run(self, claimed: Claimed, writer: TaskWriter, steps: Steps) -> None:
        task_id = claimed.hold.task_id
        self.counts["runs"] += 1
        state: TaskState | None = None
        try:
            if claimed.view.name == SCOPE_NAME:
                from holdfast.runtime.task.scope import settle_scope

                state = await settle_scope(writer, steps, self.tools)
            else:
                run = Run(steps=steps, clock=self.clock, entropy=self.entropy)
                task = self.tasks[claimed.view.name]
                state = await execute(
                    task,
                    run,
                    writer,
                    on_change=lambda what: self.log.event("task-changed", task=task_id, changed=what),
                    on_refused=partial(self.on_refused, task_id),
                )
        except asyncio.CancelledError:
            pass
        except (errors.JournalBusy, errors.JournalFull) as error:
            self._on_trouble(error)
        except errors.InvariantViolated as error:
            with contextlib.suppress(errors.HoldfastError, errors.Signal):
                state = await rest_as_defect(writer, error)
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - a dead journal: stop, never guess
            self._fail(error)
        finally:
            self.unwatch(writer, rested=state is not None)
            self._running.pop(task_id, None)
            self._claimer.freed()
            self._note_end(task_id, writer, state)
            if writer.scratch is not None:
                self._remove_scratch(writer.scratch, task_id, state)

    def _remove_scratch(self, scratch: Scratch, task_id: TaskId, state: TaskState | None) -> None:
        """The journal has it all; what is here is removed beside the loop, or by a sweep."""
        remove = scratch.close()
        loop = asyncio.get_running_loop()
        if state in (TaskState.SUCCEEDED, TaskState.CANCELLED) and self._scratch_folders is not None:
            loop.run_in_executor(None, chained, remove, partial(self._scratch_folders.forget, task_id))
        else:
            loop.run_in_executor(None, remove)

    def _note_end(self, task_id: TaskId, writer: TaskWriter, state: TaskState | None) -> None:
        self.counts["fenced" if state is None else "finished"] += 1
        ended = "fenced" if state is None else state.value
        why = {} if state is None else why_ended(writer.view)
        self.log.event("run-ended", task_id=task_id, epoch=writer.hold.epoch, state=ended, **why)
        if state is not None:
            self.finished(task_id, state)
        if state in ENDED and writer.view.seq < ENDED_RECORDS_MAX:
            self.ended.append(writer.view)

    async def _read_inbox(self) -> None:
        for item in await self.journal.read_inbox(after=self._inbox_seen):
            self._inbox_seen = max(self._inbox_seen, item.number)
            writer = self._writers.get(item.task_id)
            if writer is not None:
                writer.add_to_inbox(item)

    # ends

    async def _end_runs(self, *, lost: bool) -> None:
        """Stopping: let calls finish for a while. Lost: no run may act any more."""
        if lost and self.lease is not None:
            self.lease.lost = True
        running = dict(self._running)
        for writer in self._writers.values():
            if lost:
                writer.fenced = True
            elif writer.view.task_id in running:
                writer.stop()
        held = self._writers
        calling = [run for task_id, run in running.items() if not lost and task_id in held and held[task_id].calls]
        await self._cancel([run for run in running.values() if run not in calling])
        if calling:
            await asyncio.wait(calling, timeout=self.settings.grace_s * self.settings.pace)
            await self._cancel([run for run in calling if not run.done()])

    async def _cancel(self, runs: list[asyncio.Task[None]]) -> None:
        """End these runs; code that will not end is left behind, fenced."""
        for _ in range(CANCELS_MAX):
            runs = [run for run in runs if not run.done()]
            if not runs:
                return
            for run in runs:
                run.cancel()
            await asyncio.wait(runs, timeout=CANCEL_EVERY_S)
        for task_id, run in self._running.items():
            if run in runs and task_id in self._writers:
                self._writers[task_id].fenced = True
                self.log.event("run-stuck", task_id=task_id)

    async def _close_session(self, session: Session, *, orderly: bool) -> None:
        if self._children is not None:
            await self._children.close()
        self._arm_for_write()
        with contextlib.suppress(errors.HoldfastError):
            await self.journal.end_session(session, orderly=orderly)
        if self._dead_man is not None:
            self._dead_man.disarm()
        self._strays.clear()  # given back with the session, or left to the next claim
        self.lease = None
        self.log.event("session-ended", session=session.session_id, orderly=orderly)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, errors.RunFenced):
            error = errors.SessionLost("this session is fenced")
        if self._fatal is not None and not self._fatal.done():
            self._fatal.set_exception(error)
            self.log.event("session-failing", error=f"{type(error).__name__}: {error}")

    def _arm(self) -> None:
        if self._dead_man is not None and self.lease is not None:
            self._dead_man.arm_at(self.lease.deadline_boot_ms)

    def _arm_for_write(self) -> None:
        """Without a lease too: a process stopped inside a commit keeps the journal's write lock,
        and no other process could write for as long as it is stopped."""
        if self._dead_man is not None:
            self._dead_man.arm(self.settings.lease_ttl_s)

    def on_refused(self, task_id: TaskId, ordinal: str, tool: str, rule: str) -> None:
        """A gate has refused a call."""
        self.log.event("call-refused", task=task_id, ordinal=ordinal, tool=tool, rule=rule)

    def _on_trouble(self, error: errors.HoldfastError) -> None:
        """Say it once in a while, not at every retry."""
        now = asyncio.get_running_loop().time()
        if now - self._troubled.get(error.code, -TROUBLE_EVERY_S) >= TROUBLE_EVERY_S:
            self._troubled[error.code] = now
            self.log.event("trouble", code=error.code, error=error.message, hint=error.hint)
        if isinstance(error, errors.JournalStopped):
            self._fail(error)
