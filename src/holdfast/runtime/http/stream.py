"""One request whose answer is read piece by piece, under three timeouts.

For requests that only read: nothing here is an effect, so nothing is marked or counted, and a
failure says only where it happened. What holds at all times:

- One request, one connection; no retry, no redirect, no pool, no proxy.
- Three limits of time: until connected, between two pieces of the answer (the first one
  included), and over all of it. Two of size: the answer's bytes, and what may wait unread in
  memory; beyond that the far end is not read from until the reader has caught up.
- The end is told apart from a cut: `pieces` ends only after the answer's own end, and raises in
  every other case. `StreamFailed.begun` says whether the answer's head had come.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import cast

import h11

from holdfast.runtime.http.connection import close, connect
from holdfast.runtime.http.exchange import INFORMATIONAL_MAX, ProtocolError, read_headers
from holdfast.runtime.http.message import Message

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


class StreamedAnswer:
    """An answer whose head is there. Header names are lower case."""

    def __init__(self, pipe: _Pipe, *, status: int, headers: Mapping[str, str], timeouts: Timeouts) -> None:
        self.status = status
        self.headers = headers
        self._pipe = pipe
        self._timeouts = timeouts

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; ends after its last byte. Raises StreamFailed."""
        while (piece := await self._pipe.next_piece(self._timeouts.between_bytes_s)) is not None:
            yield piece

    async def read(self) -> bytes:
        """The whole body. Raises StreamFailed."""
        return b"".join([piece async for piece in self.pieces()])


@contextlib.asynccontextmanager
async def open_stream(
    message: Message, *, timeouts: Timeouts, body_bytes_max: int, ssl_context: ssl.SSLContext | None = None
) -> AsyncGenerator[StreamedAnswer]:
    """Send the request and yield the answer's head; leaving closes the connection.

    Raises:
        StreamFailed: `begun` is False where no head came, so nothing of a reply was seen.
    """
    pipe: _Pipe | None = None
    transport: asyncio.Transport | None = None
    where = f"{message.method} {message.target.shown}"
    handed_over = False  # from then on errors of other kinds are the reader's own
    whole_time = asyncio.timeout(timeouts.total_s)
    try:
        async with whole_time:
            try:
                async with asyncio.timeout(timeouts.connect_s):
                    transport, pipe = await connect(
                        message.target,
                        lambda: _Pipe(message.parser, body_bytes_max=body_bytes_max),
                        ssl_context=ssl_context,
                    )
            except TimeoutError:
                if whole_time.expired():
                    raise
                raise StreamFailed(f"{where}: no connection within {timeouts.connect_s:g} s", begun=False) from None
            pipe.ask(message.raw)
            head = await pipe.get_head(timeouts.between_bytes_s)
            handed_over = True
            yield StreamedAnswer(pipe, status=head.status_code, headers=read_headers(head), timeouts=timeouts)
    except TimeoutError:
        if not whole_time.expired():
            raise
        raise StreamFailed(f"{where}: no whole answer within {timeouts.total_s:g} s", begun=_begun(pipe)) from None
    except StreamTooLong as error:
        raise StreamTooLong(f"{where}: {error}", begun=True) from None
    except StreamFailed as error:
        raise StreamFailed(_placed(where, error), begun=error.begun) from error.__cause__
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


def _placed(where: str, error: StreamFailed) -> str:
    text = str(error)
    return text if text.startswith(where) else f"{where}: {text}"


class _Pipe(asyncio.Protocol):
    """Bytes in, head and pieces out; pauses the far end when too much waits unread."""

    def __init__(self, parser: h11.Connection, *, body_bytes_max: int) -> None:
        self.head: h11.Response | None = None
        self.ended = False
        self._parser = parser
        self._body_bytes_max = body_bytes_max
        self._body_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._paused = False
        self._failed: StreamFailed | None = None
        self._news = asyncio.Event()
        self._asked = False
        self._informational = 0
        self._transport: asyncio.Transport | None = None

    def ask(self, raw: bytes) -> None:
        if self._failed is not None:
            raise self._failed
        self._asked = True
        assert self._transport is not None
        self._transport.write(raw)

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
            assert self._transport is not None
            self._transport.resume_reading()
        return piece

    async def _wait_news(self, wait_s: float) -> None:
        if self._failed is not None:
            raise self._failed
        self._news.clear()
        # Not asyncio.timeout: the one over all must not be taken for this one.
        if not await _happens(self._news, wait_s):
            raise StreamFailed(f"no byte for {wait_s:g} s", begun=self.head is not None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self._fail("the far end spoke before it was asked")
        else:
            self._take(data)

    def eof_received(self) -> bool:
        if self._asked:
            self._take(b"")  # ends a body that is delimited by the close, or is an error
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the connection was closed before a whole answer came")

    def _take(self, data: bytes) -> None:
        if self.ended or self._failed is not None:
            return
        try:
            self._parser.receive_data(data)
            while self._parse_one():
                pass
        except (h11.RemoteProtocolError, ProtocolError) as error:
            closed = "the connection was closed before a whole answer came"
            self._fail(f"not a proper HTTP answer: {error}" if data else closed)
        self._news.set()

    def _parse_one(self) -> bool:
        match self._parser.next_event():
            case h11.InformationalResponse(status_code=status):
                self._informational += 1
                if status == 101 or self._informational > INFORMATIONAL_MAX:
                    raise ProtocolError(f"unexpected {status}")
            case h11.Response() as head:
                self.head = head
            case h11.Data(data=data):
                return self._keep(bytes(data))
            case h11.EndOfMessage():
                self.ended = True
                return False
            case h11.ConnectionClosed():
                raise ProtocolError("closed without an answer")
            case _:
                return False
        return True

    def _keep(self, piece: bytes) -> bool:
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_bytes_max:
            self._failed = StreamTooLong(f"body over {self._body_bytes_max:,} bytes", begun=True)
            return False
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if not self._paused and self._waiting_bytes > UNREAD_BYTES_MAX:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        return True

    def _fail(self, text: str) -> None:
        if not self.ended and self._failed is None:
            self._failed = StreamFailed(text, begun=self.head is not None)
        self._news.set()


async def _happens(news: asyncio.Event, wait_s: float) -> bool:
    waiting = asyncio.ensure_future(news.wait())
    try:
        done, _ = await asyncio.wait((waiting,), timeout=wait_s)
        return bool(done)
    finally:
        waiting.cancel()
