"""Zombies: a program that is stopped in the middle, loses its lease, and is woken again.

A program is stopped with SIGSTOP at a call; its lease lapses; another program takes the task over
and brings it to its end. A guarded program (with the dead-man timer, as worker processes have it)
must be dead by then, killed by the kernel without having run again. An unguarded one (the engine
inside a user's own program) is woken with SIGCONT: what it then writes is refused by its old
epoch. Last, a third program looks at what is there.

A program stopped inside a commit holds the journal's write lock, and nobody can take over; the
timer's kill frees it, an unguarded one is woken when its lease has long been over.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.layout.engine_settings import Settings
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.places import make_host, make_other_host, own_journal, remove_journal
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import traced
from holdfast_proofs.shim import PAGE, Made, Mode, Point, Trace, arm, point_at
from holdfast_proofs.weakened import Weakness, weaken

RESTARTS_MAX = 3  # of a guarded successor that loses its own lease on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ZombiePlan:
    subject: Subject
    url: str
    folder: Path
    settings: Settings
    guarded: bool
    count: int
    only: frozenset[str] = frozenset()  # stop only at these calls
    brink: bool = False  # stop only at the brink; see `at_the_brink`
    server: str = ""  # of PostgreSQL, where the journals are there
    weakness: Weakness | None = None
    lanes: int = 4

    @property
    def kind(self) -> str:
        """Lives that wait for a server differ by a few calls: those of one kind are counted alone."""
        return next(iter(self.only)) if self.server and len(self.only) == 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zombie:
    """One zombie's story."""

    mode: Mode
    index: int
    point: Point | None  # None: it was never stopped
    dead_after_s: float | None  # from its stop to its death by the timer
    found: Found

    def __str__(self) -> str:
        mode = self.mode.name.lower().replace("_", " ")
        return f"{mode} call {self.index} ({self.point or 'never reached'})"


def raise_zombies(plan: ZombiePlan) -> Iterator[Zombie]:
    calls = traced(plan.subject, plan.url, plan.folder, plan.settings, server=plan.server)
    trials = (_trial(plan, mode, index) for mode, index in _places(calls, plan))
    return run_trials(trials, lanes=plan.lanes)


def at_the_brink(call: Made, mode: Mode) -> bool:
    """Whether the program has looked at its lease for the last time and not yet sent.

    Stopped there without a timer, a request leaves as late as its program is woken: nothing in
    the program can prevent it. A key or a fence makes that harmless and an Unrepeatable step
    stays parked; only a Queryable one may then be done twice, which the documents say.
    """
    return call.is_mark or (mode is Mode.STOP_BEFORE and (call.name, call.where) == ("send", "socket"))


def _places(calls: Sequence[Made], plan: ZombiePlan) -> list[tuple[Mode, int]]:
    """Places from the opening of the session to its end, evenly spread, before and after calls."""
    pages = [at for at, call in enumerate(calls, 1) if call.name == "link" and call.where == PAGE]
    folds = [at for at, call in enumerate(calls, 1) if call.where.endswith("/fold.lock")]
    if plan.kind:
        alike = sum(call.is_one_of(plan.only) for call in calls)
        return [(mode, at) for at in range(1, alike + 1) for mode in (Mode.STOP_BEFORE, Mode.STOP_AFTER)][: plan.count]
    first, last = (pages[0], len(calls)) if plan.server else (pages[-1], folds[-1])
    places = [
        (mode, at)
        for at in range(first + 1, last)
        for mode in (Mode.STOP_BEFORE, Mode.STOP_AFTER)
        if _fits(plan, calls[at - 1], mode)
    ]
    step = max(1.0, len(places) / plan.count)
    return [places[int(number * step)] for number in range(min(plan.count, len(places)))]


def _fits(plan: ZombiePlan, call: Made, mode: Mode) -> bool:
    if plan.only and not call.is_one_of(plan.only):
        return False
    if plan.brink:
        return at_the_brink(call, mode)
    return plan.guarded or plan.subject.letter != "Q" or not at_the_brink(call, mode)


def _trial(plan: ZombiePlan, mode: Mode, index: int) -> Trial[Zombie]:
    name = f"{mode.name.lower()}-{index}"
    folder = make_host(plan.folder / name, shared=bool(plan.server))
    trace, board = Trace.shared(), Board()
    life = Life(
        subject=plan.subject,
        folder=folder,
        url=plan.url,
        settings=plan.settings,
        guarded=plan.guarded,
        journal=own_journal(plan.server, name),
        looks=False,
    )

    def begin() -> None:
        weaken(plan.weakness)
        arm(trace, mode, at=index, root=folder, kind=plan.kind)

    ttl_s = plan.settings.lease_ttl_s
    zombie = _start(life, board, begin)
    yield zombie.stopped
    if trace.reached and not _fits(plan, trace.calls()[trace.acted - 1], mode):
        zombie.signal(signal.SIGKILL)  # this life differs by a call from the one that was traced
        yield zombie.ended
    since, dead_after_s = time.monotonic(), None
    next_life = replace(life, folder=make_other_host(folder)) if life.journal else life
    successor = _start(next_life, board)
    if plan.guarded:
        yield lambda: zombie.ended() or time.monotonic() > since + 2 * ttl_s
        if zombie.code == -signal.SIGKILL:
            dead_after_s = time.monotonic() - since
        successor = yield from _supervised(successor, next_life, board)
    else:
        yield lambda: successor.ended() or time.monotonic() > since + 3 * ttl_s
    woken = zombie.code is None
    zombie.signal(signal.SIGCONT)
    yield lambda: zombie.ended() and successor.ended()
    witness = _start(replace(life, looks=True, guarded=False), board)
    yield witness.ended
    reached = trace.reached
    may_die = plan.guarded or not woken
    found = _checked(board, zombie, successor, witness, may_die=may_die)
    shutil.rmtree(folder)
    remove_journal(life.journal)
    return Zombie(
        mode=mode,
        index=index,
        point=point_at(trace.calls(), trace.acted) if reached else None,
        dead_after_s=dead_after_s,
        found=found,
    )


def _start(life: Life, board: Board, before: Callable[[], None] | None = None) -> Child:
    life_s = 30.0 + 10 * life.settings.lease_ttl_s
    return fork(lambda: work(life, board), before=before, life_s=life_s)


def _supervised(child: Child, life: Life, board: Board) -> Trial[Child]:
    """Start a guarded program again that was killed by its own timer, as its parent would."""
    for _ in range(RESTARTS_MAX):
        yield child.ended
        if child.code != -signal.SIGKILL or child.overdue:
            break
        child = _start(life, board)
    yield child.ended
    return child


def _checked(board: Board, zombie: Child, successor: Child, witness: Child, *, may_die: bool) -> Found:
    """What was found, unless a program ended in a way that nobody ordered."""
    programs = {"zombie": zombie, "successor": successor, "witness": witness}
    for name, child in programs.items():
        dead = child is zombie and may_die and child.code == -signal.SIGKILL
        if (child.code != 0 and not dead) or child.overdue:
            hung = ", it hung" if child.overdue else ""
            return Found(error=f"the {name} ended with {child.code}{hung}")
    return board.found or Found(error="nothing was found")
