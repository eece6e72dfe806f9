"""A payload that does not open names its place in letters that every screen can show."""

from __future__ import annotations

import pytest

from holdfast.errors import JournalDamaged
from holdfast.journal.seal import DataKeySealer


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (b"notice\0parked/1/2", "at notice parked/1/2: it"),
        (b"task\0\xff\x1b[2J", "at task ff1b5b324a: it"),
        (b"inbox\x000f3a\0\0cancel", "at inbox 0f3a cancel: it"),
    ],
)
def test_the_place_is_shown(place: bytes, shown: str) -> None:
    sealer = DataKeySealer(bytes(32))
    with pytest.raises(JournalDamaged) as raised:
        sealer.open(bytes(40), place)
    assert shown in raised.value.message
    assert raised.value.message.isprintable()
