"""Power loss: at every call of a task's life the machine goes dark, and the task is resumed.

A program runs the task and is killed after its i-th call; then its folder is replaced by what a
disk may hold at that moment (disk.py: undone, by coin, torn), the machine has another boot id and
a boot clock that began again, and a second program brings the task to its end and reads the whole
journal. What the first program had been told is durable (the accepted task) and what the far end
has counted are not undone. Before the second program starts, the journal that is left is looked
into: a step that had been sent and that it does not know is an effect without an intent, whatever
happens afterwards.

A person is asked needlessly where no start of an Unrepeatable step can have been on the disk
without its result: from the first write of a start's commit until the sync of the commit that
holds its result, a park is right, as no mark of a send can be believed after a power cut.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.disk_faults.disk import Image, Loss, after_power_loss, as_entries
from holdfast_proofs.crash.disk_faults.disk_lives import (
    Intents,
    Synchronous,
    boot_anew,
    inodes,
    move_log_often,
    put_image,
    sample,
    weaken_syncs,
    work_and_check,
)
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import SETTINGS
from holdfast_proofs.shim import Made, Mode, Point, Trace, arm, point_at
from holdfast_proofs.shim.disk_log import DiskLog, Entry

_EFFECTS = (b"POST ", b"PUT ")  # how requests with an effect begin


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPlan:
    subject: Subject
    url: str
    folder: Path
    cuts: Sequence[Cut] = ()  # these alone; otherwise all calls, losses and seeds
    first_seed: int = 1
    seeds: int = 1
    points: int | None = None  # a sample of about this many
    twice: bool = False  # the resumer loses its power as well, at a call that the seed draws
    synchronous: Synchronous = "FULL"
    wal_pages: int = 0  # the log is moved into the file after so many; 0: as in production
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """After which call the power goes, and what becomes of unsynced writes."""

    index: int
    loss: Loss
    seed: int = 1
    then: int = 0  # the resumer loses it too, after this call of its own; 0: it does not

    def __str__(self) -> str:
        return f"{self.loss}:{self.index}:{self.seed}:{self.then}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCut:
    """One trial."""

    cut: Cut
    point: Point | None  # None: the program had ended before
    fate: str
    may_park: bool
    unintended: tuple[str, ...]  # steps that had been sent and whose intent the disk did not hold
    wal_pages: int
    found: Found

    def __str__(self) -> str:
        how = f"{self.cut.loss}, seed {self.cut.seed}"
        then = f", then after call {self.cut.then}" if self.cut.then else ""
        return f"power lost ({how}) after call {self.cut.index} ({self.point or 'the end'}){then}"

    @property
    def again(self) -> str:
        return f"--fault {self.cut}:{self.wal_pages}"


def cut_power(plan: PowerPlan) -> Iterator[PowerCut]:
    """Run the trials; gives their outcomes as they come."""
    cuts = plan.cuts
    if not cuts:
        length = next(run_trials(iter((_length(plan),)), lanes=1))
        seeds = range(plan.first_seed, plan.first_seed + plan.seeds)
        cuts = sample(list(_all_cuts(length, seeds)), plan.points, seed=plan.first_seed)
        cuts = [_then(cut, length) for cut in cuts] if plan.twice else cuts
    return run_trials((_trial(plan, cut) for cut in cuts), lanes=plan.lanes)


def _length(plan: PowerPlan) -> Trial[int]:
    """How many calls a whole life makes."""
    folder = plan.folder / "whole"
    folder.mkdir(mode=0o700)
    trace = Trace.shared()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)

    def begin() -> None:
        weaken_syncs(plan.synchronous)
        move_log_often(plan.wal_pages)
        arm(trace, Mode.TRACE, at=0, root=folder)

    whole = fork(lambda: work(life, Board()), before=begin)
    yield whole.ended
    if whole.code:
        raise RuntimeError(f"no power was lost, and yet a program ended with {whole.code}")
    return trace.count


def _all_cuts(calls: int, seeds: Sequence[int]) -> Iterator[Cut]:
    for index in range(1, calls + 1):
        yield Cut(index=index, loss=Loss.UNDONE)
        for seed in seeds:
            yield Cut(index=index, loss=Loss.COIN, seed=seed)
            yield Cut(index=index, loss=Loss.TORN, seed=seed)


def _then(cut: Cut, calls: int) -> Cut:
    """A resumer makes fewer calls than a whole life; some cuts are then beyond its end."""
    return replace(cut, then=random.Random(str(cut)).randint(1, calls))


def _trial(plan: PowerPlan, cut: Cut) -> Trial[PowerCut]:
    folder = plan.folder / f"power-{cut}"
    folder.mkdir(mode=0o700)
    board, intents, lives = Board(), Intents(), list[_Lived]()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    for index in (cut.index, cut.then) if cut.then else (cut.index,):
        trace, log, boots = Trace.shared(), DiskLog(), len(lives)

        def begin(index: int = index, trace: Trace = trace, log: DiskLog = log, boots: int = boots) -> None:
            _make_ready(plan, boots)
            arm(trace, Mode.KILL_AFTER, at=index, root=folder, log=log)

        program = fork(lambda: work(life, board), before=begin)
        yield program.ended
        known = lives[-1].left if lives else []
        image = after_power_loss([*known, *log.entries()], cut.loss, 1_000 * index + cut.seed)
        put_image(image, folder)
        board.forget()
        lives.append(_Lived(program, trace, image, as_entries(image, inodes(folder))))

    def begin_last() -> None:
        intents.read(folder)
        _make_ready(plan, len(lives))

    last = fork(lambda: work_and_check(life, board), before=begin_last)
    yield last.ended
    shutil.rmtree(folder)
    first = lives[0]
    return PowerCut(
        cut=cut,
        point=point_at(first.calls, cut.index) if first.trace.reached else None,
        fate=" ".join(one.image.fate for one in lives),
        may_park=any(may_be_open(one.calls) for one in lives),
        unintended=tuple(sorted(sent(first.calls) - intents.ordinals())),
        wal_pages=plan.wal_pages,
        found=_found(board, lives, last),
    )


class _Lived:
    """A program that the power was taken from, and what that left."""

    def __init__(self, child: Child, trace: Trace, image: Image, left: list[Entry]) -> None:
        self.child = child
        self.trace = trace
        self.calls = trace.calls()
        self.image = image
        self.left = left


def _make_ready(plan: PowerPlan, boots: int) -> None:
    weaken_syncs(plan.synchronous)
    move_log_often(plan.wal_pages)
    if boots:
        boot_anew(boots)


def _found(board: Board, lives: Sequence[_Lived], last: Child) -> Found:
    for number, one in enumerate(lives, 1):
        if one.child.code != (-signal.SIGKILL if one.trace.reached else 0):
            return Found(error=f"program {number} ended with {one.child.code}")
    if last.code != 0 or board.found is None:
        hung = ", it hung" if last.overdue else ""
        return Found(error=f"the resumer ended with {last.code}{hung}", task_id=board.accepted)
    return board.found


def sent(calls: Iterable[Made]) -> set[str]:
    """The steps whose request had been handed to the kernel, in the order of a first life."""
    count = sum(map(is_effect, calls))
    return {str(number) for number in range(1, count + 1)}


def is_effect(call: Made) -> bool:
    """Whether this hands a request with an effect to the kernel."""
    return call.name == "send" and call.done and call.head.startswith(_EFFECTS)


def may_be_open(calls: Iterable[Made]) -> bool:
    """Whether a start can be on the disk and its result not, when the power goes after these.

    A slot of the session page is taken right before the commit of a start. The result is safe
    when the log is synced after it was written, which is after the answer came.
    """
    starting = begun = answered = logged = False
    for call in calls:
        if call.is_slot:
            starting = True
        elif call.is_logged and starting:
            starting, begun, answered, logged = False, True, False, False
        elif call.is_logged:
            logged = answered
        elif call.name == "recv" and call.done:
            answered = True
        elif call.is_synced_log and logged:
            begun = logged = False
    return begun
