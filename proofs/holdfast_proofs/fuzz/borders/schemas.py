"""Borders of tools that models call: arguments against a schema, and schemas written by hand."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypedDict

from holdfast.core import values
from holdfast.errors import BadInput
from holdfast.runtime.models.request import parse_arguments
from holdfast.runtime.tool.schema import Field, parameters_of
from holdfast.runtime.tool.validation import PROBLEMS_MAX, Schema, checked_parameters, problems
from holdfast_proofs.fuzz.feed import as_text, law


class _Item(TypedDict):
    name: str
    cents: Annotated[int, Field(minimum=1, multiple_of=5)]


async def _pay(
    card: Annotated[str, Field(min_length=1, max_length=20)],
    items: Annotated[list[_Item], Field(max_items=3)],
    share: Annotated[float, Field(above=0, maximum=1)] = 1,
    pair: tuple[int, str] | None = None,
    kind: Literal["card", "cash", 7] = "card",
    **more: bool | dict[str, str],
) -> None: ...


_SCHEMA = parameters_of("pay", _pay)


def arguments(raw: bytes) -> None:
    """What a model wrote: read, and held against the schema of the tool."""
    read = parse_arguments(as_text(raw))
    if read.value is None:
        law(bool(read.error), "neither a value nor an error")
        raise BadInput(read.error[:200])
    told = _told(_SCHEMA, read.value)
    if told:
        raise BadInput(told[0])


def by_hand(raw: bytes) -> None:
    """A schema and a value: what passes the border can be enforced."""
    try:
        schema, value = json.loads(raw)
    except (ValueError, TypeError, RecursionError):
        raise BadInput("not a pair") from None
    kept = checked_parameters(schema, what="parameters")
    law(checked_parameters(kept, what="parameters") == kept, "checked twice is not checked once")
    _told(kept, value)
    _told(kept, values.checked(value, what="value"))


def _told(schema: Schema, value: object) -> list[str]:
    told = problems(schema, value)
    law(len(told) <= PROBLEMS_MAX, "too many problems")
    law(all(": " in one and one.isprintable() for one in told), "a problem nobody can read")
    return told


ARGUMENTS = (
    b'{"card": "c", "items": [{"name": "a", "cents": 5}], "share": 0.5, "pair": [1, "x"]}',
    b'{"card": "c", "items": [], "kind": 7, "other": {"a": "b"}, "yes": true}',
)
BY_HAND = (
    json.dumps([_SCHEMA, {"card": "c", "items": []}]).encode(),
    json.dumps(
        [
            {
                "type": "object",
                "required": ["a"],
                "minProperties": 1,
                "properties": {"a": {"oneOf": [{"enum": [1, "x"]}, {"prefixItems": [{}]}]}},
                "additionalProperties": {"type": ["string", "null"], "maxLength": 3},
            },
            {"a": 1, "b": "no"},
        ]
    ).encode(),
)
WORDS = (
    b'"type":',
    b'"items":',
    b'"anyOf":',
    b'"enum":',
    b'"required":',
    b'"properties":',
    b"true",
    b'"additionalProperties":',
    b'"multipleOf":',
    b'"minimum":',
    b"1e400",
    b"-1",
    b"null",
    b"[" * 90,
    b'{"items":' * 40,
    b"1.0",
    b"\\ud800",
    b"9" * 4_400,
    b'"maxLength":',
    b"\xff",
    b'{"a":',
)
