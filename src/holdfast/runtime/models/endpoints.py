"""Several endpoints that serve one model, as one `ChatModel`: the thin shell over the decisions.

Within one call every endpoint of a wire form gets the very same bytes: the body is encoded once per
wire form and kept. What differs between endpoints is in headers (key, affinity, cache id).
EndpointHealth is this process's own knowledge and is lost with it, which costs a few failed requests; what
must survive (`route.kept`) is in the reply, for the record.

A request goes to the endpoints in order, those of the caller's region first, each at most once. The next one is tried
after every error that is the endpoint's own; an error about the request ends the call. When none is left, the caller
gets the error that says most about trying again: retryable if any endpoint may do better later, unknown if a reply came
and was lost, else the first refusal.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from holdfast import errors
from holdfast.core.clock import Clock, SystemClock
from holdfast.runtime.models import health
from holdfast.runtime.models.endpoint import Answered, Endpoint, exchange
from holdfast.runtime.models.health import Breaker, EndpointHealth
from holdfast.runtime.models.held_state import check_held_state, checked_surfaces
from holdfast.runtime.models.reply import Failure, Kept, Keys, Reply, Restarted, Route, Show, TextDelta
from holdfast.runtime.models.request import Request
from holdfast.runtime.models.troubles import ModelError, about_the_request

ENDPOINTS_MAX = 32
_NEEDS_A_PERSON = (errors.ModelKeyRefused, errors.ModelNotFound, errors.ModelQuotaSpent)


class Endpoints:
    """A chat model behind its endpoints, in order."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        region: str = "",
        wire_names: Mapping[str, str] | None = None,
        allow_state: Iterable[str] = (),
        breaker: Breaker | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Bind the endpoints.

        Args:
            region: endpoints of this region are asked first.
            wire_names: what the model is called in a wire form, where that is not the name in
                the request: {"openai": "vendor/model"}.
            allow_state: surfaces of provider-held state that requests may lean on.
        """
        names = {one.name for one in endpoints}
        if not 1 <= len(endpoints) <= ENDPOINTS_MAX or len(names) < len(endpoints):
            raise errors.BadSettings(f"give a model 1 to {ENDPOINTS_MAX} endpoints with different names")
        self._endpoints = in_order(endpoints, region=region)
        self._wire_names = dict(wire_names or {})
        self._allow_state = checked_surfaces(allow_state)
        self._breaker = breaker or Breaker()
        self._clock = clock or SystemClock()
        self._health = {one.name: EndpointHealth() for one in self._endpoints}

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The endpoints, in the order in which Holdfast asks them."""
        return self._endpoints

    def health(self) -> dict[str, EndpointHealth]:
        """The current health of each endpoint."""
        return dict(self._health)

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
        """See `ChatModel.ask`."""
        held = check_held_state(request, allowed=self._allow_state)
        call = _Asking(
            request=request, wire_names=self._wire_names, show=show, session=session, kept=kept or {}, keys=keys
        )
        ends = None if time_s is None else asyncio.get_running_loop().time() + time_s
        for endpoint in self._endpoints:
            now_ms = self._clock.boot_ms()
            wait_ms = health.find_wait_ms(self._health[endpoint.name], now_ms)
            if wait_ms is not None:
                call.failures.append(as_resting(endpoint, wait_s=(wait_ms - now_ms) / 1000))
                continue
            left_s = None if ends is None else ends - asyncio.get_running_loop().time()
            if left_s is not None and left_s <= 0 and call.errors:
                break
            answered = await self._ask_one(call, endpoint, time_s=left_s)
            if answered is not None:
                return call.told(answered, endpoint, held)
        raise verdict(call.failures, call.errors)

    async def _ask_one(self, call: _Asking, endpoint: Endpoint, *, time_s: float | None) -> Answered | None:
        """The endpoint's answer, or None where the next one is to be asked."""
        body, known, name = call.body(endpoint), self._health, endpoint.name
        known[name] = health.asked(known[name], self._clock.boot_ms(), breaker=self._breaker)
        try:
            affinity = affinity_of(endpoint, session=call.session, kept=call.kept.get(name, {}))
            show = None if call.show is None else call.shown
            answered = await exchange(endpoint, body, show=show, affinity=affinity, time_s=time_s, keys=call.keys)
        except (errors.ModelUnavailable, errors.ModelRejected, errors.ReplyGarbled) as error:
            known[name] = self._after(error, known[name])
            call.failed(endpoint, error)
            if about_the_request(error):
                raise with_failures(error, call.failures) from None
            return None
        except BaseException:  # a cancel, or what `show` raised: it says nothing about the endpoint
            known[name] = health.given_up(known[name])
            raise
        known[name] = health.replied(known[name])
        return answered

    def _after(self, error: ModelError, before: EndpointHealth) -> EndpointHealth:
        now_ms = self._clock.boot_ms()
        if about_the_request(error):
            return health.replied(before)
        if isinstance(error, errors.ModelRateLimited):
            return health.limited(before, now_ms, retry_after_s=error.retry_after_s)
        return health.failed(
            before,
            now_ms,
            breaker=self._breaker,
            at_once=isinstance(error, _NEEDS_A_PERSON),
            retry_after_s=error.retry_after_s if isinstance(error, errors.ModelUnavailable) else None,
        )


@dataclass(slots=True, kw_only=True)
class _Asking:
    """One call on its way over the endpoints."""

    request: Request
    wire_names: Mapping[str, str]
    show: Show | None
    session: str
    kept: Kept
    keys: Keys | None
    failures: list[Failure] = field(default_factory=list[Failure])
    errors: dict[str, ModelError] = field(default_factory=dict[str, ModelError])
    _bodies: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _shown_chars: int = 0

    def body(self, endpoint: Endpoint) -> bytes:
        """The same bytes for every endpoint of one wire form."""
        wire = endpoint.wire
        if wire not in self._bodies:
            request = self.request
            if wire in self.wire_names:
                request = replace(request, model=self.wire_names[wire])
            self._bodies[wire] = endpoint.wire_form.encode(request, stream=self.show is not None)
        return self._bodies[wire]

    def shown(self, text: str) -> None:
        assert self.show is not None
        self._shown_chars += len(text)
        self.show(TextDelta(text=text))

    def failed(self, endpoint: Endpoint, error: ModelError) -> None:
        self.errors[endpoint.name] = error
        self.failures.append(as_failure(endpoint, error, text_chars=self._shown_chars))
        if self.show is not None and self._shown_chars:
            self.show(Restarted(failed=endpoint.name))
        self._shown_chars = 0

    def told(self, answered: Answered, endpoint: Endpoint, held: tuple[str, ...]) -> Reply:
        """The reply with the way it came."""
        reply = answered.reply
        kept = {name: dict(one) for name, one in self.kept.items()}
        if answered.kept:
            kept[endpoint.name] = {**kept.get(endpoint.name, {}), **answered.kept}
        route = Route(
            endpoint=endpoint.name,
            region=endpoint.region,
            wire=endpoint.wire,
            failures=tuple(self.failures),
            cold_tokens=reply.usage.cold_tokens if reply.usage else None,
            kept=kept,
            body_sha256=hashlib.sha256(self.body(endpoint)).hexdigest(),
        )
        surfaces = tuple(sorted({*held, *reply.held_state}))
        return msgspec.structs.replace(reply, route=route, held_state=surfaces)


RESTING = "resting"


def in_order(endpoints: Iterable[Endpoint], *, region: str) -> tuple[Endpoint, ...]:
    """As given, but the region's own first."""
    return tuple(sorted(endpoints, key=lambda one: bool(region) and one.region != region))


def as_failure(endpoint: Endpoint, error: ModelError, *, text_chars: int) -> Failure:
    return Failure(
        endpoint=endpoint.name,
        code=error.code,
        message=error.message,
        status=None if isinstance(error, errors.ReplyGarbled) else error.status,
        retry_after_s=error.retry_after_s if isinstance(error, errors.ModelUnavailable) else None,
        text_chars=text_chars,
    )


def as_resting(endpoint: Endpoint, *, wait_s: float) -> Failure:
    why = f"endpoint {endpoint.name}: Holdfast does not use it for a while after failures"
    return Failure(endpoint=endpoint.name, code=RESTING, message=why, retry_after_s=wait_s)


def verdict(failures: Sequence[Failure], causes: Mapping[str, ModelError]) -> ModelError:
    """The error of the whole call. `causes` are those of the endpoints that were asked."""
    waits = [one.retry_after_s for one in failures if one.retry_after_s is not None]
    retryable = [one for one in causes.values() if isinstance(one, errors.ModelUnavailable)]
    resting = any(one.code == RESTING for one in failures)
    if retryable or resting:
        kind = _common_kind(retryable, resting=resting)
        told = "no endpoint replied: " + "; ".join(one.message for one in failures)
        found: ModelError = kind(told, retry_after_s=min(waits, default=None))
    else:
        garbled = [one for one in causes.values() if isinstance(one, errors.ReplyGarbled)]
        found = garbled[0] if garbled else next(iter(causes.values()))
    return with_failures(found, failures)


def with_failures(error: ModelError, failures: Sequence[Failure]) -> ModelError:
    error.failures = tuple(msgspec.to_builtins(one) for one in failures)
    return error


def affinity_of(endpoint: Endpoint, *, session: str, kept: Mapping[str, str]) -> dict[str, str]:
    """The headers by which the endpoint knows the conversation again. A digest of session and endpoint: no provider
    learns our names, nor the other's."""
    headers: dict[str, str] = {}
    if endpoint.affinity_header and (session or "affinity" in kept):
        made = hashlib.sha256(f"holdfast/affinity/1\0{endpoint.name}\0{session}".encode())
        headers[endpoint.affinity_header] = kept.get("affinity") or made.hexdigest()[:32]
    if endpoint.cache_header and "cache" in kept:
        headers[endpoint.cache_header] = kept["cache"]
    return headers


def _common_kind(causes: Sequence[errors.ModelUnavailable], *, resting: bool) -> type[errors.ModelUnavailable]:
    for kind in (errors.ModelRateLimited, errors.ModelOverloaded):
        if causes and not resting and all(isinstance(one, kind) for one in causes):
            return kind
    return errors.ModelUnavailable
