"""The receiving half of one exchange: bytes in, one whole answer or one error out.

A protocol of its own instead of asyncio's stream reader, because that one throws away bytes
already received when the connection is then reset, and so would lose an answer that came.

From the connect on the socket lingers for zero seconds, so that the kernel throws away the bytes of an exchange that is
given up; only after a whole answer is the close an orderly one.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TypeVar, cast

import h11

from holdfast.runtime.http.message import Destination, Response

RESPONSE_BODY_BYTES_MAX = 32 * 1024 * 1024
CLOSED_EARLY = "the connection was closed before a whole answer came"
INFORMATIONAL_MAX = 16  # more 1xx answers than this is a far end that never comes to the point


class ProtocolError(Exception):
    """The answer is not HTTP/1.1, or more than the limits allow."""


class Receiver(asyncio.Protocol):
    """Parses the answer of one request; what is made of its parts is the subclass's."""

    def __init__(self, parser: h11.Connection, *, body_bytes_max: int) -> None:
        self.head: h11.Response | None = None
        self._parser = parser
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._asked = False
        self._informational = 0

    def ask(self, raw: bytes) -> None:
        """Hand the whole request to the kernel."""
        self._asked = True
        self.transport.write(raw)

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self.fail(ProtocolError("the far end sent something before it was asked"))
        else:
            self._take(data)

    def eof_received(self) -> bool:
        if self._asked:
            self._take(b"")  # ends a body that is delimited by the close, or is an error
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or ConnectionResetError(CLOSED_EARLY))

    def _take(self, data: bytes) -> None:
        if self.is_over():
            return
        try:
            self._parser.receive_data(data)
            while not self.is_over() and self._parse_one():
                pass
        except (h11.RemoteProtocolError, ProtocolError) as error:
            # An end in the wrong place is plainer in our words than in the parser's.
            self.fail(ProtocolError(f"not a proper HTTP answer: {error}" if data else CLOSED_EARLY))

    def _parse_one(self) -> bool:
        match self._parser.next_event():
            case h11.InformationalResponse(status_code=status):
                self._informational += 1
                if status == 101 or self._informational > INFORMATIONAL_MAX:
                    raise ProtocolError(f"unexpected {status}")
            case h11.Response() as head:
                self.head = head
            case h11.Data(data=data):
                self.take_body(bytes(data))
            case h11.EndOfMessage():
                self.end()
            case h11.ConnectionClosed():
                raise ProtocolError("closed without an answer")
            case _:
                return False
        return True

    # of the subclass

    def is_over(self) -> bool:
        """Whether the answer is whole, or has failed."""
        raise NotImplementedError

    def take_body(self, piece: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """The answer is whole."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError


class Exchange(Receiver):
    """One answer as a whole: `answer` is done with a Response or an error."""

    def __init__(self, parser: h11.Connection, *, body_bytes_max: int) -> None:
        super().__init__(parser, body_bytes_max=body_bytes_max)
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._body = bytearray()

    def is_over(self) -> bool:
        return self.answer.done()

    def take_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._body_bytes_max:
            raise ProtocolError(f"body over {self._body_bytes_max:,} bytes")

    def end(self) -> None:
        assert self.head is not None
        headers = read_headers(self.head)
        self.answer.set_result(Response(status=self.head.status_code, headers=headers, body=bytes(self._body)))

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # seen: an abandoned exchange must not warn


def read_headers(head: h11.Response) -> dict[str, str]:
    """Names in lower case; repeated ones joined by a comma."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


_LINGER_ZERO, _LINGER_OFF = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


async def connect(
    target: Destination, protocol: Callable[[], _Protocol], *, ssl_context: ssl.SSLContext | None
) -> tuple[asyncio.Transport, _Protocol]:
    """Connect to where the URL leads. Raises OSError."""
    context = (ssl_context or _default_ssl_context()) if target.tls else None
    transport, made = await asyncio.get_running_loop().create_connection(
        protocol, target.host, target.port, ssl=context, server_hostname=target.host if target.tls else None
    )
    _linger(transport, _LINGER_ZERO)
    return transport, made


def close(transport: asyncio.Transport, *, whole: bool) -> None:
    """After a whole exchange an orderly close; otherwise nothing unsent may still go out."""
    if whole and not transport.get_write_buffer_size():
        _linger(transport, _LINGER_OFF)
        transport.close()
    else:
        transport.abort()


@functools.cache
def _default_ssl_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _linger(transport: asyncio.Transport, option: bytes) -> None:
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None and not transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
