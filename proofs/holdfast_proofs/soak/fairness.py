"""Whether a task was left lying: its wait for the first step, and its longest time without news.

Read from the times in the journal. A pause that a task was due does not count against anybody:
the quiet time of a step in doubt, which is taken off, and the time a person took, which is left
out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.journal.records import StepView, TaskView
from holdfast_proofs.soak.app import DELAY_S


@dataclass(slots=True)
class Fairness:
    waits_ms: list[int] = field(default_factory=list[int])  # submit to first step
    stalls_ms: list[int] = field(default_factory=list[int])  # the longest of each task

    def add(self, view: TaskView) -> None:
        first = view.steps.get("1")
        if first is not None:
            self.waits_ms.append(first.planned_ms - view.accepted_ms)
        self.stalls_ms.append(max(stalls_ms(view), default=0))

    def to_json(self) -> dict[str, object]:
        median = statistics.median(self.waits_ms) if self.waits_ms else 0.0
        longest = max(self.waits_ms, default=0)
        return {
            "first_step_ms": {"median": median, "p99": _p99(self.waits_ms), "max": longest},
            "first_step_max_over_median": round(longest / median, 1) if median else 0.0,
            "stall_ms": {
                "median": statistics.median(self.stalls_ms) if self.stalls_ms else 0,
                "p99": _p99(self.stalls_ms),
                "max": max(self.stalls_ms, default=0),
            },
        }


def stalls_ms(view: TaskView) -> Iterator[int]:
    """The times between two signs of life, where the task could have moved."""
    allowed = {step.closed_ms: DELAY_S * 1000 for step in view.steps.values() if step.letter == "Q"}
    parked = {_parked_ms(step) for step in view.steps.values() if step.parked is not None}
    for earlier, later in pairwise(sorted({*_moments(view), *parked})):
        if earlier not in parked:
            yield max(0, later - earlier - int(allowed.get(later, 0)))


def _moments(view: TaskView) -> Iterator[int]:
    yield view.accepted_ms
    yield from (claim.at_ms for claim in view.claims.values())
    for step in view.steps.values():
        yield step.planned_ms
        yield from (attempt.at_ms for attempt in step.attempts)
        if step.closed:
            yield step.closed_ms
    if view.finished is not None:
        yield view.ended_ms


def _parked_ms(step: StepView) -> int:
    """When it was parked: its record says until when nobody may decide, and how long that is."""
    return step.not_before_ms - (step.parked[2] if step.parked else 0)


def _p99(values: list[int]) -> int:
    return sorted(values)[int(len(values) * 0.99)] if values else 0
