"""An answer read piece by piece: its end, its cuts, and the limits of time and size."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.runtime.http import exchange as http_stream
from holdfast.runtime.http.exchange import StreamFailed, StreamTooLong, Timeouts, open_stream
from holdfast.runtime.http.message import Message, build
from holdfast_proofs.support.tls import make_tls

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FAST = Timeouts(connect_s=5, between_bytes_s=10, total_s=20)


@contextlib.asynccontextmanager
async def far_end(talk: Talk, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def sends(*pieces: bytes) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return talk


def get(url: str) -> Message:
    return build("GET", url, params=None, json=None, body=None, headers=None, own_headers={})


async def read(url: str, *, timeouts: Timeouts = FAST, limit: int = 1000) -> bytes:
    async with open_stream(get(url), timeouts=timeouts, body_bytes_max=limit) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_pieces_come_one_by_one_and_end_with_the_answer() -> None:
    go_on = asyncio.Event()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"2\r\nab\r\n")
        await go_on.wait()
        writer.write(b"1\r\nc\r\n0\r\n\r\n")

    async with far_end(talk) as url, open_stream(get(url), timeouts=FAST, body_bytes_max=10) as answer:
        pieces = answer.pieces()
        assert await anext(pieces) == b"ab"  # while the far end has not said the rest
        go_on.set()
        assert [piece async for piece in pieces] == [b"c"]


@pytest.mark.parametrize(
    ("sent", "begun"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\nContent-Le", False),
        (b"\xff\xfe no http\r\n\r\n", False),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", False),
        (CHUNKED, True),
        (CHUNKED + b"2\r\nab\r\n", True),
        (CHUNKED + b"2\r\na", True),
        (CHUNKED + b"zz\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", True),
    ],
)
async def test_a_cut_is_told_from_an_end_and_says_whether_it_had_begun(sent: bytes, begun: bool) -> None:
    async with far_end(sends(sent)) as url:
        with pytest.raises(StreamFailed) as raised:
            await read(url)
    assert raised.value.begun is begun
    assert "127.0.0.1" in str(raised.value)


async def test_what_came_before_a_cut_is_still_given() -> None:
    async with (
        far_end(sends(CHUNKED + b"2\r\nab\r\n")) as url,
        open_stream(get(url), timeouts=FAST, body_bytes_max=10) as answer,
    ):
        pieces = answer.pieces()
        assert await anext(pieces) == b"ab"
        with pytest.raises(StreamFailed):
            await anext(pieces)


async def test_a_body_that_the_close_ends_is_whole() -> None:
    async with far_end(sends(b"HTTP/1.1 200 OK\r\n\r\nabc")) as url:
        assert await read(url) == b"abc"


async def test_too_many_bytes() -> None:
    async with far_end(sends(CHUNKED, b"8\r\nabcdefgh\r\n" * 3)) as url:
        with pytest.raises(StreamTooLong):
            await read(url, limit=20)


async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED + b"1\r\na\r\n")
    await asyncio.Event().wait()


async def mute(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED)
    while True:
        writer.write(b"1\r\na\r\n")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("talk", "timeouts", "words", "begun"),
    [
        (hold, Timeouts(between_bytes_s=0.1, total_s=2), "no byte for 0.1 s", True),
        (mute, Timeouts(between_bytes_s=0.1, total_s=2), "no byte for 0.1 s", False),
        (mute, Timeouts(total_s=0.1), "no complete answer within 0.1 s", False),
        (trickle, Timeouts(between_bytes_s=5, total_s=0.3), "no complete answer", True),
    ],
)
async def test_timeouts(talk: Talk, timeouts: Timeouts, words: str, begun: bool) -> None:
    async with far_end(talk) as url:
        with pytest.raises(StreamFailed, match=words) as raised:
            await read(url, timeouts=timeouts, limit=10**6)
    assert raised.value.begun is begun


async def test_no_connection_in_time() -> None:
    """A listener whose queue is full answers no further connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
        with pytest.raises(StreamFailed, match=r"no connection within 0.2 s") as raised:
            await read(f"http://127.0.0.1:{port}/", timeouts=Timeouts(connect_s=0.2))
        assert raised.value.begun is False
        for one in full:
            one.close()


async def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with pytest.raises(StreamFailed) as raised:
        await read(f"http://127.0.0.1:{port}/")
    assert raised.value.begun is False


async def test_errors_of_the_reader_are_its_own() -> None:
    async with far_end(sends(CHUNKED, b"1\r\na\r\n0\r\n\r\n")) as url:
        for error in (TimeoutError("mine"), OSError("mine"), ValueError("mine")):
            with pytest.raises(type(error), match="mine"):
                async with open_stream(get(url), timeouts=FAST, body_bytes_max=10):
                    raise error


async def test_a_slow_reader_is_not_drowned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits unread stays near the limit while the far end has megabytes to say."""
    monkeypatch.setattr(http_stream, "UNREAD_BYTES_MAX", 64 * 1024)
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    worst = 0
    total = 0
    async with (
        far_end(sends(CHUNKED, *[piece] * 100, b"0\r\n\r\n")) as url,
        open_stream(get(url), timeouts=FAST, body_bytes_max=10**8) as answer,
    ):
        async for got in answer.pieces():
            total += len(got)
            if total < 10**6:
                await asyncio.sleep(0.01)
            worst = max(worst, answer.pipe._waiting_bytes)
    assert total == 6_553_600
    assert worst < 1_000_000


# TLS, as every real endpoint has it.


async def test_tls_streams_and_cuts_and_an_untrusted_far_end_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_stream, "UNREAD_BYTES_MAX", 64 * 1024)
    server, trusting = make_tls(tmp_path)
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    heard: list[bool] = []

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(True)
        writer.write(CHUNKED + piece * 30 + (b"0\r\n\r\n" if len(heard) == 1 else b""))
        await writer.drain()

    async with far_end(talk, tls=server) as url:
        with pytest.raises(StreamFailed, match="certificate"):
            await read(url)
        assert heard == []
        for whole in (True, False):
            total = 0
            with contextlib.ExitStack() as expected:
                if not whole:
                    expected.enter_context(pytest.raises(StreamFailed))
                async with open_stream(get(url), timeouts=FAST, body_bytes_max=10**7, ssl_context=trusting) as answer:
                    async for got in answer.pieces():
                        total += len(got)
            assert total == 30 * 65536
