"""Schemas of tools: what a model is told is what the signature says, the same every time."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, Required, TypedDict, cast

import pytest

import holdfast
from holdfast.errors import Misuse, NoSchema
from holdfast.runtime.models.request import checked_request
from holdfast.runtime.tool.schema import schema_digest, tool_schema


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class OldColour(str, enum.Enum):  # noqa: UP042 - as people wrote it before StrEnum
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Shade(enum.Enum):
    RED = "red"


class Item(TypedDict):
    """One thing that is paid for.

    More of it.
    """

    name: str
    cents: Annotated[int, holdfast.Field(minimum=1, description="its price")]
    note: NotRequired[str]


class Loose(TypedDict, total=False):
    must: Required[int]
    may: int


class Tree(TypedDict):
    children: list[Tree]


class Dated(TypedDict):
    on: datetime.date


@dataclasses.dataclass
class Card:
    number: str


Cents = NewType("Cents", int)

TEXT: dict[str, object] = {"type": "string"}
WHOLE: dict[str, object] = {"type": "integer"}
NULL: dict[str, object] = {"type": "null"}
ITEM: dict[str, object] = {
    "type": "object",
    "properties": {"name": TEXT, "cents": {"type": "integer", "minimum": 1, "description": "its price"}, "note": TEXT},
    "required": ["name", "cents"],
    "additionalProperties": False,
    "description": "One thing that is paid for.",
}

HINTS: list[tuple[object, dict[str, object]]] = [
    (str, TEXT),
    (int, WHOLE),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, NULL),
    (Any, {}),
    (object, {}),
    (list, {"type": "array"}),
    (dict, {"type": "object"}),
    (list[int], {"type": "array", "items": WHOLE}),
    (list[Any], {"type": "array", "items": {}}),
    (Sequence[str], {"type": "array", "items": TEXT}),
    (tuple[int, ...], {"type": "array", "items": WHOLE}),
    (tuple[int, str], {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [WHOLE, TEXT]}),
    (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
    (dict[str, int], {"type": "object", "additionalProperties": WHOLE}),
    (dict[str, Any], {"type": "object", "additionalProperties": True}),
    (Mapping[str, list[int]], {"type": "object", "additionalProperties": {"type": "array", "items": WHOLE}}),
    (int | None, {"anyOf": [WHOLE, NULL]}),
    (Optional[int], {"anyOf": [WHOLE, NULL]}),  # noqa: UP045 - as people still write it
    (Cents | int | str, {"anyOf": [WHOLE, TEXT]}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal["a", 1, None], {"enum": ["a", 1, None]}),
    (Literal[Colour.RED], {"type": "string", "enum": ["red"]}),
    (Colour, {"type": "string", "enum": ["red", "blue"]}),
    (OldColour, {"type": "string", "enum": ["red"]}),
    (Size, {"type": "integer", "enum": [1]}),
    (Cents, WHOLE),
    (Item, ITEM),
    (list[Item], {"type": "array", "items": ITEM}),
    (
        Loose,
        {
            "type": "object",
            "properties": {"must": WHOLE, "may": WHOLE},
            "required": ["must"],
            "additionalProperties": False,
        },
    ),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
    (
        Annotated[int | None, holdfast.Field(above=0, below=9)],
        {"anyOf": [WHOLE, NULL], "exclusiveMinimum": 0, "exclusiveMaximum": 9},
    ),
    (Annotated[float, holdfast.Field(multiple_of=0.5, maximum=2)], {"type": "number", "maximum": 2, "multipleOf": 0.5}),
    (Annotated[str, holdfast.Field(min_length=1, max_length=3)], {"type": "string", "minLength": 1, "maxLength": 3}),
    (
        Annotated[list[int], holdfast.Field(min_items=1, max_items=3)],
        {"type": "array", "items": WHOLE, "minItems": 1, "maxItems": 3},
    ),
]

UNFIT: list[tuple[object, str]] = [
    (bytes, "bytes is not a JSON value"),
    (set[int], "is not a JSON value"),
    (datetime.date, "date is not a JSON value"),
    (decimal.Decimal | None, "Decimal is not a JSON value"),
    (Card, "Card is not a JSON value"),
    (Callable[[], int], "is not a JSON value"),
    (Shade, "a StrEnum is"),
    (dict[int, str], "the keys of dict[int, str] are not text"),
    (list[dict[str, complex]], "complex is not a JSON value"),
    (Literal[b"x"], "choices"),
    (Tree, "Tree.children: Tree refers to itself"),
    (Dated, "Dated.on: date is not a JSON value"),
    (Annotated[str, holdfast.Field(minimum=1)], "minimum means nothing for str"),
    (Annotated[int, holdfast.Field(min_length=1)], "minLength means nothing for int"),
    (Annotated[int, object], "is not understood; use holdfast.Field"),
    ("Nowhere", "cannot be read: name 'Nowhere' is not defined"),
]


def parameter(hint: object) -> dict[str, object]:
    def function(it: Any) -> None: ...

    function.__annotations__ = {"it": hint}
    made = tool_schema("t", function)["parameters"]
    return cast("dict[str, dict[str, object]]", made["properties"])["it"]


@pytest.mark.parametrize(("hint", "schema"), HINTS, ids=lambda one: str(one)[:50])
def test_a_hint_of_json_values_has_its_schema(hint: object, schema: object) -> None:
    assert parameter(hint) == schema


@pytest.mark.parametrize(("hint", "why"), UNFIT, ids=lambda one: str(one)[:50])
def test_any_other_hint_is_refused_naming_tool_and_parameter(hint: object, why: str) -> None:
    with pytest.raises(NoSchema) as caught:
        parameter(hint)
    assert caught.value.message.startswith("tool t: parameter 'it': ")
    assert why in caught.value.message
    assert (caught.value.tool, caught.value.parameter) == ("t", "it")


@holdfast.tool
async def charge(
    call: holdfast.Call,
    card: str,
    cents: Annotated[int, holdfast.Field(minimum=1, description="what is paid")],
    items: list[Item] | None = None,
    colour: Colour = Colour.RED,
    odd: str = cast(Any, b"not JSON"),
    unlike: int = cast(Any, "a text"),
) -> dict[str, object]:
    """Charge a card,
    once.

    Longer words for people.

    Args:
        card: the token of the card,
            never its number.
        cents: not told, the field says it.
        items (list): what it is for.
    """
    return {}


def test_a_tool_is_told_as_its_signature_and_docstring_say() -> None:
    assert charge.schema == {
        "name": "charge",
        "description": "Charge a card, once.",
        "parameters": {
            "type": "object",
            "properties": {
                "card": {"type": "string", "description": "the token of the card, never its number."},
                "cents": {"type": "integer", "minimum": 1, "description": "what is paid"},
                "items": {
                    "anyOf": [{"type": "array", "items": ITEM}, NULL],
                    "description": "what it is for.",
                    "default": None,
                },
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "odd": {"type": "string"},
                "unlike": {"type": "integer"},
            },
            "required": ["card", "cents"],
            "additionalProperties": False,
        },
    }


def test_a_model_can_be_offered_it() -> None:
    request = checked_request(
        model="m", messages=[{"role": "user", "parts": [{"type": "text", "text": "x"}]}], tools=[charge.schema]
    )
    assert request.tools[0]["name"] == "charge"


def test_other_keys_are_told_of_where_the_function_takes_them() -> None:
    async def free(call: holdfast.Call, a: int, **more: str) -> None: ...
    async def freer(**more: Any) -> None: ...

    assert tool_schema("t", free)["parameters"]["additionalProperties"] == TEXT
    assert tool_schema("t", freer)["parameters"]["additionalProperties"] is True


def test_a_parameter_without_a_hint_is_refused() -> None:
    async def bare(call: holdfast.Call, a: Any) -> None: ...

    del bare.__annotations__["a"]
    with pytest.raises(NoSchema, match="tool bare: parameter 'a': it has no type hint"):
        tool_schema("bare", bare)


def test_wrapped_functions_are_read_through() -> None:
    def function(call: holdfast.Call, a: int, b: Colour) -> None: ...

    part = functools.partial(function, b=Colour.RED)
    known = tool_schema("t", part)["parameters"]["properties"]
    assert cast("dict[str, object]", known)["a"] == WHOLE


def test_arguments_that_the_tool_gives_itself_are_not_told() -> None:
    async def pay(call: holdfast.Call, account: datetime.date, cents: int, **more: str) -> None: ...

    tool = holdfast.tool(given={"account": "acct_1"})(pay)
    assert tool.schema["parameters"]["properties"] == {"cents": WHOLE}
    assert tool.schema["parameters"]["required"] == ["cents"]
    with pytest.raises(Misuse, match="no argument 'account' that a caller may pass"):
        holdfast.tool(
            given={"account": "acct_1"},
            parameters={"type": "object", "properties": {"cents": WHOLE, "account": TEXT}, "required": ["cents"]},
        )(pay)


def test_odd_hints_are_refused_when_a_model_is_offered_the_tool_and_not_before() -> None:
    @holdfast.tool
    async def odd(call: holdfast.Call, on: datetime.date) -> None: ...

    with pytest.raises(NoSchema, match="tool odd: parameter 'on'"):
        _ = odd.schema


def test_a_name_that_no_model_takes_is_refused_when_it_is_offered() -> None:
    @holdfast.tool(name="pay in full")
    async def pay(call: holdfast.Call) -> None: ...

    with pytest.raises(NoSchema, match="1 to 64 letters"):
        _ = pay.schema


def test_the_digest_is_the_same_in_another_process_and_tells_changes_apart() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_schema import charge\n"
        "from holdfast.runtime.tool.schema import schema_digest\n"
        "print(schema_digest(charge.schema))"
    )
    here = str(sys.modules[__name__].__file__).rpartition("/")[0]
    told = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == schema_digest(charge.schema)
    other = {**charge.schema, "description": "Charge a card."}
    assert schema_digest(cast(Any, other)) != schema_digest(charge.schema)


# by hand

GIVEN = {
    "type": "object",
    "properties": {"to": {"type": "string", "title": "To"}, "items": {"type": "array"}},
    "required": ["to"],
}


def test_a_schema_by_hand_takes_the_place_of_the_hints() -> None:
    @holdfast.tool(parameters=GIVEN)
    async def send(call: holdfast.Call, to: datetime.date, items: object = None) -> None:
        """Send it."""

    assert send.schema["description"] == "Send it."
    assert send.schema["parameters"] == {**GIVEN, "additionalProperties": False}


REFUSED: list[tuple[Any, str]] = [
    ({"type": "string"}, 'type "object"'),
    ({"type": "object", "properties": {"no": {}}, "required": ["to"]}, "no argument 'no' that a caller may pass"),
    ({"type": "object", "properties": {"to": {}}}, "list 'to' under `required`"),
    ({"type": "object", "patternProperties": {}}, "Holdfast does not check the keyword 'patternProperties'"),
    (
        {"type": "object", "properties": {"to": {"pattern": "a*"}}},
        "properties.to: Holdfast does not check the keyword 'pattern'",
    ),
    ({"type": "object", "properties": {"to": {"$ref": "#"}}}, "Holdfast does not check the keyword '$ref'"),
    ({"type": "object", "properties": {"to": {"type": "text"}}}, "to.type: must be among"),
    ({"type": "object", "properties": {"to": {"type": []}}}, "to.type: must be among"),
    ({"type": "object", "properties": {"to": {"enum": [[]]}}}, "to.enum: must be a list"),
    ({"type": "object", "properties": {"to": {"enum": []}}}, "to.enum: must be a list"),
    ({"type": "object", "properties": {"to": {"minLength": 1.5}}}, "minLength: must be"),
    ({"type": "object", "properties": {"to": {"minimum": True}}}, "minimum: must be"),
    ({"type": "object", "properties": {"to": {"multipleOf": 0}}}, "multipleOf: must be a number above"),
    ({"type": "object", "properties": {"to": {"anyOf": []}}}, "anyOf: must be a list of 1"),
    ({"type": "object", "properties": {"to": {"items": True}}}, "items: must be a JSON sch"),
    ({"type": "object", "properties": []}, "properties: must be an object"),
    ({"type": "object", "required": "to"}, "required: must be a list of names"),
    ({"type": "object", "additionalProperties": 1}, "additionalProperties: must be true"),
    ({"type": "object", "default": float("nan")}, "not a JSON number"),
    ({"type": "object", "title": "x" * 300_000}, "limit"),
]


@pytest.mark.parametrize(("given", "why"), REFUSED, ids=lambda one: str(one)[:40])
def test_a_schema_by_hand_that_cannot_be_enforced_is_refused(given: Any, why: str) -> None:
    with pytest.raises(Misuse) as caught:

        @holdfast.tool(parameters=given)
        async def send(call: holdfast.Call, to: str) -> None: ...

    assert why in caught.value.message


def test_a_schema_by_hand_has_a_bound_on_its_depth() -> None:
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"items": deep}
    with pytest.raises(Misuse, match="nested deeper than 32"):
        holdfast.tool(parameters={"type": "object", "properties": {"to": deep}})(_sends)


async def _sends(call: holdfast.Call, to: str) -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [
        {"minimum": "1"},
        {"maximum": float("inf")},
        {"min_length": -1},
        {"max_items": 1.0},
        {"multiple_of": 0},
        {"above": True},
        {"description": 1},
    ],
    ids=str,
)
def test_a_field_that_means_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse):
        holdfast.Field(**wrong)
