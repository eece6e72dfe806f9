"""Children killed: the process of a blocking tool dies in a call, and its worker lives on.

A task of three blocking steps runs in one worker; its child is killed before and after each call
that it makes to the far end, and, in further trials, whatever children there are are killed at a
random instant of the worker's life: while they start, import, wait or send. The worker must bring
the task to its end, or to a person where the class leaves nothing else, by itself.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.child_tools import TRACE, order_armed
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import MODES, SETTINGS, side_of
from holdfast_proofs.shim import Made, Mode, Point, Trace, point_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    subject: Subject
    url: str
    folder: Path
    points: int | None  # a sample of about this many calls; None: every one
    instants: int  # kills at random instants
    only: tuple[Mode, int] | None = None
    seed: int
    lanes: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One trial: where a child was killed, and what its worker made of it."""

    what: str
    again: str
    point: tuple[Mode, Point] | None  # None: at an instant, or not at all
    hit: bool  # whether a child was killed
    calls: tuple[Made, ...]
    seconds: float
    found: Found

    def __str__(self) -> str:
        return self.what


def run_children(plan: ChildPlan) -> Iterator[Killed]:
    """A whole life first, then every call before and after, then the instants."""
    (whole,) = run_trials(iter((_at_call(plan, Mode.TRACE, 0),)), lanes=1)
    if whole.found.error:
        raise RuntimeError(f"nobody was killed, and yet {whole.found.error}")
    yield whole
    every = [(mode, at) for at in range(1, len(whole.calls) + 1) for mode in MODES]
    stride = max(1, len(every) // plan.points) if plan.points else 1
    chance = random.Random(plan.seed)
    instants = [chance.uniform(0, whole.seconds) for _ in range(plan.instants)]
    if plan.only is not None:
        every, stride, instants = [plan.only], 1, []
    trials = [_at_call(plan, mode, at) for mode, at in every[stride // 2 :: stride]]
    trials += [_at_instant(plan, number, after) for number, after in enumerate(instants)]
    yield from run_trials(iter(trials), lanes=plan.lanes)


def _at_call(plan: ChildPlan, mode: Mode, at: int) -> Trial[Killed]:
    folder = plan.folder / f"{mode.name.lower()}-{at}"
    folder.mkdir(mode=0o700)
    trace = Trace.in_file(folder / TRACE)  # the child opens it again: the memory is one
    began = time.monotonic()
    worker, board = _start(plan, folder, armed=(mode, at))
    yield worker.ended
    reached, calls = trace.reached, tuple(trace.calls())
    point = (mode, point_at(calls, at)) if reached else None
    shutil.rmtree(folder)
    return Killed(
        what=f"child {side_of(mode)} call {at} ({point[1] if point else 'never reached'})",
        again=f"--at {side_of(mode)}:{at}",
        point=point,
        hit=reached,
        calls=calls if mode is Mode.TRACE else (),
        seconds=time.monotonic() - began,
        found=_checked(worker, board),
    )


def _at_instant(plan: ChildPlan, number: int, after_s: float) -> Trial[Killed]:
    folder = plan.folder / f"instant-{number}"
    folder.mkdir(mode=0o700)
    began = time.monotonic()
    worker, board = _start(plan, folder, armed=None)
    yield lambda: worker.ended() or time.monotonic() >= began + after_s
    hit = _kill_children(worker)
    yield worker.ended
    shutil.rmtree(folder)
    return Killed(
        what=f"children after {after_s * 1_000:.0f} ms",
        again=f"--seed {plan.seed}",
        point=None,
        hit=hit,
        calls=(),
        seconds=time.monotonic() - began,
        found=_checked(worker, board),
    )


def _start(plan: ChildPlan, folder: Path, *, armed: tuple[Mode, int] | None) -> tuple[Child, Board]:
    board = Board()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)

    def begin() -> None:
        if armed is not None:
            order_armed(folder, *armed)

    return fork(lambda: work(life, board), before=begin), board


def _kill_children(worker: Child) -> bool:
    """Kill the worker's children; they are reaped by it and nobody else, so none is missed."""
    if worker.code is not None:
        return False
    try:
        found = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    except FileNotFoundError:
        return False
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return bool(found)


def _checked(worker: Child, board: Board) -> Found:
    if worker.code != 0 or worker.overdue:
        hung = ", it hung" if worker.overdue else ""
        return Found(error=f"the worker ended with {worker.code}{hung}", task_id=board.accepted)
    return board.found or Found(error="nothing was found")
