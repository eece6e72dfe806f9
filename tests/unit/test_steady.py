"""The journal's time: it never falls behind a record and never stands still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.clock import ManualClock
from holdfast.journal.steady import SteadyTime

moments = st.integers(min_value=0, max_value=2**42)
passing = st.integers(min_value=0, max_value=10**9)


@given(st.lists(st.tuples(moments, passing), min_size=1))
def test_records_are_never_dated_before_the_one_before(seen: list[tuple[int, int]]) -> None:
    clock = ManualClock(wall_ms=0)
    steady, newest = SteadyTime(clock), 0
    for wall_ms, passed_ms in seen:
        clock.advance(passed_ms)
        clock.set_wall_ms(wall_ms)
        now = steady.now_ms(newest)
        assert now >= max(newest, wall_ms)
        newest = now


@given(moments, st.integers(min_value=1, max_value=10**9), passing)
def test_time_passes_behind_a_record_of_the_future(wall: int, ahead: int, passed: int) -> None:
    clock = ManualClock(wall_ms=wall)
    steady = SteadyTime(clock)
    assert steady.now_ms(wall + ahead) == wall + ahead
    clock.advance(passed)
    assert steady.now_ms(wall + ahead) == wall + ahead + passed


def test_the_wall_clock_counts_once_it_has_caught_up() -> None:
    clock = ManualClock(wall_ms=1_000)
    steady = SteadyTime(clock)
    steady.now_ms(5_000)
    clock.set_wall_ms(9_000)
    assert steady.now_ms(5_000) == 9_000


def test_two_processes_may_differ_but_neither_falls_behind_the_newest_record() -> None:
    clock = ManualClock(wall_ms=1_000)
    early = SteadyTime(clock)
    early.now_ms(5_000)
    clock.advance(100)
    late = SteadyTime(clock)
    assert late.now_ms(5_000) == 5_000
    assert early.now_ms(5_000) == 5_100
    assert late.now_ms(5_100) == 5_100
