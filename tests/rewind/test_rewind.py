"""A sample of restores after which the code plans otherwise; and that the suite can fail."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from holdfast_proofs.rewind.cases import Case, Change, Kind, Planned, cases
from holdfast_proofs.rewind.judge import Figures
from holdfast_proofs.weakened import Weakness

SAMPLE = 3
PROGRAM = """
import sys, msgspec
from holdfast_proofs.rewind.__main__ import play
from holdfast_proofs.rewind.cases import Case
from holdfast_proofs.weakened import Weakness
chosen = msgspec.json.decode(sys.argv[1], type=list[Case])
figures = play(chosen, weakness=Weakness(sys.argv[2]) if sys.argv[2] else None)
sys.stdout.buffer.write(msgspec.json.encode(figures))
"""


def played(*chosen: Case, weakness: Weakness | None = None) -> Figures:
    """In a program of its own: it forks, which this one with its threads should not."""
    given = msgspec.json.encode(chosen).decode()
    words = [sys.executable, "-c", PROGRAM, given, weakness or ""]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=300, check=True)
    return msgspec.json.decode(done.stdout, type=Figures)


def case(name: str, kind: Kind, first: list[Planned], second: list[Planned]) -> Case:
    """Copied before its first call, and lost when it had come to its end."""
    return Case(
        name=name,
        kind=kind,
        change=Change.BOTH,
        first=tuple((one,) for one in first),
        second=tuple((one,) for one in second),
        copy_at=0,
        copy_side="before",
        kill_at=0,
        kill_side="after",
        same_machine=True,
    )


PAID, SENT = Planned("keyed_found", 1), Planned("queryable", 2)
OTHERWISE = case("otherwise", Kind.TASK, [PAID], [Planned("keyed_found", 7)])
TURNED = case("turned", Kind.TASK, [PAID, SENT], [SENT, PAID])
SWAPPED = case("swapped", Kind.TASK, [SENT, Planned("queryable", 3)], [Planned("queryable", 3), SENT])
SHIFTED = case("shifted", Kind.TASK, [SENT, Planned("queryable", 3)], [PAID, SENT, Planned("queryable", 3)])
LETTER = case("letter", Kind.FORGOTTEN, [Planned("unrepeatable", 1)], [Planned("unrepeatable", 7)])


def test_nothing_is_done_twice_and_what_was_lost_is_adopted() -> None:
    figures = played(OTHERWISE, TURNED, SWAPPED, SHIFTED, LETTER, *cases(11, SAMPLE))
    assert figures.findings == []
    assert figures.green
    assert (figures.cases, figures.told_other > 0) == (SAMPLE + 5, True)


@pytest.mark.parametrize(("weakness", "chosen"), [(Weakness.BLIND_RESTORE, LETTER), (Weakness.OWN_PLACE_ONLY, TURNED)])
def test_the_suite_notices_a_rule_taken_out(weakness: Weakness, chosen: Case) -> None:
    figures = played(chosen, weakness=weakness)
    assert figures.duplicates or figures.sent_unasked
    assert not figures.green


def test_cases_are_the_same_for_a_seed_and_of_every_kind() -> None:
    many = cases(5, 200)
    assert many == cases(5, 200)
    assert {one.kind for one in many} == set(Kind)
    assert {one.change for one in many} == set(Change)
    for one in many:
        flat = [call for turn in one.first for call in turn]
        again = [call for turn in one.second for call in turn]
        assert flat[: one.copy_at] == again[: one.copy_at]
