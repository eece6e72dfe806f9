"""JSON schemas of tools, from their type hints: what a model is told and the gate enforces.

A tool is given plain JSON values, so only hints of plain JSON values have a schema: text, numbers, true and false,
null, lists, objects, choices among them, TypedDicts. A dataclass or a date would promise the function something it is
never given. Such a tool works as before; it is refused when its schema is asked for, naming the parameter.

The same function gives the same schema in every process: the order is that of the signature and of the definitions, so
`schema_digest` is a fingerprint. The `call` parameter is never part of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import math
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NotRequired, Required, TypedDict, Union, cast

from holdfast.core import values
from holdfast.errors import BadValue, Misuse, NoSchema
from holdfast.runtime.tool.validation import Schema, problems

_WORDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
}
# Which JSON types a limit means anything for.
MEANT_FOR: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), frozenset(("integer", "number"))
    ),
    **dict.fromkeys(("minLength", "maxLength"), frozenset(("string",))),
    **dict.fromkeys(("minItems", "maxItems"), frozenset(("array",))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A description and limits of an argument or of a key of a TypedDict.

    Args:
        description: sent to the model, instead of the text in the docstring.
        minimum: the smallest allowed number; `above`: the number must be greater than this.
        maximum: the largest allowed number; `below`: the number must be less than this.
        multiple_of: a number above 0.
        min_length: of text, in characters.
        min_items: of a list.
    """

    description: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None

    def __post_init__(self) -> None:
        if type(self.description) is not str:
            raise Misuse("Field: the description must be text")
        for name in _WORDS:
            self._check(name, getattr(self, name))

    def _check(self, name: str, limit: object) -> None:
        if limit is None:
            return
        whole = name.startswith(("min_", "max_"))
        if type(limit) is not int and (whole or type(limit) is not float):
            raise Misuse(f"Field: {name} must be a {'whole ' * whole}number, not {limit!r}")
        if not math.isfinite(limit):
            raise Misuse(f"Field: {name} must be a finite number")
        if limit < 0 and whole:
            raise Misuse(f"Field: {name} must not be below 0")
        if name == "multiple_of" and limit <= 0:
            raise Misuse("Field: multiple_of must be above 0")

    def words(self) -> dict[str, object]:
        """Its limits in the words of JSON Schema."""
        return {word: limit for name, word in _WORDS.items() if (limit := getattr(self, name)) is not None}


DIGEST_CHARS = 16
DEPTH_MAX = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # what every provider takes

_Hint = Any  # Any: a type hint may be any object


class ToolSchema(TypedDict):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, object]


class _Unfit(Exception):
    """This hint has no schema."""


def tool_schema(
    name: str, function: Callable[..., Any], *, parameters: Schema | None = None, given: Collection[str] = ()
) -> ToolSchema:
    """The schema of a tool. Raises NoSchema. `parameters` where they were written by hand; `given`: arguments that no
    caller passes."""
    if not _NAME.fullmatch(name):
        raise NoSchema(tool=name, why="a model takes names of 1 to 64 letters, digits, - and _")
    made = dict(parameters) if parameters is not None else parameters_of(name, function, given)
    return {"name": name, "description": first_paragraph(function.__doc__), "parameters": made}


def parameters_of(name: str, function: Callable[..., Any], given: Collection[str] = ()) -> dict[str, object]:
    """The schema of a function's arguments. Raises NoSchema, naming the parameter."""
    told = described_arguments(function.__doc__)
    known: dict[str, object] = {}
    required: list[str] = []
    others: object = False
    for at, one in enumerate(inspect.signature(function).parameters.values()):
        if (at == 0 and one.name == "call") or one.name in given:
            continue
        try:
            schema = _schema(_resolved(function, one), ())
        except _Unfit as error:
            raise NoSchema(tool=name, parameter=one.name, why=str(error)) from None
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            others = schema or True
            continue
        if one.name in told and "description" not in schema:
            schema["description"] = told[one.name]
        if one.default is inspect.Parameter.empty:
            required.append(one.name)
        else:
            _tell_default(schema, one.default)
        known[one.name] = schema
    return _object(known, required, others)


def schemas_of_hints(function: Callable[..., Any]) -> dict[str, Schema]:
    """The schema of each parameter whose hint has one, by name; parameters without a usable hint are left out."""
    found: dict[str, Schema] = {}
    for one in inspect.signature(function).parameters.values():
        with contextlib.suppress(_Unfit):
            found[one.name] = _schema(_resolved(function, one), ())
    return found


def schema_digest(schema: ToolSchema) -> str:
    """A short fingerprint of what the model is told of a tool."""
    raw = values.canonical(values.checked(schema, what="schema"))
    return hashlib.sha256(raw).hexdigest()[:DIGEST_CHARS]


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter) -> _Hint:
    """The hint itself, where it was written or kept as text."""
    hint = parameter.annotation
    if hint is inspect.Parameter.empty:
        raise _Unfit("it has no type hint")
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(cast("functools.partial[object]", plain).func)

    def only() -> None: ...

    only.__annotations__ = {"it": hint}
    return _resolve(only, getattr(plain, "__globals__", {}))["it"]


def _resolve(owner: object, names: dict[str, Any] | None = None) -> dict[str, _Hint]:
    try:
        return typing.get_type_hints(owner, globalns=names, include_extras=True)
    except Exception as error:  # noqa: BLE001 - the text of a hint may raise anything
        raise _Unfit(f"its hint cannot be read: {error}") from None


def _schema(hint: _Hint, above: tuple[object, ...]) -> dict[str, object]:
    """`above`: the hints that this one is part of."""
    for plain, made in _PLAIN:
        if hint is plain:
            return dict(made)
    if any(hint is one for one in above):
        raise _Unfit(f"{_shown(hint)} refers to itself")
    if len(above) > DEPTH_MAX:
        raise _Unfit(f"nested deeper than {DEPTH_MAX}")
    above = (*above, hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _annotated(hint, above)
    if origin in (Union, types.UnionType):
        forms = [_schema(one, above) for one in args]
        return {"anyOf": [one for i, one in enumerate(forms) if one not in forms[:i]]}
    if origin is Literal:
        return _choices(args)
    if origin is tuple:
        return _tuple(args, above)
    if origin in _LISTS:
        return {"type": "array", "items": _schema(args[0], above)}
    if origin in _DICTS:
        if args[0] is not str:
            raise _Unfit(f"the keys of {_shown(hint)} are not text")
        return {"type": "object", "additionalProperties": _schema(args[1], above) or True}
    return _named(hint, above)


def _named(hint: _Hint, above: tuple[object, ...]) -> dict[str, object]:
    """Types that have a name: aliases, new types, enums, TypedDicts."""
    if hasattr(hint, "__supertype__"):  # NewType
        return _schema(hint.__supertype__, above)
    if type(hint).__name__ == "TypeAliasType":  # `type X = ...` of Python 3.12
        return _schema(hint.__value__, above)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if not issubclass(hint, (str, int)):
            raise _Unfit(f"{_shown(hint)} is not a JSON value; a StrEnum is, or a Literal of its values")
        return _choices(tuple(values.checked(one, what="choice") for one in hint))
    if isinstance(hint, type) and hasattr(hint, "__required_keys__"):
        return _typed_dict(hint, above)
    raise _Unfit(f"{_shown(hint)} is not a JSON value")


def _annotated(hint: _Hint, above: tuple[object, ...]) -> dict[str, object]:
    inner, *said = typing.get_args(hint)
    schema = _schema(inner, above)
    for one in said:
        if isinstance(one, str):
            schema["description"] = one
        elif isinstance(one, Field):
            for word, limit in one.words().items():
                if not _types_of(schema) & MEANT_FOR[word]:
                    raise _Unfit(f"a limit {word} means nothing for {_shown(inner)}")
                schema[word] = limit
            if one.description:
                schema["description"] = one.description
        else:
            # It may be meant as a limit, and a limit that is not enforced is none.
            raise _Unfit(f"{one!r} in Annotated is not understood; use holdfast.Field, or text")
    return schema


def _types_of(schema: Mapping[str, object]) -> set[str]:
    found = {str(schema["type"])} if "type" in schema else set[str]()
    for form in cast("list[dict[str, object]]", schema.get("anyOf", [])):
        found |= _types_of(form)
    return found


def _choices(given: tuple[object, ...]) -> dict[str, object]:
    plain: list[object] = [cast(object, one.value) if isinstance(one, Enum) else one for one in given]
    kinds = {_JSON_TYPE.get(type(one), "") for one in plain}
    if "" in kinds or not plain:
        raise _Unfit("its choices are not all text, whole numbers, True, False or None")
    schema: dict[str, object] = {"enum": plain}
    return {"type": kinds.pop(), **schema} if len(kinds) == 1 else schema


def _tuple(args: tuple[_Hint, ...], above: tuple[object, ...]) -> dict[str, object]:
    if len(args) == 2 and args[1] is ...:
        return {"type": "array", "items": _schema(args[0], above)}
    forms = [_schema(one, above) for one in args]
    schema: dict[str, object] = {"type": "array", "minItems": len(forms), "maxItems": len(forms)}
    return {**schema, "prefixItems": forms} if forms else schema


def _typed_dict(hint: type, above: tuple[object, ...]) -> dict[str, object]:
    required = cast("frozenset[str]", getattr(hint, "__required_keys__"))  # noqa: B009 - no such static attribute
    known: dict[str, object] = {}
    needed: list[str] = []
    for name, one in _resolve(hint).items():
        inner, must = one, name in required
        # Where hints are kept as text, Python does not see these while it makes the class.
        while (origin := typing.get_origin(inner)) in _KEY_WORDS:
            must = {Required: True, NotRequired: False}.get(origin, must)
            inner = typing.get_args(inner)[0]
        try:
            known[name] = _schema(inner, above)
        except _Unfit as error:
            raise _Unfit(f"{hint.__name__}.{name}: {error}") from None
        if must:
            needed.append(name)
    made = _object(known, needed, others=False)
    if told := first_paragraph(hint.__doc__):
        made["description"] = told
    return made


def _object(known: dict[str, object], required: list[str], others: object) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object", "properties": known}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": others}


def _tell_default(schema: dict[str, object], default: object) -> None:
    """The default, where it is a JSON value that the schema itself would take."""
    try:
        kept = values.checked(default, what="default")
    except BadValue:
        return
    if not problems(schema, kept):
        schema["default"] = kept


def _shown(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


_PLAIN: tuple[tuple[_Hint, dict[str, object]], ...] = (
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (type(None), {"type": "null"}),
    *((one, {"type": "array"}) for one in (list, tuple, typing.List, typing.Tuple, abc.Sequence)),  # noqa: UP006 - as people still write them
    *((one, {"type": "object"}) for one in (dict, typing.Dict, abc.Mapping)),  # noqa: UP006
    (Any, {}),
    (object, {}),
)
_JSON_TYPE: dict[type, str] = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_KEY_WORDS = tuple(one for one in (Required, NotRequired, getattr(typing, "ReadOnly", None)) if one is not None)


_HEADS = frozenset(("args:", "arguments:", "parameters:"))
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)")


def first_paragraph(text: str | None) -> str:
    """The first paragraph, on one line."""
    lines = (line.strip() for line in inspect.cleandoc(text or "").split("\n"))
    return " ".join(itertools.takewhile(lambda line: line and line.lower() not in _HEADS, lines))


def described_arguments(text: str | None) -> dict[str, str]:
    """Name to description, from `Args:` and lines such as `cents: what is paid`."""
    found: dict[str, list[str]] = {}
    inside = False
    entry_indent = -1
    current: list[str] | None = None
    for line in inspect.cleandoc(text or "").split("\n"):
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if not inside:
            inside = indent == 0 and bare.lower() in _HEADS
            continue
        if bare and indent == 0:
            inside, entry_indent, current = bare.lower() in _HEADS, -1, None
            continue
        if not bare:
            continue
        if entry_indent < 0 or indent <= entry_indent:
            entry_indent = indent
            entry = _ENTRY.fullmatch(bare)
            current = None if entry is None else found.setdefault(entry[1], [])
            bare = "" if entry is None else entry[2]
        if current is not None and bare:
            current.append(bare)
    return {name: " ".join(lines) for name, lines in found.items()}
