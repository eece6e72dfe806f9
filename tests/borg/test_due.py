"""What is due and what is told: years of clocks in a moment."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backup.places import place_state
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.upkeep.due import AWAY, RETRY_FIRST_MS, STALE, due, find_trouble, next_try_ms, unreported

HOUR = 3_600_000
MINUTE = 60_000
DAY_26 = 26 * HOUR


def failed(state: PlaceState, now_ms: int, code: str = "place-missing") -> PlaceState:
    return place_state.tried(state, now_ms=now_ms, result=code, message="it is away")


def test_a_place_is_due_at_first_then_by_its_interval() -> None:
    state = PlaceState()
    assert due(["a"], {}, now_ms=5, every_ms=HOUR) == ("a",)
    state = place_state.tried(state, now_ms=HOUR)
    assert due(["a"], {"a": state}, now_ms=2 * HOUR - 1, every_ms=HOUR) == ()
    assert due(["a"], {"a": state}, now_ms=2 * HOUR, every_ms=HOUR) == ("a",)
    assert due(["a"], {"a": state}, now_ms=HOUR - 1, every_ms=HOUR) == ("a",), "a clock set back"


def test_failures_wait_longer_and_longer_but_never_longer_than_the_interval() -> None:
    state, waits = PlaceState(), list[int]()
    for _ in range(8):
        state = failed(state, now_ms=1)
        waits.append((next_try_ms(state, every_ms=HOUR) - 1) // MINUTE)
    assert waits == [5, 10, 20, 40, 60, 60, 60, 60]
    assert RETRY_FIRST_MS >= MINUTE, "not every minute"
    assert next_try_ms(place_state.tried(state, now_ms=1), every_ms=HOUR) == 1 + HOUR


def test_one_place_says_nothing_about_another() -> None:
    states = {"a": failed(PlaceState(), now_ms=HOUR), "b": place_state.tried(PlaceState(), now_ms=1)}
    assert due(["a", "b"], states, now_ms=HOUR + 1, every_ms=HOUR) == ("b",)


def test_an_absent_disk_is_no_alarm_before_it_is_stale() -> None:
    good = place_state.verified(PlaceState(), now_ms=HOUR, snapshot="s")
    for code in AWAY:
        away = failed(good, now_ms=2 * HOUR, code=code)
        early = find_trouble("usb", away, added_ms=0, now_ms=20 * HOUR, stale_after_ms=DAY_26)
        assert early is None
        late = find_trouble("usb", away, added_ms=0, now_ms=28 * HOUR, stale_after_ms=DAY_26)
        assert late is not None
        assert late.kind == STALE
        assert late.text == "place usb: the last verified backup is 27 h old (it is away)"
        assert "holdfast backup now" in late.hint


def test_made_is_not_verified() -> None:
    """The alarm is about the absence of a verified backup, whatever else went well."""
    state = place_state.made(place_state.tried(PlaceState(), now_ms=HOUR), now_ms=HOUR, snapshot="s")
    trouble = find_trouble("nas", state, added_ms=0, now_ms=27 * HOUR, stale_after_ms=DAY_26)
    assert trouble is not None
    assert trouble.text == "place nas: there is no verified backup yet, 27 h after it was added"


def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    state = failed(place_state.verified(PlaceState(), now_ms=HOUR, snapshot="s"), HOUR, "repository-damaged")
    trouble = find_trouble("nas", state, added_ms=0, now_ms=HOUR, stale_after_ms=DAY_26)
    assert trouble is not None
    assert trouble.kind == "repository-damaged"


@given(st.lists(st.sampled_from(["ok", "place-missing", "place-full", "wait"]), max_size=30))
def test_each_change_is_told_once(happenings: list[str]) -> None:
    state, now, told = PlaceState(), 0, list[str]()
    for one in happenings:
        if one == "wait":
            now += 30 * HOUR
        elif one == "ok":
            state = place_state.tried(state, now_ms=now)
            state = place_state.verified(state, now_ms=now, snapshot="s")
        else:
            state = failed(state, now, one)
        trouble = find_trouble("a", state, added_ms=0, now_ms=now, stale_after_ms=DAY_26)
        for _ in range(3):
            new = unreported(state, trouble, place="a")
            if new is not None:
                told.append(new.kind)
                state = msgspec.structs.replace(state, notified=new.kind)
    assert all(one != other for one, other in pairwise(told))
    assert not told or told[0] != ""


def test_a_verified_backup_of_the_future_proves_nothing() -> None:
    """A clock that ran ahead for one run must not silence the alarm until that day."""
    ahead = place_state.verified(PlaceState(), now_ms=365 * 24 * HOUR, snapshot="a-1")
    trouble = find_trouble("nas", ahead, added_ms=0, now_ms=HOUR, stale_after_ms=DAY_26)
    assert trouble is not None
    assert (trouble.kind, "8,759 h in the future" in trouble.text) == (STALE, True)
    near = place_state.verified(PlaceState(), now_ms=HOUR + 60_000, snapshot="a-1")
    assert find_trouble("nas", near, added_ms=0, now_ms=HOUR, stale_after_ms=DAY_26) is None
