"""Trials of code that outlives its attempt: a worker is killed while a slow attempt has yet to send.

The kills of processes fall at random between the start of the slow attempt and the moment at which its request would
leave. Every second trial runs without the right to make namespaces; in every fourth the keepers of the tool are killed
together with the worker. Threads die with their worker, but they outlive a timeout: theirs is far shorter than the slow
attempt, and kills fall also after it has sent, while the worker has parked or repeated it.

Then another program resumes. Where it parks the step, a person decides as the question says: once a decision is allowed
(and, where the question says that something may still run, once that is over) they look at the far end, and let it run
where nothing is there. A second effect that arrives later is a duplicate that nobody was told about.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast.downstream.process import FarEnd
from holdfast.errors import NotNow
from holdfast.host.hardening import prctl
from holdfast.journal.records import TaskState
from holdfast.runtime.tool import started
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.outliving.tools import BEGAN, LATE_S, SENT, Shape
from holdfast_proofs.crash.places import JOURNAL
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import SETTINGS
from holdfast_proofs.weakened import Weakness, weaken

GRACE_S = 0.1  # instead of the user's five seconds: the suite wants to see what is left running
THREAD_KILLS_S = 1.5
OVER_S = 0.5  # beyond LATE_S, and everything that was started has sent
_PR_CAPBSET_DROP, _CAP_SYS_ADMIN = 24, 21
DECISIONS_MAX = 5
BEGAN_FILE = "began"
LIFE_S = 180.0  # several processes start in each life, and a busy machine takes its time


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlivingPlan:
    subject: Subject
    shape: Shape
    far_end: FarEnd
    folder: Path
    count: int
    seed: int
    weakness: Weakness | None
    lanes: int = 4

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.far_end.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlived:
    """One trial."""

    what: str
    again: str
    hit: bool  # whether the worker was killed
    may_park: bool  # nobody can know that everything has ended
    parked: bool
    found: Found

    def __str__(self) -> str:
        return self.what


def run_outliving(plan: OutlivingPlan) -> Iterator[Outlived]:
    chance = random.Random(plan.seed)
    until_s = LATE_S if plan.shape == "subprocess" else THREAD_KILLS_S
    trials = [_trial(plan, number, chance.uniform(0, until_s)) for number in range(plan.count)]
    yield from run_trials(iter(trials), lanes=plan.lanes)


def _trial(plan: OutlivingPlan, number: int, after_s: float) -> Trial[Outlived]:
    folder = plan.folder / f"trial-{number}"
    folder.mkdir(mode=0o700)
    began = folder / BEGAN_FILE
    bare, both = number % 2 == 1, number % 4 >= 2
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    board = Board()

    def begin() -> None:
        os.environ[BEGAN] = str(began)
        started.GRACE_S = GRACE_S
        weaken(plan.weakness)
        if bare and os.geteuid() == 0:
            prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN)  # counts from the next exec on: in the tool's process

    worker = fork(lambda: _live(plan, life, board), before=begin, life_s=LIFE_S)
    yield lambda: worker.ended() or began.exists()
    due = time.monotonic() + after_s
    yield lambda: worker.ended() or time.monotonic() >= due
    hit = _kill(worker, both=both and plan.shape == "subprocess")
    yield worker.ended
    resumed = Board.like(board)
    resumer = fork(lambda: _live(plan, life, resumed), before=begin, life_s=LIFE_S)
    yield resumer.ended
    yield lambda: _is_over(plan.shape, began)
    parked, found = (folder / "parked").exists(), resumed.found
    if resumer.code != 0 or found is None:
        hung = ", it hung" if resumer.overdue else ""
        found = Found(error=f"the resumer ended with {resumer.code}{hung}", task_id=board.accepted)
    shutil.rmtree(folder)
    return Outlived(
        what=f"{plan.shape} {number}, killed after {after_s * 1_000:.0f} ms{', bare' * bare}{', with keepers' * both}",
        again=f"--seed {plan.seed}",
        hit=hit,
        may_park=plan.shape == "thread" or (bare and both),
        parked=parked,
        found=found,
    )


def _kill(worker: Child, *, both: bool) -> bool:
    if worker.ended():
        return False
    pids = [worker.pid]
    if both:
        with suppress(OSError):
            pids += map(int, Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return True


def _is_over(shape: Shape, began: Path) -> bool:
    """Whether the slow attempt has sent, if ever it will: as a person sees it in the list of processes."""
    if not began.exists() or time.time() < began.stat().st_mtime + LATE_S + OVER_S:
        return not began.exists()
    if shape == "thread":
        return Path(f"{began}{SENT}").exists() or not Path("/proc", began.read_text()).exists()
    mark = str(began).encode()
    for listed in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark in listed.read_bytes().split(b"\0"):
                return False
    return True


async def _live(plan: OutlivingPlan, life: Life, board: Board) -> None:
    """Bring the task to its end, with a person at hand."""
    for _ in range(DECISIONS_MAX):
        await work(life, board)
        found = board.found
        if found is None or found.state != TaskState.PARKED:
            return
        (life.folder / "parked").touch()
        await _decide(plan, life, found)


async def _decide(plan: OutlivingPlan, life: Life, found: Found) -> None:
    """What a careful person does."""
    (ordinal, step), *_ = [(at, one) for at, one in found.steps.items() if one.state == TaskState.PARKED]
    while "may still run" in step.question and not _is_over(plan.shape, life.folder / BEGAN_FILE):  # noqa: ASYNC110 - a time
        await asyncio.sleep(0.05)
    async with holdfast.open(life.folder / JOURNAL, tasks=[life.subject.task], serve=False) as hf:
        while True:
            effects = (await plan.far_end.ledger()).effects
            done = [one.id for one in effects if one.task == found.task_id and one.base == ordinal]
            try:
                await hf.settle(found.task_id, ordinal, "done" if done else "run", result=(done or [None])[0])
                return
            except NotNow:
                await asyncio.sleep(0.02)
