"""One request to a relay, and its signed answer: the channel may fail, and cannot lie.

A connection for each request: a witness is asked a few times a minute. The whole exchange has one deadline, because a
server that sends a byte now and then would otherwise hold its asker for ever. Nothing is tried again here: the callers
do, and every call of a relay may be repeated.

Three outcomes: content that the pinned key has signed for this very request; a refusal that it has signed; or an error
that says whether nothing came (RelayUnreachable) or something that is not the relay's word (RelayUntrusted). A proxy's
own error page is the former: it says nothing about the relay's key.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BadRecord,
    HoldfastError,
    RelayBusy,
    RelayNotAdmitted,
    RelayRefused,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.host.public_names import find_public_addresses
from holdfast.host.version import find_version
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, parse_agent_id, parse_key
from holdfast.identity.records.signed import Reason, Refusal, open_line
from holdfast.identity.statements.relay_answer import INVITE_HEADER, NONCE_HEADER, digest_of_request, read_answer
from holdfast.layout.witness_address import WitnessRelay

CONNECT_S = 3.0
ANSWER_S = 10.0  # of the whole exchange
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # the longest log with its receipts
LOOKUP_MAX = 16  # digests in one question, and agents in one answer
CHUNK = 65_536
_PROXY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
_WAITS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE)

_LIES = "ask other relays; if it is a relay of your agent, replace it"

_REASONS = frozenset(map(str, Reason))

T = TypeVar("T")


class RefusalContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of every answer that is a refusal."""

    code: str
    message: str
    wait_s: int = 0
    proof: str = ""  # a signed line that shows why


class RelayDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay says of itself; its key is the one that signed it."""

    name: str  # of handles: ada@NAME
    url: str
    registration: str  # invite or open
    version: str
    protocol: int
    record_bytes_max: int
    heads: bool = True
    region: str = ""  # where it runs, as its operator says


class RelayAsker:
    """What every way to ask a relay shares."""

    address: WitnessRelay
    port: Signatures

    @property
    def key(self) -> PublicKey:
        return PublicKey(self.address.key)

    def _headers(self, nonce: str, body: bytes) -> list[tuple[str, str]]:
        return [
            ("host", urlsplit(self.address.url).netloc),
            (NONCE_HEADER, nonce),
            ("content-length", str(len(body))),
            ("user-agent", f"holdfast/{find_version()}"),
        ]

    async def _connected(self, within_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            parts = urlsplit(self.address.url)
            secure = parts.scheme == "https"
            host, port = parts.hostname or "", parts.port or (443 if secure else 80)
            async with asyncio.timeout(within_s):
                hosts = await find_public_addresses(host) if self.address.public_only else [host]
                return await _open_first(hosts, port, name=host if secure else None)
        except OSError:  # a certificate that is not valid is a ValueError too
            raise
        except ValueError as error:  # of urlsplit, or a name that cannot be asked for
            raise RelayUnreachable(f"{self.address.url} cannot be asked: {error}") from error

    def _signed(
        self, ask: tuple[str, str, str], body: bytes, status: int, raw: bytes, *, proxy: Container[int]
    ) -> bytes:
        """The content, if the relay's key signed it for this method, target and nonce; `proxy`: an answer with such a
        status that it did not sign says nothing about the relay."""
        read = (body,) if status == HTTPStatus.OK else (body, b"")  # a refusal may come before the body was read
        asks = {digest_of_request(*ask, one) for one in read}
        try:
            return read_answer(raw, asks=asks, status=status, key=self.key, port=self.port)
        except BadRecord as error:
            if status in proxy:
                raise RelayUnreachable(f"{self.address.url} answers {status}, and the relay did not sign it") from error
            raise RelayUntrusted(f"{self.address.url} (HTTP {status}): {error.message}") from error

    def _refusal(self, content: bytes) -> RefusalContent:
        try:
            return decode_json(content, RefusalContent)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RelayUntrusted(f"{self.address.url}: its refusal cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class RelayLink(RelayAsker):
    """The calls of one relay. All raise RelayUnreachable, RelayUntrusted, RelayBusy, RelayRefused; those that find
    lines of an agent also BadRecord."""

    address: WitnessRelay
    port: Signatures

    async def describe(self) -> RelayDescription:
        content = await self._taken("GET", "/v1/relay")
        try:
            return decode_json(content, RelayDescription)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RelayUntrusted(f"{self.address.url}: its description cannot be read: {error}") from None

    async def submit_record(self, id: AgentId, lines: bytes) -> bytes | Refusal:
        """The relay's receipt, or why it gives none."""
        return await self._asked("POST", f"/v1/log/{id}", lines)

    async def find_log(self, id: AgentId) -> bytes | None:
        return await self._found(f"/v1/log/{id}")

    async def find_agents(self, digests: tuple[Digest, ...]) -> tuple[AgentId, ...]:
        """The agents whose logs commit to one of these recovery keys, the first registered first."""
        content = await self._taken("GET", f"/v1/log?recovery={','.join(digests[:LOOKUP_MAX])}")
        try:
            return tuple(parse_agent_id(line.decode()) for line in content.splitlines()[:LOOKUP_MAX])
        except (BadRecord, UnicodeDecodeError) as error:
            raise RelayUntrusted(f"{self.address.url}: its list of agents cannot be read: {error}") from None

    async def put_profile(self, id: AgentId, line: bytes) -> bytes | Refusal:
        """The profile that counts at the relay from now on."""
        return await self._asked("PUT", f"/v1/agents/{id}", line)

    async def find_profile(self, id: AgentId) -> bytes | None:
        return await self._found_of(id, f"/v1/agents/{id}")

    async def find_evidence(self, id: AgentId) -> tuple[bytes, ...]:
        """Profiles and heads of one rank that contradict each other, as the relay has kept them."""
        content = await self._found_of(id, f"/v1/agents/{id}/evidence")
        return () if content is None else tuple(content.splitlines())

    async def find_handle(self, name: str) -> bytes | None:
        """The newest profile of the agent that has this handle here; also after it has moved away."""
        return await self._found(f"/v1/handles/{name}")

    async def put_head(self, id: AgentId, line: bytes) -> bytes | Refusal:
        """The head that counts at the relay from now on."""
        return await self._asked("PUT", f"/v1/heads/{id}", line)

    async def find_head(self, id: AgentId) -> bytes | None:
        return await self._found_of(id, f"/v1/heads/{id}")

    async def _found_of(self, id: AgentId, target: str) -> bytes | None:
        """Lines about this agent. Those of another agent prove themselves too, so no signature shows that the relay
        lies."""
        content = await self._found(target)
        for line in () if content is None else content.splitlines():
            if (other := open_line(line)[0].any("id")) != id:
                raise RelayUntrusted(f"{self.address.url}: it was asked for {id}, and answered for {other}", hint=_LIES)
        return content

    async def _found(self, target: str) -> bytes | None:
        status, content = await self._exchange("GET", target, b"")
        if status == HTTPStatus.NOT_FOUND:
            return None
        return content if status == HTTPStatus.OK else self._raise(status, content)

    async def _taken(self, method: str, target: str, body: bytes = b"") -> bytes:
        status, content = await self._exchange(method, target, body)
        return content if status == HTTPStatus.OK else self._raise(status, content)

    async def _asked(self, method: str, target: str, body: bytes) -> bytes | Refusal:
        """A refusal that says something about the record is an answer, not an error."""
        status, content = await self._exchange(method, target, body)
        if status == HTTPStatus.OK:
            return content
        if status in (HTTPStatus.CONFLICT, HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
            said = self._refusal(content)
            if said.code in _REASONS:
                return Refusal(Reason(said.code), said.message)
        return self._raise(status, content)

    def _raise(self, status: int, content: bytes) -> NoReturn:
        said = self._refusal(content)
        text = f"{self.address.url}: {said.message}"
        if status in _WAITS:
            raise RelayBusy(f"{text}; wait {said.wait_s} s" if said.wait_s else text)
        raise (RelayNotAdmitted if status == HTTPStatus.FORBIDDEN else RelayRefused)(text)

    async def _exchange(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Status and content, both signed by the relay."""
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(18)).decode()
        try:
            async with asyncio.timeout(ANSWER_S):
                status, raw = await self._sent(method, target, nonce, body)
        except TimeoutError:
            raise RelayUnreachable(f"{self.address.url} gave no whole answer within {ANSWER_S:g} s") from None
        # ssl.SSLError is an OSError; ValueError: what another agent's profile names need not be a url
        except (OSError, h11.ProtocolError, asyncio.IncompleteReadError, ValueError) as error:
            raise RelayUnreachable(f"{self.address.url}: {why_of(error)}") from error
        return status, self._signed((method, target, nonce), body, status, raw, proxy=_PROXY)

    async def _sent(self, method: str, target: str, nonce: str, body: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connected(CONNECT_S)
        try:
            headers = [*self._headers(nonce, body), ("connection", "close")]
            if self.address.invite:
                headers.append((INVITE_HEADER, self.address.invite))
            connection = h11.Connection(h11.CLIENT)
            for event in (h11.Request(method=method, target=target, headers=headers), h11.Data(body)):
                writer.write(connection.send(event) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            with contextlib.suppress(ConnectionError):  # it may have answered, and closed, before it had read all
                await writer.drain()
            return await receive_answer(connection, reader, bytes_max=ANSWER_BYTES_MAX)
        finally:
            writer.transport.abort()  # nothing more is read or written; a close handshake could take for ever


async def _open_first(
    hosts: Sequence[str], port: int, *, name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first host that takes one; with TLS where there is a name for it."""
    failed = OSError("it has an address of this machine or of a private network, and a stranger named it")
    for host in hosts:
        try:
            tls = None if name is None else ssl.create_default_context()
            return await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
        except OSError as error:
            failed = error
    raise failed


def why_of(error: Exception) -> str:
    """Why a connection failed, in words for people: the text of asyncio and ssl names Python's tuples and C files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS failed: {error.reason.lower().replace('_', ' ')}"
    if not isinstance(error, OSError):  # its text may be the relay's
        return str(error) or type(error).__name__
    numbers = dict.fromkeys(map(int, re.findall(r"\[Errno (\d+)\]", str(error))))  # of all addresses of a host
    return ", ".join(map(os.strerror, numbers)) or error.strerror or str(error) or type(error).__name__


def with_url(url: str, why: str) -> str:
    """Most errors of a relay begin with its url."""
    return why if why.startswith(url) else f"{url}: {why}"


async def receive_answer(
    connection: h11.Connection, reader: asyncio.StreamReader, *, bytes_max: int, begun: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body; `begun`: what was read of it already. Raises OSError, h11.ProtocolError."""
    status, parts, size = 0, list[bytes](), 0
    while True:
        event = connection.next_event()
        match event:
            case h11.Response():
                status = event.status_code
            case h11.Data():
                size += len(event.data)
                if size > bytes_max:
                    raise OSError(f"the answer has more than {bytes_max:,} bytes")
                parts.append(bytes(event.data))
            case h11.EndOfMessage():
                return status, b"".join(parts)
            case h11.NEED_DATA:
                raw, begun = (await reader.read(CHUNK) if begun is None else begun), None
                if not raw and not connection.trailing_data[0] and not status:
                    raise OSError("the connection was closed before an answer came")
                connection.receive_data(raw)
            case h11.InformationalResponse():
                continue
            case _:
                raise OSError("the connection was closed before the answer was whole")


def open_link(address: WitnessRelay, *, port: Signatures | None = None) -> RelayLink:
    """Nothing is sent yet. Raises BadRecord where the key of the address is none."""
    parse_key(address.key)
    return RelayLink(address, port or Sodium())


async def ask_all(
    addresses: Iterable[WitnessRelay],
    call: Callable[[RelayLink], Awaitable[T]],
    *,
    port: Signatures,
    within_s: float = ANSWER_S,
) -> dict[WitnessRelay, T | HoldfastError | OSError]:
    """What each of these relays answers, asked at the same time; or why one does not."""

    async def ask(address: WitnessRelay) -> T | HoldfastError | OSError:
        try:
            async with asyncio.timeout(within_s):
                return await call(open_link(address, port=port))
        except TimeoutError:
            return RelayUnreachable(f"{address.url} has not answered within {within_s:g} s")
        except (HoldfastError, OSError) as error:
            return error

    asked = tuple(addresses)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
