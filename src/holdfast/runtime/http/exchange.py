"""The receiving half of one exchange: bytes in; one whole answer, a streamed one, or one error out.

A protocol of its own instead of asyncio's stream reader, because that one throws away bytes already received when the
connection is then reset, and so would lose an answer that came.

From the connect on the socket lingers for zero seconds, so that the kernel throws away the bytes of an exchange that is
given up; only after a whole answer is the close an orderly one.

A streamed answer (`StreamedAnswer`) is for requests that only read: nothing there is an effect, so nothing is marked or
counted, and a failure says only where it happened. What holds for it at all times:

- One request, one connection; no retry, no redirect, no pool, no proxy.
- Three limits of time: until connected, between two pieces of the answer (the first one included), and over all of it.
  Two of size: the answer's bytes, and what may wait unread in memory; beyond that the far end is not read from until
  the reader has caught up.
- The end is not a cut: `pieces` ends only after the answer's own end, and raises in every other case.
  `StreamFailed.begun` says whether the answer's head had come.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import h11

from holdfast.runtime.http.message import Destination, Message, Response

RESPONSE_BODY_BYTES_MAX = 32 * 1024 * 1024
CLOSED_EARLY = "the connection was closed before the answer was complete"
INFORMATIONAL_MAX = 16  # more 1xx answers than this is a far end that never comes to the point


class ProtocolError(Exception):
    """The answer is not HTTP/1.1, or more than the limits allow."""


class Receiver(asyncio.Protocol, ABC):
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
            self.fail(ProtocolError("the far end sent data before it got a request"))
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
                raise ProtocolError("the far end closed the connection without an answer")
            case _:
                return False
        return True

    @abstractmethod
    def is_over(self) -> bool: ...  # whether the answer is whole, or has failed

    @abstractmethod
    def take_body(self, piece: bytes) -> None: ...

    @abstractmethod
    def end(self) -> None: ...  # the answer is whole

    @abstractmethod
    def fail(self, error: Exception) -> None: ...


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
            raise ProtocolError(f"the answer's body has more than {self._body_bytes_max:,} bytes")

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


UNREAD_BYTES_MAX = 256 * 1024


class StreamFailed(Exception):
    """No whole answer. `begun` is True once its head had come."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class StreamTooLong(StreamFailed):
    """The answer has more bytes than were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect_s: float = 10.0
    between_bytes_s: float = 180.0  # a model may think for minutes before its first byte
    total_s: float = 900.0


@dataclass(slots=True, kw_only=True)
class StreamedAnswer:
    """An answer whose head is there. Header names are lower case."""

    pipe: _Pipe
    status: int
    headers: Mapping[str, str]
    timeouts: Timeouts

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; ends after its last byte. Raises StreamFailed."""
        while (piece := await self.pipe.next_piece(self.timeouts.between_bytes_s)) is not None:
            yield piece

    async def read(self) -> bytes:
        """The whole body. Raises StreamFailed."""
        return b"".join([piece async for piece in self.pieces()])


@contextlib.asynccontextmanager
async def open_stream(
    message: Message, *, timeouts: Timeouts, body_bytes_max: int, ssl_context: ssl.SSLContext | None = None
) -> AsyncGenerator[StreamedAnswer]:
    """Send the request and yield the answer's head; leaving closes the connection. Raises StreamFailed: `begun` is
    False where no head came, so nothing of a reply was seen."""
    pipe: _Pipe | None = None
    transport: asyncio.Transport | None = None
    where = f"{message.method} {message.target.shown}"
    handed_over = False  # from then on errors of other kinds are the reader's own
    whole_time = asyncio.timeout(timeouts.total_s)
    try:
        async with whole_time:
            try:
                async with asyncio.timeout(timeouts.connect_s):
                    made = functools.partial(_Pipe, message.parser, body_bytes_max=body_bytes_max)
                    transport, pipe = await connect(message.target, made, ssl_context=ssl_context)
            except TimeoutError:
                if whole_time.expired():
                    raise
                raise StreamFailed(f"{where}: no connection within {timeouts.connect_s:g} s", begun=False) from None
            pipe.ask(message.raw)
            head = await pipe.get_head(timeouts.between_bytes_s)
            handed_over = True
            yield StreamedAnswer(pipe=pipe, status=head.status_code, headers=read_headers(head), timeouts=timeouts)
    except TimeoutError:
        if not whole_time.expired():
            raise
        raise StreamFailed(f"{where}: no complete answer within {timeouts.total_s:g} s", begun=_begun(pipe)) from None
    except StreamTooLong as error:
        raise StreamTooLong(f"{where}: {error}", begun=True) from None
    except StreamFailed as error:
        text = str(error)
        placed = text if text.startswith(where) else f"{where}: {text}"
        raise StreamFailed(placed, begun=error.begun) from error.__cause__
    except (OSError, UnicodeError) as error:
        if handed_over:
            raise
        text = str(error) or type(error).__name__
        raise StreamFailed(f"{where}: {text}", begun=_begun(pipe)) from error
    finally:
        if transport is not None:
            close(transport, whole=pipe is not None and pipe.ended)


def _begun(pipe: _Pipe | None) -> bool:
    return pipe is not None and pipe.head is not None


class _Pipe(Receiver):
    """Bytes in, head and pieces out; pauses the far end when too much waits unread."""

    def __init__(self, parser: h11.Connection, *, body_bytes_max: int) -> None:
        super().__init__(parser, body_bytes_max=body_bytes_max)
        self.ended = False
        self._body_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._paused = False
        self._failed: StreamFailed | None = None
        self._news = asyncio.Event()

    def ask(self, raw: bytes) -> None:
        if self._failed is not None:
            raise self._failed
        super().ask(raw)

    async def get_head(self, wait_s: float) -> h11.Response:
        while self.head is None:
            await self._wait_news(wait_s)
        return self.head

    async def next_piece(self, wait_s: float) -> bytes | None:
        """The next piece, or None after the last. What came before a failure is given first."""
        while not self._waiting:
            if self.ended:
                return None
            await self._wait_news(wait_s)
        piece = self._waiting.popleft()
        self._waiting_bytes -= len(piece)
        if self._paused and self._waiting_bytes <= UNREAD_BYTES_MAX // 2:
            self._paused = False
            self.transport.resume_reading()
        return piece

    async def _wait_news(self, wait_s: float) -> None:
        if self._failed is not None:
            raise self._failed
        self._news.clear()
        # Not asyncio.timeout: the one over all must not be taken for this one.
        if not await _happens(self._news, wait_s):
            raise StreamFailed(f"the far end sent no byte for {wait_s:g} s", begun=self.head is not None)

    def _take(self, data: bytes) -> None:
        super()._take(data)
        self._news.set()

    def is_over(self) -> bool:
        return self.ended or self._failed is not None

    def take_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_bytes_max:
            self._failed = StreamTooLong(f"the answer's body has more than {self._body_bytes_max:,} bytes", begun=True)
            return
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if not self._paused and self._waiting_bytes > UNREAD_BYTES_MAX:
            self._paused = True
            self.transport.pause_reading()

    def end(self) -> None:
        self.ended = True

    def fail(self, error: Exception) -> None:
        if not self.is_over():
            self._failed = StreamFailed(str(error), begun=self.head is not None)
        self._news.set()


async def _happens(news: asyncio.Event, wait_s: float) -> bool:
    waiting = asyncio.ensure_future(news.wait())
    try:
        done, _ = await asyncio.wait((waiting,), timeout=wait_s)
        return bool(done)
    finally:
        waiting.cancel()
