"""What the processes of a crash trial do, from fork to end.

`work` is a whole life of a user's program: open the journal (making it where there is none),
submit under a request id, run the task, close. It is what gets killed and what resumes; the one
difference is that a resumer which was told that the task had been accepted does not submit it
again, so that an accepted task that the journal has lost is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast.app.binder import open_journal
from holdfast.app.holdfast import Holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import JournalAddress
from holdfast.journal.records import ENDED, TaskState
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.session.deadman import DeadMan
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.found import look
from holdfast_proofs.crash.places import JOURNAL
from holdfast_proofs.crash.subjects import Subject

REQUEST = "crash"
_RESTS = ENDED | {TaskState.PARKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process's part: which task, in which folder, against which far end."""

    subject: Subject
    folder: Path
    url: str
    settings: Settings
    guarded: bool = False  # with the dead-man timer, as a worker process has it
    journal: str = ""  # the url of one on a server; empty: a file in the folder
    looks: bool = True  # leaves on the board what the journal says in the end

    @property
    def address(self) -> JournalAddress:
        return JournalAddress(folder=self.folder, url=self.journal, file="" if self.journal else JOURNAL)


async def work(life: Life, board: Board) -> None:
    """Bring the task to its end, or to a person."""
    known = board.accepted
    async with _opened(life) as hf:
        rested = _watch(hf)
        if known:
            handle = hf.task(known)
        else:
            handle = await hf.submit(life.subject.task, request_id=REQUEST, url=life.url)
            board.accepted = handle.id
        while (await handle.state()) not in _RESTS:
            try:
                # Another process may end it: look again now and then.
                await asyncio.wait_for(rested.wait(), 0.05)
            except TimeoutError:
                continue
            rested.clear()
        if hf.engine is not None:
            board.claims = hf.engine.counts["claims"]
        if life.looks:
            board.found = await look(handle, life.folder, life.journal)


def _watch(hf: Holdfast) -> asyncio.Event:
    """The event tells that a run has ended in this process."""
    rested = asyncio.Event()

    def ended(_task: TaskId, _state: TaskState) -> None:
        rested.set()

    if hf.engine is not None:
        hf.engine.finished = ended
    return rested


@asynccontextmanager
async def _opened(life: Life) -> AsyncGenerator[Holdfast, None]:
    tasks = [life.subject.task]
    if not life.guarded:
        async with holdfast.open(life.address, tasks=tasks, settings=life.settings) as hf:
            yield hf
        return
    clock, entropy = SystemClock(), SystemEntropy()
    journal, keys = await open_journal(life.address, clock=clock, entropy=entropy)
    hf = Holdfast(
        journal=journal, keys=keys, clock=clock, entropy=entropy, tasks=tasks, tools=(), settings=life.settings
    )
    engine = Engine(
        journal=journal,
        keys=keys,
        clock=clock,
        entropy=entropy,
        tasks=tasks,
        settings=life.settings,
        dead_man=DeadMan.create(),
    )
    hf.start(engine)
    try:
        yield hf
    finally:
        await hf.close()
