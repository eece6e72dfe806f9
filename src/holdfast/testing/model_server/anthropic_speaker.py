"""Messages, as Anthropic says them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from holdfast.testing.model_server.asked import Asked
from holdfast.testing.model_server.script import Answer, FaultKind, ScriptedCall, ScriptedUsage
from holdfast.testing.model_server.spoken import Body, ErrorBody, arguments_text, pieces

_ERRORS: dict[FaultKind, tuple[int, str, str]] = {
    FaultKind.RATE_LIMIT: (429, "rate_limit_error", "This request would exceed your organization's rate limit"),
    FaultKind.SERVER_ERROR: (500, "api_error", "Internal server error"),
    FaultKind.OVERLOADED: (529, "overloaded_error", "Overloaded"),
    FaultKind.BAD_KEY: (401, "authentication_error", "invalid x-api-key"),
    FaultKind.UNKNOWN_MODEL: (404, "not_found_error", "model: no-such-model"),
    FaultKind.CONTEXT_TOO_LONG: (400, "invalid_request_error", "prompt is too long: 1500 tokens > 1000 maximum"),
    FaultKind.BAD_REQUEST: (400, "invalid_request_error", "messages: Field required"),
    FaultKind.QUOTA: (
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
    ),
}
SIGNATURE = "c2lnbmVk"


class AnthropicSpeaker:
    def plain(self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int) -> Body:
        return {
            **_head(asked, number),
            "content": [block for block, _ in _blocks(answer, number)],
            **_stop(answer),
            "usage": _usage(usage),
        }

    def events(
        self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int, chunk_chars: int
    ) -> Iterator[bytes]:
        begun: Body = {
            **_head(asked, number),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(usage), "output_tokens": 1},
        }
        yield _event("message_start", message=begun)
        yield _event("ping")
        for i, (block, written) in enumerate(_blocks(answer, number)):
            yield from _block_events(i, block, written, chunk_chars)
        yield _event("message_delta", delta=_stop(answer), usage={"output_tokens": usage.output})
        yield _event("message_stop")

    def error(self, kind: FaultKind, number: int, message: str = "") -> ErrorBody:
        status, type_, text = _ERRORS[kind]
        inner = {"type": type_, "message": message or text}
        return ErrorBody(status=status, body={"type": "error", "error": inner, "request_id": f"req_{number:06}"})

    def error_event(self) -> bytes:
        inner = {"type": "overloaded_error", "message": "Overloaded"}
        return _event("error", error=inner)


def _blocks(answer: Answer, number: int) -> Iterator[tuple[Body, str]]:
    """Each block whole, and its text as a stream writes it."""
    if answer.thinking:
        block = {"type": "thinking", "thinking": answer.thinking, "signature": SIGNATURE}
        yield block, answer.thinking
    if answer.text:
        yield {"type": "text", "text": answer.text}, answer.text
    for i, call in enumerate(answer.tool_calls):
        block = {
            "type": "tool_use",
            "id": call.id or f"toolu_{number}_{i}",
            "name": call.tool,
            "input": call.arguments if isinstance(call.arguments, dict) else _parsed(call),
        }
        yield block, arguments_text(call) if call.arguments else ""


def _parsed(call: ScriptedCall) -> object:
    """A plain body cannot hold malformed arguments: the provider puts what it could read."""
    try:
        return json.loads(arguments_text(call))
    except ValueError:
        return {}


def _block_events(index: int, block: Body, written: str, chunk_chars: int) -> Iterator[bytes]:
    opened, parts = dict(block), pieces(written, chunk_chars)
    if block["type"] == "text":
        opened["text"] = ""
        deltas = [{"type": "text_delta", "text": one} for one in parts]
    elif block["type"] == "thinking":
        opened |= {"thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": one} for one in parts]
        deltas.append({"type": "signature_delta", "signature": SIGNATURE})
    else:
        opened["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": one} for one in ("", *parts)]
    yield _event("content_block_start", index=index, content_block=opened)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _head(asked: Asked, number: int) -> Body:
    return {"id": f"msg_{number:08}", "type": "message", "role": "assistant", "model": asked.model}


def _stop(answer: Answer) -> Body:
    if answer.refusal:
        details = {"type": "refusal", "category": None, "explanation": answer.refusal}
        return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
    reason = answer.stop or ("tool_use" if answer.tool_calls else "end_turn")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: ScriptedUsage) -> Body:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _event(kind: str, **more: object) -> bytes:
    data = json.dumps({"type": kind, **more})
    return f"event: {kind}\ndata: {data}\n\n".encode()
