"""Rounds over one running set of workers: the load goes on while one instance after the other is lost.

A round: the victim holds tasks; it is lost; the others take them; it comes back and serves again. What happened when is
kept, and judged at the end from the journal and the services' books (`judge`).
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.core.waiting import running_beside
from holdfast.downstream.ledger import Page, Seen
from holdfast.downstream.process import FarEnd
from holdfast.downstream.process import start as start_service
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Filter, SessionRow
from holdfast.journal.records import ENDED, TaskState
from holdfast_proofs.runner import ProofFailed
from holdfast_proofs.soak.app import FAR_ENDS
from holdfast_proofs.soak.books import Books
from holdfast_proofs.soak.load import Plan, Ran, far_ends
from holdfast_proofs.soak.person import Person
from holdfast_proofs.takeovers.app import MAIL_SERVICE, TASK
from holdfast_proofs.takeovers.faults import REMOVED, Breaker
from holdfast_proofs.takeovers.lab import Instance, Lab
from holdfast_proofs.takeovers.mail import Mail, Sender, handled, judge_mail

DEFAULT_LEASE_S = 10.0
STEPS = 5
WAIT_S_MAX = 120.0  # for what takes seconds; a machine that is used by others too is no finding
LOOK_S = 0.1
SETTLE_S = 1.0
MAIL_FIRST_S = 0.8  # so long before the loss the first message of a round is sent
_OPEN = frozenset(TaskState) - frozenset(ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One instance that was lost, by what the journal knew of it then."""

    number: int
    kind: str
    name: str
    address: str  # from which its requests came
    sessions: frozenset[str]
    began_ms: int
    over_ms: int  # from here on it may not act: its lease is over, or its session has ended
    back_ms: int  # when its next session began
    lease_ms: int
    reasons: tuple[str, ...]  # events of its log since


@dataclass(slots=True)
class History:
    """What a run leaves for the judge."""

    plan: Plan
    ran: Ran
    faults: list[Fault] = field(default_factory=list[Fault])
    requests: list[Seen] = field(default_factory=list[Seen])
    edits: list[str] = field(default_factory=list[str])  # lines that a person wrote
    mail: Mail = field(default_factory=Mail)
    findings: list[str] = field(default_factory=list[str])


class Rounds:
    def __init__(self, lab: Lab, chance: random.Random, *, backlog: int) -> None:
        self._lab, self._chance, self._backlog = lab, chance, backlog
        self._breaker = Breaker(lab, chance)
        self._submitted = 0
        self._feeding, self._turn = True, asyncio.Lock()
        self._sender: Sender = lab.sender
        self.history = History(Plan(tasks=0, steps=STEPS, workers=0, concurrency=0, backlog=backlog), Ran())

    async def run(self, kinds: Sequence[str]) -> History:
        lab, history = self._lab, self.history
        async with (
            far_ends(history.plan, lab.books, host=lab.net.world) as ends,
            start_service("keyed", host=lab.net.world, log=lab.books / "letters.jsonl") as letters,
            self._writing(),
        ):
            urls = {end.kind: end.url for end in ends}
            lab.given[MAIL_SERVICE] = letters.url
            async with holdfast.open(lab.desk, serve=False) as hf:
                lab.site.make_table()
                for one in (*lab.instances.values(), *lab.others):
                    one.start()
                await self._until(self._all_serve(hf), "every instance serves")
                person = Person(hf, Books(lab.books, FAR_ENDS))
                async with self._fed(hf, urls, person):
                    for number, kind in enumerate(kinds, 1):
                        await self._round(hf, number, kind)
                        if history.findings:
                            break
                await self._finish(hf, person, letters)
            history.mail = judge_mail(self._sender, await letters.ledger())
            for end in (*ends, letters):
                await end.wait_idle()
                history.requests += (await end.ledger()).requests
        return history

    # --- the load ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def _fed(self, hf: Holdfast, urls: dict[str, str], person: Person) -> AsyncGenerator[None]:
        async def feed() -> None:
            while True:
                with suppress(HoldfastError):
                    async with self._turn:
                        await submit()
                    await person.look()
                await asyncio.sleep(LOOK_S)

        async def submit() -> None:
            counts = await hf.journal.count_tasks()
            unfinished = sum(count for state, count in counts.items() if state not in ENDED)
            for _ in range(self._backlog - unfinished if self._feeding else 0):
                await hf.submit(TASK, request_id=str(self._submitted), urls=urls, number=self._submitted, steps=STEPS)
                self._submitted += 1

        async with running_beside(feed()):
            yield
            async with self._turn:  # a task that is being submitted is counted
                self._feeding = False

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[None]:
        await self._sender.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._sender.stop)

    async def _is_over(self, hf: Holdfast, letters: FarEnd) -> bool:
        """Whether every task has ended, and the service knows every message."""
        if await hf.journal.list_tasks(Filter(states=_OPEN, limit=1)):
            return False
        page: Page = await letters.ledger()
        return handled(page).keys() >= set(self._sender.sent)

    async def _finish(self, hf: Holdfast, person: Person, letters: FarEnd) -> None:
        """Every task ends, every letter is handled; a person settles what is parked."""
        ran, history = self.history.ran, self.history
        began = moved = time.monotonic()
        while not await self._is_over(hf, letters):
            with suppress(HoldfastError):
                await person.look()
            before, ran.ended = ran.finished, await hf.journal.count_tasks()
            if ran.finished > before:
                moved = time.monotonic()
            if time.monotonic() - moved > WAIT_S_MAX:
                ran.trouble = f"no task has ended for {WAIT_S_MAX:g} s, and not all letters are handled: {ran.ended}"
                break
            await asyncio.sleep(LOOK_S)
        ran.settled, ran.retried, ran.asked = person.settled, person.retried, person.asked
        ran.seconds = time.monotonic() - began
        history.plan = Plan(tasks=self._submitted, steps=STEPS, workers=0, concurrency=0, backlog=self._backlog)

    # --- one round --------------------------------------------------------------------------------

    async def _round(self, hf: Holdfast, number: int, kind: str) -> None:
        lab = self._lab
        names = list(lab.instances)
        victim, helper = (lab.instances[names[(number + more) % len(names)]] for more in (0, 1))
        victims = self._breaker.victims(kind, victim)
        if kind in ("disk", REMOVED):  # what has not left a disk is lost with it
            await self._until(self._knows(helper), f"round {number}: {helper.name} knows what people wrote before")
        await self._sender.send(number)
        await asyncio.sleep(MAIL_FIRST_S)
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        await self._until(self._holds(hf, victim), f"round {number}: {victim.name} holds tasks")
        sessions = {one.name: await self._sessions(hf, one) for one in victims}
        offsets = {one.name: one.log.stat().st_size for one in victims}
        began_ms = hf.journal.now_ms()
        await self._breaker.begin(kind, victim)
        self._edit(number, helper if kind in ("disk", REMOVED) else victim)
        if kind == REMOVED:
            await self._breaker.remove(victim, helper)
        lost = {row.session_id for rows in sessions.values() for row in rows}
        if kind == "all-apart":
            await asyncio.sleep(self._lease_s + SETTLE_S)
        elif kind != "flapping":
            await self._until(
                self._given_up(hf, lost), f"round {number}, {kind}: the others take what {victim.name} had"
            )
        over_ms = hf.journal.now_ms() if kind == REMOVED else began_ms + int(self._lease_s * 1000)
        await asyncio.sleep(self._chance.uniform(0, 1))
        await self._breaker.end(kind, victim, helper)
        back: dict[str, int] = {}
        for one in victims:
            found = await self._until(
                self._serves_again(hf, one, lost, steady=kind == "flapping"),
                f"round {number}, {kind}: {one.name} serves again",
            )
            back[one.name] = found
            if ended := lab.instances[one.name].ended():
                self.history.findings.append(f"round {number}, {kind}: {ended}")
        for one in victims:
            events = lab.instances[one.name].events(offsets[one.name])
            self.history.faults.append(
                Fault(
                    number=number,
                    kind=kind,
                    name=one.name,
                    address=lab.net.world_address(one.host),
                    sessions=frozenset(row.session_id for row in sessions[one.name]),
                    began_ms=began_ms,
                    over_ms=over_ms,
                    back_ms=back[one.name],
                    lease_ms=int(self._lease_s * 1000),
                    reasons=tuple(_reason(event) for event in events if _reason(event)),
                )
            )
        gone_ms = back[victim.name] - began_ms
        when = f"back after {gone_ms} ms" if gone_ms > 0 else "never gone for a whole lease"
        print(f"round {number}: {kind} {victim.name}, {when}", file=sys.stderr)

    def _edit(self, number: int, where: Instance) -> None:
        """A person adds a line on that host."""
        line = f"- round {number}: a person was here"
        with open(where.folder / "MEMORY.md", "a") as file:
            file.write(f"{line}\n")
        self.history.edits.append(line)

    @property
    def _lease_s(self) -> float:
        return self._lab.lease_s or DEFAULT_LEASE_S

    # --- what is waited for -----------------------------------------------------------------------

    async def _until(self, look: Callable[[], Awaitable[int]], what: str) -> int:
        """What it finds, once that is not 0."""
        until = time.monotonic() + WAIT_S_MAX + 10 * self._lease_s
        while time.monotonic() < until:
            with suppress(HoldfastError):
                if found := await look():
                    return found
            await asyncio.sleep(LOOK_S)
        raise ProofFailed(f"waited in vain: {what}", hint=f"the logs of the workers: {self._lab.folder}/*.log")

    async def _sessions(self, hf: Holdfast, one: Instance) -> list[SessionRow]:
        return [row for row in await hf.journal.list_sessions() if row.alive and row.worker == one.name]

    def _all_serve(self, hf: Holdfast) -> Callable[[], Awaitable[int]]:
        async def look() -> int:
            alive = {row.worker for row in await hf.journal.list_sessions() if row.alive}
            return int(alive >= self._lab.instances.keys())

        return look

    def _holds(self, hf: Holdfast, one: Instance) -> Callable[[], Awaitable[int]]:
        async def look() -> int:
            return sum(row.tasks for row in await self._sessions(hf, one))

        return look

    def _knows(self, one: Instance) -> Callable[[], Awaitable[int]]:
        async def look() -> int:
            path = one.folder / "MEMORY.md"
            lines = set(path.read_text().splitlines()) if path.exists() else set[str]()
            return int(lines.issuperset(self.history.edits))

        return look

    def _given_up(self, hf: Holdfast, lost: set[str]) -> Callable[[], Awaitable[int]]:
        async def look() -> int:
            rows = [row for row in await hf.journal.list_sessions() if row.session_id in lost]
            return int(not any(row.alive or row.tasks for row in rows))

        return look

    def _serves_again(
        self, hf: Holdfast, one: Instance, lost: set[str], *, steady: bool
    ) -> Callable[[], Awaitable[int]]:
        """When the next session began. `steady`: it may also be the one of before."""

        async def look() -> int:
            rows = await self._sessions(hf, one)
            new = [row.begun_ms for row in rows if row.session_id not in lost]
            return min(new, default=1 if steady and rows else 0)

        return look


def _reason(event: dict[str, object]) -> str:
    """Of an event that says why the worker stopped, or why it waits."""
    if event.get("event") not in (
        "supervisor",
        "worker-failed",
        "session-failing",
        "trouble",
        "stopping",
        "agent-waits",
    ):
        return ""
    text = str(event.get("text") or event.get("error") or event.get("reason") or "")
    return "" if text.startswith("worker ") and "started" in text else text
