"""Payloads of middle size are smaller on disk, and come back as they were."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.seal import PACK_MAX, PACK_MIN, packed, unpacked


@given(st.binary(max_size=3 * PACK_MIN))
def test_what_is_packed_comes_back(raw: bytes) -> None:
    assert unpacked(packed(b"{" + raw)) == b"{" + raw


@pytest.mark.parametrize("size", [1, PACK_MIN - 1, PACK_MAX + 1])
def test_small_and_large_payloads_stay_as_they_are(size: int) -> None:
    raw = b"{" * size
    assert packed(raw) is raw


def test_text_becomes_smaller_and_noise_stays() -> None:
    text = b"{" + b"every message of a talk says words again " * 50
    assert len(packed(text)) < len(text) // 2
    noise = b"{" + random.Random(1).randbytes(4_000)
    assert packed(noise) is noise


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"[1]",
        zlib.compress(b"{}")[:-3],
        zlib.compress(b"{}") + b"more",
        zlib.compress(b"{" * (PACK_MAX + 1)),
    ],
)
def test_what_nobody_packed_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"a payload (cannot be unpacked|is cut off)"):
        unpacked(raw)
