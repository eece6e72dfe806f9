"""The demo's stage: far ends, a journal, one living worker at a time, and waiting for them.

A worker is killed at the worst moment: the far end has done the effect and has not answered. The
far end itself holds its answer back at that moment, so the demo does not depend on timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.app.handle import TaskHandle
from holdfast.app.holdfast import Holdfast
from holdfast.app.open import open as open_holdfast
from holdfast.app.worker import Order
from holdfast.demo.server import Servers
from holdfast.demo.trip import variable
from holdfast.demo.workers import DemoFailed, Worker, start_worker
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.ledger import Done
from holdfast.downstream.process import FarEnd, Kind, start
from holdfast.errors import TaskParked, TaskUnfinished

APP = "holdfast.demo.trip:tasks"
KINDS: dict[str, Kind] = {"payment": "payment", "mail": "mail", "letter": "unrepeatable"}
PATIENCE_S = 30.0  # for one wait; a quiet machine needs less than one second
LOOK_EVERY_S = 0.5

T = TypeVar("T")


class Teller(Protocol):
    """Shows the story."""

    def scene(self, title: str) -> None: ...

    def tell(self, who: str, what: str, *, at_s: float) -> None: ...


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything the scenes use. Made by `setting`."""

    folder: Path
    hf: Holdfast
    far_ends: dict[str, FarEnd]
    teller: Teller
    began_ms: int
    stack: contextlib.AsyncExitStack  # ends with the demo
    journal: contextlib.AsyncExitStack  # our own view of the journal, which may be closed before the demo ends
    servers: Servers
    worker: Worker | None = None
    hired: int = 0
    kills: int = 0

    @property
    def home(self) -> Path:
        return journal_in(self.folder).parent

    @property
    def places(self) -> list[Path]:
        return [self.folder / "place-1", self.folder / "place-2"]

    async def close_journal(self) -> None:
        """Close our own view of the journal; workers keep theirs."""
        await self.journal.aclose()

    async def open_journal(self) -> Holdfast:
        self.hf = await self.journal.enter_async_context(open_holdfast(journal_in(self.folder), serve=False))
        return self.hf

    def tell(self, who: str, what: str, *, at_ms: int | None = None) -> None:
        self.teller.tell(who, what, at_s=self.seconds(now_ms() if at_ms is None else at_ms))

    def seconds(self, at_ms: int) -> float:
        return max(at_ms - self.began_ms, 0) / 1000

    async def start_worker(self) -> Worker:
        self.hired += 1
        order, log = Order(app=APP, journal=str(journal_in(self.folder))), self.folder / f"worker-{self.hired}.log"
        started = start_worker(order, log=log, environment=self.environment())
        self.worker = await self.stack.enter_async_context(started)
        return self.worker

    async def kill_inside(self, name: str, worker: Worker) -> int:
        """Kill the worker while its request is inside that far end; the moment, as wall ms."""
        await self.wait_inside(name, worker)
        at_ms = now_ms()
        await worker.kill()
        await self.far_ends[name].release()  # nothing reads its answer
        self.worker = None
        self.kills += 1
        return at_ms

    async def wait_inside(self, name: str, worker: Worker) -> None:
        """Until a request of this worker is inside that far end."""
        await patiently(worker, lambda s: self.far_ends[name].wait_inside(timeout_s=s))

    async def hold_next(self, name: str) -> None:
        """Let that far end do the next effect and then hold its answer back."""
        await self.far_ends[name].faults(Fault(kind=FaultKind.HOLD))

    async def find_done(self, name: str, task_id: str) -> Done | None:
        """What that far end's ledger has of the task."""
        page = await self.far_ends[name].ledger()
        return next((one for one in page.effects if one.task == task_id), None)

    async def get_payment(self, task_id: str) -> Done:
        done = await self.find_done("payment", task_id)
        if done is None:
            raise DemoFailed("the payment service got a request but did not charge")
        return done

    def environment(self) -> dict[str, str]:
        """What a worker needs to reach the far ends."""
        return {variable(name): far_end.url for name, far_end in self.far_ends.items()}


@contextlib.asynccontextmanager
async def setting(folder: Path, teller: Teller) -> AsyncGenerator[Stage]:
    """Start everything in this folder; no process is left at the end."""
    began_ms = now_ms()
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            starting = {
                name: group.create_task(stack.enter_async_context(start(kind, log=folder / f"{name}.jsonl")))
                for name, kind in KINDS.items()
            }
        far_ends = {name: task.result() for name, task in starting.items()}
        journal_in(folder).parent.mkdir(mode=0o700)
        journal = await stack.enter_async_context(contextlib.AsyncExitStack())
        hf = await journal.enter_async_context(open_holdfast(journal_in(folder), serve=False))
        yield Stage(
            folder=folder,
            hf=hf,
            far_ends=far_ends,
            teller=teller,
            began_ms=began_ms,
            stack=stack,
            journal=journal,
            servers=Servers(stack),
        )


def journal_in(folder: Path) -> Path:
    return folder / "ada" / "journal.db"


async def is_parked(task: TaskHandle, worker: Worker) -> bool:
    """Wait until the task has ended (False) or a person must decide (True)."""

    async def look(timeout_s: float) -> bool:
        try:
            await task.result(timeout_s)
        except TaskParked:
            return True
        except TaskUnfinished:
            raise TimeoutError from None
        return False

    return await patiently(worker, look)


async def patiently(worker: Worker, look: Callable[[float], Awaitable[T]]) -> T:
    """Wait for what `look` waits for, but notice a worker that ended by itself."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            return await look(LOOK_EVERY_S)
        except TimeoutError:
            worker.check_alive()
    raise DemoFailed(f"worker {worker.pid} made no progress within {PATIENCE_S:g} s")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
