"""`call.http` on real sockets: what left, what is certain, and what is never claimed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.core.effect import Effect, Fenced, Idempotent, Keyed, Queryable, Read, Unrepeatable
from holdfast.errors import Busy, HttpUnknown, KeyReused, NotSent, Refused
from holdfast.runtime.http import exchange as http_exchange
from holdfast.runtime.http.client import AnswerUnknown, BadRequest, HttpClient
from holdfast.runtime.http.exchange import Exchange
from holdfast.runtime.http.message import Message
from holdfast_proofs.support.tls import make_tls

KEY = "0b0c0d0e-0f10-8112-9314-151617181920"
TASK = "01J9ZK3V5T8Q2M4N6P7R8S9T0V"
KEYED = Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FarEnd:
    """A raw server that keeps the bytes of every request it got."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.got = asyncio.Event()
        self.url = ""


@contextlib.asynccontextmanager
async def far_end(answer: bytes | Talk = OK, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[FarEnd]:
    """Serve `answer` to each connection once the request is there."""
    end = FarEnd()
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        talks[talk] = writer
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if callable(answer):
                await answer(reader, writer)
            else:
                end.requests.append(await read_request(reader))
                end.got.set()
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    end.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield end
    finally:
        server.close()
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks)
        for writer in talks.values():
            writer.transport.abort()
        await asyncio.sleep(0)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = head_fields(head)
    return head + await reader.readexactly(int(fields.get("content-length", "0")))


def head_fields(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    names = [line.partition(": ")[0] for line in lines]
    assert len(names) == len(set(names)), "a header was sent twice"
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def client(
    effect: Effect = KEYED,
    *,
    left_s: float = 60.0,
    on_first_byte: Callable[[], None] = lambda: None,
    fence: int | None = None,
    lookup: bool = False,
    ssl_context: ssl.SSLContext | None = None,
) -> HttpClient:
    return HttpClient(
        effect=effect,
        effect_key=KEY,
        task_id=TASK,
        ordinal="4.r1",
        fence=fence,
        time_left_s=lambda: left_s,
        on_first_byte=on_first_byte,
        lookup=lookup,
        ssl_context=ssl_context,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# What is sent.


async def test_a_request_carries_key_task_and_step_once() -> None:
    async with far_end() as end:
        response = await client().post(f"{end.url}/charges?a=1", json={"cents": 5})
    assert (response.status, response.json()) == (200, {})
    assert len(end.requests) == 1
    head, _, body = end.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /charges?a=1 HTTP/1.1\r\n")
    assert body == b'{"cents":5}'
    fields = head_fields(end.requests[0])
    assert fields["idempotency-key"] == KEY
    assert fields["holdfast-task"] == TASK
    assert fields["holdfast-step"] == "4.r1"
    assert fields["content-type"] == "application/json"
    assert fields["connection"] == "close"
    assert fields["host"] == end.url.removeprefix("http://")
    assert "holdfast-fence" not in fields
    assert "expect" not in fields


@pytest.mark.parametrize("value", ["Bearer secret ", " secret", "secret\n", "sec\0ret", "sécret"])
async def test_a_header_that_cannot_be_sent_is_not_repeated_in_the_error(value: str) -> None:
    with pytest.raises(BadRequest) as raised:
        await client().post("http://127.0.0.1:1/", headers={"Authorization": value})
    said = f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r}"
    assert "secret" not in said
    assert "ret" not in said


async def test_a_contract_may_rename_the_key_header() -> None:
    effect = Keyed(window_s=60, fingerprint="checked", refusals_stored=True, key_header="X-Request-Id")
    async with far_end() as end:
        await client(effect).post(end.url)
    fields = head_fields(end.requests[0])
    assert fields["x-request-id"] == KEY
    assert "idempotency-key" not in fields


async def test_a_fenced_call_carries_its_fence() -> None:
    async with far_end() as end:
        await client(Fenced(), fence=2**41 + 7).put(f"{end.url}/resources/a", json={})
    assert head_fields(end.requests[0])["holdfast-fence"] == str(2**41 + 7)


async def test_a_read_carries_no_key() -> None:
    async with far_end() as end:
        await client(Read()).get(end.url, params={"q": "a b&c"})
        await client(Unrepeatable()).get(end.url, effect=False)
    for request in end.requests:
        assert "idempotency-key" not in head_fields(request)
        assert head_fields(request)["holdfast-task"] == TASK
    assert end.requests[0].startswith(b"GET /?q=a+b%26c HTTP/1.1\r\n")


async def test_the_same_key_given_by_hand_is_accepted() -> None:
    async with far_end() as end:
        await client().post(end.url, headers={"idempotency-key": KEY, "X-Other": "1"})
    fields = head_fields(end.requests[0])
    assert (fields["idempotency-key"], fields["x-other"]) == (KEY, "1")


async def test_every_verb_sends_its_method_and_body() -> None:
    async with far_end() as end:
        await client().put(end.url, body=b"raw")
        await client().patch(end.url, json=[1])
        await client().delete(end.url)
        await client().request("get", end.url)
    methods = [request.split(b" ")[0] for request in end.requests]
    assert methods == [b"PUT", b"PATCH", b"DELETE", b"GET"]
    assert end.requests[0].endswith(b"\r\n\r\nraw")
    assert head_fields(end.requests[2])["content-length"] == "0"


async def test_a_large_body_arrives_whole() -> None:
    async with far_end() as end:
        await client().post(end.url, body=b"x" * 5_000_000)
    assert end.requests[0].endswith(b"\r\n\r\n" + b"x" * 5_000_000)


async def test_a_small_request_is_one_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and body leave in one piece, so a kill lies before or after, never between."""
    sends: list[bytes] = []
    real = socket.socket.send

    def spy(self: socket.socket, data: bytes, *flags: int) -> int:
        sends.append(bytes(data))
        return real(self, data, *flags)

    monkeypatch.setattr(socket.socket, "send", spy)
    async with far_end() as end:
        await client().post(end.url, json={"cents": 5})
    ours = [data for data in sends if data.startswith(b"POST")]
    assert ours == [end.requests[0]]


# Refused before a byte leaves.


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "another"},
        {"HOLDFAST-TASK": "x"},
        {"Holdfast-Fence": "9"},
        {"Host": "x"},
        {"Content-Length": "9"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "keep-alive"},
        {"Expect": "100-continue"},
        {"Proxy-Authorization": "x"},
        {"X-A": "1\r\nX-B: 2"},
        {"X-A": "1\nX-B: 2"},
        {"X-A": "1\0"},
        {"X-A\r\nX-B": "2"},
        {"X A": "1"},
        {"": "1"},
        {"X-\u00e9": "1"},
        {"X-A": "\u2028"},
        {"X-A": "1", "x-a": "2"},
        {"X-A": 1},
    ],
    ids=str,
)
async def test_a_header_that_injects_or_overrides_is_refused(headers: dict[str, str]) -> None:
    marks: list[str] = []
    async with far_end() as end:
        with pytest.raises(BadRequest):
            await client(on_first_byte=lambda: marks.append("sent")).post(end.url, headers=headers)
    assert (end.requests, marks) == ([], [])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/charges",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://user:word@127.0.0.1/",
        "http://user@127.0.0.1/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX: 1",
        "http://127.0.0.1/\n",
        "http://127.0.0.1/\0",
        "http://127.0.0.1/\u00e9",
        "http://[::1/",
        "http://[fe80::1%25lo]/",
        "http://a\\b/",
        "http://127.0.0.1/" + "x" * 20_000,
    ],
    ids=repr,
)
async def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        await client().post(url)


async def test_bad_bodies_methods_and_declarations_are_refused() -> None:
    async with far_end() as end:
        for bad in (float("nan"), {1: 2}, "\ud800", object()):
            with pytest.raises(BadRequest):
                await client().post(end.url, json=bad)
        with pytest.raises(BadRequest, match="not both"):
            await client().post(end.url, json=1, body=b"1")
        with pytest.raises(BadRequest, match="limit"):
            await client().post(end.url, body=bytes(33 * 1024 * 1024))
        for method in ("CONNECT", "G T", "GET\r\n", ""):
            with pytest.raises(BadRequest):
                await client().request(method, end.url)
        with pytest.raises(BadRequest, match="503"):
            await client().post(end.url, refused_on=[503])
    assert end.requests == []


async def test_a_key_header_that_is_no_header_is_refused() -> None:
    effect = Keyed(window_s=60, fingerprint="checked", refusals_stored=True, key_header="Host")
    with pytest.raises(BadRequest):
        await client(effect).post("http://127.0.0.1:1/")


async def test_errors_do_not_show_the_query() -> None:
    with pytest.raises(NotSent) as caught:
        await client().post(f"http://127.0.0.1:{free_port()}/a?token=hush")
    assert "hush" not in str(caught.value)


# Certain that nothing left.


async def test_connection_refused_is_not_sent() -> None:
    marks: list[str] = []
    with pytest.raises(NotSent) as caught:
        await client(on_first_byte=lambda: marks.append("sent")).post(f"http://127.0.0.1:{free_port()}/")
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert marks == []


async def test_an_unknown_name_is_not_sent() -> None:
    with pytest.raises(NotSent):
        await client().post("http://nonexistent.invalid/", timeout_s=20)


async def test_a_name_too_long_for_dns_is_not_sent() -> None:
    with pytest.raises(NotSent):
        await client().post(f"http://{'a' * 70}.invalid/")


async def test_a_connect_that_hangs_is_not_sent() -> None:
    """A full accept queue drops the handshake: the deadline ends it before any byte."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            assert filler.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)
        with pytest.raises(NotSent):
            await client().post(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.3)


async def test_no_time_left_is_not_sent() -> None:
    async with far_end() as end:
        for left_s, timeout_s in ((0.0, 5.0), (-1.0, 5.0), (5.0, 0.0), (5.0, float("nan"))):
            with pytest.raises(NotSent):
                await client(left_s=left_s).post(end.url, timeout_s=timeout_s)
    assert end.requests == []


async def test_a_deadline_that_passes_while_connecting_is_not_sent() -> None:
    left = iter([5.0, 0.0])
    async with far_end() as end:
        late = HttpClient(
            effect=KEYED,
            effect_key=KEY,
            task_id=TASK,
            ordinal="4",
            time_left_s=lambda: next(left),
            on_first_byte=pytest.fail,
        )
        with pytest.raises(NotSent):
            await late.post(end.url)
    assert end.requests == []


@pytest.mark.parametrize("greeting", [OK, b"HTTP/1.1 200 OK\r\n", b"220 mail ready\r\n"])
async def test_a_far_end_that_speaks_first_gets_nothing(greeting: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        assert await reader.read() == b""

    class Slow(HttpClient):
        async def _connect(self, message: Message) -> tuple[asyncio.Transport, Exchange]:
            made = await super()._connect(message)
            await asyncio.wait([made[1].answer], timeout=5)
            return made

    async with far_end(greet) as end:
        slow = Slow(
            effect=KEYED, effect_key=KEY, task_id=TASK, ordinal="4", time_left_s=lambda: 9.0, on_first_byte=pytest.fail
        )
        with pytest.raises(NotSent, match="sent data before it got a request"):
            await slow.post(end.url)


async def test_what_the_mark_raises_stops_the_send() -> None:
    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    async with far_end() as end:
        bound = client(on_first_byte=stop)
        with pytest.raises(Stop):
            await bound.post(end.url)
        assert not bound.begun
    assert end.requests == []


# The mark.


async def test_the_mark_is_made_after_the_connect_and_before_the_first_byte() -> None:
    order: list[str] = []
    accepted = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order.append("connected")
        accepted.set()
        await reader.readexactly(1)
        order.append("first byte")
        writer.write(OK)
        await writer.drain()

    class Marked(HttpClient):
        async def _connect(self, message: Message) -> tuple[asyncio.Transport, Exchange]:
            made = await super()._connect(message)
            await accepted.wait()
            return made

    async with far_end(watch) as end:
        bound = Marked(
            effect=KEYED,
            effect_key=KEY,
            task_id=TASK,
            ordinal="4",
            time_left_s=lambda: 9.0,
            on_first_byte=lambda: order.append("mark"),
        )
        await bound.post(end.url)
        assert bound.begun
    assert order == ["connected", "mark", "first byte"]


async def test_a_request_that_only_reads_makes_no_mark() -> None:
    marks: list[str] = []
    async with far_end() as end:
        bound = client(Unrepeatable(), on_first_byte=lambda: marks.append("sent"))
        await bound.get(end.url, effect=False)
        assert (marks, bound.begun) == ([], False)
        await bound.post(end.url)
        assert (marks, bound.begun) == (["sent"], True)
        await bound.get(end.url, effect=False)
    assert marks == ["sent"]


async def test_a_lookup_client_only_reads() -> None:
    async with far_end() as end:
        bound = client(Queryable(), lookup=True, on_first_byte=pytest.fail)
        await bound.get(end.url)
        await bound.get(end.url)
    assert len(end.requests) == 2


# One effect per call.


@pytest.mark.parametrize("effect", [KEYED, Fenced(), Queryable(), Idempotent(), Unrepeatable()], ids=lambda e: e.name)
async def test_a_second_effect_request_is_refused_and_not_called_unsent(effect: Effect) -> None:
    async with far_end() as end:
        bound = client(effect)
        await bound.post(end.url)
        with pytest.raises(HttpUnknown, match="only one effect request"):
            await bound.post(end.url)
    assert len(end.requests) == 1


async def test_of_two_effect_requests_at_once_only_one_is_sent() -> None:
    async with far_end() as end:
        bound = client(Unrepeatable())
        results = await asyncio.gather(*(bound.post(end.url) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, HttpUnknown) for result in results) == 4
    assert len(end.requests) == 1


async def test_a_read_tool_may_ask_several_times() -> None:
    async with far_end() as end:
        bound = client(Read())
        await bound.get(end.url)
        await bound.get(end.url)
    assert len(end.requests) == 2


async def test_an_effect_that_was_not_sent_may_be_sent_to_another_address() -> None:
    async with far_end() as end:
        bound = client()
        with pytest.raises(NotSent):
            await bound.post(f"http://127.0.0.1:{free_port()}/")
        await bound.post(end.url)
    assert len(end.requests) == 1


async def test_after_the_effect_nothing_is_called_not_sent_any_more() -> None:
    """A failed read after the effect must not make the runtime send the effect again."""
    async with far_end() as end, far_end(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n") as gone:
        bound = client()
        await bound.post(end.url)
        for url in (f"http://127.0.0.1:{free_port()}/", "not a url", gone.url):
            with pytest.raises(HttpUnknown):
                await bound.get(url, effect=False)


async def test_a_failed_read_before_the_effect_proves_nothing_about_it() -> None:
    """Not even a 404: an earlier attempt may have been done."""
    for status in (404, 409, 422, 429, 500):
        async with far_end(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status) as end:
            with pytest.raises(NotSent):
                await client().get(end.url, effect=False)


# Sent, and no usable answer.


async def close_after_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def reset_after_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize("talk", [close_after_request, reset_after_request, stay_silent, drip])
async def test_a_lost_or_slow_answer_is_unknown(talk: Talk) -> None:
    async with far_end(talk) as end:
        with pytest.raises(AnswerUnknown) as caught:
            await client().post(end.url, timeout_s=0.5)
    assert caught.value.status is None


async def test_a_read_that_was_sent_is_not_called_unsent() -> None:
    async with far_end(close_after_request) as end:
        with pytest.raises(HttpUnknown):
            await client(Read()).get(end.url)


async def test_the_calls_own_deadline_wins_over_a_longer_timeout() -> None:
    async with far_end(stay_silent) as end:
        async with asyncio.timeout(5):
            with pytest.raises(AnswerUnknown, match="no answer in time"):
                await client(left_s=0.2).post(end.url, timeout_s=60)


async def test_a_huge_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.http.client.RESPONSE_BODY_BYTES_MAX", 1_000_000)
    async with far_end(flood) as end:
        with pytest.raises(AnswerUnknown, match="1,000,000"):
            await client().post(end.url, timeout_s=20)
    assert http_exchange.RESPONSE_BODY_BYTES_MAX == 32 * 1024 * 1024


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nBad Header: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:60]),
)
async def test_a_malformed_or_cut_answer_is_unknown(answer: bytes) -> None:
    async with far_end(answer) as end:
        with pytest.raises(AnswerUnknown):
            await client().post(end.url, timeout_s=10)


async def test_a_cancelled_call_stops_sending() -> None:
    """What the kernel still holds is thrown away, not delivered after the attempt has ended."""
    resume, ended = asyncio.Event(), asyncio.Event()
    received = 0

    async def read_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await resume.wait()
        transport.resume_reading()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                received += len(data)
        ended.set()

    transports: list[asyncio.Transport] = []

    class Watched(HttpClient):
        async def _connect(self, message: Message) -> tuple[asyncio.Transport, Exchange]:
            made = await super()._connect(message)
            transports.append(made[0])
            return made

    marked = asyncio.Event()
    body = bytes(30 * 1024 * 1024)
    async with far_end(read_late) as end:
        bound = Watched(
            effect=KEYED, effect_key=KEY, task_id=TASK, ordinal="4", time_left_s=lambda: 60.0, on_first_byte=marked.set
        )
        call = asyncio.create_task(bound.post(end.url, body=body, timeout_s=60))
        await marked.wait()
        waiting = -1
        # Until the kernel takes no more: nothing signals that.
        while waiting != (waiting := transports[0].get_write_buffer_size()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert waiting
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        resume.set()
        async with asyncio.timeout(10):
            await ended.wait()
    assert received < len(body) - waiting, "the kernel delivered all it had been given"


# Answers.


async def test_a_chunked_answer_is_whole_and_an_interim_one_is_passed_over() -> None:
    chunked = (
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n"
        b'X-A: 1\r\nX-A: 2\r\n\r\n4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n'
    )
    async with far_end(chunked) as end:
        response = await client().post(end.url)
    assert (response.status, response.json(), response.headers["x-a"]) == (201, {"a": 1}, "1, 2")


async def test_a_body_ended_by_the_close_is_whole() -> None:
    async with far_end(b"HTTP/1.0 200 OK\r\n\r\n[1]") as end:
        assert (await client().post(end.url)).json() == [1]


async def test_an_answer_that_came_counts_although_a_reset_follows() -> None:
    async def answer_and_reset(r: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        raw: socket.socket = writer.get_extra_info("socket")
        raw.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.05)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with far_end(answer_and_reset) as end:
        with pytest.raises(Refused):
            await client().post(end.url, body=bytes(20_000_000), timeout_s=10)


async def test_a_success_that_is_not_json_is_unknown_when_read_as_json() -> None:
    async with far_end(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope") as end:
        response = await client().post(end.url)
    assert response.text == "nope"
    with pytest.raises(HttpUnknown):
        response.json()


def answered(status: int, *headers: bytes, body: bytes = b'{"title":"x"}') -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), lines, body)


async def test_a_refusal_carries_its_proof_bounded() -> None:
    async with far_end(answered(402, body=b"n" * 100_000)) as end:
        with pytest.raises(Refused) as caught:
            await client().post(end.url)
    assert caught.value.proof == {"status": 402, "body": "n" * 4096}


async def test_busy_key_reused_and_unknown_are_raised_as_the_table_says() -> None:
    async with far_end(answered(409, b"Retry-After: 3")) as end:
        with pytest.raises(Busy) as busy:
            await client().post(end.url)
        assert busy.value.retry_after_s == 3.0
        with pytest.raises(AnswerUnknown) as conflict:
            await client(Unrepeatable()).post(end.url)
        assert conflict.value.status == 409
        with pytest.raises(Refused):
            await client(Unrepeatable()).post(end.url, refused_on=[409])
    async with far_end(answered(422)) as end:
        with pytest.raises(KeyReused) as reused:
            await client().post(end.url)
        assert reused.value.proof["status"] == 422
    async with far_end(answered(500, body=b"boom")) as end:
        with pytest.raises(AnswerUnknown) as unknown:
            await client().post(end.url)
        assert unknown.value.evidence == {"status": 500, "body": "boom"}


async def test_a_redirect_is_not_followed() -> None:
    async with far_end() as other:
        async with far_end(answered(307, b"Location: " + other.url.encode())) as end:
            with pytest.raises(AnswerUnknown, match="redirects are not followed"):
                await client().post(end.url)
            assert len(end.requests) == 1
        assert other.requests == []


async def test_without_check_the_answer_comes_back_as_it_is() -> None:
    async with far_end(answered(500)) as end:
        response = await client().post(end.url, check=False)
    assert (response.status, response.json()) == (500, {"title": "x"})


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with far_end() as end:
        await client().post(end.url)
    assert len(end.requests) == 1


# TLS.


async def test_https_sends_once_and_an_untrusted_certificate_is_not_sent(tmp_path: Path) -> None:
    server, trusting = make_tls(tmp_path)
    marks: list[str] = []
    async with far_end(tls=server) as end:
        with pytest.raises(NotSent, match="certificate"):
            await client(on_first_byte=lambda: marks.append("sent")).post(end.url)
        assert (marks, end.requests) == ([], [])
        bound = client(ssl_context=trusting, on_first_byte=lambda: marks.append("sent"))
        response = await bound.post(end.url, json={"a": 1})
    assert (response.status, marks, len(end.requests)) == (200, ["sent"], 1)


async def test_a_far_end_that_speaks_no_tls_is_not_sent() -> None:
    async def complain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answered(400))
        await writer.drain()

    async with far_end(complain) as end:
        with pytest.raises(NotSent):
            await client().post(end.url.replace("http:", "https:"), timeout_s=10)
