"""How long a key may be sent again after a restore: as long as the far end knows what the lost timeline sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast
from holdfast.core.clock import CLOCK_TOLERANCE_MS
from holdfast.core.ids import TaskId
from holdfast.journal.contract import Journal
from holdfast.journal.records import Attempt, StepView, TaskView
from holdfast.runtime.step.facts import in_window
from holdfast.testing.clocks import ManualClock

HOUR_MS = 3_600_000
LOST_MS = 1_800_000_000_000


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False, max_delay_s=0))
async def pay(call: holdfast.Call) -> None: ...


def is_open(hours: int, *, attempt_h: int | None = None, behind_ms: int = 0, **known: Any) -> bool:
    """So many hours after the time from which on things may be lost."""
    step = StepView("1", "K")
    step.restored_ms = step.lost_ms = LOST_MS
    for name, value in known.items():
        setattr(step, name, value)
    if attempt_h is not None:
        step.attempts = (Attempt(1, 1, LOST_MS + attempt_h * HOUR_MS, 0, 0, 0),)
    journal = SimpleNamespace(now_ms=lambda: LOST_MS + hours * HOUR_MS, clock_behind_ms=behind_ms)
    view = TaskView(TaskId("0" * 26))
    return in_window(view, step, cast(Any, pay), cast(Journal, journal), ManualClock(), late_ms=1_000)


@pytest.mark.parametrize(("hours", "expected"), [(1, True), (23, True), (24, False)])
def test_the_window_counts_from_the_time_that_may_be_lost(hours: int, expected: bool) -> None:
    assert is_open(hours) is expected


def test_an_attempt_since_does_not_make_the_window_longer() -> None:
    """The lost timeline may have sent the key long before this one did."""
    assert is_open(23, attempt_h=20)
    assert not is_open(30, attempt_h=20)


def test_a_person_who_said_that_it_was_not_done_ends_the_doubt() -> None:
    assert is_open(30, attempt_h=20, lost_ms=0)


def test_a_clock_that_was_set_back_closes_it() -> None:
    assert not is_open(1, behind_ms=CLOCK_TOLERANCE_MS + 1)
