"""Pairs: the resumer is killed too, at a call of its own, and a third program resumes.

For every first point, killed before and after each call, the resumer's own calls are counted once
by letting it pass; then it is killed at some of them, drawn by the seed and the first point alone,
so that one pair can be run again without the others. The whole product is some 150,000 pairs for
each class: how many there would be is counted and reported beside how many were run.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.forks import Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.judge import in_doubt
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import MODES, SETTINGS, side_of, traced
from holdfast_proofs.shim import Mode, Point, Trace, arm, point_at
from holdfast_proofs.weakened import Weakness, weaken


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    mode: Mode
    index: int

    def __str__(self) -> str:
        return f"{side_of(self.mode)}:{self.index}"


PASSES = Kill(mode=Mode.TRACE, index=0)  # is not killed at all


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    subject: Subject
    url: str
    folder: Path
    firsts: int | None  # a sample of about this many first points; None: every one
    seconds: int  # second points drawn for each first one
    seed: int
    only: tuple[Kill, Kill] | None = None
    weakness: Weakness | None = None
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """One program of a pair: where it was to be killed and what it had done by then."""

    kill: Kill
    point: Point | None  # None: it passed unreached
    length: int  # how many calls it had made
    doubt: bool  # killed after a send had begun and before its result was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    first: Lived
    second: Lived
    found: Found

    def __str__(self) -> str:
        told = (f"{one.kill} ({one.point or 'never reached'})" for one in (self.first, self.second))
        return " then ".join(told)

    @property
    def again(self) -> str:
        return f"--at {self.first.kill},{self.second.kill}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """All pairs of one first point."""

    passed: Pair | None  # whose resumer was not killed
    pairs: tuple[Pair, ...]

    @property
    def product(self) -> int:
        """How many second points this first point has: both sides of every call."""
        return 0 if self.passed is None else len(MODES) * self.passed.second.length


def run_pairs(plan: PairPlan) -> Iterator[Nest]:
    """Every first point with its drawn second ones; gives them as they come."""
    trials = (_nest(plan, kill) for kill in _firsts(plan))
    return run_trials(trials, lanes=plan.lanes)


def _firsts(plan: PairPlan) -> list[Kill]:
    if plan.only is not None:
        return [plan.only[0]]
    length = len(traced(plan.subject, plan.url, plan.folder, SETTINGS))
    stride = max(1, len(MODES) * length // plan.firsts) if plan.firsts else 1
    every = [Kill(mode=mode, index=index) for index in range(1, length + 1) for mode in MODES]
    return every[stride // 2 :: stride]


def _seconds(plan: PairPlan, first: Kill, length: int) -> list[Kill]:
    chance = random.Random(f"{plan.seed}:{first}")
    numbers = chance.sample(range(len(MODES) * length), min(plan.seconds, len(MODES) * length))
    return [Kill(mode=MODES[number % 2], index=1 + number // 2) for number in numbers]


def _nest(plan: PairPlan, first: Kill) -> Trial[Nest]:
    if plan.only is not None:
        pair = yield from _pair(plan, first, plan.only[1])
        return Nest(passed=None, pairs=(pair,))
    passed = yield from _pair(plan, first, PASSES)
    pairs: list[Pair] = []
    for second in _seconds(plan, first, passed.second.length):
        pair = yield from _pair(plan, first, second)
        pairs.append(pair)
    return Nest(passed=passed, pairs=tuple(pairs))


def _pair(plan: PairPlan, first: Kill, second: Kill) -> Trial[Pair]:
    folder = plan.folder / f"{first}-{second}"
    folder.mkdir(mode=0o700)
    board = Board()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    lives: list[Lived] = []
    error = ""
    for kill in (first, second):
        trace = Trace.shared()

        def begin(kill: Kill = kill, trace: Trace = trace) -> None:
            weaken(plan.weakness)
            arm(trace, kill.mode, at=kill.index, root=folder)

        program = fork(lambda: work(life, board), before=begin)
        yield program.ended
        lives.append(_lived(kill, trace))
        expected = -signal.SIGKILL if trace.reached else 0
        if program.code != expected or program.overdue:
            error = error or f"a program ended with {program.code}, not {expected}"
    board.forget()
    last = fork(lambda: work(life, board), before=lambda: weaken(plan.weakness))
    yield last.ended
    found = board.found if last.code == 0 and not error else None
    shutil.rmtree(folder)
    if found is None:
        error = error or f"the last program ended with {last.code}"
        found = Found(error=error, task_id=board.accepted)
    return Pair(first=lives[0], second=lives[1], found=found)


def _lived(kill: Kill, trace: Trace) -> Lived:
    calls = trace.calls()
    point = point_at(calls, kill.index) if trace.reached else None
    doubt = trace.reached and in_doubt(calls)
    return Lived(kill=kill, point=point, length=len(calls), doubt=doubt)
