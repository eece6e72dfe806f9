"""The crash sweep: a task of a few steps, killed at every call it makes, and resumed.

For i = 1, 2, 3 ... a program runs the task and is killed with SIGKILL before, or after, its i-th
call that can change anything durable or outside; a second program then opens the same folder and
brings the task to its end. The sweep ends when programs pass their whole life without reaching
their i-th call. Nothing is judged here: what both programs did is handed to the judge.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path

from holdfast.layout.engine_settings import Settings
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.forks import LIFE_S_MAX, Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.judge import in_doubt, left_open
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.places import make_host, make_other_host, own_journal, remove_journal
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.shim import PAGE, Made, Mode, Point, Trace, arm, point_at
from holdfast_proofs.weakened import Weakness, weaken

WEAK_S_MAX = 8.0  # one that is weakened may wait for what never comes
UNREACHED_MAX = 3  # in a row: timing makes lives differ by a call or two
MODES = (Mode.KILL_AFTER, Mode.KILL_BEFORE)
COMMITS = "commit database"
CUTS = (Mode.CUT_LOST, Mode.CUT_REPLY, Mode.CUT_LATE)
# Timers divided by 20: the quiet time of `call.http` tools is then a quarter of a second.
# The full check after a crash costs more than all the rest, and the judge checks more.
SETTINGS = Settings(pace=0.05, check_after_crash=False)
# Where another host resumes, it has to wait for the lease.
SHARED = Settings(pace=0.05, check_after_crash=False, lease_ttl_s=2.0, renew_every_s=0.5, sweep_every_s=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to sweep."""

    subject: Subject
    url: str
    folder: Path
    modes: Sequence[Mode] = MODES
    points: int | None = None  # a sample of about this many, spread over the whole life
    at: Sequence[int] = ()  # only these calls, by number
    only: frozenset[str] = frozenset()  # only at calls of these names, such as "recv" or "recv socket"
    making: bool = True  # also while the journal is made, before there is a task
    server: str = ""  # of PostgreSQL, where the journals are there
    weakness: Weakness | None = None
    settings: Settings = SETTINGS
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One trial: where the first program was killed, and what the second one found in the end."""

    mode: Mode
    index: int
    point: Point | None  # None: it passed unreached
    calls: tuple[Made, ...]  # kept only of a life that was not to be killed
    doubt: bool  # killed after a send had begun and before its result was recorded
    found: Found

    def __str__(self) -> str:
        mode = self.mode.name.lower().replace("_", " ")
        return f"{mode} {'commit' if self.mode in CUTS else 'call'} {self.index} ({self.point or 'never reached'})"

    @property
    def again(self) -> str:
        """What makes the command line run this trial alone."""
        return f"--at {side_of(self.mode)}:{self.index}"


def side_of(mode: Mode) -> str:
    return _SIDES.get(mode, "after")


_SIDES = {Mode.KILL_BEFORE: "before", Mode.STOP_BEFORE: "before"} | {mode: mode.name.lower() for mode in CUTS}


def traced(subject: Subject, url: str, folder: Path, settings: Settings, *, server: str = "") -> tuple[Made, ...]:
    """The calls of one whole life, to choose from."""
    plan = Plan(subject=subject, url=url, folder=folder, settings=settings, server=server)
    whole = next(run_trials(iter((_trial(plan, Mode.TRACE, 0),)), lanes=1))
    if whole.found.error:
        raise RuntimeError(f"nobody was killed, and yet {whole.found.error}")
    return whole.calls


def sweep(plan: Plan) -> Iterator[Outcome]:
    """Run the trials; gives their outcomes as they come."""
    whole = next(run_trials(iter((_trial(plan, Mode.TRACE, 0),)), lanes=1))
    yield whole
    for mode in plan.modes:
        reach = _Reach()
        indices = takewhile(reach.goes_on, _indices(plan, whole))
        trials = (_trial(plan, mode, index) for index in indices)
        for outcome in run_trials(trials, lanes=plan.lanes):
            reach.note(outcome)
            yield outcome


class _Reach:
    """Ends a sweep once programs pass unreached; trials run side by side, so a few in a row."""

    def __init__(self) -> None:
        self._unreached = 0

    def note(self, outcome: Outcome) -> None:
        self._unreached = self._unreached + 1 if outcome.point is None else 0

    def goes_on(self, _index: int) -> bool:
        return self._unreached < UNREACHED_MAX


def _indices(plan: Plan, whole: Outcome) -> Iterator[int]:
    """Which calls to be killed at; without a choice, all of them, with no end."""
    if plan.at:
        return iter(plan.at)
    calls = [(at, call) for at, call in enumerate(whole.calls, 1) if not plan.only or call.is_one_of(plan.only)]
    if set(plan.modes) <= set(CUTS):
        commits = [at for at, call in calls if call.name == "commit"]
        # A program that is cut off while it opens the journal says so and ends.
        making = sum(at < _first_session(whole.calls) for at in commits)
        places = [*range(making + 1, len(commits) + 1)]
    elif plan.only or plan.points is not None:
        places = [at for at, _ in calls]
    else:
        return count(1 if plan.making else _first_commit(whole.calls))
    stride = max(1, len(places) * len(plan.modes) // plan.points) if plan.points is not None else 1
    return iter(places[stride // 2 :: stride])


def _first_commit(calls: Sequence[Made]) -> int:
    """The first write into the log: the task is being accepted."""
    logged = (at for at, call in enumerate(calls, 1) if call.is_logged)
    return next(logged, 1)


def _first_session(calls: Sequence[Made]) -> int:
    return next((at for at, call in enumerate(calls, 1) if call.name == "link" and call.where == PAGE), 1)


def _trial(plan: Plan, mode: Mode, index: int) -> Trial[Outcome]:
    name = f"{mode.name.lower()}-{index}"
    folder = make_host(plan.folder / name, shared=bool(plan.server))
    trace, board = Trace.shared(), Board()
    journal = own_journal(plan.server, name)
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=plan.settings, journal=journal)

    def begin() -> None:
        weaken(plan.weakness)
        arm(trace, mode, at=index, root=folder, kind=COMMITS if mode in CUTS else "")

    life_s = LIFE_S_MAX if plan.weakness is None else WEAK_S_MAX
    first = fork(lambda: work(life, board), before=begin, life_s=life_s)
    yield first.ended
    board.forget()
    # On a server every second resumer is another host: it sees no lock and no page of the first. A kill after a call is
    # much like one before the next, so that each place is tried with both.
    elsewhere = bool(journal) and index % 2 == 0
    then = replace(life, folder=make_other_host(folder)) if elsewhere else life
    second = fork(lambda: work(then, board), before=lambda: weaken(plan.weakness))
    yield second.ended
    calls, killed = tuple(trace.calls()), trace.reached and mode in MODES
    found = _checked(board, first, second, killed=killed)
    shutil.rmtree(folder)
    remove_journal(journal)
    left = left_open(found, first.pid, calls, seen=not elsewhere) if journal else in_doubt(calls)
    return Outcome(
        mode=mode,
        index=index,
        point=point_at(calls, trace.acted) if trace.reached else None,
        calls=calls if mode is Mode.TRACE else (),
        doubt=killed and left,
        found=found,
    )


def _checked(board: Board, first: Child, second: Child, *, killed: bool) -> Found:
    """What was found, unless a program ended in a way that nobody ordered."""
    expected = -signal.SIGKILL if killed else 0
    if first.code != expected or first.overdue:
        return Found(error=f"the first program ended with {first.code}, not {expected}")
    if second.code != 0 or board.found is None:
        hung = ", it hung" if second.overdue else ""
        return Found(error=f"the resumer ended with {second.code}{hung}", task_id=board.accepted)
    return board.found
