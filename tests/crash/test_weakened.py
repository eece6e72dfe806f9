"""The suites are not blind: with any one rule taken out of the protocol they turn red.

Each case runs twice: the protocol as it is, green, and the same scenario without the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.downstream.faults import Fault, FaultKind
from holdfast_proofs.crash.jobs import Job, Outliving, Sweep, Zombies, run_job
from holdfast_proofs.crash.report import Figures
from holdfast_proofs.shim import Mode
from holdfast_proofs.weakened import Weakness

NEAR_THE_SEND = frozenset(("send", "recv"))
AFTER = (Mode.KILL_AFTER,)
SLOW_ANSWER = Fault(kind=FaultKind.DELAY_AFTER, n=None, seconds=0.6)
LATE_REQUEST = Fault(kind=FaultKind.LATE, n=None, seconds=0.1)  # quiet comes after 0.25 s


def no_intent(weakness: Weakness | None) -> Job:
    """Killed after the send, with nothing durable that says so."""
    return Sweep(name="unrepeatable", only=NEAR_THE_SEND, weakness=weakness)


def key_per_attempt(weakness: Weakness | None) -> Job:
    """Killed after the send; the resumer sends again."""
    return Sweep(name="keyed", only=NEAR_THE_SEND, modes=AFTER, weakness=weakness)


def no_epoch_check(weakness: Weakness | None) -> Job:
    """Stopped with the answer in hand; another program finishes; then it writes what it knows."""
    return Zombies(name="queryable", guarded=False, count=4, only=frozenset(("recv",)), weakness=weakness)


def timeout_as_failure(weakness: Weakness | None) -> Job:
    """The far end does its work and answers too late."""
    return Sweep(name="keyed", only=NEAR_THE_SEND, modes=AFTER, timeout_s=0.2, weakness=weakness)


def find_before_quiet(weakness: Weakness | None) -> Job:
    """The connection dies and the request arrives later."""
    return Sweep(name="queryable", only=NEAR_THE_SEND, modes=AFTER, weakness=weakness)


def no_epoch_check_on_a_server(weakness: Weakness | None) -> Job:
    """The same where the other program is on another host."""
    answers = frozenset(("recv socket",))
    return Zombies(name="queryable", guarded=False, count=4, divide=4, only=answers, weakness=weakness)


def plain_read(weakness: Weakness | None) -> Job:
    """Cut off while a commit is under way: it takes place later, also that of the submission, and the journal's total
    then lacks what was written meanwhile. A program waits for ever, or one that resumes stumbles over it."""
    return Sweep(name="unrepeatable", steps=1, modes=(Mode.CUT_LATE,), lanes=8, weakness=weakness)


def outlived(weakness: Weakness | None) -> Job:
    """The worker dies, and a process that its tool started sends later."""
    return Outliving(name="queryable", shape="subprocess", count=4, weakness=weakness)


Case = tuple[Callable[[Weakness | None], Job], Sequence[Fault], Callable[[Figures], int]]
CASES: dict[Weakness, Case] = {
    Weakness.NO_INTENT: (no_intent, (), lambda figures: figures.duplicates),
    Weakness.KEY_PER_ATTEMPT: (key_per_attempt, (), lambda figures: figures.duplicates),
    Weakness.NO_EPOCH_CHECK: (no_epoch_check, (), lambda figures: figures.breaches),
    Weakness.TIMEOUT_AS_FAILURE: (timeout_as_failure, (SLOW_ANSWER,), lambda figures: figures.breaches),
    Weakness.OUTLIVED: (outlived, (), lambda figures: figures.duplicates),
    Weakness.FIND_BEFORE_QUIET: (find_before_quiet, (LATE_REQUEST,), lambda figures: figures.duplicates),
}
# Over a journal in PostgreSQL.
SHARED_CASES: dict[Weakness, Case] = {
    Weakness.NO_EPOCH_CHECK: (no_epoch_check_on_a_server, (), lambda figures: figures.breaches),
    Weakness.PLAIN_READ: (plain_read, (), lambda figures: sum("ended with" in one for one in figures.findings)),
}
# Nothing is restored in these jobs: tests/rewind sees what is wrong without the rules of a restore.
OF_RESTORES = {Weakness.BLIND_RESTORE, Weakness.OWN_PLACE_ONLY}


TRIES = 4


def test_every_weakness_has_a_suite_that_must_notice_it() -> None:
    assert CASES.keys() | SHARED_CASES.keys() | OF_RESTORES == set(Weakness)


@pytest.mark.slow
@pytest.mark.parametrize("weakness", CASES)
def test_a_weakened_protocol_is_caught(weakness: Weakness, shim: Path) -> None:
    check(CASES[weakness], weakness, shim)


@pytest.mark.slow
@pytest.mark.parametrize("weakness", SHARED_CASES)
def test_a_weakened_journal_on_a_server_is_caught(weakness: Weakness, shim: Path, database: str) -> None:
    check(SHARED_CASES[weakness], weakness, shim, database)


def check(case: Case, weakness: Weakness, shim: Path, database: str = "") -> None:
    job, faults, count = case

    strong = run_job(job(None), shim, faults=faults, database=database)
    assert strong.findings == []
    assert strong.green
    assert strong.points > 0

    weak = strong
    for _ in range(TRIES):  # on a busy machine what was to come too late may come in time
        weak = run_job(job(weakness), shim, faults=faults, database=database)
        if count(weak):
            break
    assert not weak.green
    assert count(weak) > 0, weak.findings
