"""Connections to one relay that are kept open, and the calls about mail.

As with a single request (`relay_link.py`), an answer counts only if the relay's pinned key signed it for this very
request. A kept connection that the relay has closed meanwhile is replaced once: every call may be repeated.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import h11
import msgspec

from holdfast.core.decoding import decode_json, msgpack_decoder
from holdfast.errors import BadRecord, HoldfastError, RelayBusy, RelayRefused, RelayUnreachable, RelayUntrusted
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, PublicKey, parse_key
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.statements.certificate import Certificate
from holdfast.identity.witness.relay_link import CHUNK, RefusalContent, RelayAsker, receive_answer, why_of
from holdfast.identity.witness.witness_relay import join_lines
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.protocol.calls import (
    FENCED,
    NO_SESSION,
    SECOND_INSTANCE,
    TOKEN_HEADER,
    Ack,
    AckAnswer,
    Login,
    LoginAnswer,
    MailAnswer,
    StoredAnswer,
)

CONNECT_S = 1.5
ANSWER_S = 2.0
# After a restart of the relay all of its agents log in, and wait for mail: one that gives up and asks again makes it
# worse.
LOGIN_S = 6.0
IDLE_MAX = 4
ANSWER_BYTES_MAX = 4 * 1024 * 1024
_PLAIN = re.compile(
    rb"HTTP/1\.1 (200|[45]\d\d) [A-Za-z -]{0,64}\r\n"
    rb"cache-control: no-store\r\ncontent-length: (\d{1,7})\r\ncontent-type: application/octet-stream\r\n\r\n"
)
_SERVER_ERRORS = range(HTTPStatus.INTERNAL_SERVER_ERROR, 1_000)
_WAITS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE)

T = TypeVar("T")


class SessionOver(RelayRefused):
    """Log in again."""


class FencedByRelay(RelayRefused):
    """Other keys, or a newer incarnation, speak for the agent; `proof` is a certificate, or empty: the log shows it."""

    proof: bytes = b""


class ReplacedHere(RelayRefused):
    """Another instance of this incarnation gets the mail at this relay; `proof` is its certificate."""

    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Answered:
    """What the relay signed: `raw` as a whole is evidence."""

    content: bytes
    raw: bytes
    target: str
    nonce: str


@dataclass(frozen=True, slots=True)
class _Kept:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class RelayChannel(RelayAsker):
    """All calls raise RelayUnreachable, RelayUntrusted, RelayBusy, RelayRefused."""

    address: WitnessRelay
    port: Signatures
    _idle: list[_Kept] = field(default_factory=list[_Kept])
    _closed: bool = False  # a call that is under way ends, and its connection with it

    @property
    def key(self) -> PublicKey:
        return parse_key(self.address.key)

    async def submit(
        self, to: AgentId, envelopes: Sequence[bytes], *, first_byte: Callable[[], None] = lambda: None
    ) -> tuple[StoredAnswer, Answered]:
        body = msgspec.msgpack.encode(envelopes)
        answered = await self.call("POST", f"/v1/mail/{to}", body, first_byte=first_byte)
        answer = self._read(answered, StoredAnswer)
        if answer.to != to or len(answer.items) != len(envelopes):
            raise RelayUntrusted(f"{self.address.url}: it answers for another mailbox, or not for every envelope")
        return answer, answered

    async def introduce(self, id: AgentId, lines: Sequence[bytes]) -> None:
        await self.call("POST", f"/v1/senders/{id}", join_lines(lines))

    async def login(self, certificate: Signed[Certificate], signer: Signer) -> tuple[LoginAnswer, Answered]:
        crt = certificate.record
        nonce = (await self.call("GET", f"/v1/mailbox/{crt.id}/nonce", answer_s=LOGIN_S)).content.decode(
            "ascii", "replace"
        )
        login = Login(id=crt.id, g=crt.g, s=crt.s, wit=self.key, nonce=nonce, crt=certificate.digest)
        try:
            lines = (sealed(login, Family.LOGIN, (signer,)).line(), certificate.line())
        except BadRecord as error:
            raise RelayUntrusted(f"{self.address.url}: its nonce cannot be used: {error.message}") from None
        answered = await self.call("POST", f"/v1/mailbox/{crt.id}/login", join_lines(lines), answer_s=LOGIN_S)
        return self._read(answered, LoginAnswer), answered

    async def take(
        self, id: AgentId, token: str, *, after: int, wait_s: int, nonce: str = ""
    ) -> tuple[MailAnswer, Answered]:
        target = f"/v1/mailbox/{id}?after={after}&wait={wait_s}"
        slack_s = LOGIN_S if wait_s else ANSWER_S
        answered = await self.call("GET", target, token=token, answer_s=slack_s + wait_s, nonce=nonce)
        try:
            return msgpack_decoder(MailAnswer).decode(answered.content), answered
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RelayUntrusted(f"{self.address.url}: its answer cannot be read: {error}") from None

    async def acknowledge(self, id: AgentId, token: str, ack: Ack) -> AckAnswer:
        body = msgspec.json.encode(ack)
        return self._read(await self.call("POST", f"/v1/mailbox/{id}/ack", body, token=token), AckAnswer)

    async def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        token: str = "",
        answer_s: float = ANSWER_S,
        nonce: str = "",
        first_byte: Callable[[], None] = lambda: None,
    ) -> Answered:
        nonce = nonce or base64.urlsafe_b64encode(secrets.token_bytes(18)).decode()
        try:
            headers = [*self._headers(nonce, body), *([(TOKEN_HEADER, token)] if token else ())]
            request = h11.Request(method=method, target=target, headers=headers)
            async with asyncio.timeout(CONNECT_S + answer_s):
                status, raw = await self._exchange(request, body, first_byte)
        except TimeoutError:
            raise RelayUnreachable(f"{self.address.url} gave no whole answer within {answer_s:g} s") from None
        except (OSError, h11.ProtocolError, ValueError) as error:  # ValueError: a profile may name no url
            raise RelayUnreachable(f"{self.address.url}: {why_of(error)}") from error
        content = self._signed((method, target, nonce), body, status, raw, proxy=_SERVER_ERRORS)
        if status == HTTPStatus.OK:
            return Answered(content, raw, target, nonce)
        raise self._error(status, self._refusal(content))

    async def close(self) -> None:
        self._closed = True
        for one in self._idle:
            one.writer.transport.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes them

    def _error(self, status: int, said: RefusalContent) -> HoldfastError:
        text = f"{self.address.url}: {said.message}"
        if said.code in (FENCED, SECOND_INSTANCE):
            proven = (FencedByRelay if said.code == FENCED else ReplacedHere)(text)
            proven.proof = said.proof.encode()
            return proven
        if said.code == NO_SESSION:
            return SessionOver(text)
        return RelayBusy(text) if status in _WAITS else RelayRefused(text)

    def _read(self, answered: Answered, kind: type[T]) -> T:
        try:
            answered.raw.decode()  # it is kept and shown as text
            return decode_json(answered.content, kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RelayUntrusted(f"{self.address.url}: its answer cannot be read: {error}") from None

    async def _exchange(self, request: h11.Request, body: bytes, first_byte: Callable[[], None]) -> tuple[int, bytes]:
        while self._idle:
            try:
                return await self._on(self._idle.pop(), request, body, first_byte)
            except (OSError, h11.ProtocolError):
                continue  # closed while it was idle
        kept = _Kept(*await self._connected(CONNECT_S))
        return await self._on(kept, request, body, first_byte)

    async def _on(
        self, kept: _Kept, request: h11.Request, body: bytes, first_byte: Callable[[], None]
    ) -> tuple[int, bytes]:
        may_keep, state = False, h11.Connection(h11.CLIENT)
        try:
            raw = b"".join(state.send(one) or b"" for one in (request, h11.Data(body), h11.EndOfMessage()))
            first_byte()
            kept.writer.write(raw)
            await kept.writer.drain()
            raw = await kept.reader.read(CHUNK)
            found = _plain_answer(raw)
            if found is None:
                found = await receive_answer(state, kept.reader, bytes_max=ANSWER_BYTES_MAX, begun=raw)
            is_over = state.their_state in (h11.SEND_RESPONSE, h11.DONE) and not state.trailing_data[0]
            may_keep = is_over and len(self._idle) < IDLE_MAX and not self._closed
        finally:
            if may_keep:
                self._idle.append(kept)
            else:
                kept.writer.transport.abort()
        return found


def _plain_answer(raw: bytes) -> tuple[int, bytes] | None:
    """Status and body, if these bytes are a whole answer in the form in which relays write theirs: to read it costs a
    tenth of what an answer of any form costs. Nothing is believed here: the relay's signature is checked later."""
    head = _PLAIN.match(raw)
    if head is None or len(raw) != head.end() + int(head[2]):
        return None
    return int(head[1]), raw[head.end() :]
