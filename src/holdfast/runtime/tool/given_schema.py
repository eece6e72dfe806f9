"""The border for schemas that people write by hand: `@holdfast.tool(parameters={...})`.

What passes is what `validate.py` checks in full. A word of JSON Schema that is not checked would
be a limit that does not hold, so it is refused here, by name: references, patterns (whose work has
no bound), conditions. Words that only tell something (title, examples, format) are let through.

An object that lists its properties takes no others: `additionalProperties: false` is put in where
it is not said, so that the model reads what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from holdfast.core import values
from holdfast.errors import BadValue, Misuse, TooLarge
from holdfast.runtime.tool.validation import Schema

BYTES_MAX = 256 * 1024
DEPTH_MAX = 32
FORMS_MAX = 100
TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))


def checked_parameters(given: object, *, what: str) -> Schema:
    """The schema as the model is told and the gate enforces it. Raises Misuse."""
    try:
        kept = values.checked(given, what=what)
        values.encode(kept, what=what, bytes_max=BYTES_MAX)
    except (BadValue, TooLarge) as error:
        raise Misuse(error.message) from None
    schema = _schema(kept, what, 0)
    if schema.get("type") != "object":
        raise Misuse(f'{what}: must be a JSON schema of type "object"')
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", False)
    return schema


def _schema(value: object, place: str, depth: int) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Misuse(f"{place}: must be a JSON schema, an object")
    if depth > DEPTH_MAX:
        raise Misuse(f"{place}: nested deeper than {DEPTH_MAX}")
    schema = dict(cast("dict[str, object]", value))
    for word, said in schema.items():
        if word not in _CHECKED and word not in _TELLING:
            raise Misuse(
                f"{place}: {word!r} is not checked here, so it would be a limit that does not hold",
                hint="docs/reference/schemas.md lists the words; check the rest in the tool",
            )
        if word in _CHECKED:
            _CHECKED[word](said, f"{place}.{word}")
    for word in ("items", "additionalProperties"):
        if word in schema and not (word != "items" and isinstance(schema[word], bool)):
            schema[word] = _schema(schema[word], f"{place}.{word}", depth + 1)
    for word in ("anyOf", "oneOf", "prefixItems"):
        if word in schema:
            forms = cast("list[object]", schema[word])
            schema[word] = [_schema(one, f"{place}.{word}[{i}]", depth + 1) for i, one in enumerate(forms)]
    if "properties" in schema:
        known = cast("dict[str, object]", schema["properties"])
        schema["properties"] = {
            name: _schema(one, f"{place}.properties.{name}", depth + 1) for name, one in known.items()
        }
        schema.setdefault("additionalProperties", False)
    return schema


def _type(said: object, place: str) -> None:
    names = cast("list[object]", said) if isinstance(said, list) else [said]
    if not names or not all(isinstance(one, str) and one in TYPES for one in names):
        raise Misuse(f"{place}: must be among {', '.join(sorted(TYPES))}")


def _plain_choices(said: object, place: str) -> None:
    plain = isinstance(said, list) and all(
        one is None or isinstance(one, (str, int, float)) for one in cast("list[object]", said)
    )
    if not plain or not said:
        raise Misuse(f"{place}: must be a list of texts, numbers, true, false or null")


def _count(said: object, place: str) -> None:
    if type(said) is not int or said < 0:
        raise Misuse(f"{place}: must be a whole number, not below 0")


def _limit(said: object, place: str) -> None:
    if type(said) not in (int, float):
        raise Misuse(f"{place}: must be a number")


def _step(said: object, place: str) -> None:
    _limit(said, place)
    if cast(float, said) <= 0:
        raise Misuse(f"{place}: must be above 0")


def _forms(said: object, place: str) -> None:
    if not isinstance(said, list) or not 1 <= len(cast("list[object]", said)) <= FORMS_MAX:
        raise Misuse(f"{place}: must be a list of 1 to {FORMS_MAX} schemas")


def _names(said: object, place: str) -> None:
    if not isinstance(said, list) or not all(isinstance(one, str) for one in cast("list[object]", said)):
        raise Misuse(f"{place}: must be a list of names")


def _properties(said: object, place: str) -> None:
    if not isinstance(said, dict):
        raise Misuse(f"{place}: must be an object of schemas")


def _others(said: object, place: str) -> None:
    if not isinstance(said, (bool, dict)):
        raise Misuse(f"{place}: must be true, false or a schema")


def _any(said: object, place: str) -> None:
    pass  # a schema of its own, checked where it is entered


_CHECKED: dict[str, Callable[[object, str], None]] = {
    "type": _type,
    "enum": _plain_choices,
    "anyOf": _forms,
    "oneOf": _forms,
    "prefixItems": _forms,
    "items": _any,
    "properties": _properties,
    "required": _names,
    "additionalProperties": _others,
    "minimum": _limit,
    "maximum": _limit,
    "exclusiveMinimum": _limit,
    "exclusiveMaximum": _limit,
    "multipleOf": _step,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
}
_TELLING = frozenset(("title", "description", "default", "examples", "format", "deprecated", "$comment", "$schema"))
