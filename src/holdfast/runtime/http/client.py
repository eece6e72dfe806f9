"""`call.http`: sends one effect once, and knows whether a byte of it has left.

What holds at all times:

- One effect request per call. A second one could be half of an effect that the record calls whole; it is refused before
  a byte leaves. Requests that only read say `effect=False`.
- Nothing here repeats anything: no retries, no redirects, no pool (a pooled connection that died makes clients send
  again), no proxy, no `Expect`, no early data.
- The request is built and checked whole, then the connection is made, then `on_first_byte` is called, then all bytes go
  to the kernel in one send; no await is between the last two. So a process killed before `on_first_byte` provably sent
  nothing, and one killed after it may have.
- `NotSent` is raised only while no byte of the call's effect has been handed over. After that every failure is
  `HttpUnknown`, including that of a later request that only reads.
- From the connect on the socket lingers for zero seconds: when the attempt is given up, or the process dies, the kernel
  throws unsent bytes away instead of delivering them later. Only a whole answer is followed by an orderly close.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict, Unpack

from holdfast.core import answers
from holdfast.core.effect import Effect, Fenced, Keyed, Read, Transactional
from holdfast.errors import Busy, KeyReused, Misuse, NotSent, Refused
from holdfast.host.shadowed import find_recorder
from holdfast.runtime.http.exchange import RESPONSE_BODY_BYTES_MAX, Exchange, ProtocolError, close, connect
from holdfast.runtime.http.message import AnswerUnknown, BadRequest, Message, Response, build, recorder_at

__all__ = ["AnswerUnknown", "BadRequest", "HttpClient", "Response"]

TIMEOUT_DEFAULT_S = 30.0
_READING = Read()


class Options(TypedDict, total=False):
    """What every request may say; see `HttpClient.request`."""

    params: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    timeout_s: float
    check: bool
    effect: bool
    refused_on: Iterable[int]


class BodyOptions(Options, total=False):
    json: object
    body: bytes | None


@dataclass(kw_only=True, eq=False, repr=False)
class HttpClient:
    """An HTTP/1.1 client bound to one attempt of one step."""

    effect: Effect
    effect_key: str
    task_id: str
    ordinal: str
    fence: int | None = None
    time_left_s: Callable[[], float]  # until the call's own deadline, at the moment it is asked
    # Called right before the first byte of an effect is handed to the kernel; if it raises, nothing is sent.
    on_first_byte: Callable[[], None] = lambda: None
    lookup: bool = False  # the client of a `find`, where every request only reads
    ssl_context: ssl.SSLContext | None = None
    begun: bool = field(default=False, init=False)  # a byte of this call's effect may have left

    def __post_init__(self) -> None:
        self._repeats = isinstance(self.effect, Read | Transactional)
        self._trace = {"Holdfast-Task": self.task_id, "Holdfast-Step": self.ordinal}
        self._marks = {**self._trace, **_effect_headers(self.effect, self.effect_key, self.fence)}

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: object = None,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        check: bool = True,
        effect: bool = True,
        refused_on: Iterable[int] = (),
    ) -> Response:
        """Send one request and return its answer.

        Args:
            check: raise unless the answer proves success; False returns whatever came, and the tool reads it.
            effect: False for a request that only reads: it carries no key, does not count as the effect, and its
                failure never proves anything about the effect.
            refused_on: further 4xx by which this far end says that it did not act.

        Raises:
            NotSent: no byte of this call's effect has left (BadRequest: and none ever can).
            Refused: the far end did not act; `proof` holds status and body.
            Busy: the far end works on this key, or asks to come back.
            KeyReused: the far end knows this key with another body.
            HttpUnknown: sent, and nothing proves what became of it.
        """
        effect = effect and not self.lookup
        try:
            declared = answers.check_refused_on(refused_on)
            if effect:
                self._check_first()
            own = self._marks if effect else self._trace
            message = build(method.upper(), url, params=params, json=json, body=body, headers=headers, own_headers=own)
        except (BadRequest, Misuse) as error:
            raise self._unsent(BadRequest, str(error)) from error
        response = await self._exchange(message, timeout_s=timeout_s, effect=effect)
        if check:
            self._check(message, response, effect=effect, refused_on=declared)
        return response

    async def get(self, url: str, **options: Unpack[Options]) -> Response:
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Unpack[BodyOptions]) -> Response:
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Unpack[BodyOptions]) -> Response:
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Unpack[BodyOptions]) -> Response:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Unpack[BodyOptions]) -> Response:
        return await self.request("DELETE", url, **options)

    async def _exchange(self, message: Message, *, timeout_s: float, effect: bool) -> Response:
        where = f"{message.method} {message.target.shown}"
        left_s = min(timeout_s, self.time_left_s())
        if not left_s > 0:
            raise self._unsent(NotSent, f"{where}: no time left to send the request")
        transport: asyncio.Transport | None = None
        asked = whole = False
        try:
            async with asyncio.timeout(left_s):
                transport, exchange = await self._connect(message)
                self._check_may_send(exchange, transport, where)
                if effect:
                    self._check_first()  # again: another one may have been sent meanwhile
                    self.on_first_byte()
                    self.begun = self.begun or not self._repeats
                asked = True
                exchange.ask(message.raw)
                response = await exchange.answer
                whole = True
                return response
        except BadRequest as error:
            raise self._unsent(BadRequest, str(error)) from error
        except (OSError, ProtocolError, UnicodeError) as error:
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            if not asked:
                raise self._unsent(NotSent, f"{where}: not sent: {what}") from error
            if not effect:
                raise self._unsent(NotSent, f"{where}: {what}") from error
            raise AnswerUnknown(f"{where}: the request was sent, then: {what}") from error
        finally:
            if transport is not None:
                close(transport, whole=whole)

    async def _connect(self, message: Message) -> tuple[asyncio.Transport, Exchange]:
        made = partial(Exchange, message.parser, body_bytes_max=RESPONSE_BODY_BYTES_MAX)
        try:
            return await connect(message.target, made, ssl_context=self.ssl_context)
        except OSError:
            if (port := find_recorder()) is None:
                raise
            # In a shadow of a drill no far end is there: one that records answers in its place.
            return await connect(recorder_at(port), made, ssl_context=None)

    def _check_may_send(self, exchange: Exchange, transport: asyncio.Transport, where: str) -> None:
        """The last look before the first byte; nothing may be awaited after it."""
        if exchange.answer.done() or transport.is_closing():
            raise ConnectionResetError("the far end closed the connection, or sent data before it got a request")
        if not self.time_left_s() > 0:
            raise TimeoutError(f"{where}: the call's deadline passed while connecting")

    def _check_first(self) -> None:
        if self.begun and not self._repeats:
            raise BadRequest(
                "a call may send only one effect request: make the second a step, or pass effect=False if it only reads"
            )

    def _check(self, message: Message, response: Response, *, effect: bool, refused_on: frozenset[int]) -> None:
        proof = response.proof()
        contract = self.effect if effect else _READING
        answer = answers.read_answer(contract, response.status, response.headers, refused_on=refused_on)
        where = f"{message.method} {message.target.shown}"
        if isinstance(answer, answers.MeansDone):
            return
        if not effect:
            raise self._unsent(NotSent, f"{where} answered {response.status}", response)
        match answer:
            case answers.MeansRefused():
                raise Refused(proof)
            case answers.MeansBusy(retry_after_s=wait_s):
                raise Busy(wait_s)
            case answers.MeansKeyReused():
                raise KeyReused(proof)
            case answers.MeansUnknown(reason=reason):
                raise AnswerUnknown(f"{where} answered {reason}", status=response.status, evidence=proof)

    def _unsent(self, kind: type[NotSent], text: str, response: Response | None = None) -> NotSent | AnswerUnknown:
        """NotSent while that is the truth about the whole call, else unknown."""
        if not self.begun:
            return kind(text)
        return AnswerUnknown(
            f"{text}, after the effect request was sent",
            status=response.status if response else None,
            evidence=response.proof() if response else None,
        )


def _effect_headers(effect: Effect, effect_key: str, fence: int | None) -> dict[str, str]:
    if isinstance(effect, Read | Transactional):
        return {}
    name = effect.key_header if isinstance(effect, Keyed) else "Idempotency-Key"
    fenced = isinstance(effect, Fenced) and fence is not None
    return {name: effect_key, **({"Holdfast-Fence": str(fence)} if fenced else {})}
