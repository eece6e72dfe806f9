"""One request whose answer is read piece by piece, under three timeouts.

For requests that only read: nothing here is an effect, so nothing is marked or counted, and a
failure says only where it happened. What holds at all times:

- One request, one connection; no retry, no redirect, no pool, no proxy.
- Three limits of time: until connected, between two pieces of the answer (the first one
  included), and over all of it. Two of size: the answer's bytes, and what may wait unread in
  memory; beyond that the far end is not read from until the reader has caught up.
- The end is not a cut: `pieces` ends only after the answer's own end, and raises in
  every other case. `StreamFailed.begun` says whether the answer's head had come.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass

import h11

from holdfast.runtime.http.exchange import Receiver, close, connect, read_headers
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
            raise StreamFailed(f"no byte for {wait_s:g} s", begun=self.head is not None)

    def _take(self, data: bytes) -> None:
        super()._take(data)
        self._news.set()

    def is_over(self) -> bool:
        return self.ended or self._failed is not None

    def take_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_bytes_max:
            self._failed = StreamTooLong(f"body over {self._body_bytes_max:,} bytes", begun=True)
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
