"""Whether a JSON value fits a schema: short problems with their place; and schemas given by hand.

The schemas are those that `schema.py` makes and `checked_parameters` lets pass: a tree, without references and
patterns. So the work has a bound: a value is looked at only as deep as the schema goes, never more than VALUES_MAX
values of it, and the first few problems are all that is told. Whatever comes in, nothing is raised.

Nothing is changed and nothing is guessed: text that looks like a number is text, true is no number, and `1.0` is no
whole number, because the tool would be given a float. A whole number is a number. A problem names the place and what is
wanted, never the value: it may be a secret, or ten megabytes.

`checked_parameters` is the border for schemas that people write by hand: `@holdfast.tool(parameters={...})`. What
passes is what is checked in full here. A word of JSON Schema that is not checked would be a limit that does not hold,
so it is refused, by name: references, patterns (whose work has no bound), conditions. Words that only tell something
(title, examples, format) are let through. An object that lists its properties takes no others: `additionalProperties:
false` is put in where it is not said, so that the model reads what is enforced.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import cast

from holdfast.core import values
from holdfast.errors import BadValue, Misuse, TooLarge

Schema = Mapping[str, object]  # a JSON schema that has been checked

PROBLEMS_MAX = 5
VALUES_MAX = 1_000_000  # looked at; about a second of work
SHOWN_CHARS_MAX = 40  # of a key that is not known
CHOICES_SHOWN_MAX = 20

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}", re.ASCII)
_NAMED = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


_LIMITS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", operator.lt, "must be at least"),
    ("exclusiveMinimum", operator.le, "must be above"),
    ("maximum", operator.gt, "must be at most"),
    ("exclusiveMaximum", operator.ge, "must be below"),
)


class _TooMuch(Exception):
    pass


class _Budget:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MAX

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooMuch


def problems(schema: Schema, value: object, *, what: str = "arguments") -> list[str]:
    """What is wrong with the value, the first few problems; empty where it fits."""
    found: list[str] = []
    try:
        found.extend(islice(_visit(schema, value, "", _Budget()), PROBLEMS_MAX))
    except _TooMuch:
        found.append(f"{what}: more than {VALUES_MAX:,} values to check")
    return [f"{what}{one}" if one.startswith(":") else one for one in found]


def _visit(schema: Schema, value: object, place: str, budget: _Budget) -> Iterator[str]:
    budget.spend()
    if (wanted := schema.get("type")) is not None and not is_of(value, wanted):
        yield f"{place}: must be {_named(wanted)}"
        return
    if (choices := schema.get("enum")) is not None and not any(
        _same(value, one) for one in cast("Sequence[object]", choices)
    ):
        yield f"{place}: must be one of {_shown(cast('Sequence[object]', choices))}"
        return
    for word in ("anyOf", "oneOf"):
        if (forms := schema.get(word)) is not None:
            yield from _forms(word, cast("Sequence[Schema]", forms), value, place, budget)
    match value:
        case bool() | None:
            return
        case str():
            yield from _sizes(schema, len(value), place, ("minLength", "maxLength"), "characters")
        case int() | float():
            yield from _number(schema, value, place)
        case list():
            yield from _items(schema, cast("list[object]", value), place, budget)
        case dict():
            yield from _object(schema, cast("dict[str, object]", value), place, budget)
        case _:
            yield f"{place}: must be a JSON value"


def is_of(value: object, wanted: object) -> bool:
    """Whether the value is of the JSON type, or of one of them. `1.0` is no integer."""
    names = [wanted] if isinstance(wanted, str) else cast("Sequence[str]", wanted)
    return any(type(value) in _TYPES[name] for name in names)


def _same(value: object, choice: object) -> bool:
    """Equal as JSON: true is not 1. Choices are plain, so no value is compared in depth."""
    if isinstance(choice, (bool, str)) or choice is None:
        return type(value) is type(choice) and value == choice
    return type(value) in (int, float) and value == choice


def _forms(word: str, forms: Sequence[Schema], value: object, place: str, budget: _Budget) -> Iterator[str]:
    """One form at least, or exactly one, must fit; of the only one meant it is said why not."""
    fitting = sum(next(_visit(form, value, place, budget), None) is None for form in forms)
    if fitting == 1 or (fitting and word == "anyOf"):
        return
    if fitting:
        yield f"{place}: fits {fitting} of its forms; it must fit one"
        return
    meant = [form for form in forms if "type" in form and is_of(value, form["type"])]
    if len(meant) == 1:
        yield from _visit(meant[0], value, place, budget)
    elif all("type" in form for form in forms) and not meant:
        yield f"{place}: must be {' or '.join(dict.fromkeys(_named(f['type']) for f in forms))}"
    else:
        yield f"{place}: fits none of its {len(forms)} forms"


def _sizes(schema: Schema, size: int, place: str, words: tuple[str, str], unit: str) -> Iterator[str]:
    least, most = (cast("int | None", schema.get(word)) for word in words)
    if least is not None and size < least:
        yield f"{place}: must have at least {least:,} {unit}"
    if most is not None and size > most:
        yield f"{place}: must have at most {most:,} {unit}"


def _number(schema: Schema, value: float, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place}: must be a finite number"
        return
    for word, bad, told in _LIMITS:
        limit = cast("float | None", schema.get(word))
        if limit is not None and bad(value, limit):
            yield f"{place}: {told} {limit:,}"
    step = cast("float | None", schema.get("multipleOf"))
    if step is not None and (exact(value) / exact(step)).denominator != 1:
        yield f"{place}: must be a multiple of {step:,}"


def exact(value: float) -> Fraction:
    """The number as it is written: 0.1 is a tenth, so that three of them are 0.3."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _items(schema: Schema, value: list[object], place: str, budget: _Budget) -> Iterator[str]:
    yield from _sizes(schema, len(value), place, ("minItems", "maxItems"), "items")
    if _is_over(schema, "maxItems", len(value)):
        return
    first = cast("Sequence[Schema]", schema.get("prefixItems") or ())
    for i, form in enumerate(first[: len(value)]):
        yield from _visit(form, value[i], f"{place}[{i}]", budget)
    rest = cast("Schema | None", schema.get("items"))
    if rest is not None:
        for i in range(len(first), len(value)):
            yield from _visit(rest, value[i], f"{place}[{i}]", budget)


def _object(schema: Schema, value: dict[str, object], place: str, budget: _Budget) -> Iterator[str]:
    known = cast("Mapping[str, Schema]", schema.get("properties") or {})
    other = schema.get("additionalProperties", True)
    for name in cast("Sequence[str]", schema.get("required") or ()):
        if name not in value:
            yield f"{_below(place, name)}: is missing"
    yield from _sizes(schema, len(value), place, ("minProperties", "maxProperties"), "keys")
    if _is_over(schema, "maxProperties", len(value)):
        return
    for name, item in value.items():
        form = known.get(name)
        if form is None and other is False:
            budget.spend()
            yield f"{_below(place, name)}: is not known here"
        elif form is not None or other is not True:
            yield from _visit(form if form is not None else cast(Schema, other), item, _below(place, name), budget)


def _is_over(schema: Schema, word: str, size: int) -> bool:
    """Whether there are too many to look at each of them."""
    return word in schema and size > cast(int, schema[word])


def _named(wanted: object) -> str:
    names = [wanted] if isinstance(wanted, str) else cast("Sequence[str]", wanted)
    return " or ".join(_NAMED[name] for name in names)


def _shown(choices: Sequence[object]) -> str:
    told = ", ".join(_choice(one) for one in choices[:CHOICES_SHOWN_MAX])
    return told + (", ..." if len(choices) > CHOICES_SHOWN_MAX else "")


def _choice(one: object) -> str:
    if not isinstance(one, str):
        return json.dumps(one)
    cut = one if len(one) <= SHOWN_CHARS_MAX else one[:SHOWN_CHARS_MAX] + "..."
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


def _below(place: str, name: str) -> str:
    """The place of a key: plain where it is a plain name, quoted and cut where it is not."""
    if len(name) <= SHOWN_CHARS_MAX and _PLAIN.fullmatch(name):
        return f"{place}.{name}" if place else name
    cut = name if len(name) <= SHOWN_CHARS_MAX else name[:SHOWN_CHARS_MAX] + "..."
    return f"{place}[{cut!r}]"


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
                f"{place}: Holdfast does not check the keyword {word!r}",
                hint="`holdfast explain schemas` lists the keywords; check the rest in the tool",
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
