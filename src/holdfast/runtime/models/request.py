"""What a model is asked, in one form of ours; no provider's words in it.

    settings   {"max_tokens": 1000, "temperature": 0.2, "top_p": 1, "stop": ["END"],
                "tool_choice": "auto" | "none" | "required" | {"tool": NAME},
                "parallel_tool_calls": false, "cache_key": TEXT,
                "extra": {"openai": {...}, "anthropic": {...}}}       every key may be left out
    messages   {"role": "system" | "user" | "assistant" | "tool", "parts": [PART, ...]}
    PART       {"type": "text", "text": TEXT}
               {"type": "tool_call", "ref": REF, "tool": NAME, "arguments": JSON OBJECT AS TEXT}
               {"type": "tool_result", "ref": REF, "text": TEXT, "failed": true}
               {"type": "refusal", "text": TEXT}
               {"type": "opaque", "wire": "anthropic", "value": {...}}
    tools      {"name": NAME, "description": TEXT, "parameters": JSON SCHEMA}

A `ref` joins a call and its result. It is ours (see `Reply.message`), never the provider's id, so that it is the same
on every endpoint. An opaque part goes back to the wire form it came from, unread (signed thinking, for one), and is
left out of the others. `extra` is for one wire form alone and cannot repeat what the rest of the request says.

`checked_request` is the border: whatever passes it can be encoded for every wire form. `Request` itself trusts its
maker, so that a long talk is not checked again at every turn.

Models write malformed JSON now and then. That is an outcome: the text is kept and the call carries an error. A key that
is given twice is such an error too: of two amounts neither may be taken for the meant one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from holdfast.core import values
from holdfast.errors import BadInput, BadValue

Object = Mapping[str, object]  # a JSON object


class MessageOrder:
    """The order of the messages so far. `open_calls` are the refs without a result yet."""

    __slots__ = ("_count", "_seen", "_talking", "open_calls")

    def __init__(self) -> None:
        self.open_calls: dict[str, None] = {}  # in their order
        self._seen: set[str] = set()
        self._count = 0
        self._talking = False

    def take(self, message: Object) -> None:
        """Take one more checked message. Raises BadInput where it may not come now."""
        place, role = f"messages[{self._count}]", message["role"]
        if role == "system" and self._talking:
            raise BadInput(f"{place}: system messages must come before all others")
        if not self._talking and role in ("assistant", "tool"):
            raise BadInput(f"{place}: the first message must be the user's")
        if self.open_calls and role != "tool":
            raise BadInput(f"{place}: call {next(iter(self.open_calls))!r} must get its result before this message")
        for part in cast("list[Object]", message["parts"]):
            self._take_part(part, place)
        self._talking = self._talking or role != "system"
        self._count += 1

    def copy(self) -> MessageOrder:
        other = MessageOrder()
        other.open_calls, other._seen = dict(self.open_calls), set(self._seen)
        other._count, other._talking = self._count, self._talking
        return other

    def check_end(self) -> None:
        """Raise BadInput where a model cannot be asked now."""
        if self.open_calls:
            raise BadInput(f"call {next(iter(self.open_calls))!r} has no result: add it before you ask the model")
        if not self._talking:
            raise BadInput("messages: all of them are system messages; add a user message")

    def _take_part(self, part: Object, place: str) -> None:
        ref = str(part.get("ref"))
        if part["type"] == "tool_call":
            if ref in self._seen:
                raise BadInput(f"{place}: ref {ref!r} is used twice")
            self._seen.add(ref)
            self.open_calls[ref] = None
        elif part["type"] == "tool_result":
            if ref not in self.open_calls:
                raise BadInput(f"{place}: no tool call before it waits for the result {ref!r}")
            del self.open_calls[ref]


MESSAGES_MAX = 100_000
PARTS_MAX = 1_000  # of one message
TOOLS_MAX = 512
STOPS_MAX = 16
NAME_CHARS_MAX = 64  # the shorter of the providers' limits
WIRES = ("openai", "anthropic")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_ROLES = {
    "system": {"text"},
    "user": {"text"},
    "assistant": {"text", "tool_call", "refusal", "opaque"},
    "tool": {"tool_result"},
}
_FIELDS = {
    "text": {"text"},
    "refusal": {"text"},
    "tool_call": {"ref", "tool", "arguments"},
    "tool_result": {"ref", "text", "failed"},
    "opaque": {"wire", "value"},
}
_TEXTS = ("text", "ref", "tool", "arguments", "wire")
_NUMBERS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0)}
_SETTINGS = frozenset(
    {"max_tokens", "temperature", "top_p", "stop", "tool_choice", "parallel_tool_calls", "cache_key", "extra"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a model: checked JSON values."""

    model: str
    messages: Sequence[Object]
    settings: Object
    tools: Sequence[Object] = ()

    def to_json(self) -> dict[str, object]:
        return {"model": self.model, "messages": [*self.messages], "settings": self.settings, "tools": [*self.tools]}


def checked_request(*, model: str, messages: object, settings: object = None, tools: object = None) -> Request:
    """A request that can be encoded for every wire form.

    Raises:
        BadInput: what is wrong, and where.
        BadValue: not a JSON value.
    """
    check_model_name(model)
    kept = [check_message(one, place=f"messages[{i}]") for i, one in enumerate(_list(messages, "messages"))]
    if not kept or len(kept) > MESSAGES_MAX:
        raise BadInput(f"messages: give 1 to {MESSAGES_MAX}, not {len(kept)}")
    order = MessageOrder()
    for message in kept:
        order.take(message)
    order.check_end()
    return Request(model=model, messages=kept, settings=check_settings(settings or {}), tools=check_tools(tools or []))


def check_tools(tools: object) -> list[Object]:
    """The tools that are offered, as they will be read back. Raises BadInput or BadValue."""
    offered = [_check_tool(one, f"tools[{i}]") for i, one in enumerate(_list(tools, "tools"))]
    names = [tool["name"] for tool in offered]
    if len(offered) > TOOLS_MAX or len(set(names)) < len(names):
        raise BadInput(f"tools: give at most {TOOLS_MAX}, with different names")
    return offered


def check_model_name(model: str) -> None:
    if not model or len(model) > 200 or not model.isprintable():
        raise BadInput(f"model {model!r}: give the name that the provider uses for this model")


def check_message(message: object, *, place: str = "message") -> Object:
    """The message as it will be read back. Raises BadInput or BadValue."""
    kept = _object(values.checked(message, what=place), place, {"role", "parts"})
    allowed = _ROLES.get(str(kept.get("role")))
    if allowed is None:
        raise BadInput(f"{place}: role must be one of {', '.join(_ROLES)}")
    parts = _list(kept.get("parts"), f"{place}.parts")
    if not 1 <= len(parts) <= PARTS_MAX:
        raise BadInput(f"{place}: give 1 to {PARTS_MAX} parts")
    for i, part in enumerate(parts):
        _check_part(part, f"{place}.parts[{i}]", allowed)
    if kept["role"] in ("system", "user"):
        texts = [str(part["text"]) for part in cast("list[Object]", parts)]
        if not any(text.strip() for text in texts):
            raise BadInput(f"{place}: it is blank; no provider accepts a blank message")
    return kept


def _check_part(part: object, place: str, allowed: set[str]) -> None:
    kind = _object(part, place, None).get("type")
    if kind not in allowed:
        raise BadInput(f"{place}: type must be one of {', '.join(sorted(allowed))} here")
    known = _object(part, place, {"type", *_FIELDS[str(kind)]})
    for name in _FIELDS[str(kind)]:
        if name in _TEXTS and not isinstance(known.get(name), str):
            raise BadInput(f"{place}.{name}: must be text")
    if kind in ("tool_call", "tool_result") and not _REF.fullmatch(str(known["ref"])):
        raise BadInput(f"{place}.ref: must have 1 to 40 letters, digits, - or _")
    if kind == "tool_call":
        if not _NAME.fullmatch(str(known["tool"])):
            raise BadInput(f"{place}.tool: must have 1 to 64 letters, digits, - or _")
        problem = parse_arguments(str(known["arguments"])).error
        if problem:
            raise BadInput(f"{place}.arguments: {problem}")
    if kind == "tool_result" and not isinstance(known.get("failed", False), bool):
        raise BadInput(f"{place}.failed: must be true or false")
    if kind == "opaque" and (known["wire"] not in WIRES or not isinstance(known.get("value"), dict)):
        raise BadInput(f"{place}: in an opaque part, wire must be one of {', '.join(WIRES)}, and value an object")


def _check_tool(tool: object, place: str) -> Object:
    checked = values.checked(tool, what=place)
    kept = _object(checked, place, {"name", "description", "parameters"})
    if not _NAME.fullmatch(str(kept.get("name"))):
        raise BadInput(f"{place}.name: must have 1 to 64 letters, digits, - or _")
    schema = kept.get("parameters")
    if not isinstance(schema, dict) or cast(Object, schema).get("type") != "object":
        raise BadInput(f'{place}.parameters: must be a JSON schema of type "object"')
    if not isinstance(kept.get("description", ""), str):
        raise BadInput(f"{place}.description: must be text")
    return kept


def check_settings(settings: object) -> Object:
    """The settings as they will be read back. Raises BadInput or BadValue."""
    kept = _object(values.checked(settings, what="settings"), "settings", _SETTINGS)
    limit = kept.get("max_tokens", 1)
    if type(limit) is not int or limit < 1:
        raise BadInput("settings.max_tokens: must be a whole number above 0")
    for name, (low, high) in _NUMBERS.items():
        number = kept.get(name, low)
        if type(number) not in (int, float) or not low <= cast(float, number) <= high:
            raise BadInput(f"settings.{name}: must be a number from {low:g} to {high:g}")
    stops = _list(kept.get("stop", []), "settings.stop")
    if len(stops) > STOPS_MAX or not all(isinstance(one, str) and one for one in stops):
        raise BadInput(f"settings.stop: must be a list of at most {STOPS_MAX} texts")
    _check_choice(kept.get("tool_choice", "auto"))
    if not isinstance(kept.get("parallel_tool_calls", True), bool):
        raise BadInput("settings.parallel_tool_calls: must be true or false")
    if not isinstance(kept.get("cache_key", ""), str):
        raise BadInput("settings.cache_key: must be text")
    extra = _object(kept.get("extra", {}), "settings.extra", WIRES)
    for wire in extra:
        _object(extra[wire], f"settings.extra.{wire}", None)
    return kept


def _check_choice(choice: object) -> None:
    if isinstance(choice, dict):
        named = cast(Object, choice)
        if set(named) == {"tool"} and _NAME.fullmatch(str(named["tool"])):
            return
    elif choice in ("auto", "none", "required"):
        return
    raise BadInput('settings.tool_choice: must be "auto", "none", "required" or {"tool": NAME}')


def _list(value: object, place: str) -> list[object]:
    if isinstance(value, list | tuple):
        return list(cast("Sequence[object]", value))
    raise BadInput(f"{place}: must be a list, not {type(value).__name__}")


def _object(value: object, place: str, keys: Sequence[str] | frozenset[str] | set[str] | None) -> Object:
    if not isinstance(value, dict):
        raise BadInput(f"{place}: must be an object")
    found = cast(Object, value)
    if keys is not None and (unknown := sorted(set(found) - set(keys))):
        raise BadInput(f"{place}: unknown key {unknown[0]!r}")
    return found


ARGUMENTS_BYTES_MAX = 1024 * 1024
KEPT_CHARS_MAX = 2_000  # of arguments that are too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the model wrote, and either what it means or what is wrong with it."""

    text: str
    value: dict[str, object] | None
    error: str


def parse_arguments(text: str) -> Arguments:
    """Parse the text; never raises. No text at all means no arguments."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > ARGUMENTS_BYTES_MAX:
        error = f"the arguments have {size:,} bytes; the limit is {ARGUMENTS_BYTES_MAX:,}"
        return Arguments(text=_sendable(text[:KEPT_CHARS_MAX]), value=None, error=error)
    try:
        kept = values.checked(_LOADS(text if text.strip() else "{}"), what="arguments")
    except (ValueError, RecursionError, BadValue) as error:
        return Arguments(text=_sendable(text), value=None, error=f"not JSON we can keep: {error}")
    if not isinstance(kept, dict):
        return Arguments(text=text, value=None, error="the arguments are not a JSON object")
    return Arguments(text=text, value=cast("dict[str, object]", kept), error="")


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twice!r} is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_LOADS = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant).decode
