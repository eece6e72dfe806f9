"""Worlds whose tasks have a gate: the same plans and faults, and limits that must hold in them.

What the records say of a task's calls, at the end of the world, must keep to the gate's limits,
however often its workers died; and what the gate refused must never have happened, which is
checked with everything else that is recorded as skipped (I3).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

from holdfast.core.step import StepState
from holdfast.journal.records import StepView, TaskView
from holdfast.runtime.gate.gate import Above, Gate, Limit
from holdfast_proofs.simulate.parts.tools import TOOLS
from holdfast_proofs.simulate.workload import work

BARRED = "at_least_once"
AMOUNTS = {"keyed": 1_000, "stored": 800, "unrepeatable": 900}
CALLS = {"queryable": 1, "transact": 1}
ASKED = "idempotent"
ASKED_ABOVE = 500

GATE = Gate(
    allow=[one for one in TOOLS.values() if one.name != BARRED],
    limits={
        **{TOOLS[name]: Limit(argument="what", per_task=most) for name, most in AMOUNTS.items()},
        **{TOOLS[name]: Limit(calls=most) for name, most in CALLS.items()},
        TOOLS["read"]: Limit(calls=1, within_s=2.0),
    },
    approve={TOOLS[ASKED]: Above(argument="what", per_call=ASKED_ABOVE)},
)


@contextmanager
def gated(on: bool) -> Generator[None]:
    """The simulated task has its gate in this block."""
    if not on:
        yield
        return
    work.gate, work.digests["gate"] = GATE, GATE.digest
    try:
        yield
    finally:
        work.gate = None
        del work.digests["gate"]


def limit_breaches(view: TaskView, granted: set[tuple[str, str]]) -> Iterator[str]:
    """Where the calls of a task are more than its gate lets through."""
    if work.gate is None or view.name != work.name:
        return
    for name, most in AMOUNTS.items():
        spent = sum(_amount(step) for step in _counting(view, name))
        if spent > most:
            yield f"gate: {view.task_id} spends {spent} by {name}, above {most}"
    for name, most in {**CALLS, BARRED: 0}.items():
        calls = len(_counting(view, name))
        if calls > most:
            yield f"gate: {view.task_id} calls {name} {calls} times, above {most}"
    for step in _counting(view, ASKED):
        asked = _amount(step) > ASKED_ABOVE and (view.task_id, step.ordinal) not in granted
        if asked and step.attempts:
            yield f"gate: {view.task_id}/{step.ordinal} was sent without a yes"


def _counting(view: TaskView, tool: str) -> list[StepView]:
    closed_for_nothing = (StepState.FAILED, StepState.SKIPPED)
    return [s for s in view.steps.values() if s.tool == tool and s.state not in closed_for_nothing]


def _amount(step: StepView) -> int:
    return int(cast("dict[str, int]", step.args)["what"])
