"""Chat completions, as OpenAI and the many compatible servers speak them: the request."""

from __future__ import annotations

from typing import cast

from holdfast.runtime.models.openai.reply import OpenAIAssembler, decode_reply
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Object, Request
from holdfast.runtime.models.wire import Assembler, body_bytes, with_extra

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
        return body_bytes(with_extra(body, request, self.name))

    def decode(self, raw: bytes) -> Reply:
        return decode_reply(raw)

    def assembler(self) -> Assembler:
        return OpenAIAssembler()


def _choice(value: object) -> object:
    if isinstance(value, dict):
        named = cast(Object, value)
        return {"type": "function", "function": {"name": named["tool"]}}
    return value


def _messages(message: Object) -> list[Object]:
    """A message of ours is one of theirs, but for tool results, which are one each."""
    parts = cast("list[Object]", message["parts"])
    if message["role"] == "tool":
        return [{"role": "tool", "tool_call_id": part["ref"], "content": part["text"]} for part in parts]
    made: dict[str, object] = {"role": message["role"], "content": _content(parts)}
    refusals = [str(part["text"]) for part in parts if part["type"] == "refusal"]
    calls = [_call(part) for part in parts if part["type"] == "tool_call"]
    if any(refusals):
        made["refusal"] = "".join(refusals)
    if calls:
        made["tool_calls"] = calls
    if not calls and not any(refusals):
        made["content"] = made["content"] or ""  # null is for those who have something else to say
    return [made]


def _content(parts: list[Object]) -> object:
    """Plain text where there is one part: not every compatible server takes a list."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else None


def _call(part: Object) -> Object:
    return {"id": part["ref"], "type": "function", "function": {"name": part["tool"], "arguments": part["arguments"]}}
