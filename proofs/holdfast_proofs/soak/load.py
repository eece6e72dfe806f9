"""One run of the load: submit as there is room, kill each second, settle what is parked.

The number of unfinished tasks is kept constant, so that a task's wait says something about
fairness and not about how long the whole load takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.http_server import LOOPBACK
from holdfast.downstream.process import FarEnd, start
from holdfast.errors import JournalBusy
from holdfast.journal.records import ENDED, TaskState
from holdfast_proofs.soak.app import FAR_ENDS, TASK
from holdfast_proofs.soak.books import Books, log_path
from holdfast_proofs.soak.person import Person
from holdfast_proofs.soak.site import Site
from holdfast_proofs.soak.workers import Workers

LOOK_EVERY_S = 0.1
STALL_S_MAX = 120.0  # with no task ended in this time the run is given up, and is red
SUBMIT_BATCH = 64  # submitted at once: they share a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does."""

    tasks: int
    steps: int
    workers: int
    concurrency: int
    backlog: int  # unfinished tasks at any time
    kill_every_s: float = 0.0  # 0: nobody is killed
    lost_replies: float = 0.0  # share of effects whose reply the far end drops
    kills_max: int | None = None
    seed: int = 0

    def is_deadly(self, kills: int) -> bool:
        """Whether one more worker is to be killed."""
        return self.kill_every_s > 0 and (self.kills_max is None or kills < self.kills_max)


@dataclass(slots=True, kw_only=True)
class Ran:
    """What happened, before anybody judges it."""

    seconds: float = 0.0
    ended: dict[TaskState, int] = field(default_factory=dict[TaskState, int])
    kills: int = 0
    parents_killed: int = 0
    settled: dict[str, int] = field(default_factory=dict[str, int])
    retried: int = 0
    asked: set[str] = field(default_factory=set[str])
    dropped: int = 0  # replies
    dropped_once: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # Unrepeatable
    trouble: str = ""  # the run could not go on

    @property
    def finished(self) -> int:
        return sum(self.ended.get(state, 0) for state in ENDED)


Tell = Callable[[str], None]


async def run_load(plan: Plan, site: Site, tell: Tell) -> Ran:
    """Make the journal and run the load on it; the folder keeps everything."""
    folder, ran = site.journal.folder, Ran()
    async with far_ends(plan, folder, host=site.services) as ends, holdfast.open(site.journal, serve=False) as hf:
        site.make_table()
        workers = Workers(
            site, count=plan.workers, concurrency=plan.concurrency, log=folder / "workers.log", seed=plan.seed
        )
        person = Person(hf, Books(folder, FAR_ENDS))
        try:
            await _wait_serving(hf, plan.workers)
            await _drive(plan, hf, workers, person, {end.kind: end.url for end in ends}, ran, tell)
        finally:
            await asyncio.to_thread(workers.stop)
        ran.kills, ran.parents_killed = workers.kills, workers.parents_killed
        ran.settled, ran.retried, ran.asked = person.settled, person.retried, person.asked
        for end in ends:
            await _count_dropped(end, ran)
    return ran


async def _count_dropped(end: FarEnd, ran: Ran) -> None:
    await end.wait_idle()
    dropped = [one for one in (await end.ledger()).requests if one.fault is not None]
    ran.dropped += len(dropped)
    if end.kind == "unrepeatable":
        ran.dropped_once = {(one.task or "", one.step or "") for one in dropped if one.effect}


async def _drive(
    plan: Plan, hf: Holdfast, workers: Workers, person: Person, urls: dict[str, str], ran: Ran, tell: Tell
) -> None:
    began = moved = time.monotonic()
    next_kill = began + plan.kill_every_s
    submitted = 0
    while ran.finished < plan.tasks:
        now = time.monotonic()
        count = min(plan.tasks, ran.finished + plan.backlog) - submitted
        submitted += await _submit(hf, urls, plan, first=submitted, count=count)
        if plan.is_deadly(workers.kills) and now >= next_kill:
            killed = workers.kill_one(await hf.journal.list_sessions())
            next_kill = max(next_kill + plan.kill_every_s, now) if killed else now
        with contextlib.suppress(JournalBusy):
            await person.look()
        before, ran.ended = ran.finished, await hf.journal.count_tasks()
        if ran.finished > before:
            moved = now
        ran.seconds = time.monotonic() - began
        tell(f"{ran.finished} of {plan.tasks} tasks, {workers.kills} kills, {ran.seconds:.0f} s")
        ran.trouble = workers.find_ended() or ""
        if not ran.trouble and now - moved > STALL_S_MAX:
            ran.trouble = f"no task has ended for {STALL_S_MAX:g} s"
        if ran.trouble:
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _wait_serving(hf: Holdfast, count: int) -> None:
    """The first start of the workers is no part of the load."""
    async with asyncio.timeout(STALL_S_MAX):
        while True:
            sessions = await hf.journal.list_sessions()
            if sum(one.alive for one in sessions) >= count:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _submit(hf: Holdfast, urls: dict[str, str], plan: Plan, *, first: int, count: int) -> int:
    count = max(0, min(count, SUBMIT_BATCH))
    await asyncio.gather(
        *(
            hf.submit(TASK, request_id=str(number), urls=urls, number=number, steps=plan.steps)
            for number in range(first, first + count)
        )
    )
    return count


@contextlib.asynccontextmanager
async def far_ends(plan: Plan, folder: Path, *, host: str = LOOPBACK) -> AsyncGenerator[list[FarEnd]]:
    """One counting far end per class."""
    async with contextlib.AsyncExitStack() as stack:
        ends: list[FarEnd] = []
        for number, kind in enumerate(FAR_ENDS):
            lost = Fault(
                kind=FaultKind.DROP_REPLY,
                n=None,
                probability=plan.lost_replies,
                seed=plan.seed * len(FAR_ENDS) + number,
            )
            faults = [lost] if plan.lost_replies else []
            ends.append(
                await stack.enter_async_context(start(kind, host=host, log=log_path(folder, kind), faults=faults))
            )
        yield ends
