"""The lease as the session sees it: each edge of time, on two clocks."""

from __future__ import annotations

import pytest

from holdfast.errors import RunFenced
from holdfast.runtime.session.lease import START_MARGIN_MS, SessionLease
from holdfast.testing.clocks import ManualClock

TTL_MS = 10_000


class Session:
    """As much of a session as a lease looks at."""

    session_id = "s"
    incarnation = 1
    boot_id = "boot-1"

    def __init__(self, *, ttl_ms: int, deadline_boot_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.deadline_boot_ms = deadline_boot_ms

    def take_slot(self, tag: bytes) -> int:
        return -1

    def mark_begun(self, slot: int) -> None:
        """Not looked at here."""

    def free_slot(self, slot: int) -> None:
        """Not looked at here."""

    def lock_fd(self) -> int | None:
        return None

    def mark_left(self, slot: int) -> None:
        """Not looked at here."""

    def is_left(self, slot: int) -> bool:
        return False

    def left_at(self, slot: int) -> int | None:
        return None


def leased(*, ttl_ms: int = TTL_MS, left_ms: int = TTL_MS) -> tuple[SessionLease, ManualClock]:
    clock = ManualClock()
    session = Session(ttl_ms=ttl_ms, deadline_boot_ms=clock.boot_ms() + left_ms)
    return SessionLease(session, clock), clock


def test_a_new_lease_lets_a_step_begin() -> None:
    lease, _ = leased()
    assert lease.lost is False
    assert lease.ok()
    assert lease.left_ms() == TTL_MS
    lease.check()
    assert not lease.was_frozen()


def test_a_step_begins_only_with_the_margin_left() -> None:
    assert START_MARGIN_MS == 50
    lease, clock = leased()
    clock.advance(TTL_MS - START_MARGIN_MS - 1)
    assert lease.ok()
    clock.advance(1)
    assert lease.left_ms() == START_MARGIN_MS
    assert not lease.ok()
    lease.check()  # what is under way may still be sent


def test_a_short_lease_has_a_margin_of_a_twentieth() -> None:
    lease, clock = leased(ttl_ms=200, left_ms=200)
    clock.advance(189)
    assert lease.ok()
    clock.advance(1)
    assert lease.left_ms() == 10
    assert not lease.ok()


def test_nothing_is_sent_from_the_deadline_on() -> None:
    lease, clock = leased()
    clock.advance(TTL_MS - 1)
    lease.check()
    clock.advance(1)
    with pytest.raises(RunFenced):
        lease.check()
    assert lease.lost is True


def test_a_lost_lease_stays_lost_whatever_the_clock_says() -> None:
    lease, _ = leased()
    lease.lost = True
    assert not lease.ok()
    with pytest.raises(RunFenced):
        lease.check()


@pytest.mark.parametrize(("jump_ms", "frozen"), [(TTL_MS, False), (TTL_MS + 1, True)])
def test_a_machine_that_stood_still_for_longer_than_the_lease_is_fenced(jump_ms: int, frozen: bool) -> None:
    """The wall clock went on, our own clocks did not: others may have taken over."""
    lease, clock = leased()
    clock.advance(77)
    clock.set_wall_ms(clock.wall_ms() + jump_ms)
    if frozen:
        with pytest.raises(RunFenced):
            lease.check()
        assert lease.lost
    else:
        lease.check()
        assert not lease.lost
    assert lease.was_frozen() is frozen


def test_a_jump_is_looked_at_once() -> None:
    """A clock that was set forward, or back, is the clock from then on."""
    lease, clock = leased()
    clock.set_wall_ms(clock.wall_ms() + TTL_MS + 1)
    assert lease.was_frozen()
    assert not lease.was_frozen()
    clock.set_wall_ms(clock.wall_ms() - 5 * TTL_MS)
    assert not lease.was_frozen()
    clock.set_wall_ms(clock.wall_ms() + TTL_MS + 1)
    assert lease.was_frozen()


def test_jumps_that_are_looked_at_do_not_add_up() -> None:
    lease, clock = leased()
    for _ in range(3):
        clock.set_wall_ms(clock.wall_ms() + TTL_MS)
        assert not lease.was_frozen()
        lease.check()
