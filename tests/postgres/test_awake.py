"""Waiting awake for an answer: when it is done, and when it is given up."""

from __future__ import annotations

from holdfast.journal.postgres.adding import LOOK_S, SLEEPS_MAX, Awake

LOOK = 0.000_002  # what one takes


class Machine:
    """A clock, and a server that answers after so many looks."""

    def __init__(self) -> None:
        self.now = 1.0
        self.looks = 0
        self.answers_at = 0
        self.awake = Awake(lambda: self.now)

    def poll(self, milliseconds: int) -> bool:
        assert milliseconds == 0, "it would sleep"
        self.looks += 1
        self.now += LOOK
        return self.looks >= self.answers_at

    def append(self, *, answers_at: int) -> bool:
        self.looks, self.answers_at = 0, answers_at
        return self.awake.sees(self.poll)

    def slept_for(self) -> int:
        """How many of the next answers are slept for, each of which would come at once."""
        count = 0
        while not self.append(answers_at=1):
            assert self.looks == 0
            count += 1
        return count


def test_an_answer_that_comes_soon_is_seen_every_time() -> None:
    machine = Machine()
    assert [machine.append(answers_at=100) for _ in range(50)] == [True] * 50


def test_an_answer_that_does_not_come_is_slept_for_and_so_are_the_next() -> None:
    machine = Machine()
    assert not machine.append(answers_at=10**9)
    assert 1 < machine.looks <= LOOK_S / LOOK + 1
    assert machine.slept_for() == 1
    assert [machine.append(answers_at=10**9) for _ in range(20)] == [False] * 20
    assert machine.slept_for() > 1


def test_where_answers_are_slow_it_is_hardly_ever_tried() -> None:
    machine = Machine()
    looked = 0
    for _ in range(20_000):
        machine.append(answers_at=10**9)
        looked += bool(machine.looks)
    assert looked <= 100
    assert machine.slept_for() <= SLEEPS_MAX


def test_once_answers_are_quick_again_one_miss_costs_little() -> None:
    machine = Machine()
    for _ in range(20_000):
        machine.append(answers_at=10**9)
    machine.slept_for()
    for _ in range(12):
        assert machine.append(answers_at=100)
    assert not machine.append(answers_at=10**9)
    assert machine.slept_for() == 1
