"""A full disk: from any call of a task's life on there is no room, and later there is again.

The shim refuses whatever needs room (disk_room.c). A user's program lives on through it: it opens
again where opening is refused with `journal-full`, submits again where that is refused, and then
only waits for the result; when it stands still the room comes back, and it must come to its end
by itself, at most five seconds later. Then a second program reads the whole journal.

From the calls it is seen, beside what the far end and the journal say:

* nothing is sent that was not recorded before: between the taking of its slot and the request
  lies a write into the log, and a sync of it that succeeded;
* what was answered while there was no room is recorded in the room of the reserve, before any
  other comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.errors import JournalBusy, JournalFull
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.disk_faults.disk_lives import sample, work_and_check
from holdfast_proofs.crash.disk_faults.power import is_effect
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import REQUEST, Life, work
from holdfast_proofs.crash.places import JOURNAL
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import SETTINGS
from holdfast_proofs.shim import Made, Mode, Phase, Point, Trace, arm, point_at

KINDS = (Mode.FULL, Mode.FULL_ANY)
RESUMED_S_MAX = 5.0
AGAIN_S = 0.1
STILL_S = 0.25  # without a new call: the program stands still
FULL_S_MAX = 1.0  # or it asks again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPlan:
    subject: Subject
    url: str
    folder: Path
    fillings: Sequence[Filling] = ()  # these alone; otherwise all calls
    kinds: Sequence[Mode] = KINDS
    points: int | None = None  # a sample of so many
    seed: int = 1  # of the sample
    lanes: int = 12  # they mostly wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """From which call on the disk is full, and how."""

    index: int
    kind: Mode = Mode.FULL

    def __str__(self) -> str:
        return f"{'any' if self.kind is Mode.FULL_ANY else 'growth'}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One trial."""

    filling: Filling
    point: Point | None
    resumed_s: float  # from the room's return to the program's end
    unrecorded_sends: int
    unrecorded_answers: int
    answers: int  # that came while there was no room
    found: Found

    def __str__(self) -> str:
        what = "no write" if self.filling.kind is Mode.FULL_ANY else "no growth"
        return f"{what} from call {self.filling.index} on ({self.point or 'never reached'})"

    @property
    def again(self) -> str:
        return f"--fault {self.filling}"


def fill_disks(plan: FullPlan) -> Iterator[Filled]:
    fillings = plan.fillings
    if not fillings:
        length = next(run_trials(iter((_length(plan),)), lanes=1))
        every = [Filling(index=at, kind=kind) for at in range(1, length + 1) for kind in plan.kinds]
        fillings = sample(every, plan.points, seed=plan.seed)
    return run_trials((_trial(plan, one) for one in fillings), lanes=plan.lanes)


def _length(plan: FullPlan) -> Trial[int]:
    folder = plan.folder / "whole"
    folder.mkdir(mode=0o700)
    trace = Trace.shared()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    whole = fork(lambda: work(life, Board()), before=lambda: arm(trace, Mode.TRACE, at=0, root=folder))
    yield whole.ended
    if whole.code:
        raise RuntimeError(f"there was room, and yet a program ended with {whole.code}")
    return trace.count


def _trial(plan: FullPlan, filling: Filling) -> Trial[Filled]:
    folder = plan.folder / f"full-{filling}"
    folder.mkdir(mode=0o700)
    trace, board = Trace.shared(), Board()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    first = fork(lambda: _persist(life, board), before=lambda: arm(trace, filling.kind, at=filling.index, root=folder))
    yield _Standstill(first, trace)
    ended_before = first.ended()
    trace.give_room()
    returned = time.monotonic()
    yield first.ended
    resumed_s = 0.0 if ended_before else time.monotonic() - returned
    second = fork(lambda: work_and_check(life, board))
    yield second.ended
    calls = trace.calls()
    shutil.rmtree(folder)
    answers, unrecorded = answers_when_full(calls)
    return Filled(
        filling=filling,
        point=point_at(calls, filling.index) if trace.reached else None,
        resumed_s=resumed_s,
        unrecorded_sends=unrecorded_sends(calls),
        answers=answers,
        unrecorded_answers=0 if ended_before else unrecorded,
        found=_checked(board, first, second),
    )


class _Standstill:
    """Until the program has ended, or makes no call any more on a full disk, or for too long."""

    def __init__(self, child: Child, trace: Trace) -> None:
        self._child = child
        self._trace = trace
        self._full_since: float | None = None
        self._seen = (0, 0.0)

    def __call__(self) -> bool:
        if self._child.ended():
            return True
        if not self._trace.reached:
            return False
        now, count = time.monotonic(), self._trace.count
        if self._full_since is None:
            self._full_since = now
        if self._seen[0] != count:
            self._seen = (count, now)
        return now - self._seen[1] > STILL_S or now - self._full_since > FULL_S_MAX


def _checked(board: Board, first: Child, second: Child) -> Found:
    if first.code != 0:
        hung = ", it hung" if first.overdue else ""
        return Found(error=f"the program ended with {first.code}{hung}", task_id=board.accepted)
    if second.code != 0 or board.found is None:
        return Found(error=f"the second program ended with {second.code}", task_id=board.accepted)
    return board.found


async def _persist(life: Life, board: Board) -> None:
    """A user's program. Once it has submitted, only waiting is its part."""
    async with contextlib.AsyncExitStack() as stack:
        hf = await _opened(life, stack)
        while True:
            try:
                handle = await hf.submit(life.subject.task, request_id=REQUEST, url=life.url)
                break
            except JournalFull:
                await asyncio.sleep(AGAIN_S)
        board.accepted = handle.id
        with contextlib.suppress(holdfast.TaskParked):  # judged by its records
            await handle.result()


async def _opened(life: Life, stack: contextlib.AsyncExitStack) -> Holdfast:
    path, tasks = life.folder / JOURNAL, [life.subject.task]
    while True:
        try:
            return await stack.enter_async_context(holdfast.open(path, tasks=tasks, settings=life.settings))
        except (JournalFull, JournalBusy):  # busy: room came back while it was being opened
            await asyncio.sleep(AGAIN_S)


def unrecorded_sends(calls: Iterable[Made]) -> int:
    """How many requests with an effect went out without a synced commit of their start.

    A slot of the session page is taken right before that commit, whether it is written or not.
    """
    count, written, synced = 0, False, False
    for call in calls:
        if call.is_slot:
            written = synced = False
        elif call.is_logged and call.done and not call.failed:
            written = True
        elif call.is_synced_log and written:
            synced = True
        elif is_effect(call):
            count += not synced
            written = synced = False
    return count


def answers_when_full(calls: Sequence[Made]) -> tuple[int, int]:
    """Effects answered while there was no room; and how many of those were not recorded then."""
    answers = unrecorded = 0
    sent = waiting = written = False
    for call in calls:
        if is_effect(call):
            sent = True
        elif call.name == "recv" and sent and call.done:
            sent, waiting, written = False, call.phase is Phase.FULL, False
            answers += waiting
        elif waiting and call.is_logged and not call.failed:
            written = True
        elif waiting and written and call.is_synced_log:
            waiting = False
            unrecorded += call.phase is not Phase.FULL
    return answers, unrecorded + waiting
