"""The relay over HTTP: cheap checks first, then the store, then a signed answer.

The order for each request: the sender's bucket; method, path and length; the body, within its time; the agent's bucket;
parsing; and only then signatures and the disk. Every answer is signed for the request that it answers
(`statements/relay_answer.py`), refusals too, so that nothing between relay and agent can answer in the relay's name.
`/healthz` and `/metrics` are for the operator and are not signed. Nor is the refusal of a request that names no call of
the relay, once its address has used up its bucket.

The relay opens no connection to anyone: what it should know, agents bring.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.errors import BadRecord, HoldfastError, RelayBusy
from holdfast.host.log import Log
from holdfast.host.sqlite import Db
from holdfast.host.version import find_version
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import RECORD_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, parse_digest
from holdfast.identity.records.records import AtPosition, id_of, parse_record
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements.relay_answer import (
    INVITE_HEADER,
    NONCE_FORM,
    NONCE_HEADER,
    digest_of_request,
    signed_answer,
)
from holdfast.identity.statements.statements import parse_head, parse_profile
from holdfast.identity.witness.relay_link import LOOKUP_MAX, RefusalContent, RelayDescription
from holdfast.identity.witness.witness import copy_of
from holdfast.identity.witness.witness_folder import WitnessService
from holdfast.identity.witness.witness_relay import join_lines
from holdfast.relay.protocol.calls import HANDLE_FORM
from holdfast.relay.server import limits, registry
from holdfast.relay.server.asked import Answer, Asked, Handler, Said
from holdfast.relay.server.logs import AdmittingLogs, KeyLogs
from holdfast.relay.server.mail_calls import (
    ACK_BYTES_MAX,
    LOGIN_BYTES_MAX,
    SENDER_LOG_BYTES_MAX,
    SUBMIT_BYTES_MAX,
    MailDesk,
)
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store

PROTOCOL = 1
INVITE_CHARS_MAX = 128
ID_AT = 3  # in the parts of a path: /v1/mailbox/{id}/ack
_OCTETS = "application/octet-stream"
_STATUS = {
    Reason.NOT_ADMITTED: HTTPStatus.FORBIDDEN,
    Reason.FULL: HTTPStatus.INSUFFICIENT_STORAGE,
    Reason.MALFORMED: HTTPStatus.BAD_REQUEST,
    Reason.NOT_BEGUN: HTTPStatus.NOT_FOUND,
}
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT"))  # of the calls; anyone may make up others, of any length
_UNREAD = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

T = TypeVar("T", bound=AtPosition)


@dataclass
class Relay:
    """A relay's state and its rules; `app` is the face of it."""

    store: Store
    signer: Signer
    settings: RelaySettings
    port: Signatures
    log: Log
    clock: Callable[[], float] = time.time
    draining: bool = False
    counts: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    def __post_init__(self) -> None:
        rate = limits.Rate(self.settings.registrations_an_hour, self.settings.registrations_an_hour / 3600)
        self._buckets = {
            "GET": limits.Buckets(limits.READS),
            "write": limits.Buckets(limits.WRITES),
            "agent": limits.Buckets(limits.AGENT_WRITES),
            "register": limits.Buckets(rate),
            "mail": limits.Buckets(limits.Rate(4.0 * self.settings.mails_per_s, self.settings.mails_per_s)),
        }
        self._arriving = limits.InMemory(_end_body)
        self._logs = KeyLogs(self.store, port=self.port)
        self.mail = MailDesk(
            self.store,
            self._logs,
            self.signer.public,
            self.port,
            settings=lambda: self.settings,
            now=self._now,
            charge=lambda payer, cost: self._buckets["mail"].charge(payer, time.monotonic(), cost),
        )

    def stop(self) -> None:
        """Take no more requests, and answer those that wait."""
        self.draining = True
        self.mail.stop()

    def app(self) -> Starlette:
        def route(path: str, handler: Handler, method: str = "GET", body_max: int = 0, bucket: str = "") -> Route:
            bucket = bucket or ("GET" if method == "GET" else "write")

            async def endpoint(request: Request) -> Response:
                return await self._answered(request, handler, body_max, bucket)

            return Route(path, endpoint, methods=[method], name=path)

        line, lines = limits.LINE_BODY_BYTES_MAX, limits.LOG_BODY_BYTES_MAX
        routes = [  # tried in this order: the frequent ones first
            route("/v1/mail/{id}", self.mail.submit, "POST", SUBMIT_BYTES_MAX, "mail"),
            route("/v1/mailbox/{id}", self.mail.take, "GET", 0, "mail"),
            route("/v1/mailbox/{id}/ack", self.mail.acknowledge, "POST", ACK_BYTES_MAX, "mail"),
            route("/v1/relay", self._describe),
            route("/v1/log", self._find_agents),
            route("/v1/log/{id}", self._fetch),
            route("/v1/log/{id}", self._submit, "POST", lines),
            route("/v1/agents/{id}", partial(self._line, "profile")),
            route("/v1/agents/{id}", self._put_profile, "PUT", line),
            route("/v1/agents/{id}/evidence", self._evidence),
            route("/v1/handles/{name}", self._handle),
            route("/v1/heads/{id}", partial(self._line, "head")),
            route("/v1/heads/{id}", self._put_head, "PUT", line),
            route("/v1/senders/{id}", self.mail.introduce, "POST", SENDER_LOG_BYTES_MAX),
            # after a restart all agents log in again, and many of them may be behind one address
            route("/v1/mailbox/{id}/nonce", self.mail.nonce, "GET", 0, "mail"),
            route("/v1/mailbox/{id}/login", self.mail.login, "POST", LOGIN_BYTES_MAX, "mail"),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        app = _App(routes=routes, exception_handlers={HTTPException: self._no_route})
        app.direct = {
            (method, *_fixed(one.path.split("/"))): one.endpoint for one in routes[:3] for method in one.methods or ()
        }
        app.router.redirect_slashes = False  # a redirect would be an answer that the relay did not sign
        return app

    # calls

    async def _describe(self, asked: Asked) -> Answer:
        settings = self.settings
        found = RelayDescription(
            name=settings.name,
            url=settings.url,
            registration=settings.registration,
            version=find_version(),
            protocol=PROTOCOL,
            record_bytes_max=RECORD_BYTES_MAX,
            region=settings.region,
        )
        return HTTPStatus.OK, msgspec.json.encode(found)

    async def _find_agents(self, asked: Asked) -> Answer:
        given = asked.request.query_params.get("recovery", "").split(",")
        try:
            digests = tuple(map(parse_digest, given))
        except BadRecord as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, error.message) from None
        if len(digests) > LOOKUP_MAX:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, f"at most {LOOKUP_MAX} digests may be asked for")
        ids = await asyncio.to_thread(self._logs.find_by_recovery_keys, digests)
        return HTTPStatus.OK, join_lines([one.encode() for one in ids])

    async def _fetch(self, asked: Asked) -> Answer:
        copy = copy_of(await self._known(asked))
        return HTTPStatus.OK, join_lines((*copy.records, *copy.receipts))

    async def _submit(self, asked: Asked) -> Answer:
        id_, lines = asked.id, asked.body.split(b"\n")
        if lines.pop() or not 0 < len(lines) <= limits.RECEIPTS_MAX + 1:
            why = f"the body must be a record and at most {limits.RECEIPTS_MAX} receipts, each a line"
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, why)
        self._spend("agent", f"{id_} {asked.sender}")
        try:
            named = id_of(parse_record(lines[0]))
        except BadRecord as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, error.message) from None
        if named != id_:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, f"the record is about {named}")
        invite = asked.request.headers.get(INVITE_HEADER, "")[: INVITE_CHARS_MAX + 1]
        logs = AdmittingLogs(self._logs, lambda db, agent: self._admit(db, agent, invite, asked.sender))
        witness = WitnessService(logs, self.signer, port=self.port, clock=self._now)
        answer = await witness.submit(lines[0], lines[1:])
        self.mail.wake(id_)  # new keys may end a session that waits
        return (HTTPStatus.OK, answer) if isinstance(answer, bytes) else _refused(answer)

    def _admit(self, db: Db, id: AgentId, invite: str, sender: str) -> str | Refusal:
        is_open = self.settings.registration == "open"
        if is_open and not invite:
            self._spend("register", sender)
        return registry.admit(db, id, invite, is_open=is_open, agents_max=self.settings.agents_max)

    async def _line(self, column: str, asked: Asked) -> Answer:
        id_ = asked.id
        return _found(await asyncio.to_thread(self.store.read, lambda db: registry.find_line(db, id_, column)))

    async def _put_profile(self, asked: Asked) -> Answer:
        return await self._put(asked, parse_profile, partial(registry.put_profile, relay_name=self.settings.name))

    async def _put_head(self, asked: Asked) -> Answer:
        return await self._put(asked, parse_head, registry.put_head)

    async def _put(
        self, asked: Asked, parse: Callable[[bytes], Signed[T]], put: Callable[..., Signed[T] | Refusal]
    ) -> Answer:
        self._spend("agent", f"{asked.id} {asked.sender}")
        try:
            signed = parse(asked.body.removesuffix(b"\n"))
        except BadRecord as error:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, error.message) from None
        if signed.record.id != asked.id:
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, f"the record is about {signed.record.id}")
        log = await self._known(asked)
        judged = await self.store.written(
            lambda db: put(db, signed, self._logs.load(db, log.id) or log, now=self._now(), port=self.port)
        )
        return _refused(judged) if isinstance(judged, Refusal) else (HTTPStatus.OK, judged.line())

    async def _evidence(self, asked: Asked) -> Answer:
        id_ = asked.id
        lines = await asyncio.to_thread(self.store.read, lambda db: registry.find_evidence(db, id_))
        return _found(join_lines(lines) or None)

    async def _handle(self, asked: Asked) -> Answer:
        name = str(asked.request.path_params["name"])
        if not re.fullmatch(HANDLE_FORM, name, re.ASCII):
            raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, "that is not a handle")
        now = self._now()
        return _found(await asyncio.to_thread(self.store.read, lambda db: registry.find_handle(db, name, now=now)))

    # what every call shares

    async def _answered(self, request: Request, handler: Handler, body_max: int, bucket: str) -> Response:
        nonce = request.headers.get(NONCE_HEADER, "")
        body = b""
        try:
            if nonce and not re.fullmatch(NONCE_FORM, nonce, re.ASCII):
                nonce = ""
                raise Said(HTTPStatus.BAD_REQUEST, Reason.MALFORMED, "the nonce is not in its form")
            asked = Asked(request, b"")
            self._spend(bucket, self.mail.payer_of(asked) if bucket == "mail" else asked.sender)
            if self.draining:
                raise Said(HTTPStatus.SERVICE_UNAVAILABLE, "draining", "the relay is stopping", 10)
            body = await _body(asked, body_max, self._arriving)
            status, content = await handler(Asked(request, body))
        except Said as said:
            status, content = _said(said)
        except RelayBusy as error:
            status, content = _said(Said(HTTPStatus.SERVICE_UNAVAILABLE, "busy", error.message, 1))
        except HoldfastError as error:
            self.log.event("relay-error", path=request.url.path, error=error.message)
            status, content = _said(Said(HTTPStatus.INTERNAL_SERVER_ERROR, error.code, error.message))
        except Exception as error:  # noqa: BLE001 - a fault of ours: unsigned, it would look like a dead relay
            self.log.event("relay-fault", path=request.url.path, error=f"{type(error).__name__}: {error}")
            why = "the relay failed on this request; its log says why"
            status, content = _said(Said(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", why))
        return self._signed(request, nonce, body, status, content)

    def _signed(self, request: Request, nonce: str, body: bytes, status: int, content: bytes) -> Response:
        self._count(request, status)
        raw_path = request.scope["raw_path"].decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        ask = digest_of_request(request.method, f"{raw_path}?{query}" if query else raw_path, nonce, body)
        raw = signed_answer(ask=ask, status=status, content=content, now=self._now(), signer=self.signer)
        headers = {"cache-control": "no-store"}
        if status in _UNREAD:  # what came of the body, and was not read, leaves memory with the connection
            headers["connection"] = "close"
        return Response(raw, status, media_type=_OCTETS, headers=headers)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if self._buckets["GET"].take(Asked(request, b"").sender, time.monotonic()):
            self._count(request, HTTPStatus.TOO_MANY_REQUESTS)
            return Response(b"", HTTPStatus.TOO_MANY_REQUESTS)
        content = RefusalContent(code="no-such-call", message="the relay has no such call")
        nonce = request.headers.get(NONCE_HEADER, "")
        nonce = nonce if re.fullmatch(NONCE_FORM, nonce, re.ASCII) else ""
        return self._signed(request, nonce, b"", error.status_code, msgspec.json.encode(content))

    def _count(self, request: Request, status: int) -> None:
        self.counts[request.method if request.method in _METHODS else "other", status] += 1

    def _spend(self, bucket: str, name: str) -> None:
        wait_s = self._buckets[bucket].take(name, time.monotonic())
        if wait_s:
            raise Said(HTTPStatus.TOO_MANY_REQUESTS, "rate", "too many requests", wait_s)

    async def _known(self, asked: Asked) -> KeyLog:
        log = await asyncio.to_thread(self._logs.find, asked.id)
        if log is None:
            raise Said(HTTPStatus.NOT_FOUND, Reason.NOT_BEGUN, "the relay does not know this agent")
        return log

    def _now(self) -> int:
        return int(self.clock())

    async def _healthz(self, request: Request) -> Response:
        why = "the relay is stopping" if self.draining else self.store.failed
        status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
        told = {"ok": not why, "why": why or self.mail.no_room}  # without room for mail it still serves all else
        return Response(msgspec.json.encode(told), status, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        if request.client is None or request.client.host not in self.settings.metrics_from:
            return Response(b"", HTTPStatus.NOT_FOUND)
        return Response(await asyncio.to_thread(self._figures), media_type="text/plain; version=0.0.4")

    def _figures(self) -> str:
        counted = {"agent": "agents", "handle": "handles", "invite": "invites", "evidence": "evidence_lines"}
        rows = self.store.read(
            lambda db: {name: db.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in counted}
        )
        lines = [f"holdfast_relay_{counted[name]} {count}" for name, count in rows.items()]
        waiting, held = self.store.read(
            lambda db: db.execute("SELECT total(waiting), total(held) FROM mailbox").fetchall()[0]
        )
        lines += [f"holdfast_relay_mails_waiting {waiting:.0f}", f"holdfast_relay_mails_held {held:.0f}"]
        lines += [
            f'holdfast_relay_requests_total{{method="{method}",status="{status}"}} {count}'
            for (method, status), count in sorted(self.counts.items())
        ]
        lines.append(f"holdfast_relay_commits_total {self.store.commits}")
        lines.append(f"holdfast_relay_store_failed {int(bool(self.store.failed))}")
        lines.append(f"holdfast_relay_disk_low {int(bool(self.mail.no_room))}")
        return "\n".join(lines) + "\n"


def _fixed(parts: list[str]) -> list[str]:
    return parts[:ID_AT] + parts[ID_AT + 1 :]


class _App(Starlette):
    """The calls that agents make all the time go past Starlette's layers, which cost as much as many a call itself."""

    direct: Mapping[tuple[str, ...], Callable[[Request], Awaitable[Response]]]  # by method and fixed parts of the path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            parts = scope["path"].split("/")
            endpoint = self.direct.get((scope["method"], *_fixed(parts)))
            if endpoint is not None and len(parts) > ID_AT and parts[ID_AT]:
                scope["path_params"] = {"id": parts[ID_AT]}
                response = await endpoint(Request(scope, receive))
                return await response(scope, receive, send)
        return await super().__call__(scope, receive, send)


def _end_body(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(0.0)


async def _body(asked: Asked, bytes_max: int, arriving: limits.InMemory[asyncio.Timeout]) -> bytes:
    """The body, if it is no longer and comes in time. A length that is too large is refused before it is read."""
    too_large = Said(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", f"a body may have {bytes_max:,} bytes here")
    length = asked.request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > bytes_max:
        raise too_large
    if length == "0" and "transfer-encoding" not in asked.request.headers:
        return b""
    parts, size, limit = list[bytes](), 0, asyncio.timeout(limits.BODY_S_MAX)
    try:
        async with limit:
            async for part in asked.request.stream():
                size += len(part)
                if size > bytes_max:
                    raise too_large
                parts.append(part)
                arriving.add(limit, asked.sender, size)
    except (TimeoutError, ClientDisconnect):
        raise Said(HTTPStatus.REQUEST_TIMEOUT, "too-slow", "the body did not come in time") from None
    finally:
        arriving.remove(limit)
    return b"".join(parts)


def _found(content: bytes | None) -> Answer:
    if content is None:
        raise Said(HTTPStatus.NOT_FOUND, "not-found", "the relay has nothing there")
    return HTTPStatus.OK, content


def _refused(refusal: Refusal) -> Answer:
    return _said(Said(_STATUS.get(refusal.reason, HTTPStatus.CONFLICT), refusal.reason, refusal.message))


def _said(said: Said) -> Answer:
    content = RefusalContent(
        code=said.code, message=said.message, wait_s=math.ceil(said.wait_s), proof=said.proof.decode()
    )
    return said.status, msgspec.json.encode(content)
