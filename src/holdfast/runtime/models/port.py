"""The port of a chat model, and what is shown while a reply is still coming.

What is shown is provisional: it is for a person's eyes, is never recorded, and is void as soon as
`Restarted` says so. The only truth is the `Reply` that `ask` returns, whole and checked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import Misuse
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Request

Kept = Mapping[str, Mapping[str, str]]
"""What endpoints asked us to send back, by the endpoint's name; a JSON value (see `Route`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A further piece of the reply's text, provisional."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """What was shown so far is void: `failed` broke off, and another endpoint begins again."""

    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The last event: the reply itself."""

    reply: Reply


Shown = TextDelta | Restarted
Keys = Callable[[str], str]
"""The value of the secret of this name; raises SecretNotFound. Asked when a request is sent."""
StreamEvent = TextDelta | Restarted | Whole
Show = Callable[[Shown], None]


def check_show(show: object) -> None:
    """Raises Misuse where pieces cannot be shown by it."""
    if show is None:
        return
    if not callable(show):
        raise Misuse(f"show: {show!r} cannot be called")
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


async def stream(
    model: ChatModel, request: Request, *, session: str = "", kept: Kept | None = None, time_s: float | None = None
) -> AsyncGenerator[StreamEvent]:
    """The same as events: text as it comes, and last the whole reply. Close it to give up. Raises what `ask` raises."""
    shown: asyncio.Queue[Shown | None] = asyncio.Queue()
    asking = asyncio.ensure_future(model.ask(request, show=shown.put_nowait, session=session, kept=kept, time_s=time_s))
    asking.add_done_callback(lambda _: shown.put_nowait(None))
    try:
        while (event := await shown.get()) is not None:
            yield event
        yield Whole(reply=await asking)
    finally:
        asking.cancel()
        await asyncio.wait((asking,))
