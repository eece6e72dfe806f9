"""Messages: the reply, plain or streamed.

A streamed reply is whole when every block that was opened is closed, a stop reason came, and
`message_stop` ended it. Kinds of event that we do not know are passed over, as the provider asks;
kinds of block that we do not know are kept whole and sent back as they came.
"""

from __future__ import annotations

from typing import cast

import msgspec

from holdfast.core import values
from holdfast.errors import BadValue, ReplyGarbled
from holdfast.runtime.models import assembly
from holdfast.runtime.models.assembly import as_list, as_object, as_text, garbage
from holdfast.runtime.models.reply import Opaque, Part, Refusal, Reply, StopReason, Text, Usage
from holdfast.runtime.models.request import Object
from holdfast.runtime.models.sse import ServerEvent
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


def decode_reply(raw: bytes) -> Reply:
    """Raises ReplyGarbled, or the error that a gateway put into a 200."""
    body = assembly.parse_object(raw)
    if body.get("type") == "error" or body.get("error"):
        raise error_inside(body)
    blocks = [as_object(one, "a block") for one in as_list(body.get("content"), "content")]
    return _finish([_part(dict(block), None) for block in blocks], body)


class AnthropicAssembler:
    """Puts the events of one message together."""

    def __init__(self) -> None:
        self._message: dict[str, object] | None = None
        self._blocks: list[dict[str, object]] = []
        self._grown: list[dict[str, list[str]]] = []
        self._open: set[int] = set()
        self._ended = False

    def take(self, event: ServerEvent) -> str:
        body = assembly.parse_object(event.data)
        kind = body.get("type")
        if kind == "error":
            raise error_inside(body)
        if kind == "message_start":
            self._message = dict(as_object(body.get("message"), "the message"))
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
            raise ReplyGarbled("the stream ended before the reply did", reason="cut")
        return _finish(
            [_part(block, grown) for block, grown in zip(self._blocks, self._grown, strict=True)], self._message
        )

    def _take_block(self, kind: str, body: Object) -> str:
        index = body.get("index")
        if kind == "content_block_start":
            if index != len(self._blocks) or len(self._blocks) >= BLOCKS_MAX:
                raise garbage("a block out of order, or too many of them")
            self._open.add(len(self._blocks))
            block = dict(as_object(body.get("content_block"), "a block"))
            self._blocks.append(block)
            self._grown.append({})
            return as_text(block.get("text"), "text") if block.get("type") == "text" else ""
        if type(index) is not int or index not in self._open:
            raise garbage("an event for a block that is not open")
        if kind == "content_block_stop":
            self._open.remove(index)
            return ""
        delta = as_object(body.get("delta"), "a delta")
        source, name = _DELTAS.get(str(delta.get("type")), ("", ""))
        text = as_text(delta.get(source), "a delta") if source else ""
        if source:
            self._grown[index].setdefault(name, []).append(text)
        said = name == "text" and self._blocks[index].get("type") == "text"
        return text if said else ""  # what is shown is what the reply's text will be

    def _take_end(self, body: Object) -> None:
        if self._message is None:
            raise garbage("message_delta before message_start")
        delta = as_object(body.get("delta"), "a delta")
        for name in ("stop_reason", "stop_sequence", "stop_details", "container"):
            if delta.get(name) is not None:
                self._message[name] = delta[name]
        counted = as_object(body.get("usage") or {}, "usage")
        before = as_object(self._message.get("usage") or {}, "usage")
        told = {name: count for name, count in counted.items() if count is not None}
        self._message["usage"] = {**before, **told}


def _part(block: dict[str, object], grown: dict[str, list[str]] | None) -> Part:
    """One block, with what its deltas added."""
    for name, pieces in (grown or {}).items():
        if name:
            block[name] = as_text(block.get(name), name) + "".join(pieces)
    written = "".join(grown.get("", [])) if grown else ""
    if block.get("type") == "text":
        return Text(text=as_text(block.get("text"), "text"))
    if block.get("type") == "tool_use":
        text = written or msgspec.json.encode(_checked(block.get("input"))).decode()
        return assembly.new_call(tool=block.get("name"), text=text, provider_id=block.get("id"))
    if written:
        block["input"] = assembly.parse_object(written)
    return Opaque(wire="anthropic", value=cast("dict[str, object]", _checked(block)))


def _checked(value: object) -> object:
    try:
        return values.checked(value, what="the reply")
    except BadValue as error:
        raise garbage(str(error)) from None


def _finish(parts: list[Part], body: Object) -> Reply:
    reason = as_text(body.get("stop_reason"), "stop_reason")
    stop = _STOPS.get(reason, StopReason.OTHER)
    if stop is StopReason.REFUSED:
        details = as_object(body.get("stop_details") or {}, "stop_details")
        parts.append(Refusal(text=as_text(details.get("explanation"), "an explanation")))
    ids = {"reply": assembly.shown_id(body.get("id")), "model": assembly.shown_id(body.get("model")), "stop": reason}
    container = as_object(body.get("container") or {}, "container")
    if container:
        ids["container"] = assembly.shown_id(container.get("id"))
    return assembly.finish(
        parts, stop=stop, usage=_usage(body.get("usage")), ids=ids, held_state=("container",) if container else ()
    )


def _usage(value: object) -> Usage | None:
    usage = as_object(value or {}, "usage")
    fresh, output = (assembly.as_count(usage.get(f"{one}_tokens")) for one in ("input", "output"))
    if fresh is None or output is None:
        return None
    read = assembly.as_count(usage.get("cache_read_input_tokens"))
    written = assembly.as_count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=fresh + (read or 0) + (written or 0),  # theirs counts what no cache touched
        output_tokens=output,
        cached_tokens=read,
        cache_write_tokens=written,
    )
