"""Messages, as Anthropic speaks them: the request.

Differences that matter: the system's words stand apart; results are spoken by the user, at the head
of the message that follows their calls; two messages of one role in a row become one; text may not
be blank; there is no refusal part, so the model's words of refusal go back as text.
"""

from __future__ import annotations

from typing import cast

from holdfast.runtime.models.anthropic.reply import AnthropicAssembler, decode_reply
from holdfast.runtime.models.arguments import parse_arguments
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Object, Request
from holdfast.runtime.models.wire import Assembler, body_bytes, with_extra

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
        if system := _system(request):
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
        return body_bytes(with_extra(body, request, self.name))

    def decode(self, raw: bytes) -> Reply:
        return decode_reply(raw)

    def assembler(self) -> Assembler:
        return AnthropicAssembler()


def _system(request: Request) -> list[Object]:
    return [block for message in request.messages if message["role"] == "system" for block in _blocks(message)]


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
