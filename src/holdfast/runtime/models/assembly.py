"""What both wire forms do alike with a reply: read fields strictly, number calls, judge the whole.

Everything that is not as documented raises `ReplyGarbled`; nothing is taken by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.errors import ReplyGarbled
from holdfast.runtime.models.reply import TOOL_CALLS_MAX, Part, Refusal, Reply, StopReason, Text, ToolCall, Usage
from holdfast.runtime.models.request import Object, parse_arguments

ID_CHARS_MAX = 500
TOKENS_MAX = 2**53
_EMPTY_IS_MEANT = (StopReason.LENGTH, StopReason.REFUSED, StopReason.PAUSED)


def garbage(what: str) -> ReplyGarbled:
    return ReplyGarbled(f"the reply is not as documented: {what}", reason="garbage")


def parse_object(raw: bytes | str) -> Object:
    try:
        found = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise garbage(f"not JSON: {error}") from None
    return as_object(found, "it")


def as_object(value: object, what: str) -> Object:
    if not isinstance(value, dict):
        raise garbage(f"{what} is not an object")
    return cast(Object, value)


def as_list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise garbage(f"{what} is not a list")
    return cast("list[object]", value)


def as_text(value: object, what: str) -> str:
    """Text, or "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise garbage(f"{what} is not text")
    return value


def as_count(value: object) -> int | None:
    """A number of tokens, or None where there is none to believe."""
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None


def shown_id(value: object) -> str:
    return value[:ID_CHARS_MAX] if isinstance(value, str) else ""


def new_call(*, tool: object, text: str, provider_id: object) -> ToolCall:
    """A call without its number. A call that names no tool is one with an error."""
    name = tool if isinstance(tool, str) else ""
    read = parse_arguments(text)
    error = read.error if name else "the call names no tool"
    return ToolCall(
        number=0,
        tool=name,
        text=read.text,
        arguments=None if error else read.value,
        error=error,
        provider_id=shown_id(provider_id),
    )


def finish(
    parts: Sequence[Part],
    *,
    stop: StopReason,
    usage: Usage | None,
    ids: dict[str, str],
    held_state: tuple[str, ...] = (),
) -> Reply:
    """Number the calls and judge the whole. Raises ReplyGarbled."""
    kept: list[Part] = []
    calls = 0
    for part in parts:
        if isinstance(part, ToolCall):
            calls += 1
            kept.append(msgspec.structs.replace(part, number=calls))
        elif not isinstance(part, Text | Refusal) or part.text:
            kept.append(part)
    if calls > TOOL_CALLS_MAX:
        raise ReplyGarbled(f"the reply has {calls} tool calls; the limit is {TOOL_CALLS_MAX}", reason="too-large")
    says_something = any(
        isinstance(part, Refusal | ToolCall) or (isinstance(part, Text) and part.text.strip()) for part in kept
    )
    if not says_something and stop not in _EMPTY_IS_MEANT:
        raise ReplyGarbled("the reply is empty: no text, no tool call, no refusal", reason="empty")
    return Reply(
        parts=tuple(kept),
        stop=stop,
        usage=usage,
        ids={name: text for name, text in ids.items() if text},
        held_state=held_state,
    )
