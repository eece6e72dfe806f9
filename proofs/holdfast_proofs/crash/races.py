"""Races: many programs at once want the task that a dead or stopped one has left.

A program is killed in the middle of a step, or stopped until its lease lapses. Two to sixteen
others wait at a barrier with everything imported, start at the same moment, and each tries to
bring the task to its end. Every epoch must have exactly one owner, by the journal's own claim
records and by the programs' own count, and no step may be done twice.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.journal.rules import POISON_QUESTION
from holdfast.layout.engine_settings import Settings
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.forks import Child, Trial, Work, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.places import make_host, own_journal, remove_journal
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import traced
from holdfast_proofs.shim import Made, Mode, Trace, arm

RACERS_MIN, RACERS_MAX = 2, 16
_TALK = ("connect", "send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePlan:
    subject: Subject
    url: str
    folder: Path
    settings: Settings
    count: int
    server: str = ""  # of PostgreSQL, where the journals are there
    lanes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How one race went."""

    mode: Mode
    index: int
    racers: int
    orphan: int  # its pid
    claims: int  # as the racers counted
    found: Found

    def __str__(self) -> str:
        return f"{self.racers} racers after {self.mode.name.lower()} at call {self.index}"


def run_races(plan: RacePlan) -> Iterator[Race]:
    calls = traced(plan.subject, plan.url, plan.folder, plan.settings, server=plan.server)
    starts = _starts(calls, plan.count)
    return run_trials(
        (_trial(plan, number, mode, index) for number, (mode, index) in enumerate(starts)), lanes=plan.lanes
    )


def owners(race: Race) -> list[str]:
    """What is wrong with the ownership of the task; empty where nothing is."""
    taken_over = sum(pid != str(race.orphan) for pid in race.found.owners.values())
    poison = race.found.question == POISON_QUESTION  # claimed to be parked, for nobody
    if race.claims == taken_over - poison or race.found.error:
        return []
    return [f"{race.claims} claims were won, the journal knows {taken_over}"]


def _starts(calls: Sequence[Made], count: int) -> list[tuple[Mode, int]]:
    """Mostly killed, anywhere in the steps; every fourth one stopped, between two commits.

    (Inside a commit a stopped program keeps the write lock, and there would be no race.)
    """
    steps = [at for at, call in enumerate(calls, 1) if call.where in ("socket", "session page")]
    talks = [at for at, call in enumerate(calls, 1) if call.where == "socket" and call.name in _TALK]
    first, last = steps[0], steps[-1]
    starts: list[tuple[Mode, int]] = []
    for number in range(count):
        if number % 4 == 3 and talks:
            starts.append((Mode.STOP_AFTER, talks[number % len(talks)]))
        else:
            starts.append((Mode.KILL_AFTER, first + number * 7 % (last - first)))
    return starts


def _trial(plan: RacePlan, number: int, mode: Mode, index: int) -> Trial[Race]:
    name = f"race-{number}"
    folder = make_host(plan.folder / name, shared=bool(plan.server))
    trace, board = Trace.shared(), Board()
    journal = own_journal(plan.server, name)
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=plan.settings, journal=journal, looks=False)
    life_s = 30.0 + 10 * plan.settings.lease_ttl_s
    orphan = fork(lambda: work(life, board), before=lambda: arm(trace, mode, at=index, root=folder), life_s=life_s)
    yield orphan.stopped
    if trace.reached and trace.calls()[index - 1].where != "socket":
        orphan.signal(signal.SIGKILL)  # this life differs: it may stand inside a commit
        yield orphan.ended
    size = RACERS_MIN + number % (RACERS_MAX - RACERS_MIN + 1)
    boards = [Board.like(board) for _ in range(size)]
    racers = _start_at_once([_racer(life, one) for one in boards], life_s=life_s)
    yield lambda: all(racer.ended() for racer in racers)
    orphan.signal(signal.SIGKILL)
    yield orphan.ended
    witness = fork(lambda: work(replace(life, looks=True), board), life_s=life_s)
    yield witness.ended
    shutil.rmtree(folder)
    remove_journal(journal)
    return Race(
        mode=mode,
        index=index,
        racers=size,
        orphan=orphan.pid,
        claims=sum(one.claims for one in boards),
        found=_checked(board, [*racers, witness]),
    )


def _racer(life: Life, board: Board) -> Work:
    return lambda: work(life, board)


def _start_at_once(lives: Sequence[Work], *, life_s: float) -> list[Child]:
    """Fork all, then open the barrier: a pipe whose end they wait for."""
    gate, lock = os.pipe()

    def wait() -> None:
        os.close(lock)
        os.read(gate, 1)

    children = [fork(life, before=wait, life_s=life_s) for life in lives]
    os.close(gate)
    os.close(lock)
    return children


def _checked(board: Board, programs: Sequence[Child]) -> Found:
    for child in programs:
        if child.code != 0:
            hung = ", it hung" if child.overdue else ""
            return Found(error=f"a program ended with {child.code}{hung}")
    return board.found or Found(error="nothing was found")
