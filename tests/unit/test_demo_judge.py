"""The demo's judge sees a broken promise, whatever the journal believes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.demo.story import Doubts, Verdict, Wanted, judge
from holdfast.downstream.ledger import Done, Page

WANTED = (
    Wanted(far_end="payment", task_id="T1", ordinal="2"),
    Wanted(far_end="mail", task_id="T1", ordinal="3"),
    Wanted(far_end="letter", task_id="T2", ordinal="1"),
)
GOOD = Doubts(trip_parked=0, letter_parked=1, settled=1, open=0)


def effect(task: str, step: str, *, number: int = 1) -> Done:
    return Done(
        id=f"ef_{number:06}",
        n=number,
        request=number,
        at_ms=0,
        kind="payment",
        key=None,
        reference=None,
        task=task,
        step=step,
        base=step.partition(".r")[0],
        fence=None,
        resource=None,
        body_sha256="",
        body={},
    )


def page(*effects: Done) -> Page:
    return Page(kind="payment", effects=effects, requests=(), by_key={}, by_reference={}, by_base={}, duplicates=0)


def verdict(
    *,
    payment: Sequence[Done] = (effect("T1", "2"),),
    mail: Sequence[Done] = (effect("T1", "3"),),
    letter: Sequence[Done] = (effect("T2", "1"),),
    doubts: Doubts = GOOD,
) -> Verdict:
    ledgers = {"payment": page(*payment), "mail": page(*mail), "letter": page(*letter)}
    return judge(WANTED, ledgers, doubts)


def test_each_effect_once_and_the_doubt_shown_holds() -> None:
    seen = verdict()
    assert seen.held
    assert (seen.charges, seen.mails, seen.letters) == (1, 1, 1)
    assert (seen.duplicates, seen.lost, seen.strays) == (0, 0, 0)


@pytest.mark.parametrize("second", ["2", "2.r1"])
def test_a_second_charge_is_a_duplicate(second: str) -> None:
    """Also where it came under a retry slot with a key of its own."""
    seen = verdict(payment=(effect("T1", "2"), effect("T1", second, number=2)))
    assert not seen.held
    assert (seen.charges, seen.duplicates) == (2, 1)


def test_a_missing_mail_is_lost() -> None:
    seen = verdict(mail=())
    assert not seen.held
    assert seen.lost == 1


def test_an_effect_of_no_step_is_a_stray() -> None:
    seen = verdict(payment=(effect("T1", "2"), effect("T9", "1", number=2)))
    assert not seen.held
    assert (seen.duplicates, seen.strays) == (0, 1)


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"trip_parked": 1}, "no needless question"),
        ({"letter_parked": 0, "settled": 0}, "no silent doubt"),
        ({"settled": 0, "open": 1}, "a decision settles"),
    ],
)
def test_a_doubt_that_is_hidden_needless_or_left_open_breaks(change: dict[str, int], promise: str) -> None:
    seen = verdict(doubts=replace(GOOD, **change))
    assert len(seen.broken) == 1
    assert seen.broken[0].startswith(promise)
