"""The world a journal is tried in: its clock, its processes, and the accidents that befall it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.ids import TaskId, task_id_from_bytes
from holdfast.core.journal_address import JournalAddress
from holdfast.core.ports import KeyRing
from holdfast.core.step import Event
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Change, Claimed, Hold, InboxItem, InboxKind, Journal, Session, Submission
from holdfast.journal.records import NewRecord, Record, RecordKind, StepView, TaskState, TaskView, fold
from holdfast.testing.clocks import ManualClock

TTL_MS = 10_000
DAY_MS = 86_400_000


class World(ABC):
    """One journal under test. Handles share it; `clock` is the clock of them all."""

    clock: ManualClock
    administered: Administered | None = None  # of a journal with a second port
    hosts: SeveralHosts | None = None  # of a journal that several machines share
    _submitted = 0

    @abstractmethod
    async def connect(self) -> Journal:
        """A further handle on the same journal, as another process would open it."""

    @abstractmethod
    async def kill(self, session: Session) -> None:
        """End the session's process as SIGKILL does: no word to the journal, the lock released."""

    @abstractmethod
    async def damage(self, task_id: TaskId, *, seq: int) -> None:
        """Flip a bit in a kept record."""

    @abstractmethod
    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Read a table that Transactional tools wrote; an empty list where there is none."""

    def set_time(self, wall_ms: int) -> None:
        """Set the clock that the journal's time is read from."""
        self.clock.set_wall_ms(wall_ms)

    async def process(self, *, ttl_ms: int = TTL_MS, **more: Any) -> Process:
        """A process with a handle and a session."""
        journal = await self.connect()
        session = await journal.open_session(worker="test", ttl_ms=ttl_ms, **more)
        return Process(world=self, journal=journal, session=session)

    def submission(self, *, name: str = "trip", args: object = None, request_id: str = "") -> Submission:
        """A submission with an id of its own; the same `request_id` gives the same id."""
        self._submitted += 1
        seed = request_id or f"nr {self._submitted}"
        content = {"where": "LIS"} if args is None else args
        return Submission(
            task_id=task_id_from_bytes(hashlib.sha256(seed.encode()).digest()[:16]),
            name=name,
            args=content,
            args_fingerprint=hashlib.sha256(repr(content).encode()).digest()[:16],
            request_id=request_id,
            body={"code": "v1"},
        )

    async def submit(self, journal: Journal, *, name: str = "trip") -> TaskId:
        return (await journal.submit(self.submission(name=name))).task_id


@dataclass(frozen=True, kw_only=True)
class SeveralHosts:
    """Two machines and the journal's own clock. `World.clock` is that of the first, with `World.connect`."""

    elsewhere: ManualClock  # of the second machine: another boot id, another time since its start
    connect_elsewhere: Callable[[], Awaitable[Journal]]
    let_pass: Callable[[int], None]  # milliseconds, on all clocks
    step: Callable[[int], None]  # of the journal's clock alone
    promote: Callable[[int], None]  # another timeline, whose clock is so far ahead
    renew_as_before: Callable[[Session], Awaitable[None]]  # by a process of the boot in which the session was opened


@dataclass(frozen=True, kw_only=True)
class Administered:
    """The second port of the journal under test, and the accidents that befall its place."""

    keys: KeyRing
    other_keys: KeyRing
    place: JournalAddress
    never: JournalAddress  # where there never was one
    copies: Path  # a folder
    put_back: Callable[[Path], None]  # an older copy takes the journal's place
    lose: Callable[[], None]
    delete: Callable[[TaskId], None]  # a task and its records, past the journal

    @property
    def at_place(self) -> JournalAdmin:
        return journal_at(self.place)

    def new_copy(self) -> Path:
        """An empty file for a copy."""
        copy = self.copies / "copy"
        copy.touch(mode=0o600)
        return copy


@dataclass(frozen=True, kw_only=True)
class Process:
    """A handle with a session: what a worker process has."""

    world: World
    journal: Journal
    session: Session

    async def claim(self, *, limit: int = 10, **more: Any) -> list[Claimed]:
        return await self.journal.claim(self.session, names=None, limit=limit, **more)

    async def take(self, task_id: TaskId, **more: Any) -> Claimed:
        """Claim exactly this task."""
        (claimed,) = await self.claim(task_id=task_id, **more)
        assert claimed.hold.task_id == task_id
        return claimed

    async def start_task(self, *, name: str = "trip") -> Claimed:
        """Submit a task and claim it."""
        return await self.take(await self.world.submit(self.journal, name=name))

    async def rest(self, hold: Hold, state: TaskState, **more: Any) -> None:
        change = Change(state=state, **more)
        entry = rested(state) if state not in ENDINGS else finished(state)
        await self.journal.append(hold, [entry], change=change)

    async def die(self) -> None:
        await self.world.kill(self.session)


ENDINGS = (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED)


# Entries


def planned(ordinal: str = "1", *, effect_key: bytes = b"") -> NewRecord:
    return NewRecord(
        kind=RecordKind.STEP,
        ordinal=ordinal,
        events=(Event.PLAN, Event.START),
        body={"letter": "K", "tool": "charge", "args": {"cents": 42}},
        effect_key=effect_key or hashlib.sha256(ordinal.encode()).digest()[:16],
        fingerprint=b"f" * 16,
        slot=3,
        quiet=True,
    )


def succeeded(ordinal: str = "1", result: object = "ok") -> NewRecord:
    return NewRecord(kind=RecordKind.STEP, ordinal=ordinal, events=(Event.SUCCEED,), body={"result": result})


def noted(ordinal: str = "n1", value: object = 7) -> NewRecord:
    return NewRecord(kind=RecordKind.NOTE, ordinal=ordinal, body={"what": "now", "value": value})


def rested(state: TaskState) -> NewRecord:
    return NewRecord(kind=RecordKind.RESTED, body={"state": state.value, "why": "test"})


def finished(state: TaskState = TaskState.SUCCEEDED) -> NewRecord:
    return NewRecord(kind=RecordKind.FINISHED, body={"state": state.value, "result": "done"})


def fact(task_id: TaskId, kind: InboxKind = InboxKind.EVIDENCE, *, body: dict[str, Any] | None = None) -> InboxItem:
    return InboxItem(task_id=task_id, ordinal="1", kind=kind, body=body or {"seen": True})


# Comparing


def shown(view: TaskView) -> dict[str, Any]:
    """A view as plain values, so that two of them can be compared."""
    plain = {name: getattr(view, name) for name in TaskView.__struct_fields__}
    plain["steps"] = {
        ordinal: {name: getattr(step, name) for name in StepView.__struct_fields__}
        for ordinal, step in view.steps.items()
    }
    return plain


def folded(view: TaskView, records: list[Record]) -> TaskView:
    for record in records:
        fold(view, record)
    return view


def copied(hold: Hold) -> Hold:
    """The hold as it is now; the journal moves only the original along."""
    return Hold(**{name: getattr(hold, name) for name in Hold.__slots__})
