"""A model as tasks and agents name it: what it is called, where it is asked, what it costs.

Prices are the user's: no table of ours could stay right. They are in micro-units of a currency per token, which is the
same number as units per million tokens: a model at 3 dollars per million tokens of input has `input=3`. Costs are whole
micro-units, rounded up, so that a cap is never passed by rounding.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import msgspec

from holdfast.errors import BadSettings
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.endpoints import Endpoints
from holdfast.runtime.models.reply import ChatModel, Kept, Reply, Shown, Usage
from holdfast.runtime.models.request import Object, Request, check_model_name, check_settings

PRICE_MAX = 1_000_000
UNIT_CHARS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-units per token. If `cached` or `cache_write` is not given, the price of `input` applies."""

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    unit: str = "USD"

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write"):
            value = getattr(self, name)
            if value is not None and not (
                type(value) in (int, float) and 0 <= value <= PRICE_MAX and math.isfinite(value)
            ):
                raise BadSettings(f"price: {name} must be a number from 0 to {PRICE_MAX:,}")
        if not 1 <= len(self.unit) <= UNIT_CHARS_MAX or not self.unit.isalnum():
            raise BadSettings("price: unit must be a currency's short name, such as USD")

    def cost(self, usage: Usage) -> int:
        """What these tokens cost, in micro-units."""
        cached = min(usage.cached_tokens or 0, usage.input_tokens)
        written = min(usage.cache_write_tokens or 0, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        return math.ceil(
            fresh * exact(self.input)
            + cached * exact(self.input if self.cached is None else self.cached)
            + written * exact(self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * exact(self.output)
        )

    def most(self, *, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost."""
        dearest = max(price for price in (self.input, self.cached, self.cache_write) if price is not None)
        return math.ceil(input_tokens * exact(dearest) + output_tokens * exact(self.output))


@functools.lru_cache(256)
def exact(price: float) -> Fraction:
    """The price as it was written: 0.1 is a tenth."""
    return Fraction(str(price))


ATTEMPTS = 200  # with a minute between two of them: about three hours of a provider's outage
TIME_S = 900.0
TIME_S_MAX = 86_400.0


class Model:
    """A chat model.

    Args:
        name: the provider's name for the model; sent with every request.
        at: its endpoints, in order; or any `ChatModel`.
        price: if given, each step records what it cost.
        settings: for every request; the settings of a call override them.
        time_s: seconds for one try, over all endpoints.
        attempts: how many tries without a reply Holdfast makes before it parks the step. A try asks
            each endpoint at most once, and skips endpoints that rest after a failure. A try counts
            even if all endpoints rest.
    """

    def __init__(
        self,
        name: str,
        at: Endpoint | Sequence[Endpoint] | ChatModel,
        *,
        price: Price | None = None,
        settings: Mapping[str, object] | None = None,
        region: str = "",
        wire_names: Mapping[str, str] | None = None,
        allow_state: Iterable[str] = (),
        time_s: float = TIME_S,
        attempts: int = ATTEMPTS,
    ) -> None:
        check_model_name(name)
        if not 0 < time_s <= TIME_S_MAX or attempts < 1:
            raise BadSettings(f"model {name}: time_s must be above 0 and at most {TIME_S_MAX:g}, attempts above 0")
        self.name = name
        self.price = price
        self.settings: Object = check_settings(dict(settings or {}))
        self.time_s = time_s
        self.attempts = attempts
        if isinstance(at, Endpoint):
            at = (at,)
        if isinstance(at, Sequence):
            self.chat: ChatModel = Endpoints(
                cast("Sequence[Endpoint]", at), region=region, wire_names=wire_names, allow_state=allow_state
            )
        elif region or wire_names or tuple(allow_state):
            raise BadSettings(f"model {name}: give region, wire_names and allow_state only with endpoints")
        else:
            self.chat = at

    @property
    def places(self) -> list[list[str]]:
        """Where it is asked, without keys: name, address and wire form of each endpoint."""
        if not isinstance(self.chat, Endpoints):
            return []
        return [[one.name, one.url, one.wire] for one in self.chat.endpoints]

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The last event: the reply itself."""

    reply: Reply


async def stream(
    model: ChatModel, request: Request, *, session: str = "", kept: Kept | None = None, time_s: float | None = None
) -> AsyncGenerator[Shown | Whole]:
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
