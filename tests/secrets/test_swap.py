"""The swap: every form becomes its handle, nothing else changes, a second time changes nothing."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.secret_handles import (
    REDACTED,
    VALUE_CHARS_MIN,
    Matcher,
    find_whole,
    forms_of,
    is_name,
    names_in,
    resolved,
    safe,
    safe_value,
)
from holdfast.core.values import decode, encode
from holdfast_proofs.canaries.app import spelled

VALUE = 'k3y/+"\\<é>=z9-Zq'
MATCHER = Matcher([("billing", VALUE)])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=12, max_size=40).filter(
    lambda text: len(set(text)) > 6 and "secret" not in text
)


@pytest.mark.parametrize("form", spelled(VALUE))
def test_every_form_is_swapped(form: str) -> None:
    text = spelled(VALUE)[form]
    swapped = MATCHER.text(f"<<{text}>>")
    assert text not in swapped
    assert "secret://billing" in swapped
    assert swapped.startswith("<<")
    assert swapped.endswith(">>")


@given(VALUES, st.text(max_size=20), st.text(max_size=20))
def test_a_value_does_not_survive_among_other_text(value: str, before: str, after: str) -> None:
    matcher = Matcher([("billing", value)])
    for text in spelled(value).values():
        swapped = matcher.text(before + text + after)
        assert "secret://billing" in swapped
        assert matcher.text(swapped) == swapped
        assert value not in swapped
    raw = (before + value + after).encode()
    inside = base64.b64encode(raw).decode()
    assert "secret://billing" in matcher.text(inside)


@given(VALUES, st.text())
def test_other_texts_are_left_alone(value: str, other: str) -> None:
    if all(form[:VALUE_CHARS_MIN] not in other for form in forms_of(value)):
        assert Matcher([("billing", value)]).value([other]) == [other]


@given(VALUES)
def test_what_json_hides_is_seen(value: str) -> None:
    """`value` looks at the JSON first: escapes must not hide a text from that look."""
    matcher = Matcher([("billing", value)])
    for text in (value, repr(value), json.dumps(value), quote(value)):
        swapped = matcher.value({"a": [{"b": f"({text})"}]})
        assert "secret://billing" in str(swapped), text


def test_keys_and_numbers_are_swapped_too() -> None:
    matcher = Matcher([("pin", "123456789012"), ("a", "first-value-1"), ("b", "other-value-2")])
    assert matcher.value({"n": 123456789012}) == {"n": "secret://pin"}
    assert matcher.value({"n": 123456789013}) == {"n": 123456789013}
    assert matcher.find({"n": [123456789012]}) == "secret://pin"
    assert matcher.find({"n": [1234567890123]}) is None
    both = {"first-value-1": 1, "secret://a": 2}
    assert matcher.value(both) == {"secret://a": 1, "secret://a#2": 2}


def test_a_text_that_ends_inside_a_value_ends_in_its_handle() -> None:
    matcher = Matcher([("long", "abcdefghijklmnopqrstuvwxyz")])
    assert matcher.text("x abcdefghijklmnopq") == "x secret://long"
    assert matcher.text("x abcdefghijkl") == "x abcdefghijkl"  # less than half of it
    assert matcher.text("x abcdefghijklmnopq y") == "x abcdefghijklmnopq y"


def test_of_two_that_begin_alike_the_longer_is_meant() -> None:
    matcher = Matcher([("short", "prefix-value"), ("long", "prefix-value-and-more")])
    assert matcher.text("prefix-value-and-more") == "secret://long"
    assert matcher.text("prefix-value-and-less") == "secret://short-and-less"


def test_nothing_set_changes_nothing() -> None:
    empty = Matcher([])
    value = {"a": ["text"]}
    assert not empty
    assert empty.value(value) is value
    assert empty.text("text") == "text"
    assert empty.find(value) is None


def test_a_value_without_secrets_is_the_same_object() -> None:
    value = {"a": ["text" * 10, {"b": 1}]}
    assert MATCHER.value(value) is value
    assert MATCHER.find({"a": [{"b": VALUE}]}) == "secret://billing"
    assert MATCHER.find({VALUE: 1}) == "secret://billing"


# Handles


def test_a_handle_ends_where_a_name_does() -> None:
    values = {"billing": "VALUE", "billing-2": "OTHER"}
    assert resolved("Bearer secret://billing, x", values) == "Bearer VALUE, x"
    assert resolved("secret://billing-2", values) == "OTHER"
    assert resolved("secret://billing.", values) == "VALUE."
    assert resolved("secret://unknown", values) == "secret://unknown"
    assert resolved({"secret://billing": ["secret://billing"]}, values) == {"secret://billing": ["VALUE"]}
    assert list(names_in([{"a": "secret://x secret://Y_1"}, 3])) == ["x", "Y_1"]
    assert find_whole("secret://x") == "x"
    assert find_whole("a secret://x") is None
    assert [is_name(one) for one in ("a", "a-b_1", "-a", "A", "a.b", "", "a" * 64)] == [
        True,
        True,
        False,
        False,
        False,
        False,
        False,
    ]


@given(st.recursive(st.text() | st.integers(-5, 5), lambda inner: st.lists(inner, max_size=3)))
def test_resolving_then_swapping_gives_the_handles_back(other: Any) -> None:
    """What was sent and echoed is recorded as it was asked for."""
    kept = decode(encode(["secret://billing", other], what="x")) if _fits(other) else None
    if kept is not None and MATCHER.value(kept) == kept:
        assert MATCHER.value(resolved(kept, {"billing": VALUE})) == kept


def _fits(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


# What is shown


@pytest.mark.parametrize(
    "text",
    [
        "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
        "sk-proj-" + "Ab3" * 12,
        "sk-ant-" + "api03-Zx9" * 5,
        "ghp_" + "a1B2" * 9,
        "AKIA" + "I44QH8DHBEXAMPLE",
        "xoxb-" + "123456789012-abcdef",
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN PRIVATE KEY-----\nMIIE\nvQIB\n-----END PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_not_shown(text: str) -> None:
    assert safe(f"before {text} after") == f"before {REDACTED} after"


@pytest.mark.parametrize(
    "text",
    [
        "ch_3NvYk2eZvKYlo2C01h6GfS7d",
        "pi_3MtwBwLkdIwHu7ix28a3tqPa",
        "01J9ZK3V5T8Q2M4N6P7R8S9T0V",
        "6f1c2a9e-1111-8222-9333-abcdefabcdef",
        "task-sk-short",
        "secret://billing",
        "https://example.org/a?b=c",
        "risk_test_cases",
        "a" * 64,
    ],
)
def test_ids_and_handles_are_shown(text: str) -> None:
    assert safe(text) == text


def test_every_text_of_a_value_is_made_safe() -> None:
    token = "ghp_" + "a1B2" * 9
    shown = safe_value({"a": [token, 7, ({"b": token},)], "c": None})
    assert shown == {"a": [REDACTED, 7, [{"b": REDACTED}]], "c": None}


def test_the_shortest_value_is_the_width_of_the_first_look() -> None:
    matcher = Matcher([("short", "a1b2c3d4")])
    assert VALUE_CHARS_MIN == 8
    assert matcher.text("a1b2c3d4") == "secret://short"
    assert matcher.text("xa1b2c3d4x") == "xsecret://shortx"


@given(st.data())
def test_a_text_in_pieces_shows_no_value(data: st.DataObject) -> None:
    """However it is cut, what is shown piece by piece is what the whole text swapped is."""
    value = data.draw(st.sampled_from(["tr0ub4dor&3xyz", "aabaabaab-aabaab", "ключ-к-двери-77"]))
    around = st.text(alphabet="ab-tré ", max_size=12)
    whole = data.draw(around) + value + data.draw(around) + value[:5] + data.draw(around)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    matcher = Matcher([("door", value)])
    shown, held = "", ""
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        text, held = matcher.split(held + whole[start:end])
        shown += text
        assert value not in shown
    assert shown + matcher.text(held) == matcher.text(whole)
    assert "secret://door" in shown + matcher.text(held)
