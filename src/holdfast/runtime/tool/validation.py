"""Whether a JSON value fits a schema: short problems with their place, nothing else.

The schemas are those that `schema.py` makes and `given_schema.py` lets pass: a tree, without
references and patterns. So the work has a bound: a value is looked at only as deep as the schema
goes, never more than VALUES_MAX values of it, and the first few problems are all that is told.
Whatever comes in, nothing is raised.

Nothing is changed and nothing is guessed: text that looks like a number is text, true is no
number, and `1.0` is no whole number, because the tool would be given a float. A whole number is a
number. A problem names the place and what is wanted, never the value: it may be a secret, or ten
megabytes.
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
    if (choices := schema.get("enum")) is not None and not _among(value, choices):
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


def _among(value: object, choices: object) -> bool:
    return any(_same(value, one) for one in cast("Sequence[object]", choices))


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
