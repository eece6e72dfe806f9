"""Every border, shortly, with hypothesis; the long way is `make fuzz`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast_proofs.fuzz import watch as watching
from holdfast_proofs.fuzz.campaign import run_campaign, run_target
from holdfast_proofs.fuzz.mutations import mutated
from holdfast_proofs.fuzz.targets import TARGETS, Target
from holdfast_proofs.fuzz.watch import Finding, Watch

EXAMPLES = 60
RAW = st.binary(max_size=400)


def _larger(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner)


def _as_json(value: object) -> bytes:
    return json.dumps(value).encode()


SMALL: st.SearchStrategy[object] = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(SMALL, _larger, max_leaves=10).map(_as_json)


def _inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Raw bytes, valid inputs gone wrong, and JSON where the border reads JSON."""

    def change(seed: bytes, chance: int) -> bytes:
        return mutated(seed, target, random.Random(chance))

    changed = st.builds(change, st.sampled_from(target.seeds), st.integers(0, 2**32))
    return RAW | changed | JSON if target.json else RAW | changed


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_a_border_takes_its_input_or_refuses_it_in_its_own_words(target: Target) -> None:
    watch = Watch(target)

    @settings(
        max_examples=EXAMPLES if target.share == 1.0 else EXAMPLES // 3,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(_inputs(target))
    def try_one(raw: bytes) -> None:
        watch.run(raw)
        assert list(watch.findings.values()) == []

    try_one()
    assert watch.executions > EXAMPLES // 10


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_mutations_begin_from_inputs_that_the_border_accepts(target: Target) -> None:
    """But for rows, which are made of columns: a whole one is a record, and has its own target."""
    watch = Watch(target)
    for raw in target.seeds:
        watch.run(raw)
    assert watch.findings == {}
    assert watch.accepted or target.name == "rows"


def _fails(raw: bytes) -> None:
    if b"!" in raw:
        raise KeyError("missed by the border")
    raise BadInput("refused")


def _target(run: Callable[[bytes], None]) -> Target:
    return Target(name="planted", run=run, seeds=(b"a!b", b""))


def _nothing(raw: bytes) -> None:
    """Takes anything."""


def test_what_is_no_error_of_ours_is_found() -> None:
    watch = Watch(_target(_fails))
    assert watch.run(b"fine") == "BadInput"
    assert watch.findings == {}
    for raw in (b"a!", b"b!"):
        watch.run(raw)
    (finding,) = watch.findings.values()
    assert (finding.kind, finding.input_hex) == ("error", b"a!".hex())
    assert finding.where
    assert "--target planted --input 6121" in finding.command


def test_an_execution_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EXECUTION_S_MAX", 0.0)
    watch = Watch(_target(_nothing))
    watch.run(b"")
    assert [one.kind for one in watch.findings.values()] == ["slow"]


def test_a_campaign_counts_what_its_processes_ran() -> None:
    report = run_campaign(["sealed", "keys"], runs=400, seed=1, engine="mutations")
    assert report.findings == []
    assert [one["executions"] for one in report.targets] == [200, 200]
    assert report.to_json()["executions"] == 400


def test_a_process_that_dies_is_a_finding() -> None:
    findings: list[Finding] = []
    nobody = Target(name="nobody", run=_nothing, seeds=(b"",))
    run_target(nobody, runs=10, seed=0, engine="mutations", findings=findings)
    assert [one.kind for one in findings] == ["died"]
