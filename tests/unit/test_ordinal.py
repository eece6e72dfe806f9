"""Ordinals: places in a task, compared component by component."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ordinal import base, compensation, parse_ordinal, retry_slot, slot_ordinal, sort_key
from holdfast.errors import BadReference, Misuse

places = st.integers(1, 999_999_999).map(str)
heads = st.one_of(places, st.from_regex(r"\A@[A-Za-z0-9_-]{1,20}\Z"))
tails = st.lists(
    st.one_of(places, st.integers(1, 9_999).map(lambda n: f"r{n}"), st.integers(1, 9_999).map(lambda n: f"c{n}")),
    max_size=6,
)
ordinals = st.tuples(heads, tails).map(lambda parts: ".".join((parts[0], *parts[1])))


def test_ordinals_are_ordered_component_by_component() -> None:
    expected = [
        "1",
        "2",
        "4",
        "4.1",
        "4.2",
        "4.2.1",
        "4.2.10",
        "4.10",
        "4.r1",
        "4.r2",
        "4.r10",
        "4.c1",
        "5",
        "10",
        "@a",
        "@a.1",
        "@a.r1",
        "@b",
    ]
    mixed = expected[:]
    random.Random(7).shuffle(mixed)
    assert sorted(mixed, key=sort_key) == expected


@given(ordinals)
def test_every_ordinal_is_read_as_it_is_written(ordinal: str) -> None:
    assert parse_ordinal(ordinal) == ordinal


@given(st.lists(ordinals, max_size=8))
def test_the_order_is_total(some: list[str]) -> None:
    assert len({sort_key(one) for one in some}) == len(set(some))
    backwards = list(reversed(some))
    assert sorted(backwards, key=sort_key) == sorted(some, key=sort_key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "01",
        "-1",
        "1.",
        ".1",
        "1..2",
        "1.0",
        "r1",
        "c1",
        "1.r0",
        "1.x1",
        "1.@a",
        "@",
        "@ä",
        "@a b",
        "1\n",
        " 1",
        "\u0661",
        "1.1.1" * 100,
        "1" * 10,
        "@" + "a" * 65,
    ],
)
def test_what_is_no_ordinal_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_ordinal(text)


def test_slots_of_a_step() -> None:
    assert retry_slot("4", 1) == "4.r1"
    assert retry_slot("4.r1", 2) == "4.r2"
    assert compensation("4", 1) == "4.c1"
    assert compensation("4.r2", 1) == "4.c1"
    assert retry_slot("@charge-1", 1) == "@charge-1.r1"


@given(ordinals, st.integers(1, 9_999))
def test_once_is_counted_per_base_ordinal(ordinal: str, number: int) -> None:
    assert base(retry_slot(ordinal, number)) == base(ordinal)
    assert base(base(ordinal)) == base(ordinal) or ordinal.count(".r") > 1
    assert parse_ordinal(retry_slot(ordinal, number))


def test_a_compensation_is_its_own_base() -> None:
    assert base("4.c1") == "4.c1"
    assert base("4.2.1") == "4.2.1"
    assert base("4") == "4"


@pytest.mark.parametrize("slot", ["charge-1", "A_z", "0", "x" * 64])
def test_a_named_slot_is_an_ordinal(slot: str) -> None:
    assert parse_ordinal(slot_ordinal(slot)) == f"@{slot}"


@pytest.mark.parametrize("slot", ["", "a.b", "a b", "ä", "x" * 65, "a\n", "@a"])
def test_a_slot_that_cannot_be_kept_stably_is_refused(slot: str) -> None:
    with pytest.raises(Misuse):
        slot_ordinal(slot)
