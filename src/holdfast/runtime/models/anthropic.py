"""Messages, as Anthropic writes them: the request, and the reply, plain or streamed.

Differences that matter: the system's words have a field of their own; results are messages of the user, at the head
of the message that follows their calls; two messages of one role in a row become one; text may not
be blank; there is no refusal part, so the model's words of refusal go back as text.

A streamed reply is whole when every block that was opened is closed, a stop reason came, and
`message_stop` ended it. Kinds of event that we do not know are passed over, as the provider asks;
kinds of block that we do not know are kept whole and sent back as they came.
"""

from __future__ import annotations

from typing import cast

import msgspec

from holdfast.core import values
from holdfast.errors import BadValue, ReplyGarbled
from holdfast.runtime.models import wire
from holdfast.runtime.models.reply import Opaque, Part, Refusal, Reply, StopReason, Text, Usage
from holdfast.runtime.models.request import Object, Request, parse_arguments
from holdfast.runtime.models.troubles import error_inside

BLOCKS_MAX = 1_000
_STOPS = {
    "end_turn": StopReason.END,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "stop_sequence": StopReason.STOP_TEXT,
    "tool_use": StopReason.TOOL_CALLS,
    "pause_turn": StopReason.PAUSED,
    "refusal": StopReason.REFUSED,
}
_DELTAS = {  # kind of delta: where its text is, and which field of the block it adds to
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", ""),
}


class AnthropicAssembler:
    """Puts the events of one message together."""

    def __init__(self) -> None:
        self._message: dict[str, object] | None = None
        self._blocks: list[dict[str, object]] = []
        self._grown: list[dict[str, list[str]]] = []
        self._open: set[int] = set()
        self._ended = False

    def take(self, event: wire.ServerEvent) -> str:
        body = wire.parse_object(event.data)
        kind = body.get("type")
        if kind == "error":
            raise error_inside(body)
        if kind == "message_start":
            self._message = dict(wire.as_object(body.get("message"), "the message"))
        elif kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._take_block(str(kind), body)
        elif kind == "message_delta":
            self._take_end(body)
        elif kind == "message_stop":
            self._ended = True
        return ""

    def finish(self) -> Reply:
        whole = self._ended and not self._open
        if self._message is None or not whole or not self._message.get("stop_reason"):
            raise ReplyGarbled("the stream ended before the reply was complete", reason="cut")
        return _finish(
            [_part(block, grown) for block, grown in zip(self._blocks, self._grown, strict=True)], self._message
        )

    def _take_block(self, kind: str, body: Object) -> str:
        index = body.get("index")
        if kind == "content_block_start":
            if index != len(self._blocks) or len(self._blocks) >= BLOCKS_MAX:
                raise wire.garbage("a block out of order, or too many of them")
            self._open.add(len(self._blocks))
            block = dict(wire.as_object(body.get("content_block"), "a block"))
            self._blocks.append(block)
            self._grown.append({})
            return wire.as_text(block.get("text"), "text") if block.get("type") == "text" else ""
        if type(index) is not int or index not in self._open:
            raise wire.garbage("an event for a block that is not open")
        if kind == "content_block_stop":
            self._open.remove(index)
            return ""
        delta = wire.as_object(body.get("delta"), "a delta")
        source, name = _DELTAS.get(str(delta.get("type")), ("", ""))
        text = wire.as_text(delta.get(source), "a delta") if source else ""
        if source:
            self._grown[index].setdefault(name, []).append(text)
        said = name == "text" and self._blocks[index].get("type") == "text"
        return text if said else ""  # what is shown is what the reply's text will be

    def _take_end(self, body: Object) -> None:
        if self._message is None:
            raise wire.garbage("message_delta before message_start")
        delta = wire.as_object(body.get("delta"), "a delta")
        for name in ("stop_reason", "stop_sequence", "stop_details", "container"):
            if delta.get(name) is not None:
                self._message[name] = delta[name]
        counted = wire.as_object(body.get("usage") or {}, "usage")
        before = wire.as_object(self._message.get("usage") or {}, "usage")
        told = {name: count for name, count in counted.items() if count is not None}
        self._message["usage"] = {**before, **told}


def _part(block: dict[str, object], grown: dict[str, list[str]] | None) -> Part:
    """One block, with what its deltas added."""
    for name, pieces in (grown or {}).items():
        if name:
            block[name] = wire.as_text(block.get(name), name) + "".join(pieces)
    written = "".join(grown.get("", [])) if grown else ""
    if block.get("type") == "text":
        return Text(text=wire.as_text(block.get("text"), "text"))
    if block.get("type") == "tool_use":
        text = written or msgspec.json.encode(_checked(block.get("input"))).decode()
        return wire.new_call(tool=block.get("name"), text=text, provider_id=block.get("id"))
    if written:
        block["input"] = wire.parse_object(written)
    return Opaque(wire="anthropic", value=cast("dict[str, object]", _checked(block)))


def _checked(value: object) -> object:
    try:
        return values.checked(value, what="the reply")
    except BadValue as error:
        raise wire.garbage(str(error)) from None


def _finish(parts: list[Part], body: Object) -> Reply:
    reason = wire.as_text(body.get("stop_reason"), "stop_reason")
    stop = _STOPS.get(reason, StopReason.OTHER)
    if stop is StopReason.REFUSED:
        details = wire.as_object(body.get("stop_details") or {}, "stop_details")
        parts.append(Refusal(text=wire.as_text(details.get("explanation"), "an explanation")))
    ids = {"reply": wire.shown_id(body.get("id")), "model": wire.shown_id(body.get("model")), "stop": reason}
    container = wire.as_object(body.get("container") or {}, "container")
    if container:
        ids["container"] = wire.shown_id(container.get("id"))
    return wire.finish(
        parts, stop=stop, usage=_usage(body.get("usage")), ids=ids, held=("container",) if container else ()
    )


def _usage(value: object) -> Usage | None:
    usage = wire.as_object(value or {}, "usage")
    fresh, output = (wire.as_count(usage.get(f"{one}_tokens")) for one in ("input", "output"))
    if fresh is None or output is None:
        return None
    read = wire.as_count(usage.get("cache_read_input_tokens"))
    written = wire.as_count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=fresh + (read or 0) + (written or 0),  # theirs counts what no cache touched
        output_tokens=output,
        cached_tokens=read,
        cache_write_tokens=written,
    )


VERSION = "2023-06-01"
MAX_TOKENS_DEFAULT = 4096  # the provider insists on a number; every model allows this one

_SETTINGS = {"temperature": "temperature", "top_p": "top_p", "stop": "stop_sequences"}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class AnthropicWire:
    name = "anthropic"
    path = "/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if key is None else {"x-api-key": key})}

    def encode(self, request: Request, *, stream: bool) -> bytes:
        settings = request.settings
        body: dict[str, object] = {
            "model": request.model,
            "max_tokens": settings.get("max_tokens", MAX_TOKENS_DEFAULT),
            "messages": _turns(request),
        }
        system = [one for said in request.messages if said["role"] == "system" for one in _blocks(said)]
        if system:
            body["system"] = system
        for ours, theirs in _SETTINGS.items():
            if ours in settings:
                body[theirs] = settings[ours]
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            if choice := _choice(settings):
                body["tool_choice"] = choice
        if stream:
            body["stream"] = True
        return wire.body_bytes(wire.with_extra(body, request, self.name))

    def decode(self, raw: bytes) -> Reply:
        body = wire.parse_object(raw)
        if body.get("type") == "error" or body.get("error"):
            raise error_inside(body)  # a gateway put it into a 200
        blocks = [wire.as_object(one, "a block") for one in wire.as_list(body.get("content"), "content")]
        return _finish([_part(dict(block), None) for block in blocks], body)

    def assembler(self) -> wire.Assembler:
        return AnthropicAssembler()


def _turns(request: Request) -> list[Object]:
    turns: list[dict[str, object]] = []
    for message in request.messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            cast("list[Object]", turns[-1]["content"]).extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return cast("list[Object]", turns)


def _blocks(message: Object) -> list[Object]:
    found = [_block(part) for part in cast("list[Object]", message["parts"])]
    return [block for block in found if block is not None]


def _block(part: Object) -> Object | None:
    match part["type"]:
        case "text" | "refusal":
            said = str(part["text"])
            return {"type": "text", "text": said} if said.strip() else None
        case "tool_call":
            read = parse_arguments(str(part["arguments"]))
            return {"type": "tool_use", "id": part["ref"], "name": part["tool"], "input": read.value or {}}
        case "tool_result":
            failed = {"is_error": True} if part.get("failed") else {}
            return {"type": "tool_result", "tool_use_id": part["ref"], "content": part["text"], **failed}
        case _:
            return cast(Object, part["value"]) if part["wire"] == "anthropic" else None


def _tool(tool: Object) -> Object:
    told = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": tool["name"], "input_schema": tool["parameters"], **told}


def _choice(settings: Object) -> dict[str, object]:
    choice = settings.get("tool_choice", "auto")
    if isinstance(choice, dict):
        made: dict[str, object] = {"type": "tool", "name": cast(Object, choice)["tool"]}
    else:
        made = {"type": _CHOICES[str(choice)]}
    if settings.get("parallel_tool_calls") is False and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    return {} if made == {"type": "auto"} else made
