"""The port of a chat model, and what comes back: pieces to show, and the whole reply as a value that a record can keep.

What is shown while a reply is coming is provisional: it is for a person's eyes, is never recorded, and is void as soon
as `Restarted` says so. The only truth is the `Reply` that `ask` returns, whole and checked.

A reply holds its parts in the order in which the model gave them. Tool calls are numbered 1, 2, 3 by that order; the
provider's own ids are kept as data (`ids`, `provider_id`) and decide nothing: two calls may carry one id, or none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, cast

import msgspec

from holdfast.core import values
from holdfast.core.decoding import convert
from holdfast.errors import Misuse
from holdfast.runtime.models.request import NAME_CHARS_MAX, Object, Request

FORMAT = 1
TOOL_CALLS_MAX = 128


class StopReason(StrEnum):
    END = "end"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"  # max_tokens or the context is used up
    STOP_TEXT = "stop_text"
    REFUSED = "refused"
    PAUSED = "paused"  # the provider asks to be sent the reply back, to go on
    OTHER = "other"  # see ids["stop"]


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    text: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal", tag_field="type"):
    text: str


class Opaque(msgspec.Struct, frozen=True, kw_only=True, tag="opaque", tag_field="type"):
    """A block of one wire form that goes back to it unread."""

    wire: str
    value: dict[str, object]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call", tag_field="type"):
    """One tool call. If `arguments` is None, `error` says what is wrong with `text`."""

    number: int
    tool: str
    text: str
    arguments: dict[str, object] | None
    error: str = ""
    provider_id: str = ""


Part = Text | Refusal | Opaque | ToolCall


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens by the provider's count. `input_tokens` holds all of the prompt, cached or not."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None  # read from the provider's cache; None: it does not say
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def cold_tokens(self) -> int | None:
        """Tokens of the prompt that no cache had."""
        if self.cached_tokens is None:
            return None
        return max(0, self.input_tokens - self.cached_tokens)


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an endpoint before the one that answered did not."""

    endpoint: str
    code: str  # of the error; "resting" where it was not asked at all
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    text_chars: int = 0  # of a reply that broke off


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Over which endpoint the reply came. `cold_tokens`: tokens of the prompt that no cache had; None where the
    provider does not say. `kept` is for the next request of the same talk, and goes into its record."""

    endpoint: str
    region: str
    wire: str
    failures: tuple[Failure, ...] = ()
    cold_tokens: int | None = None
    kept: dict[str, dict[str, str]] = {}
    body_sha256: str = ""  # of the request as it was sent


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. Its parts are in the order in which the model gave them."""

    parts: tuple[Part, ...]
    stop: StopReason
    usage: Usage | None = None
    ids: dict[str, str] = {}  # the provider's own names for things
    held_state: tuple[str, ...] = ()  # surfaces of the provider that this reply leans on
    route: Route | None = None
    format: int = FORMAT

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def refusal(self) -> str | None:
        """If the model refused: its words, or "" if it gave none; else None."""
        said = [part.text for part in self.parts if isinstance(part, Refusal)]
        return "".join(said) if said or self.stop is StopReason.REFUSED else None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    def message(self, *, prefix: str) -> Object:
        """The reply as a message of the talk; call n gets the ref `prefix-n`.

        A malformed call gets a form that every provider accepts: a valid name, and the call's
        text as the only argument, `malformed_arguments`.
        """
        parts = [_sendable(part, prefix) for part in self.parts]
        return {"role": "assistant", "parts": parts or [{"type": "refusal", "text": self.refusal or ""}]}

    def to_json(self) -> dict[str, object]:
        return cast("dict[str, object]", msgspec.to_builtins(self))

    @staticmethod
    def from_json(value: object) -> Reply:
        """Read what `to_json` gave. Raises msgspec.ValidationError."""
        return convert(value, Reply)


def ref_of(call: ToolCall, *, prefix: str) -> str:
    """The ref under which `Reply.message` puts this call."""
    return f"{prefix}-{call.number}"


def _sendable(part: Part, prefix: str) -> Object:
    if not isinstance(part, ToolCall):
        return cast(Object, msgspec.to_builtins(part))
    text = part.text if part.text.strip() else "{}"
    if part.arguments is None:
        text = values.canonical({"malformed_arguments": part.text}).decode()
    name = re.sub(r"[^A-Za-z0-9_-]", "_", part.tool)[:NAME_CHARS_MAX]
    return {"type": "tool_call", "ref": ref_of(part, prefix=prefix), "tool": name or "unnamed", "arguments": text}


Kept = Mapping[str, Mapping[str, str]]
"""What endpoints asked us to send back, by the endpoint's name; a JSON value (see `Route`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A further piece of the reply's text, provisional."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The text shown so far is void: the endpoint `failed` broke off, and another one starts again."""

    failed: str


Shown = TextDelta | Restarted
Keys = Callable[[str], str]
"""The value of the secret of this name; raises SecretNotFound. Asked when a request is sent."""
Show = Callable[[Shown], None]


def check_show(show: object) -> None:
    """Raises Misuse where pieces cannot be shown by it."""
    if show is None:
        return
    if not callable(show):
        raise Misuse(f"show: {show!r} is not a function")
    if inspect.iscoroutinefunction(show) or inspect.iscoroutinefunction(
        getattr(show, "__call__", None)  # noqa: B004 - what it is, not whether it is there
    ):
        raise Misuse(
            f"show: {show!r} is async, but it would not be awaited",
            hint="give a plain function; one that puts pieces into a queue, for example",
        )


class ChatModel(Protocol):
    """Answers one request with one reply. A call has no effect in the world beyond its price, so it may be repeated. It
    sends the request at most once to each endpoint and never waits to try again: that is for the caller, who can do it
    durably."""

    async def ask(
        self,
        request: Request,
        *,
        show: Show | None = None,
        session: str = "",
        kept: Kept | None = None,
        time_s: float | None = None,
        keys: Keys | None = None,
    ) -> Reply:
        """Ask once, over as many endpoints as it takes.

        Args:
            show: given, the reply is streamed and its text is shown as it comes. What it raises
                ends the call and is passed on.
            session: names the conversation, so that an endpoint can find what it has cached.
            kept: `reply.route.kept` of the conversation's last reply.
            time_s: seconds for the whole call, beside each endpoint's own timeouts.
            keys: gives the secrets that endpoints name by `secret://NAME`.

        Raises:
            ModelUnavailable: no endpoint replied; the same request may be sent again.
            ModelRejected: this request cannot succeed, or no endpoint may serve it.
            ReplyGarbled: replies came and none could be used.
            StateHeldElsewhere: the request depends on state that the provider keeps.
        """
        ...
