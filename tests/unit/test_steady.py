"""The journal's time: it never falls behind a record and never stands still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.steady import Moment, SteadyTime
from holdfast.testing.clocks import ManualClock

moments = st.integers(min_value=1, max_value=2**42)
passing = st.integers(min_value=0, max_value=10**9)


@given(st.lists(st.tuples(moments, passing), min_size=1))
def test_records_are_never_dated_before_the_one_before(seen: list[tuple[int, int]]) -> None:
    clock = ManualClock(wall_ms=1)
    steady, newest = SteadyTime(clock), Moment(0, 0)
    for wall_ms, passed_ms in seen:
        clock.advance(passed_ms)
        clock.set_wall_ms(wall_ms)
        now = steady.now_ms(newest)
        assert now >= max(newest.at_ms, wall_ms)
        newest = Moment(now, clock.boot_ms())


@given(moments, st.integers(min_value=1, max_value=10**9), passing)
def test_time_passes_behind_a_record_of_the_future(wall: int, ahead: int, passed: int) -> None:
    clock = ManualClock(wall_ms=wall)
    newest = Moment(wall + ahead, clock.boot_ms())
    steady = SteadyTime(clock)
    assert steady.now_ms(newest) == wall + ahead
    clock.advance(passed)
    assert steady.now_ms(newest) == wall + ahead + passed


def test_the_wall_clock_counts_once_it_has_caught_up() -> None:
    clock = ManualClock(wall_ms=1_000)
    newest = Moment(5_000, clock.boot_ms())
    steady = SteadyTime(clock)
    steady.now_ms(newest)
    clock.set_wall_ms(9_000)
    assert steady.now_ms(newest) == 9_000


def test_processes_of_one_boot_agree_whenever_they_began() -> None:
    """What one of them makes due now is due for the others."""
    clock = ManualClock(wall_ms=1_000)
    newest = Moment(5_000, clock.boot_ms())
    early = SteadyTime(clock)
    early.now_ms(newest)
    clock.advance(20_000)
    late = SteadyTime(clock)
    assert early.now_ms(newest) == late.now_ms(newest) == 25_000


def test_after_a_restart_the_time_since_then_counts() -> None:
    clock = ManualClock(wall_ms=1_000, boot_ms=900_000)
    newest = Moment(5_000, clock.boot_ms())
    clock.reboot(boot_id="boot-2")
    clock.advance(700)
    assert SteadyTime(clock).now_ms(newest) == 5_700


@given(st.lists(passing, min_size=1))
def test_time_does_not_fall_when_the_boot_clock_passes_an_older_boot(steps: list[int]) -> None:
    clock = ManualClock(wall_ms=1_000, boot_ms=5_000)
    newest = Moment(50_000, clock.boot_ms())
    clock.reboot(boot_id="boot-2")
    steady = SteadyTime(clock)
    last = steady.now_ms(newest)
    for passed_ms in steps:
        clock.advance(passed_ms)
        now = steady.now_ms(newest)
        assert now >= last
        last = now
