"""One form for one value: whatever is not canonical, or outside the profile, is refused."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import suites

from holdfast.core.values import canonical as full
from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import DEPTH_MAX, INT_MAX, encode, parse

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = st.text(st.characters(max_codepoint=127), max_size=6)
values = st.recursive(
    st.one_of(st.booleans(), st.integers(-INT_MAX, INT_MAX), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def in_profile(value: Any) -> bool:  # Any: a JSON value of any suite
    if isinstance(value, dict):
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return all(key.isascii() and in_profile(item) for key, item in items.items())
    if isinstance(value, list):
        members: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return all(in_profile(item) for item in members)
    return isinstance(value, (str, bool)) or (isinstance(value, int) and abs(value) <= INT_MAX)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0  # pyright: ignore[reportUnknownArgumentType]


def test_the_public_vectors(measured: Callable[[str], None]) -> None:
    """Inside the profile: the published bytes. Outside it (null, fractions, keys): refused."""
    inside = outside = 0
    for row in suites.jcs():
        value = json.loads(row["input"])
        expected = row["output"].encode()
        assert rfc8785.dumps(value) == full(value) == expected, row["name"]
        if in_profile(value):
            inside += 1
            assert encode(value) == expected
            assert parse(expected) == value
        else:
            outside += 1
            with pytest.raises(BadRecord):
                parse(expected)
            with pytest.raises(BadRecord):
                encode(value)
    measured(f"RFC 8785: {inside} vectors inside the profile, {outside} refused as outside it")


@given(values)
def test_what_is_written_is_read_and_equals_the_oracle(value: Any) -> None:
    expected = rfc8785.dumps(value)
    if not unicodedata.is_normalized("NFC", expected.decode()) or depth(value) > DEPTH_MAX:
        with pytest.raises(BadRecord):
            encode(value)
        return
    raw = encode(value)
    assert raw == rfc8785.dumps(value)
    assert parse(raw) == value


@given(st.binary(max_size=60))
def test_bytes_are_canonical_or_refused(raw: bytes) -> None:
    try:
        value = parse(raw)
    except BadRecord:
        return
    assert rfc8785.dumps(value) == raw  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b' {"a":1}',
        b'{"a":1}\n',
        b'{"a":1.0}',
        b'{"a":1e2}',
        b'{"a":-0}',
        b'{"a":01}',
        b'{"a":null}',
        b'{"a":9007199254740992}',
        b'{"a":-9007199254740992}',
        b'{"a":1' + b"0" * 400 + b"}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":0.5}',
        b'{"a":"\\u0061"}',
        b'{"a":"\\/"}',
        b'{"a":"\\u000A"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xff"}',
        b'{"a":"e\xcc\x81"}',
        '{"ä":1}'.encode(),
        b'\xef\xbb\xbf{"a":1}',
        b"",
        b"{",
        b"[1,]",
        b"[" * 4000,
        b"[" * 9 + b"]" * 9,
        b'{"a":"' + b"x" * 5000 + b'"}',
        b'{"a":tru}',
        b"'a'",
        b'{"a":1}{"a":1}',
        b'{"a":"\x00"}',
        b'{"a":"\t"}',
        b'{"a":True}',
    ],
)
def test_every_other_spelling_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        parse(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"[]",
        b"0",
        b"-1",
        b"true",
        b'""',
        b'{"a":9007199254740991}',
        '{"a":"é"}'.encode(),
        b'{"a":"\\u000b\\n"}',
        b"[" * DEPTH_MAX + b"]" * DEPTH_MAX,
        '{"a":"\U0001f600"}'.encode(),
    ],
)
def test_what_is_canonical_is_read(raw: bytes) -> None:
    assert encode(parse(raw)) == raw


@pytest.mark.parametrize("bad", [1.0, None, float("nan"), 2**53, {1: 2}, "\ud800", b"x", (1,), {"ä": 1}])
def test_what_cannot_be_written(bad: Any) -> None:
    with pytest.raises(BadRecord):
        encode({"a": bad})
