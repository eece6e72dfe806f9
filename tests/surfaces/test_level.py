"""The level is a pure function of dated facts: laws over random sets, every gate needed, what a moved clock does."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fact_sets import NOW, TARGETS, YES, expected, fact, is_duty, older, random_facts

from holdfast.core.surfaces import DAY_MS, HOUR_MS, Fact
from holdfast.surfaces.level import GATES, LEVELS, LevelReport, judge_level

SETS = int(os.environ.get("LEVEL_SETS", "2000"))  # 10,000 before a release
DOCS = Path(__file__).parents[2] / "docs"


QUARTER = {"rpo", "takeover-drill", "old-refused", "nothing-lost", "read-back", "restore-drill", "relay-drill"}


def judged(facts: list[Fact], *, later_ms: int = 0) -> LevelReport:
    return judge_level(facts, now_ms=NOW + later_ms, targets=TARGETS)


def marks(facts: list[Fact], *, without: str = "") -> tuple[int, int]:
    gates = [gate for gate in GATES if gate.id != without]
    found = judge_level(facts, now_ms=NOW, targets=TARGETS, gates=gates)
    return found.level, found.proven_level


def whole() -> list[Fact]:
    """An agent that has everything, all of it a moment ago."""
    found = [fact(name) for name in YES]
    for place in ("nas", "usb"):
        found += [
            fact("place", f"domain of {place}", about=place),
            fact("place.device", f"disk of {place}", about=place),
        ]
        found += [fact(f"place.{one}", about=place) for one in ("off", "made", "verified", "escrow")]
    found += [fact("paper.read-back"), fact("instances.alive", 2), fact("drill.lost", 0, about="region-loss")]
    found += [fact("relay", f"operator {number % 2}", about=f"relay {number}") for number in range(3)]
    return found + [fact("drill", about=slug) for slug in ("host-loss", "region-loss", "two-alive", "relay-lost")]


def test_random_facts_give_the_level_of_the_definitions_and_every_gate_is_needed() -> None:
    """Compared with the definitions, written a second time. A gate that is taken out is noticed."""
    rng = random.Random(15)
    unnoticed = {gate.id for gate in GATES if gate.level is not None}
    seen = Counter[tuple[int, int]]()
    for _ in range(SETS):
        facts = random_facts(rng)
        wanted = expected(facts)
        assert marks(facts) == wanted, facts
        seen[wanted] += 1
        unnoticed -= {one for one in unnoticed if marks(facts, without=one) != wanted}
    assert not unnoticed
    assert {level for level, _ in seen} == set(range(5))
    assert {(level, level) for level in range(5)} <= set(seen), "each level occurs proven"
    assert {(level, 1) for level in (2, 3, 4)} <= set(seen), "and unproven"


def test_more_evidence_never_lowers_and_older_evidence_never_raises() -> None:
    rng, tried = random.Random(16), 0
    for _ in range(SETS):
        facts = random_facts(rng)
        at = rng.randrange(len(facts)) if facts else 0
        if not facts or is_duty(facts[at]):
            continue
        tried += 1
        one, rest = facts[at], facts[:at] + facts[at + 1 :]
        aged = older(one, rng.choice((1, HOUR_MS, 2 * DAY_MS, 91 * DAY_MS)))
        _check_not_better(judged(rest), judged([*rest, aged]))
        _check_not_better(judged([*rest, aged]), judged(facts))
    assert tried > SETS // 2


def _check_not_better(worse: LevelReport, better: LevelReport) -> None:
    assert worse.level <= better.level
    assert {gate.id for gate in worse.gates if gate.ok} <= {gate.id for gate in better.gates if gate.ok}


@given(seed=st.integers(0, 2**32), days=st.sampled_from((1, 25, 31, 91, 400)))
def test_time_alone_raises_nothing(seed: int, days: int) -> None:
    facts = random_facts(random.Random(seed))
    held = {gate.id for gate in judged(facts).gates if gate.ok}
    assert {gate.id for gate in judged(facts, later_ms=days * DAY_MS).gates if gate.ok} <= held


def test_an_agent_that_has_everything_is_proven_at_level_4_until_the_first_gate_expires() -> None:
    found = judged(whole())
    assert (found.level, found.proven, found.next) == (4, True, None)
    assert found.proven_until_ms == NOW + DAY_MS
    assert found.text == "level 4, proven until 2027-01-16"
    assert found.name == "distributed"


@pytest.mark.parametrize(
    ("later_ms", "failing"),
    [
        (0, set[str]()),
        (25 * HOUR_MS, {"rpo"}),
        (31 * DAY_MS, {"rpo", "takeover-drill", "old-refused", "nothing-lost"}),
        (91 * DAY_MS, QUARTER),
        (400 * DAY_MS, QUARTER),
    ],
)
def test_a_moved_clock_lowers_the_proof_gate_by_gate_and_never_the_level(later_ms: int, failing: set[str]) -> None:
    found = judged(whole(), later_ms=later_ms)
    assert {gate.id for gate in found.gates if not gate.ok} == failing
    assert found.level == 4
    assert found.proven is not bool(failing)


def test_a_proof_that_is_renewed_says_what_still_lacks() -> None:
    facts = [one for one in whole() if one.name != "place.verified"]
    facts = [older(one, 112 * DAY_MS) if (one.name, one.about) == ("drill", "host-loss") else one for one in facts]
    facts = [one for one in facts if one.name not in ("journal.shared", "instances.alive")]
    facts += [fact("place.verified", about="nas"), fact("place.verified", about="usb")]
    found = judged(facts)
    assert found.text == "level 3, unproven: no restore drill for 112 days; level 2 is proven until 2027-01-16"
    assert found.next is not None
    assert found.next.fix == "holdfast drill run host-loss"


def test_a_failed_drill_undoes_the_proof_of_an_older_one() -> None:
    facts = [older(one, DAY_MS) if one.name == "drill" else one for one in whole()]
    assert judged(facts).proven
    found = judged([*facts, fact("drill", False, about="host-loss")])
    assert not found.proven
    assert "the newest restore drill failed" in found.text


def test_two_places_on_one_device_stay_unproven_whatever_they_are_labelled() -> None:
    facts = [fact(one.name, "one disk", about=one.about) if one.name == "place.device" else one for one in whole()]
    found = judged(facts)
    assert (found.level, found.proven_level) == (4, 1)
    assert found.next is not None
    assert found.next.id == "domains"


def test_a_fact_of_the_future_counts_for_nothing() -> None:
    late = [older(one, -DAY_MS) if one.name == "paper.read-back" else one for one in whole()]
    assert not judged(late).proven


def test_nothing_is_level_0_and_names_the_one_next_action() -> None:
    found = judged([])
    assert (found.level, found.text) == (0, "level 0")
    assert found.next is not None
    assert found.next.fix == "holdfast init NAME --home FOLDER"
    assert all(gate.fix and gate.why for gate in found.gates)


def test_every_gate_and_level_is_in_the_explanation() -> None:
    page = (DOCS / "explanation" / "levels.md").read_text()
    for gate in GATES:
        of = "-" if gate.level is None else f"{gate.level}{' proof' if gate.proof else ''}"
        assert f"| `{gate.id}` | {of} | {gate.text} |" in page, gate.id
    for number, (name, meaning) in enumerate(LEVELS):
        assert f"| {number} {name} | {meaning} |" in page
