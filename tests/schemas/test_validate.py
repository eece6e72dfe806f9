"""Arguments against their schema: short problems with their place; never anything else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.runtime.tool import validation as validate
from holdfast.runtime.tool.schema import tool_schema
from holdfast.runtime.tool.validation import PROBLEMS_MAX, checked_parameters, problems

EXAMPLES = settings().max_examples  # of the profile: more for `make mutants`

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


class Item(TypedDict):
    cents: int


async def pay(
    call: holdfast.Call,
    card: str,
    items: list[Item],
    share: Annotated[float, holdfast.Field(minimum=0, maximum=1)] = 1,
    kind: Literal["card", "cash"] = "card",
    more: dict[str, int | None] | None = None,
) -> None: ...


SCHEMA = tool_schema("pay", pay)["parameters"]


def test_what_fits_has_no_problem() -> None:
    given = {"card": "c", "items": [{"cents": 1}], "share": 0.5, "kind": "cash", "more": {"a": None}}
    assert problems(SCHEMA, given) == []


def test_a_problem_names_its_place() -> None:
    given = {
        "items": [{"cents": 1}, {"cents": 2}, {"cents": 2.0}],
        "cardd": "x",
        "share": 2,
        "kind": "gold",
        "more": {"a b": "1"},
    }
    assert problems(SCHEMA, given) == [
        "card: is missing",
        "items[2].cents: must be a whole number",
        "cardd: is not known here",
        "share: must be at most 1",
        'kind: must be one of "card", "cash"',
    ]
    assert problems(SCHEMA, {"card": "c", "items": [], "more": {"a b": "1"}}) == [
        "more['a b']: must be a whole number or null"
    ]


CASES: list[tuple[dict[str, Any], object, list[str]]] = [
    (WHOLE, 1, []),
    (WHOLE, 1.0, [": must be a whole number"]),
    (WHOLE, True, [": must be a whole number"]),
    (WHOLE, "1", [": must be a whole number"]),
    ({"type": "number"}, 1, []),
    ({"type": "number"}, True, [": must be a number"]),
    ({"type": "number"}, float("inf"), [": must be a finite number"]),
    ({"type": "boolean"}, 1, [": must be true or false"]),
    ({"type": "null"}, 0, [": must be null"]),
    ({"type": ["string", "null"]}, 0, [": must be text or null"]),
    ({}, {"any": [1, None]}, []),
    ({"enum": [1]}, True, [": must be one of 1"]),
    ({"enum": [True]}, 1, [": must be one of true"]),
    ({"enum": [1]}, 1.0, []),
    ({"enum": [None, "x"]}, [], [': must be one of null, "x"']),
    ({"minLength": 2, "maxLength": 3}, "a", [": must have at least 2 characters"]),
    ({"type": "string", "maxLength": 3}, "aaaa", [": must have at most 3 characters"]),
    ({"type": "string", "maxLength": 1}, "\U0001f600", []),
    ({"minimum": 5}, 4.9, [": must be at least 5"]),
    ({"minimum": 5}, "4", []),
    ({"exclusiveMinimum": 5}, 5, [": must be above 5"]),
    ({"maximum": 5}, 10**400, [": must be at most 5"]),
    ({"maximum": 0.5}, 10**400, [": must be at most 0.5"]),
    ({"exclusiveMaximum": 50_000}, 50_000, [": must be below 50,000"]),
    ({"multipleOf": 0.01}, 19.99, []),
    ({"multipleOf": 0.01}, 19.999, [": must be a multiple of 0.01"]),
    ({"multipleOf": 3}, 10**400, [": must be a multiple of 3"]),
    ({"multipleOf": 0.5}, 1e308, []),
    ({"minItems": 1}, [], [": must have at least 1 items"]),
    ({"maxItems": 1, "items": WHOLE}, ["a", "b"], [": must have at most 1 items"]),
    ({"prefixItems": [WHOLE, TEXT], "items": TEXT}, [1, 2, 3], ["[1]: must be text", "[2]: must be text"]),
    ({"prefixItems": [WHOLE, TEXT]}, [1], []),
    ({"minProperties": 1}, {}, [": must have at least 1 keys"]),
    ({"maxProperties": 1}, {"a": 1, "b": 1}, [": must have at most 1 keys"]),
    ({"additionalProperties": WHOLE}, {"a": "x"}, ["a: must be a whole number"]),
    ({"anyOf": [WHOLE, {"type": "null"}]}, "x", [": must be a whole number or null"]),
    ({"anyOf": [{"type": "integer", "minimum": 3}, TEXT]}, 1, [": must be at least 3"]),
    ({"anyOf": [{"minimum": 3}, {"maximum": 1}]}, 2, [": fits none of its 2 forms"]),
    ({"anyOf": [WHOLE, {"minimum": 0}]}, 1, []),
    ({"oneOf": [WHOLE, {"type": "number"}]}, 1, [": fits 2 of its forms; it must fit one"]),
    ({"oneOf": [WHOLE, {"type": "number"}]}, 1.5, []),
    (WHOLE, b"1", [": must be a whole number"]),
    ({}, 1j, [": must be a JSON value"]),
]


@pytest.mark.parametrize(("schema", "value", "told"), CASES, ids=lambda one: str(one)[:40])
def test_each_word_of_a_schema_is_checked(schema: Any, value: object, told: list[str]) -> None:
    assert problems(schema, value, what="") == told


def test_the_whole_value_is_called_what_it_is() -> None:
    assert problems(SCHEMA, [1]) == ["arguments: must be an object"]
    assert problems(WHOLE, "x", what="result") == ["result: must be a whole number"]


# hostile


def test_a_value_is_never_shown_and_a_key_only_shortly() -> None:
    told = problems(SCHEMA, {"card": 17_171_717, "items": [], "k" * 10_000_000: 1, "a\ud800\n": 1})
    assert not any("17171717" in one for one in told)
    assert all(len(one) < 200 and one.isprintable() for one in told)
    assert len(told) == 3


def test_a_few_problems_are_all_that_is_told() -> None:
    told = problems({"items": WHOLE}, ["x"] * 10_000, what="")
    assert told == [f"[{i}]: must be a whole number" for i in range(PROBLEMS_MAX)]


def test_depth_costs_nothing_where_the_schema_ends() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert problems({"type": "object", "additionalProperties": True}, {"a": deep}) == []
    assert problems({"items": {"items": WHOLE}}, deep, what="") == ["[0][0]: must be a whole number"]
    while deep:  # taken apart by hand: freeing it recursively is not what is tried here
        deep = deep.pop()


def test_the_work_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "VALUES_MAX", 1_000)
    told = problems({"type": "array", "items": WHOLE}, [1] * 100_000)
    assert told == ["arguments: more than 1,000 values to check"]
    forms = {"anyOf": [{"items": {"enum": [i]}} for i in range(2, 50)]}
    assert problems(forms, [1] * 999) == ["arguments: fits none of its 48 forms"]
    again = {"anyOf": [{"items": WHOLE}, {"minItems": 10**9}]}
    assert problems(again, [1] * 2_000) == ["arguments: more than 1,000 values to check"]


# laws

texts = st.text(max_size=8)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
    (bool, st.booleans()),
    (None, st.none()),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Annotated[int, holdfast.Field(minimum=3, below=9)], st.integers(3, 8)),
    (Item, st.fixed_dictionaries({"cents": st.integers()})),
    (Any, st.recursive(st.none() | texts, lambda inner: st.lists(inner, max_size=2))),
]


def larger(
    inner: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (dict[str, one[0]], st.dictionaries(texts, one[1], max_size=3))),
        st.tuples(inner, inner).map(
            lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]).map(list))
        ),
        inner.map(lambda one: (one[0] | None if one[0] else None, one[1] | st.none())),
    )


HINTED = st.recursive(st.sampled_from(LEAVES), larger, max_leaves=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def schema_of(hint: Any) -> dict[str, object]:
    def function(it: Any) -> None: ...

    function.__annotations__ = {"it": hint}
    return tool_schema("t", function)["parameters"]


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(st.data())
def test_the_schema_of_a_hint_takes_every_value_of_it(data: st.DataObject) -> None:
    hint, made = data.draw(HINTED)
    assert problems(schema_of(hint), {"it": data.draw(made)}) == []


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(HINTED, JSON)
def test_whatever_comes_in_a_few_readable_lines_come_out(hinted: tuple[Any, object], value: object) -> None:
    for given_value in (value, {"it": value}):
        told = problems(schema_of(hinted[0]), given_value)
        assert len(told) <= PROBLEMS_MAX
        assert all(": " in one and len(one) < 400 and one.isprintable() for one in told)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(HINTED)
def test_a_schema_that_we_make_could_have_been_given_by_hand(hinted: tuple[Any, object]) -> None:
    made = schema_of(hinted[0])
    assert checked_parameters(made, what="parameters") == made
