"""The hash chain: every field of a record counts, and none can flow into its neighbour."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from holdfast.journal.chain import first_link, next_link, place

TASK = bytes(range(16))
FIELDS: dict[str, Any] = {
    "seq": 3,
    "kind": 3,
    "what": 0x0201,
    "epoch": 1 << 32 | 2,
    "at_ms": 1_800_000_000_000,
    "boot_ms": 5_000,
    "slot": -1,
    "quiet": True,
    "ordinal": "4.r1",
    "effect_key": b"k" * 16,
    "fingerprint": b"f" * 16,
    "body": b"sealed",
}
OTHERS: dict[str, Any] = {
    "seq": 4,
    "kind": 4,
    "what": 0x0102,
    "epoch": 1 << 32 | 3,
    "at_ms": 1_800_000_000_001,
    "boot_ms": 5_001,
    "slot": 0,
    "quiet": False,
    "ordinal": "4.r2",
    "effect_key": b"k" * 15 + b"x",
    "fingerprint": b"f" * 15 + b"x",
    "body": b"sealee",
}


def link(**more: Any) -> bytes:
    return next_link(first_link(TASK), **{**FIELDS, **more})


def test_the_first_link_is_the_task_s_own() -> None:
    assert first_link(TASK) == sha256(b"holdfast/chain/1\0" + TASK).digest()
    assert first_link(TASK) != first_link(bytes(16))


def test_a_link_is_the_documented_hash() -> None:
    """Written out by hand, as docs/formats/journal.md says."""
    header = (
        (3).to_bytes(8, "big")
        + bytes((3,))
        + (0x0201).to_bytes(2, "big")
        + (1 << 32 | 2).to_bytes(8, "big")
        + (1_800_000_000_000).to_bytes(8, "big")
        + (5_000).to_bytes(8, "big")
        + (-1).to_bytes(2, "big", signed=True)
        + b"\1"
    )
    parts = b"4.r1" + b"k" * 16 + b"f" * 16 + b"sealed"
    whole = first_link(TASK) + header + bytes((4, 16, 16)) + parts
    assert link() == sha256(whole).digest()


@pytest.mark.parametrize("name", FIELDS)
def test_a_link_changes_with_every_field(name: str) -> None:
    assert link(**{name: OTHERS[name]}) != link()


def test_a_link_changes_with_the_one_before() -> None:
    assert next_link(bytes(32), **FIELDS) != link()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"ordinal": "41", "effect_key": b"k"}, {"ordinal": "4", "effect_key": b"1k"}),
        ({"effect_key": b"kf", "fingerprint": b"f"}, {"effect_key": b"k", "fingerprint": b"ff"}),
        ({"fingerprint": b"fs", "body": b"s"}, {"fingerprint": b"f", "body": b"ss"}),
    ],
)
def test_bytes_cannot_move_from_one_field_to_the_next(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert link(**one) != link(**other)


def test_a_place_names_task_sequence_kind_ordinal_and_epoch() -> None:
    found = place(TASK, seq=3, kind=4, ordinal="4.r1", epoch=9)
    assert found == b"record\0" + TASK.hex().encode() + b"\0003\0004\0004.r1\0009"
