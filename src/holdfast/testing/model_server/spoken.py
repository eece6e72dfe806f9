"""What an answer is in each protocol: the plain body, the events of a stream, the errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.testing.model_server.asked import CHARS_A_TOKEN, Asked
from holdfast.testing.model_server.script import Answer, FaultKind, ScriptedCall, ScriptedUsage

Body = dict[str, Any]  # Any: JSON
CREATED = 1_800_000_000  # a fixed time: the same script says the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    status: int
    body: Body


class Speaker(Protocol):
    """One protocol's way to say things. `number` counts the server's requests."""

    def plain(self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int) -> Body: ...

    def events(
        self, answer: Answer, asked: Asked, usage: ScriptedUsage, number: int, chunk_chars: int
    ) -> Iterator[bytes]: ...

    def error(self, kind: FaultKind, number: int, message: str = "") -> ErrorBody: ...

    def error_event(self) -> bytes: ...


def count_usage(answer: Answer, asked: Asked, known: set[str]) -> ScriptedUsage:
    """Tokens by length; a prefix that was seen before counts as cached. Learns the prefixes."""
    cached = 0
    for digest, tokens in asked.weights:
        if digest not in known:
            break
        cached += tokens
    known.update(digest for digest, _ in asked.weights)
    said = answer.text + answer.refusal + answer.thinking
    said += "".join(call.tool + arguments_text(call) for call in answer.tool_calls)
    return answer.usage or ScriptedUsage(
        input=sum(tokens for _, tokens in asked.weights), output=max(1, -(-len(said) // CHARS_A_TOKEN)), cached=cached
    )


def arguments_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]
