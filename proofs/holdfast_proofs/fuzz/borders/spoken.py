"""Borders of conversation: HTTP answers and requests, frames of a child, orders to a far end."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache

from holdfast.core.answers import MeansBusy, read_answer
from holdfast.core.effect import Effect, Fenced, Idempotent, Keyed, Queryable, Read, Unrepeatable
from holdfast.downstream.faults import BadFault, parse_fault
from holdfast.downstream.http_server import Request as Ask
from holdfast.downstream.profiles import PROFILES, BadOrder, parse_object, parse_order
from holdfast.runtime.http.exchange import Exchange, ProtocolError
from holdfast.runtime.http.message import Response, build
from holdfast.runtime.tool.child import Unkept, opened, outcome_of, read_message
from holdfast_proofs.fuzz.feed import Feed, as_text, law

BODY_BYTES_MAX = 64 * 1024
_EFFECTS: tuple[Effect, ...] = (
    Read(),
    Fenced(),
    Queryable(),
    Idempotent(),
    Unrepeatable(),
    Keyed(window_s=60, fingerprint="checked", refusals_stored=True),
    Keyed(window_s=60, fingerprint="ignored", refusals_stored=False),
)
_PROFILES = tuple(PROFILES.values())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def answers(raw: bytes) -> None:
    """What a far end sends back, in pieces of any size; and what it proves."""
    feed = Feed(raw)
    effect, size = _EFFECTS[feed.byte() % len(_EFFECTS)], feed.byte() + 1
    response = _loop().run_until_complete(_exchange(feed.rest(), size))
    if response is None:
        return
    found = read_answer(effect, response.status, response.headers)
    if isinstance(found, MeansBusy):
        law(0 <= found.retry_after_s <= 86_400, "a wait without bounds")
    law(isinstance(response.proof()["body"], str), "a proof that cannot be kept")
    response.json()


async def _exchange(raw: bytes, size: int) -> Response | None:
    message = build(
        "POST",
        "http://far.end/effects",
        params=None,
        json={"a": 1},
        body=None,
        headers=None,
        own_headers={"idempotency-key": "k"},
    )
    exchange = Exchange(message.parser, body_bytes_max=BODY_BYTES_MAX)
    exchange.connection_made(_Deaf())
    exchange.ask(message.raw)
    for at in range(0, len(raw), size):
        exchange.data_received(raw[at : at + size])
    exchange.eof_received()
    exchange.connection_lost(None)
    law(exchange.answer.done(), "neither an answer nor an error")
    try:
        return exchange.answer.result()
    except (ProtocolError, OSError):
        return None


class _Deaf(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


def requests(raw: bytes) -> None:
    """What a tool asks the client to send: refused, or bytes with one head and one body."""
    feed = Feed(raw)
    method, url = feed.text(), feed.text()
    params = {feed.text(): feed.text()} if feed.byte() & 1 else None
    headers = {feed.text(): feed.text() for _ in range(feed.byte() % 3)}
    body = feed.rest()
    made = build(
        method, url, params=params, json=None, body=body, headers=headers, own_headers={"idempotency-key": "k"}
    )
    head, _, sent = made.raw.partition(b"\r\n\r\n")
    law(sent == body, "the body is not what was given")
    law(head.lower().count(b"\r\nidempotency-key:") == 1, "not exactly one key")
    law(head.lower().count(b"\r\nhost:") == 1, "not exactly one host")


def frames(raw: bytes) -> None:
    """What a child writes into its socket, or a tool that found it."""
    # Documented: the child is of no use, or its result cannot be kept.
    with contextlib.suppress(EOFError, ConnectionError, Unkept):
        _loop().run_until_complete(_frames(raw))


async def _frames(raw: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(raw)
    reader.feed_eof()
    for _ in range(4):
        opened(outcome_of(await read_message(reader)), tool="fuzz")


def orders(raw: bytes) -> None:
    """What a client or a test says to a far end of ours."""
    feed = Feed(raw)
    profile = _PROFILES[feed.byte() % len(_PROFILES)]
    method = ("GET", "POST", "PUT")[feed.byte() % 3]
    headers = tuple(
        (name, as_text(feed.part()))
        for name in ("idempotency-key", "holdfast-fence", "holdfast-task", "holdfast-step")
        if feed.byte() & 1
    )
    ask = Ask(method=method, target=as_text(feed.part()), headers=headers, body=feed.rest())
    try:
        law(len(ask.query) <= 20, "query")
        parse_order(ask, profile, key_header="Idempotency-Key")
    except (BadOrder, ValueError):
        pass  # answered with 400
    with contextlib.suppress(BadOrder, BadFault):
        parse_fault(parse_object(ask.body))
