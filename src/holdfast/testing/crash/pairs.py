"""Pairs: the resumer is killed too, at a call of its own, and a third program resumes.

Where a sweep is complete, pairs are drawn by a seed: there are some forty thousand for each class.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing.crash.board import Board
from holdfast.testing.crash.forks import Trial, fork, run_trials
from holdfast.testing.crash.found import Found
from holdfast.testing.crash.lives import Life, work
from holdfast.testing.crash.subjects import Subject
from holdfast.testing.crash.sweep import MODES, SETTINGS, traced
from holdfast.testing.shim import Mode, Trace, arm


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    subject: Subject
    url: str
    folder: Path
    count: int
    seed: int
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    mode: Mode
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    kills: tuple[Kill, Kill]
    found: Found

    def __str__(self) -> str:
        told = (f"{one.mode.name.lower()} {one.index}" for one in self.kills)
        return " then ".join(told)


def run_pairs(plan: PairPlan) -> Iterator[Pair]:
    length = len(traced(plan.subject, plan.url, plan.folder, SETTINGS))
    chance = random.Random(plan.seed)
    pairs = [(_draw(chance, length), _draw(chance, length)) for _ in range(plan.count)]
    trials = (_trial(plan, number, kills) for number, kills in enumerate(pairs))
    return run_trials(trials, lanes=plan.lanes)


def _draw(chance: random.Random, length: int) -> Kill:
    return Kill(mode=chance.choice(MODES), index=chance.randint(1, length))


def _trial(plan: PairPlan, number: int, kills: tuple[Kill, Kill]) -> Trial[Pair]:
    folder = plan.folder / f"pair-{number}"
    folder.mkdir(mode=0o700)
    trace, board = Trace.shared(), Board()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    error = ""
    for kill in kills:

        def begin(kill: Kill = kill) -> None:
            arm(trace, kill.mode, at=kill.index, root=folder)

        program = fork(lambda: work(life, board), before=begin)
        yield program.ended
        if program.code not in (0, -signal.SIGKILL) or program.overdue:
            error = f"a program ended with {program.code}"
    board.forget()
    last = fork(lambda: work(life, board))
    yield last.ended
    found = board.found if last.code == 0 and not error else None
    shutil.rmtree(folder)
    return Pair(
        kills=kills, found=found or Found(error=error or f"the last program ended with {last.code}")
    )
