"""Chat completions, as OpenAI says them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.testing.model_server.asked import Asked
from holdfast.testing.model_server.script import Answer, FaultKind, ScriptedUsage
from holdfast.testing.model_server.spoken import CREATED, Body, ErrorBody, arguments_text, pieces

_ERRORS: dict[FaultKind, tuple[int, str, str | None, str]] = {
    FaultKind.RATE_LIMIT: (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests"),
    FaultKind.SERVER_ERROR: (500, "server_error", None, "The server had an error while processing your request"),
    FaultKind.OVERLOADED: (503, "server_error", None, "The engine is currently overloaded, please try again later"),
    FaultKind.BAD_KEY: (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided"),
    FaultKind.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found", "The model does not exist"),
    FaultKind.CONTEXT_TOO_LONG: (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "This model's maximum context length is 1000 tokens. Please reduce the length of the messages.",
    ),
    FaultKind.BAD_REQUEST: (400, "invalid_request_error", None, "Invalid request"),
    FaultKind.QUOTA: (
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
}


class OpenAISpeaker:
    def plain(self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int) -> Body:
        message: Body = {"role": "assistant", "content": answer.text or None, "refusal": None}
        message["refusal"] = answer.refusal or None
        if answer.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{number}_{i}",
                    "type": "function",
                    "function": {"name": call.tool, "arguments": arguments_text(call)},
                }
                for i, call in enumerate(answer.tool_calls)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(answer)}
        head = _head(asked, number, "chat.completion")
        return {**head, "choices": [choice], "usage": _usage(usage)}

    def events(
        self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int, chunk_chars: int
    ) -> Iterator[bytes]:
        head = _head(asked, number, "chat.completion.chunk")

        def chunk(delta: Body, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            more = {"usage": None} if asked.include_usage else {}
            return _event({**head, "choices": [choice], **more})

        yield chunk({"role": "assistant", "content": "", "refusal": None})
        for piece in pieces(answer.text, chunk_chars):
            yield chunk({"content": piece})
        for piece in pieces(answer.refusal, chunk_chars):
            yield chunk({"refusal": piece})
        for i, call in enumerate(answer.tool_calls):
            told: dict[str, Any] = {"name": call.tool, "arguments": ""}
            made = {"index": i, "id": call.id or f"call_{number}_{i}", "type": "function", "function": told}
            yield chunk({"tool_calls": [made]})
            for piece in pieces(arguments_text(call), chunk_chars):
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
        yield chunk({}, _stop(answer))
        if asked.include_usage:
            yield _event({**head, "choices": [], "usage": _usage(usage)})
        yield b"data: [DONE]\n\n"

    def error(self, kind: FaultKind, number: int, message: str = "") -> ErrorBody:
        del number
        status, type_, code, text = _ERRORS[kind]
        inner = {"message": message or text, "type": type_, "param": None, "code": code}
        return ErrorBody(status=status, body={"error": inner})

    def error_event(self) -> bytes:
        return _event(self.error(FaultKind.SERVER_ERROR, 0).body)


def _head(asked: Asked, number: int, kind: str) -> Body:
    return {
        "id": f"chatcmpl-{number:08}",
        "object": kind,
        "created": CREATED,
        "model": asked.model,
        "system_fingerprint": "fp_script",
        "service_tier": "default",
    }


def _stop(answer: Answer) -> str:
    return answer.stop or ("tool_calls" if answer.tool_calls else "stop")


def _usage(usage: ScriptedUsage) -> Body:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _event(body: Body) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
