"""What a supervising parent decides when its worker has ended."""

from __future__ import annotations

import pytest

from holdfast.errors import EXIT_JOURNAL, EXIT_PLACE, EXIT_RETRY, EXIT_USAGE
from holdfast.runtime.engine.supervisor import Restart, Stop, after_exit, exit_code, is_terminal


def test_a_worker_that_ended_on_purpose_is_not_started_again() -> None:
    assert after_exit(0, 1.0, 0, own=True) == Stop(code=0)


@pytest.mark.parametrize("code", [EXIT_USAGE, EXIT_JOURNAL, EXIT_PLACE, 64, 78])
def test_what_a_restart_cannot_change_stops(code: int) -> None:
    assert after_exit(code, 1.0, 0, own=True) == Stop(code=code)


@pytest.mark.parametrize("code", [0, EXIT_USAGE, EXIT_JOURNAL, EXIT_PLACE, 64])
def test_a_code_that_is_not_the_workers_own_word_is_a_death(code: int) -> None:
    """A tool may end the process with any code."""
    assert after_exit(code, 1.0, 0, own=False) == Restart(delay_s=0.1, failures=1)


@pytest.mark.parametrize("status", [-9, -15, -11, 1, EXIT_RETRY, 63, 79, 255])
def test_every_other_death_is_answered_with_a_restart(status: int) -> None:
    assert isinstance(after_exit(status, 1.0, 0, own=True), Restart)


def test_the_pause_doubles_to_five_seconds() -> None:
    delays: list[float] = []
    failures = 0
    for _ in range(9):
        decision = after_exit(-9, 0.5, failures, own=True)
        assert isinstance(decision, Restart)
        delays.append(decision.delay_s)
        failures = decision.failures
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert after_exit(-9, 0.5, 10**9, own=True) == Restart(delay_s=5.0, failures=10**9 + 1)


def test_thirty_healthy_seconds_clear_the_slate() -> None:
    assert after_exit(-9, 29.9, 6, own=True) == Restart(delay_s=5.0, failures=7)
    assert after_exit(-9, 30.0, 6, own=True) == Restart(delay_s=0.1, failures=1)


def test_the_caller_may_say_what_is_terminal() -> None:
    assert after_exit(5, 1.0, 0, own=True, terminal=lambda code: code == 5) == Stop(code=5)
    assert isinstance(after_exit(64, 1.0, 0, own=True, terminal=lambda code: False), Restart)
    assert not is_terminal(1)


def test_signals_become_exit_codes_as_shells_write_them() -> None:
    assert [exit_code(status) for status in (0, 3, -9, -15)] == [0, 3, 137, 143]
