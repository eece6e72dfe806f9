"""Borders of relays: an address that a person typed, an answer from the net, a request from anybody."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette

from holdfast.errors import BadInput
from holdfast.host.log import Log
from holdfast.identity.records.signed import Family, sealed
from holdfast.identity.statements.relay_answer import NONCE_HEADER, digest_of_request, read_answer, signed_answer
from holdfast.layout.witness_address import parse_relay_address
from holdfast.relay.protocol.calls import TOKEN_HEADER, Login
from holdfast.relay.server import limits
from holdfast.relay.server.app import Relay
from holdfast.relay.server.mail_calls import Session
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store
from holdfast_proofs.fuzz.borders.identity import LINES, LOG
from holdfast_proofs.fuzz.borders.mail import ACKS, CRT, ENVELOPES, NOW, PROFILES
from holdfast_proofs.fuzz.feed import law
from holdfast_proofs.identity_schedules.fake import PORT, signer

_SESSION = "fuzz"
_KEY = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
_NONCE = "AAAAAAAAAAAAAAAAAAAAAAAA"
_ASK = digest_of_request("GET", "/v1/relay", _NONCE, b"")
_RELAY = signer("relay")
_LOGIN = sealed(
    Login(id=LOG.id, g=0, s=0, wit=_RELAY.public, nonce=_NONCE, crt=CRT.digest), Family.LOGIN, (signer("instance"),)
).line()
ADDRESSES = (f"https://relay.example#{_KEY}".encode(), f"http://[::1]:7411#{_KEY}".encode())
ANSWERS = (signed_answer(ask=_ASK, status=200, content=b"{}", now=1, signer=_RELAY),)
REQUESTS = (
    b"GET /v1/relay\n",
    f"POST /v1/log/{LOG.id}\n".encode() + LINES[0] + b"\n" + LINES[-1] + b"\n",
    f"GET /v1/log/{LOG.id}\n".encode(),
    f"GET /v1/log?recovery={LOG.head.digest}\n".encode(),
    f"PUT /v1/agents/{LOG.id}\n".encode() + PROFILES[0],
    f"POST /v1/mail/{LOG.id}\n".encode() + msgspec.msgpack.encode(ENVELOPES),
    f"POST /v1/senders/{LOG.id}\n".encode() + LINES[0] + b"\n" + LINES[-1] + b"\n",
    f"GET /v1/mailbox/{LOG.id}/nonce\n".encode(),
    f"POST /v1/mailbox/{LOG.id}/login\n".encode() + _LOGIN + b"\n" + CRT.line() + b"\n",
    f"GET /v1/mailbox/{LOG.id}?after=0&wait=25\n".encode(),
    f"POST /v1/mailbox/{LOG.id}/ack\n".encode() + ACKS[0],
)
WORDS = (
    b"GET ",
    b"PUT ",
    b"POST ",
    b"/v1/agents/",
    b"/v1/heads/",
    b"/v1/handles/ada",
    b"/evidence",
    b"/v1/mail/",
    b"/v1/mailbox/",
    b"/v1/senders/",
    b"/login",
    b"/ack",
    b"?after=",
    b"&wait=",
    b"?recovery=",
    b"%2e%2e/",
    b"%00",
    b"https://",
    b"@",
    b"#z6Mk",
    b'"t":"ran"',
    b'"st":200',
    b'"sig":[]',
    b"\n",
    b"\xff",
)


def address(raw: bytes) -> None:
    """What is taken has one spelling."""
    found = parse_relay_address(raw.decode(errors="surrogateescape"))
    law(parse_relay_address(str(found)) == found, "an address with two spellings")


def answer(raw: bytes) -> None:
    """Only the bytes that the relay signed for this request are taken."""
    content = read_answer(raw, asks={_ASK}, status=200, key=_RELAY.public, port=PORT)
    law(raw in ANSWERS and content == b"{}", "an answer that nobody signed")


def request(raw: bytes) -> None:
    """Every request gets an answer that the relay signed for it, and none breaks the relay."""
    head, _, body = raw.partition(b"\n")
    method, _, target = head.decode("latin-1").partition(" ")
    if not target.startswith("/v1/") or not method.isascii() or not method.isalpha():
        raise BadInput("no request of HTTP has this head")
    status, said = _served(method, target, body)
    law(status < 500, f"the relay broke: {status} {said[-300:]!r}")
    asks = {digest_of_request(method, target, _NONCE, one) for one in (body, b"")}
    read_answer(said, asks=asks, status=status, key=_RELAY.public, port=PORT)
    if status != 200:
        raise BadInput(f"refused with {status}")


@functools.cache
def _app() -> Starlette:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-relay-"))
    store = Store(folder / "relay")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(store.close)
    settings = RelaySettings(registration="open", free_mib_min=1)
    relay = Relay(store, _RELAY, settings, PORT, Log(), clock=lambda: NOW)
    relay.mail.stopping = True  # none waits for mail
    never = limits.Rate(burst=1e12, per_s=1e12)
    for bucket in relay._buckets.values():
        bucket.rate = never
    relay.mail._buckets.rate = never
    app = relay.app()
    status, said = _called(app, "POST", f"/v1/log/{LOG.id}", LINES[0] + b"\n")
    assert status in (200, 409), said
    relay.mail._sessions[_SESSION] = Session(LOG.id, CRT, LOG)
    return app


@functools.cache
def _runner() -> asyncio.Runner:
    made = asyncio.Runner()
    atexit.register(made.close)
    return made


def _served(method: str, target: str, body: bytes) -> tuple[int, bytes]:
    return _called(_app(), method, target, body)


def _called(app: Starlette, method: str, target: str, body: bytes) -> tuple[int, bytes]:
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": [
            (NONCE_HEADER.encode(), _NONCE.encode()),
            (TOKEN_HEADER.encode(), _SESSION.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7411),
    }
    sent: list[MutableMapping[str, Any]] = []  # Any: messages of ASGI

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    _runner().run(app(scope, receive, send))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])
