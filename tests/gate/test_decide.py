"""The gate's decisions: values in, a verdict out."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.core.step import Step, StepState
from holdfast.errors import Misuse, NoSchema
from holdfast.journal.records import StepView
from holdfast.runtime.gate.gate import NOTHING, Gate, GateVerdict, Past
from holdfast.runtime.gate.guard import Tally


@holdfast.tool
async def charge(call: holdfast.Call, card: str, cents: Annotated[float, "how much"]) -> None: ...


@holdfast.tool
async def search(call: holdfast.Call, query: str) -> None: ...


@holdfast.tool
async def odd(call: holdfast.Call, on: bytes) -> None: ...


PARKED = StepState.PARKED
Row = tuple[object, StepState, int | None]  # arguments, state, sent so many ms ago


def past(*amounts: float, counts: bool = True, ago: int | None = 0) -> list[Row]:
    state = StepState.SUCCEEDED if counts else StepState.FAILED
    return [({"cents": one}, state, ago) for one in amounts]


def added(gate: Gate, rows: list[Row], tool: str = "charge") -> Past:
    """As the guard adds them up."""
    agos = {str(i): ago for i, (_, _, ago) in enumerate(rows, start=1)}
    tally = Tally(*gate.counted(tool), lambda step: agos[step.ordinal])
    for ordinal, (args, state, _) in zip(agos, rows, strict=True):
        step = StepView(ordinal, "K")
        step.step, step.body = Step(letter="K", state=state), {"args": args}
        tally.add(step)
    first = tally.past([])
    again = tally.past([])  # looked at twice, added once
    assert (first.calls, first.spent) == (again.calls, again.spent)
    return again


def decide(
    gate: Gate, cents: object = 1, before: list[Row] | None = None, *, tool: str = "charge"
) -> GateVerdict | None:
    return gate.decide(tool, {"cents": cents}, added(gate, before or [], tool), problems=[])


def test_without_rules_everything_passes() -> None:
    assert decide(Gate()) is None
    assert decide(Gate(allow=["charge"])) is None


def test_only_what_is_allowed_passes() -> None:
    gate = Gate(allow=[charge, "search"])
    assert decide(gate, tool="search") is None
    assert decide(gate, tool="refund") == GateVerdict(True, "allow", "refund is not among the tools of this task")
    assert decide(Gate(allow=[])) is not None
    assert (gate.allows("charge"), gate.allows("refund")) == (True, False)


def test_problems_of_the_arguments_are_told_together() -> None:
    found = Gate().decide("charge", {}, NOTHING, problems=["a: is missing", "b: must be text"])
    assert found == GateVerdict(True, "arguments", "a: is missing; b: must be text")


AMOUNT = Gate(limits={charge: holdfast.Limit(argument="cents", per_call=50_000, per_task=100_000)})


CASES: list[tuple[object, list[Row], str | None]] = [
    (50_000, past(50_000), None),
    (50_001, [], "cents: 50,001 is above 50,000, the most of one call"),
    (1, past(50_000, 50_000), "cents: 1 would make 100,001 in this task; the most is 100,000"),
    (1, past(50_000, 50_000, counts=False), None),
    (-1, [], "cents: must not be below 0"),
    (True, [], "cents: must be given as a number: the gate limits it"),
    ("1", [], "cents: must be given as a number: the gate limits it"),
    (None, [], "cents: must be given as a number: the gate limits it"),
    (1, [({}, PARKED, 0)], "cents: what step 1 spends is not known"),
    (1, [*past(5), (None, PARKED, 0), *past(5)], "cents: what step 2 spends is not known"),
    (50_000, [({"cents": 50_001}, PARKED, 0)], "cents: 50,000 would make 100,001 in this task; the most is 100,000"),
    (
        50_000,
        [({"cents": 50_001}, StepState.STARTED, 0)],
        "cents: 50,000 would make 100,001 in this task; the most is 100,000",
    ),
    (1, past(-5), "cents: what step 1 spends is not known"),
    (1, [({}, StepState.FAILED, 0), ({}, StepState.SKIPPED, None)], None),
]


@pytest.mark.parametrize(("cents", "before", "why"), CASES)
def test_amounts(cents: object, before: list[Row], why: str | None) -> None:
    found = decide(AMOUNT, cents, before)
    assert (found and found.why) == why
    assert found is None or (found.refused, found.rule) == (True, "amount")


def test_amounts_add_up_as_they_are_written() -> None:
    gate = Gate(limits={charge: holdfast.Limit(argument="cents", per_task=0.3)})
    assert decide(gate, 0.1, past(0.1, 0.1)) is None
    found = decide(gate, 0.1, past(0.1, 0.1, 0.001))
    assert found is not None
    assert found.why == "cents: 0.1 would make 0.301 in this task; the most is 0.3"


def test_numbers_of_calls() -> None:
    gate = Gate(limits={charge: holdfast.Limit(calls=2)})
    assert decide(gate, 1, [*past(1), *past(1, 1, counts=False)]) is None
    assert decide(gate, 1, past(1, 1)) == GateVerdict(True, "calls", "2 calls are the most in this task, and 2 count")
    assert decide(Gate(limits={charge: holdfast.Limit(calls=0)})) is not None


def test_rates() -> None:
    gate = Gate(limits={charge: [holdfast.Limit(calls=2, within_s=60), holdfast.Limit(calls=9)]})
    young, old = past(1, ago=10_000), past(1, ago=60_000)
    assert decide(gate, 1, [*young, *old, *past(1, ago=None)]) is None
    found = decide(gate, 1, [*young, *past(1, ago=25_000), *old])
    told = GateVerdict(True, "rate", "2 calls within 60 s are the most", 35.0)
    assert found == told
    # What failed was sent all the same.
    failed = past(1, counts=False, ago=50_000)
    assert decide(gate, 1, [*young, *failed]) == told._replace(retry_after_s=10.0)
    # Three within the span: two must leave it.
    assert decide(gate, 1, [*young, *failed, *past(1, ago=1)]) == told._replace(retry_after_s=50.0)


def test_a_tally_counts_what_is_not_yet_recorded_and_follows_what_is() -> None:
    open_step = StepView("1", "K")
    open_step.step, open_step.body = Step(letter="K", state=StepState.STARTED), {"args": {"cents": 5}}
    tally = Tally({"cents"}, 1_000, lambda _step: 10)
    tally.add(open_step)
    found = tally.past([("2", {"cents": 7})])
    assert (found.calls, found.spent, sorted(found.sent_ago_ms())) == (2, {"cents": 12}, [0, 10])
    open_step.step = Step(letter="K", state=StepState.FAILED)
    found = tally.past([])
    assert (found.calls, found.spent, list(found.sent_ago_ms())) == (0, {"cents": 0}, [10])


def test_times_are_kept_as_far_back_as_a_rate_looks() -> None:
    old = Gate(limits={charge: holdfast.Limit(calls=2, within_s=1)})
    found = added(old, [*past(1, 1, 1, ago=1_000), *past(1, ago=999)])
    assert (found.sent_most, list(found.sent_ago_ms())) == (4, [999])
    assert decide(old, 1, [*past(1, 1, 1, ago=1_000), *past(1, ago=999)]) is None


def test_when_a_person_is_asked() -> None:
    rule = holdfast.Above(argument="cents", per_call=20, per_task=50)
    gate = Gate(approve={charge: rule})
    assert decide(gate, 20, past(30)) is None
    assert decide(gate, 21) == GateVerdict(False, "approve", "cents: 21 is above 20")
    assert decide(gate, 20, past(31)) == GateVerdict(False, "approve", "cents: 51 in this task is above 50")
    found = decide(gate, -1)
    assert found is not None
    assert found.refused
    assert decide(Gate(approve=[charge])) == GateVerdict(False, "approve", "every call needs approval")
    assert decide(Gate(approve={charge: False})) is None
    limited = Gate(approve=[charge], limits={charge: holdfast.Limit(calls=0)})
    found = decide(limited)
    assert found is not None
    assert found.refused  # nobody is asked for what is refused anyway


def test_only_what_counts_is_looked_back_at() -> None:
    assert AMOUNT.looks_back("charge")
    assert not AMOUNT.looks_back("search")
    assert not Gate(approve={charge: holdfast.Above(argument="cents", per_call=1)}).looks_back("charge")
    assert Gate(approve={charge: holdfast.Above(argument="cents", per_task=1)}).looks_back("charge")


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 100), st.integers(1, 40), st.integers(0, 6))
def test_whatever_is_asked_for_no_limit_is_passed(asked: list[int], per_task: int, per_call: int, calls: int) -> None:
    limit = holdfast.Limit(argument="cents", per_call=per_call, per_task=per_task, calls=calls)
    gate = Gate(limits={charge: limit})
    taken: list[int] = []
    for cents in asked:
        if decide(gate, cents, past(*taken)) is None:
            taken.append(cents)
        else:
            # No refusal without a limit that would have been passed.
            over = cents > per_call or sum(taken) + cents > per_task or len(taken) >= calls
            assert over
    assert sum(taken) <= per_task
    assert len(taken) <= calls
    assert max(taken, default=0) <= per_call


# marks


def test_the_mark_is_of_the_rules_and_not_of_their_order() -> None:
    one = Gate(allow=[charge, search], limits={charge: holdfast.Limit(calls=1)})
    other = Gate(allow=["search", "charge"], limits={"charge": [holdfast.Limit(calls=1)]})
    assert one.digest == other.digest
    marks = {
        one.digest,
        Gate().digest,
        Gate(allow=[]).digest,
        Gate(allow=[charge]).digest,
        AMOUNT.digest,
        Gate(approve=[charge]).digest,
        Gate(approve={charge: holdfast.Above(argument="cents", per_call=1)}).digest,
        Gate(limits={charge: holdfast.Limit(calls=2)}).digest,
        Gate(limits={charge: holdfast.Limit(calls=2, within_s=1)}).digest,
    }
    assert len(marks) == 9


# what is refused when it is written

LIMITS: list[dict[str, Any]] = [
    {},
    {"argument": "cents"},
    {"per_call": 1},
    {"argument": 1, "per_call": 1},
    {"argument": "cents", "per_call": -1},
    {"argument": "cents", "per_task": "1"},
    {"argument": "cents", "per_task": float("nan")},
    {"calls": -1},
    {"calls": 1.0},
    {"calls": True},
    {"within_s": 1},
    {"calls": 1, "within_s": 0},
    {"calls": 0, "within_s": 1},
    {"calls": 1, "within_s": 1, "argument": "cents", "per_call": 1},
]


@pytest.mark.parametrize("wrong", LIMITS, ids=str)
def test_a_limit_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        holdfast.Limit(**wrong)


GATES: list[dict[str, Any]] = [
    {"allow": [1]},
    {"allow": [""]},
    {"allow": [search], "limits": {charge: LIMITS}},
    {"allow": [search], "limits": {charge: holdfast.Limit(calls=1)}},
    {"limits": {"charge": holdfast.Limit(calls=1)}},
    {"approve": ["charge"]},
    {"limits": {charge: []}},
    {"limits": {charge: [1]}},
    {"approve": {charge: 1}},
    {"limits": {search: holdfast.Limit(argument="cents", per_call=1)}},
    {"approve": {search: holdfast.Above(argument="cents", per_call=1)}},
]


@pytest.mark.parametrize("wrong", GATES, ids=lambda one: str(list(one)))
def test_a_gate_that_would_have_a_hole_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        Gate(**wrong)


def test_a_tool_whose_arguments_cannot_be_checked_is_refused() -> None:
    with pytest.raises(NoSchema, match="tool odd: parameter 'on'"):
        Gate(allow=[odd])


def test_no_tool_can_pass_for_one_of_the_runtime() -> None:
    with pytest.raises(Misuse, match="must not start with @"):
        holdfast.tool(name="@ask")(lambda: None)


def test_what_is_no_gate_is_refused() -> None:
    with pytest.raises(Misuse, match="is not a gate"):
        holdfast.task(gate=[charge])  # type: ignore[arg-type]
    with pytest.raises(Misuse):
        holdfast.Above(argument="", per_call=None)
