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
        fits, wanted = _CHECKED.get(word, _ANYTHING)
        if not fits(said):
            raise Misuse(f"{place}.{word}: {wanted}")
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


def _is_list_of(said: object, fits: Callable[[object], bool], *, least: int = 0, most: int | None = None) -> bool:
    if not isinstance(said, list):
        return False
    items = cast("list[object]", said)
    return len(items) >= least and (most is None or len(items) <= most) and all(map(fits, items))


def _is_type(said: object) -> bool:
    return isinstance(said, str) and said in TYPES


def _is_number(said: object) -> bool:
    return type(said) in (int, float)


# For each word that is checked: what it must be, and how that is told. `items` and the like are schemas of their own,
# checked where they are entered.
_Check = tuple[Callable[[object], bool], str]
_ANYTHING: _Check = (lambda said: True, "")
_NUMBER: _Check = (_is_number, "must be a number")
_COUNT: _Check = (lambda said: type(said) is int and said >= 0, "must be a whole number, not below 0")
_FORMS: _Check = (
    lambda said: _is_list_of(said, lambda one: True, least=1, most=FORMS_MAX),
    f"must be a list of 1 to {FORMS_MAX} schemas",
)
_CHECKED: dict[str, _Check] = {
    "type": (
        lambda said: _is_type(said) or _is_list_of(said, _is_type, least=1),
        f"must be among {', '.join(sorted(TYPES))}",
    ),
    "enum": (
        lambda said: _is_list_of(said, lambda one: one is None or isinstance(one, (str, int, float)), least=1),
        "must be a list of texts, numbers, true, false or null",
    ),
    **dict.fromkeys(("anyOf", "oneOf", "prefixItems"), _FORMS),
    "items": _ANYTHING,
    "properties": (lambda said: isinstance(said, dict), "must be an object of schemas"),
    "required": (lambda said: _is_list_of(said, lambda one: isinstance(one, str)), "must be a list of names"),
    "additionalProperties": (lambda said: isinstance(said, (bool, dict)), "must be true, false or a schema"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    "multipleOf": (lambda said: _is_number(said) and cast(float, said) > 0, "must be a number above 0"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
}
_TELLING = frozenset(("title", "description", "default", "examples", "format", "deprecated", "$comment", "$schema"))
