"""What an instance knows of another one, after each envelope that it read of it."""

from __future__ import annotations

from holdfast.instances.merge_state import HISTORY_MS, PeerState

NOW = 1_800_000_000_000
YEAR = 365 * 86_400_000


def test_a_clock_that_is_years_ahead_keeps_no_history_for_years() -> None:
    lost = PeerState(behind_ms=NOW).heard(NOW + 9 * YEAR, "one", NOW)
    assert lost.kept_until_ms == NOW + HISTORY_MS
    assert PeerState(behind_ms=NOW).heard(NOW - YEAR, "one", NOW).heard_ms == NOW - YEAR
