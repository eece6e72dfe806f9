"""JSON values: kept exactly or refused, and one canonical form for fingerprints."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import values
from holdfast.core.values import DEPTH_MAX, canonical, checked, checked_forms, checked_json, decode, encode
from holdfast.errors import BadValue, TooLarge

EXAMPLES = settings().max_examples  # of the profile: more for `make mutants`

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "jcs"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
safe_whole = st.integers(-(2**53) + 1, 2**53 - 1)
whole = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)


def json_values(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    leaves = st.one_of(st.none(), st.booleans(), texts, numbers)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
        max_leaves=20,
    )


def exactly(value: object) -> object:
    """Equality that tells 1 from 1.0 and from True, and 0.0 from -0.0."""
    return repr(value)


@given(json_values(st.one_of(whole, floats)))
def test_what_is_kept_is_read_back_exactly(value: Any) -> None:
    kept = checked(value, what="args")
    assert exactly(kept) == exactly(value)
    assert exactly(decode(encode(kept, what="args"))) == exactly(kept)


@settings(max_examples=6 * EXAMPLES)
@given(st.dictionaries(texts, json_values(st.one_of(whole, floats)), max_size=5))
def test_the_forms_of_arguments_are_those_that_are_made_one_by_one(value: dict[str, Any]) -> None:
    kept, raw, sorted_raw = checked_forms(value, what="args")
    assert exactly(kept) == exactly(checked(value, what="args"))
    assert raw == encode(kept, what="args")
    assert sorted_raw == canonical(kept)
    assert checked_json(value, what="args") == (kept, raw)


def test_forms_that_are_too_large_are_refused() -> None:
    with pytest.raises(TooLarge, match="args has 15 bytes"):
        checked_forms({"a": ["b", "c"]}, what="args", bytes_max=14)
    checked_forms({"a": ["b", "c"]}, what="args", bytes_max=15)


@settings(max_examples=6 * EXAMPLES)
@given(json_values(st.one_of(safe_whole, floats)))
def test_the_canonical_form_is_that_of_rfc_8785(value: Any) -> None:
    assert canonical(checked(value, what="args")) == rfc8785.dumps(value)


@settings(max_examples=10 * EXAMPLES)
@given(floats)
def test_numbers_are_written_as_in_rfc_8785(value: float) -> None:
    written = canonical(value)
    assert written == rfc8785.dumps(value)
    assert float(written) == value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (1e21, "1e+21"),
        (999999999999999900000.0, "999999999999999900000"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (333333333.3333333, "333333333.3333333"),
        (123.456, "123.456"),
        (1 / 3, "0.3333333333333333"),
    ],
)
def test_numbers_of_the_rfcs_table(value: float, written: str) -> None:
    assert canonical(value).decode() == written


@given(json_values(st.one_of(whole, floats)))
def test_the_canonical_form_is_json_and_its_own_canonical_form(value: Any) -> None:
    form = canonical(checked(value, what="args"))
    assert canonical(json.loads(form)) == form


@given(whole, whole)
def test_two_whole_numbers_never_look_alike(one: int, two: int) -> None:
    assert (canonical(one) == canonical(two)) is (one == two)
    assert canonical(one) == str(one).encode()


@given(st.dictionaries(texts, safe_whole, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_count(value: dict[str, int], rng: Any) -> None:
    items = list(value.items())
    rng.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


def test_keys_are_sorted_by_their_utf_16_units() -> None:
    # U+1F600 is above U+FB33 as a character, below it in UTF-16.
    value = {"\ufb33": 1, "\U0001f600": 2, "a": 3, "\u20ac": 4, "1": 5, "\r": 6}
    form = canonical(value).decode()
    found = list(json.loads(form))
    assert found == ["\r", "1", "a", "\u20ac", "\U0001f600", "\ufb33"]
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("char", [chr(n) for n in (*range(32), 0x22, 0x2F, 0x5C, 0x7F, 0x2028)])
def test_control_characters_are_escaped_as_in_rfc_8785(char: str) -> None:
    for text in (char, char + "ü"):  # two ways lead to the canonical form
        assert canonical({text: text}) == rfc8785.dumps({text: text})


@pytest.mark.skipif(not VECTORS.is_dir(), reason="the vectors lie beside the repository")
@pytest.mark.parametrize("name", ["arrays", "french", "values"])
def test_the_public_vectors(name: str) -> None:
    value = json.loads((VECTORS / "input" / f"{name}.json").read_text("utf-8"))
    expected = (VECTORS / "output" / f"{name}.json").read_bytes().rstrip(b"\n")
    assert canonical(checked(value, what="vector")) == expected
    hexed = (VECTORS / "outhex" / f"{name}.txt").read_text("ascii")
    assert canonical(value) == bytes.fromhex(hexed)


# what is kept, and as what


class Colour(enum.StrEnum):
    RED = "red"


class OldColour(str, enum.Enum):  # noqa: UP042 -- users still write it
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Point(NamedTuple):
    x: int
    y: float


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Colour.RED, "red"),
        (OldColour.RED, "red"),
        (Size.BIG, 3),
        (Point(1, 2.5), [1, 2.5]),
        (Text("a"), "a"),
        (OrderedDict[str, object](b=(1,), a=2), {"b": [1], "a": 2}),
        ([True, 1, 1.0, None], [True, 1, 1.0, None]),
        ("a\0b", "a\0b"),
    ],
)
def test_values_become_what_replay_will_see(value: object, kept: object) -> None:
    found = checked(value, what="args")
    assert exactly(found) == exactly(kept)
    assert exactly(decode(encode(found, what="args"))) == exactly(kept)
    assert exactly(checked({"a": {"b": value}}, what="args")) == exactly({"a": {"b": kept}})


def test_what_is_kept_does_not_change_with_the_callers_objects() -> None:
    inner = [1]
    kept = checked({"a": inner}, what="args")
    inner.append(2)
    assert kept == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "args"),
        ([0, math.inf], "args[1]"),
        ({"a": {"b": -math.inf}}, "args.a.b"),
        ("\ud800", "args"),
        ({"\udfff": 1}, "args"),
        ({"a": ["x\ud83d"]}, "args.a[0]"),
        ({1: 2}, "args"),
        ({None: 2}, "args"),
        ({Colour.RED: 2}, "args"),
        (2**64, "args"),
        (-(2**63) - 1, "args"),
        (b"bytes", "args"),
        ({1, 2}, "args"),
        (object(), "args"),
        ([1j], "args[0]"),
        (range(3), "args"),
    ],
)
def test_what_json_cannot_keep_is_refused_by_place(value: object, place: str) -> None:
    with pytest.raises(BadValue) as caught:
        checked(value, what="args")
    assert caught.value.message.startswith(f"{place}: ")
    with pytest.raises(BadValue) as caught:
        checked({"a": {"b": value}}, what="args")
    assert caught.value.message.startswith(f"{place.replace('args', 'args.a.b', 1)}: ")


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    deepest = nested(DEPTH_MAX)
    assert decode(encode(checked(deepest, what="args"), what="args")) == deepest
    assert canonical(deepest) == b"[" * DEPTH_MAX + b"1" + b"]" * DEPTH_MAX
    with pytest.raises(BadValue):
        checked(nested(DEPTH_MAX + 1), what="args")
    with pytest.raises(BadValue):
        checked(nested(10_000), what="args")
    assert checked({"a": nested(DEPTH_MAX - 1)}, what="args") == {"a": nested(DEPTH_MAX - 1)}
    with pytest.raises(BadValue):
        checked({"a": nested(DEPTH_MAX)}, what="args")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for value in (loop, {"a": loop}):
        with pytest.raises(BadValue):
            checked(value, what="args")


@given(st.dictionaries(texts, json_values(st.one_of(whole, floats)), max_size=4))
def test_a_nested_value_is_checked_as_if_it_was_walked_through(value: Any) -> None:
    walked = values._checked_object(value, "args", 0)
    assert exactly(checked(value, what="args")) == exactly(walked)


def test_size_is_bounded() -> None:
    assert encode("x" * 8, what="args", bytes_max=10) == b'"xxxxxxxx"'
    with pytest.raises(TooLarge):
        encode("x" * 9, what="args", bytes_max=10)
    with pytest.raises(TooLarge):
        encode("ü" * 5, what="args", bytes_max=11)
