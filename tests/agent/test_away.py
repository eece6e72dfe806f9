"""What a model is told of the time between two of its requests."""

from __future__ import annotations

import pytest

from holdfast.core.ids import task_id_from_bytes
from holdfast.core.step import Event, Step, StepState
from holdfast.journal.records import Attempt, Claim, StepView, TaskView
from holdfast.runtime.agent.calls import OPENING, resume_message

AT_MS = 1_800_000_000_000


def view_of(*epochs: int, lost: dict[int, int] | None = None) -> TaskView:
    view = TaskView(task_id_from_bytes(b"t" * 16))
    view.claims = {one: Claim(one, "s", "b", 5, AT_MS + one, "w") for one in epochs}
    view.lost = lost or {}
    return view


def step_of(
    letter: str, *epochs: int, ending: Event = Event.SUCCEED, by: str = "", sent: int | None = None, parked: int = 0
) -> StepView:
    step = StepView("2.1.1", letter)  # pyright: ignore[reportArgumentType] - a letter
    failed = ending in (Event.FAIL, Event.REFUSE)
    step.step = Step(
        letter=letter,  # pyright: ignore[reportArgumentType] - a letter
        state=StepState.FAILED if failed else StepState.SUCCEEDED,
        maybe_sent=len(epochs) if sent is None else sent,
    )
    step.parked = (parked, 5, 0) if parked else None
    step.attempts = tuple(Attempt(epoch, 1, AT_MS, 5, 0, 0) for epoch in epochs)
    step.ending, step.by = ending, by
    return step


def test_nothing_is_told_of_orderly_rests() -> None:
    assert resume_message(view_of(1, 2, 3), since=1, now=3, calls=[(1, "pay", step_of("K", 1))]) == ""


def test_a_death_without_calls_is_told_alone() -> None:
    text = resume_message(view_of(1, 2, lost={1: 2}), since=1, now=2, calls=[])
    at = "2027-01-15 08:00:00 UTC"
    assert text == f"{OPENING}the worker died, and another one took over at {at}."


def test_deaths_before_the_last_request_are_not_told_again() -> None:
    view = view_of(1, 2, 3, lost={1: 2})
    assert resume_message(view, since=2, now=3, calls=[]) == ""


def test_each_call_in_doubt_has_its_fate() -> None:
    view = view_of(1, 2, 3, lost={1: 2, 2: 3})
    calls = [
        (1, "pay", step_of("K", 1, 3)),
        (2, "mail", step_of("Q", 1, ending=Event.FIND)),
        (3, "post", step_of("N", 1, ending=Event.ADOPT, by="webhook")),
        (4, "look", step_of("R", 2, 3)),
        (5, "note", step_of("T", 2, 3)),
        (6, "done", step_of("K", 1)),
        (7, "none", None),
        (8, "given", step_of("N", ending=Event.SETTLE_SKIP)),
    ]
    text = resume_message(view, since=1, now=3, calls=calls)
    assert "the worker died 2 times" in text
    assert "call 1 (pay) was sent again under the same key, so that it took effect once" in text
    assert "call 2 (mail) had been made before; it was looked up and found done once" in text
    assert "call 3 (post) had been made before; webhook says that it was done" in text
    assert "call 4 (look) was asked again" in text
    assert "call 5 (note) had changed nothing yet and was made again" in text
    assert "call 8 (given) was in doubt; a person decided that it is not made" in text
    assert "call 6" not in text
    assert "call 7" not in text


ONCE = "was sent again under the same key, so that it took effect once"
FATES: dict[str, tuple[StepView, str]] = {
    "Fenced": (step_of("F", 1, 2), ONCE),
    "Keyed": (step_of("K", 1, 2), ONCE),
    "Keyed, failed": (step_of("K", 1, 2, ending=Event.REFUSE), "was sent again under the same key, and failed"),
    "Idempotent": (step_of("I", 1, 2), "was done again; the end state is that of doing it once"),
    "Idempotent, failed": (step_of("I", 1, 2, ending=Event.REFUSE), "was done again, and failed"),
    "Queryable": (step_of("Q", 1, 2), "was looked up, not found and sent again"),
    "Queryable, failed": (
        step_of("Q", 1, 2, ending=Event.REFUSE),
        "was looked up, not found and sent again, and failed",
    ),
    "at least once": (step_of("N", 1, 2), "was sent again and may have happened twice"),
    "at least once, three": (step_of("N", 1, 1, 2), "was sent again and may have happened twice"),
    "proven unsent": (step_of("N", 1, 2, sent=1), "had not taken effect before and was made again"),
    "proven unsent, failed": (
        step_of("K", 1, 2, ending=Event.REFUSE, sent=1),
        "had not taken effect before and was made again, and failed",
    ),
    "a person's run": (step_of("N", 3, parked=2), "was in doubt; a person decided to run it again"),
    "a person's run, failed": (
        step_of("Q", 3, parked=2, ending=Event.REFUSE),
        "was in doubt; a person decided to run it again, and failed",
    ),
    "a person's run, another death": (
        step_of("K", 3, 4, parked=2),
        f"was in doubt; a person decided to run it again; then it {ONCE}",
    ),
}


@pytest.mark.parametrize("case", FATES)
def test_what_a_repeat_means_is_true_of_its_class(case: str) -> None:
    step, fate = FATES[case]
    view = view_of(1, 2, 3, 4, lost={1: 2, 3: 4})
    text = resume_message(view, since=1, now=4, calls=[(1, "act", step)])
    assert text.endswith(f"; call 1 (act) {fate}.")


def test_a_restore_is_told() -> None:
    now = 2 << 32 | 1
    view = view_of(1, now)
    view.restored_ms = AT_MS
    text = resume_message(view, since=1 << 32 | 1, now=now, calls=[(1, "pay", step_of("K", 1))])
    assert "restored from an older copy of 2027-01-15 08:00:00 UTC" in text
    assert "none of your calls was in doubt" in text
