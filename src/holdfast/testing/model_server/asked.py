"""What a request says, read as strictly as the provider reads it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

Body = dict[str, Any]  # Any: JSON of a stranger
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
CHARS_A_TOKEN = 4


class BadAsk(Exception):
    """The provider would answer this with 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the script and the count of tokens need of a request."""

    model: str
    stream: bool
    include_usage: bool
    turn: int
    last: str
    weights: tuple[tuple[str, int], ...]  # digest of each prefix of the talk, tokens it adds


def read_openai(body: Body) -> Asked:
    messages = _messages(body)
    open_calls: list[str] = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise BadAsk(f"Invalid value: '{role}'. (param: messages[{i}].role)")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise BadAsk(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            raise BadAsk(_unanswered(open_calls))
        for call in _objects(message, "tool_calls"):
            _check_call(call, i)
            open_calls.append(call["id"])
        said = message.get("content")
        if said is None and not (message.get("tool_calls") or message.get("refusal")):
            raise BadAsk(f"Invalid value for 'content': expected a string, got null. (messages[{i}])")
        if role in ("system", "user") and not _text_of(said):
            raise BadAsk(f"Invalid type for 'messages[{i}].content': expected text")
    if open_calls:
        raise BadAsk(_unanswered(open_calls))
    for tool in _objects(body, "tools"):
        if tool.get("type") != "function" or not _named(tool["function"]):
            raise BadAsk("Invalid value for 'tools[].function.name'")
    options = cast(Body, body.get("stream_options") or {})
    if options and not body.get("stream"):
        raise BadAsk("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    return _asked(body, messages, include_usage=bool(options.get("include_usage")))


def read_anthropic(body: Body, headers: Mapping[str, str]) -> Asked:
    if not headers.get("anthropic-version"):
        raise BadAsk("anthropic-version: header is required")
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
        raise BadAsk("max_tokens: Field required")
    messages = _messages(body)
    if messages[0].get("role") != "user":
        raise BadAsk('messages: first message must use the "user" role')
    open_calls: list[str] = []
    seen: set[str] = set()
    for i, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            raise BadAsk(f"messages.{i}.role: Input should be 'user' or 'assistant'")
        blocks = _blocks(message.get("content"), i)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if unknown := [one for one in results if one not in open_calls]:
            raise BadAsk(f"messages.{i}: unexpected `tool_use_id` found: {unknown[0]}")
        if missing := [one for one in open_calls if one not in results]:
            raise BadAsk(
                f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing[0]}"
            )
        kinds = [block["type"] == "tool_result" for block in blocks]
        if kinds != sorted(kinds, reverse=True):
            raise BadAsk(f"messages.{i}: `tool_result` blocks must come first")
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(open_calls) - seen) < len(open_calls):
            raise BadAsk(f"messages.{i}: `tool_use` ids must be unique")
        seen.update(open_calls)
    for tool in _objects(body, "tools"):
        if not _named(tool) or not isinstance(tool.get("input_schema"), dict):
            raise BadAsk("tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
    return _asked(body, messages, include_usage=True)


def _asked(body: Body, messages: list[Body], *, include_usage: bool) -> Asked:
    if not isinstance(body.get("model"), str):
        raise BadAsk("you must provide a model parameter")
    return Asked(
        model=body["model"],
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        turn=1 + sum(one.get("role") == "assistant" for one in messages),
        last=_text_of(messages[-1].get("content")),
        weights=_weights(body, messages),
    )


def _weights(body: Body, messages: list[Body]) -> tuple[tuple[str, int], ...]:
    """Each prefix of the talk by a digest, as a provider's cache would know it again."""
    found: list[tuple[str, int]] = []
    digest = hashlib.sha256()
    for item in ([body.get("model"), body.get("system"), body.get("tools")], *messages):
        raw = json.dumps(item, sort_keys=True).encode()
        digest.update(raw)
        found.append((digest.hexdigest(), -(-len(raw) // CHARS_A_TOKEN)))
    return tuple(found)


def _messages(body: Body) -> list[Body]:
    found = body.get("messages")
    if not isinstance(found, list) or not found:
        raise BadAsk("messages: at least one message is required")
    messages = cast("list[object]", found)
    if not all(isinstance(one, dict) for one in messages):
        raise BadAsk("messages: Input should be an object")
    return cast("list[Body]", messages)


def _objects(body: Body, name: str) -> list[Body]:
    return cast("list[Body]", body.get(name) or [])


def _check_call(call: Body, i: int) -> None:
    told = cast(Body, call.get("function") or {})
    if not call.get("id") or call.get("type") != "function" or not _named(told):
        raise BadAsk(f"Invalid 'messages[{i}].tool_calls[0].function.name'")
    if not isinstance(told.get("arguments"), str):
        raise BadAsk(f"Invalid type for 'messages[{i}].tool_calls[0].function.arguments'")


def _named(tool: Body) -> bool:
    return bool(_TOOL_NAME.fullmatch(str(tool.get("name"))))


def _unanswered(open_calls: list[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
    )


def _blocks(content: object, i: int) -> list[Body]:
    if isinstance(content, str):
        if not content.strip():
            raise BadAsk(f"messages.{i}: text content blocks must contain non-whitespace text")
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise BadAsk(f"messages.{i}: all messages must have non-empty content")
    blocks = cast("list[Body]", content)
    for block in blocks:
        if block.get("type") == "text" and not str(block.get("text")).strip():
            raise BadAsk(f"messages.{i}: text content blocks must contain non-whitespace text")
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            raise BadAsk(f"messages.{i}.content.0.tool_use.input: Input should be an object")
    return blocks


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[Body]", content) if isinstance(content, list) else []
    return "\n".join(_text_of(part.get("text") or part.get("content")) for part in parts)
