"""Chat completions, as OpenAI and compatible servers write them: the request, and the reply, plain or streamed.

A streamed reply is whole when its first choice gave a finish reason and the stream came to its own
end. Compatible servers differ in small things, which are taken as they come where the meaning is
plain: usage may be missing, a tool call's index too, or be the same for two calls with two ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from holdfast.errors import ReplyGarbled
from holdfast.runtime.models import wire
from holdfast.runtime.models.reply import TOOL_CALLS_MAX, Part, Refusal, Reply, StopReason, Text, Usage
from holdfast.runtime.models.request import Object, Request
from holdfast.runtime.models.troubles import error_inside

_STOPS = {
    "stop": StopReason.END,
    "length": StopReason.LENGTH,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "content_filter": StopReason.REFUSED,
}


class OpenAIAssembler:
    """Puts the chunks of one reply together."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_CallPieces] = []
        self._reason = ""
        self._usage: Usage | None = None
        self._ids: dict[str, str] = {}
        self._done = False

    def take(self, event: wire.ServerEvent) -> str:
        if self._done:
            raise wire.garbage("events after [DONE]")
        if event.data == "[DONE]":
            self._done = True
            return ""
        chunk = _opened(event.data)
        self._ids = self._ids or _ids(chunk)
        self._usage = _usage(chunk.get("usage")) or self._usage
        choices = wire.as_list(chunk.get("choices") or [], "choices")
        return "".join(self._take_choice(wire.as_object(one, "a choice")) for one in choices)

    def finish(self) -> Reply:
        if not self._reason:
            raise ReplyGarbled("the stream ended before the reply was complete", reason="cut")
        parts = _said("".join(self._text), "".join(self._refusal))
        parts += [
            wire.new_call(tool="".join(call.name), text="".join(call.text), provider_id=call.provider_id)
            for call in self._calls
        ]
        return _finish(parts, reason=self._reason, usage=self._usage, ids=self._ids)

    def _take_choice(self, choice: Object) -> str:
        if choice.get("index", 0) != 0:
            return ""  # we ask for one; what others say is not ours
        delta = wire.as_object(choice.get("delta") or {}, "a delta")
        text = wire.as_text(delta.get("content"), "content")
        if text:
            self._text.append(text)
        if refusal := wire.as_text(delta.get("refusal"), "a refusal"):
            self._refusal.append(refusal)
        for piece in wire.as_list(delta.get("tool_calls") or [], "tool_calls"):
            self._take_call(wire.as_object(piece, "a tool call"))
        self._reason = wire.as_text(choice.get("finish_reason"), "finish_reason") or self._reason
        return text

    def _take_call(self, piece: Object) -> None:
        found = self._find_call(piece)
        if found is None:
            if len(self._calls) >= TOOL_CALLS_MAX:
                raise ReplyGarbled(f"the reply has more than {TOOL_CALLS_MAX} tool calls", reason="too-large")
            found = _CallPieces(index=piece.get("index"), provider_id=piece.get("id"))
            self._calls.append(found)
        told = wire.as_object(piece.get("function") or {}, "a function")
        name = wire.as_text(told.get("name"), "a tool's name")
        if name and name != "".join(found.name):  # some servers repeat it in every piece
            found.name.append(name)
        if text := wire.as_text(told.get("arguments"), "arguments"):
            found.text.append(text)

    def _find_call(self, piece: Object) -> _CallPieces | None:
        """The call this piece belongs to, or None where it begins one."""
        index, provider_id = piece.get("index"), piece.get("id")
        for call in reversed(self._calls):
            if index is None or call.index == index:
                other = provider_id and call.provider_id and provider_id != call.provider_id
                return None if other else call
        return None


@dataclass(slots=True, kw_only=True)
class _CallPieces:
    index: object
    provider_id: object
    name: list[str] = field(default_factory=list[str])
    text: list[str] = field(default_factory=list[str])


def _said(text: str, refusal: str) -> list[Part]:
    return [Text(text=text), Refusal(text=refusal)]


def _content(content: object) -> str:
    """Text, or a list of text parts as some servers send."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [wire.as_object(part, "a part") for part in wire.as_list(content, "content")]
    return "".join(wire.as_text(part.get("text"), "a text") for part in parts)


def _call(call: Object) -> Part:
    told = wire.as_object(call.get("function") or call.get("custom") or {}, "a function")
    text = told.get("arguments", told.get("input"))
    return wire.new_call(tool=told.get("name"), text=wire.as_text(text, "arguments"), provider_id=call.get("id"))


def _finish(parts: list[Part], *, reason: str, usage: Usage | None, ids: dict[str, str]) -> Reply:
    stop = _STOPS.get(reason, StopReason.OTHER)
    if stop is StopReason.END and any(isinstance(part, Refusal) and part.text for part in parts):
        stop = StopReason.REFUSED
    return wire.finish(parts, stop=stop, usage=usage, ids={**ids, "stop": reason})


def _usage(value: object) -> Usage | None:
    usage = wire.as_object(value or {}, "usage")
    read, written = (wire.as_count(usage.get(f"{one}_tokens")) for one in ("prompt", "completion"))
    if read is None or written is None:
        return None
    prompt = wire.as_object(usage.get("prompt_tokens_details") or {}, "details")
    output = wire.as_object(usage.get("completion_tokens_details") or {}, "details")
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cached_tokens=wire.as_count(prompt.get("cached_tokens")),
        cache_write_tokens=wire.as_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=wire.as_count(output.get("reasoning_tokens")),
    )


def _ids(body: Object) -> dict[str, str]:
    return {
        "reply": wire.shown_id(body.get("id")),
        "model": wire.shown_id(body.get("model")),
        "fingerprint": wire.shown_id(body.get("system_fingerprint")),
    }


def _opened(raw: bytes | str) -> Object:
    """Raises ReplyGarbled, or the error that a gateway put into a 200."""
    body = wire.parse_object(raw)
    if body.get("error"):
        raise error_inside(body)
    return body


_SETTINGS = {
    "max_tokens": "max_completion_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "stop": "stop",
    "cache_key": "prompt_cache_key",
}
_TOOL_SETTINGS = ("tool_choice", "parallel_tool_calls")


class OpenAIWire:
    name = "openai"
    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def encode(self, request: Request, *, stream: bool) -> bytes:
        body: dict[str, object] = {
            "model": request.model,
            "messages": [one for message in request.messages for one in _messages(message)],
        }
        for ours, theirs in _SETTINGS.items():
            if ours in request.settings:
                body[theirs] = request.settings[ours]
        if request.tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
            for name in _TOOL_SETTINGS:
                if name in request.settings:
                    body[name] = _choice(request.settings[name])
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return wire.body_bytes(wire.with_extra(body, request, self.name))

    def decode(self, raw: bytes) -> Reply:
        body = _opened(raw)
        choices = wire.as_list(body.get("choices"), "choices")
        if not choices:
            raise ReplyGarbled("the reply is empty: it has no choices", reason="empty")
        choice = wire.as_object(choices[0], "a choice")
        message = wire.as_object(choice.get("message"), "a message")
        parts = _said(_content(message.get("content")), wire.as_text(message.get("refusal"), "a refusal"))
        for call in wire.as_list(message.get("tool_calls") or [], "tool_calls"):
            parts.append(_call(wire.as_object(call, "a tool call")))
        reason = wire.as_text(choice.get("finish_reason"), "finish_reason")
        return _finish(parts, reason=reason, usage=_usage(body.get("usage")), ids=_ids(body))

    def assembler(self) -> wire.Assembler:
        return OpenAIAssembler()


def _choice(value: object) -> object:
    if isinstance(value, dict):
        return {"type": "function", "function": {"name": cast(Object, value)["tool"]}}
    return value


def _messages(message: Object) -> list[Object]:
    """A message of ours is one of theirs, but for tool results, which are one each."""
    parts = cast("list[Object]", message["parts"])
    if message["role"] == "tool":
        return [{"role": "tool", "tool_call_id": part["ref"], "content": part["text"]} for part in parts]
    made: dict[str, object] = {"role": message["role"], "content": _text_content(parts)}
    refusals = [str(part["text"]) for part in parts if part["type"] == "refusal"]
    calls = [_call_part(part) for part in parts if part["type"] == "tool_call"]
    if any(refusals):
        made["refusal"] = "".join(refusals)
    if calls:
        made["tool_calls"] = calls
    if not calls and not any(refusals):
        made["content"] = made["content"] or ""  # null is for those who have something else to say
    return [made]


def _text_content(parts: list[Object]) -> object:
    """Plain text where there is one part: not every compatible server takes a list."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else None


def _call_part(part: Object) -> Object:
    return {"id": part["ref"], "type": "function", "function": {"name": part["tool"], "arguments": part["arguments"]}}
