"""How long ago an attempt ended, where another boot may be another machine's."""

from __future__ import annotations

import pytest

from holdfast.core.ids import TaskId
from holdfast.journal.records import Attempt, Claim, StepView, TaskView
from holdfast.runtime.step.facts import decidable_in_ms, ended_ago_ms
from holdfast.testing.clocks import ManualClock

TASK = TaskId("01J9ZK3V5T8Q2M4N6P7R8S9T0V")
CLOCK = ManualClock(boot_ms=10**9, boot_id="here")  # this machine runs for eleven days


def view_of(*claims: Claim) -> TaskView:
    view = TaskView(TASK)
    view.claims = {claim.epoch: claim for claim in claims}
    view.epoch = claims[-1].epoch
    return view


def claim(epoch: int, boot_id: str, boot_ms: int, host_id: str) -> Claim:
    return Claim(epoch, f"s{epoch}", boot_id, boot_ms, at_ms=0, worker="w", host_id=host_id)


ATTEMPT = Attempt(epoch=1, number=1, at_ms=0, boot_ms=500, slot=0, fence=1)


@pytest.mark.parametrize(("host_id", "ago_ms"), [("", 10**9), ("there", 7)])
def test_the_end_on_another_machine_is_no_older_than_our_claim(host_id: str, ago_ms: int) -> None:
    """On one machine everything of another boot had ended when this one began; on two it may end right now."""
    step = StepView("1", "Q", attempts=(ATTEMPT,), ended=(1, 900))
    view = view_of(claim(1, "there", 400, host_id), claim(2, "here", 10**9 - 7, host_id and "here"))
    assert ended_ago_ms(view, step, CLOCK) == ago_ms


def test_a_claim_between_that_was_on_another_machine_does_not_count() -> None:
    step = StepView("1", "Q", attempts=(ATTEMPT,))
    view = view_of(claim(1, "a", 1, "a"), claim(2, "b", 2, "b"), claim(3, "here", 10**9 - 7, "here"))
    assert ended_ago_ms(view, step, CLOCK) == 7
    assert ended_ago_ms(view_of(claim(1, "a", 1, "a"), claim(2, "b", 2, "b")), step, CLOCK) == 0


def test_a_person_at_another_host_waits_by_the_journals_time() -> None:
    step = StepView("1", "N", attempts=(ATTEMPT,), parked=(1, 900, 60_000), not_before_ms=70_000)
    view = view_of(claim(1, "there", 400, "there"))
    assert decidable_in_ms(view, step, CLOCK, now_ms=20_000) == 50_000
    assert decidable_in_ms(view, step, CLOCK, now_ms=70_000) == 0
    embedded = view_of(claim(1, "before", 400, ""))
    assert decidable_in_ms(embedded, step, CLOCK, now_ms=20_000) == 0
