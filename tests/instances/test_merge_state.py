"""What an instance knows of another one, after each envelope that it read of it."""

from __future__ import annotations

from holdfast.instances.merge_state import HISTORY_MS, PeerState

NOW = 1_800_000_000_000
YEAR = 365 * 86_400_000


def test_a_clock_that_is_years_ahead_keeps_no_history_for_years() -> None:
    lost = PeerState(behind_ms=NOW).heard(NOW + 9 * YEAR, "one", NOW)
    assert lost.kept_until_ms == NOW + HISTORY_MS
    assert PeerState(behind_ms=NOW).heard(NOW - YEAR, "one", NOW).heard_ms == NOW - YEAR


def two_lives() -> PeerState:
    return PeerState().heard(NOW, "one", NOW).heard(NOW + 1000, "two", NOW + 1000)


def test_an_envelope_from_before_the_life_of_now_is_old() -> None:
    peer = two_lives()
    assert peer.is_old(NOW + 500, "one")
    assert peer.ignoring(NOW + 500).is_old(NOW + 500, "one")  # however often it is read
    assert not peer.is_old(NOW + 500, "two")
    assert not peer.is_old(NOW + 2000, "one")  # two folders send
    assert not peer.is_old(NOW + 500, "three")  # the folder was put back again


def test_a_life_whose_clock_was_set_back_is_not_ignored_for_ever() -> None:
    peer = two_lives()
    for set_back_to in (NOW - YEAR, NOW - 2 * YEAR):
        assert peer.is_old(set_back_to, "one")
        peer = peer.ignoring(set_back_to).heard(NOW + 1500, "two", NOW + 1500)
        assert not peer.is_old(set_back_to + 1, "one")
