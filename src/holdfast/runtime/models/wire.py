"""A wire form: how one family of providers writes requests and replies. Pure; no I/O.

A request encodes to the same bytes whenever it is the same value, wherever it was built and whether it
was read back from a record in between. So a request that goes to a second endpoint of the same wire
form is byte-equal to the first, and a provider's cache of prefixes keeps its use.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol, cast

import msgspec

from holdfast.errors import BadInput, TooLarge
from holdfast.runtime.http.message import REQUEST_BODY_BYTES_MAX
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Object, Request
from holdfast.runtime.models.sse import ServerEvent

_WRITTEN_OUT_MAX = 1e21  # below it canonical JSON writes a whole number without an exponent
_sorted_encode = msgspec.json.Encoder(order="sorted").encode


class Assembler(Protocol):
    """Puts one streamed reply together. Both methods raise ReplyGarbled, or a model error."""

    def take(self, event: ServerEvent) -> str:
        """Take one event; returns the text it adds, to be shown."""
        ...

    def finish(self) -> Reply:
        """The whole reply, after the stream's own end."""
        ...


class WireForm(Protocol):
    """The promises of a wire form."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Below the endpoint's base URL."""
        ...

    def headers(self, key: str | None) -> dict[str, str]: ...

    def encode(self, request: Request, *, stream: bool) -> bytes:
        """Deterministic bytes of the body. Raises BadInput or TooLarge."""
        ...

    def decode(self, raw: bytes) -> Reply:
        """A plain reply's body. Raises ReplyGarbled, or a model error that it holds."""
        ...

    def assembler(self) -> Assembler: ...


def body_bytes(body: Object) -> bytes:
    """JSON with sorted keys; 1.0 is written as 1, as it is when read back from canonical JSON."""
    raw = _sorted_encode(_plain_numbers(body))
    if len(raw) > REQUEST_BODY_BYTES_MAX:
        raise TooLarge(
            f"the request to the model has {len(raw):,} bytes; the limit is {REQUEST_BODY_BYTES_MAX:,}",
            hint="shorten the conversation",
        )
    return raw


def with_extra(body: dict[str, object], request: Request, wire: str) -> dict[str, object]:
    """Add the settings that are for this wire form alone. Raises BadInput."""
    extra = cast(Object, cast(Object, request.settings.get("extra", {})).get(wire, {}))
    for name in ("stream", "stream_options", "tools", "tool_choice", *body):
        if name in extra:
            raise BadInput(f"settings.extra.{wire}.{name}: the request itself sets that")
    return {**body, **extra}


def _plain_numbers(value: object) -> object:
    if type(value) is float:
        whole = value.is_integer() and abs(value) < _WRITTEN_OUT_MAX
        return int(Decimal(repr(value))) if whole else value
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {name: _plain_numbers(item) for name, item in items.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in cast("list[object]", value)]
    return value
