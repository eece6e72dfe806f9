"""Answers of relays that are read by their form, and connections that are kept."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path

import h11
import pytest

from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.channel import RelayChannel, _plain_answer
from holdfast_proofs.identity_schedules.fake import PORT
from holdfast_proofs.support.relay_agents import ENTROPY
from holdfast_proofs.support.relays import relays

HEAD = (
    b"HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: %d\r\n"
    b"content-type: application/octet-stream\r\n\r\n"
)
BODY = b"a\r\nb" * 20
ANSWER = HEAD % len(BODY) + BODY
ASKED = h11.Request(method="GET", target="/v1/relay", headers=[("host", "r")])


def read_by_h11(raw: bytes) -> tuple[int, bytes, bytes]:
    """Status, body, and what is left behind the answer."""
    state = h11.Connection(h11.CLIENT)
    state.send(ASKED)
    state.send(h11.EndOfMessage())
    state.receive_data(raw)
    status, body = 0, b""
    while not isinstance(event := state.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        else:
            assert isinstance(event, h11.Data), event
            body += bytes(event.data)
    assert state.their_state is h11.DONE
    return status, body, state.trailing_data[0]


def test_what_is_read_by_its_form_is_what_h11_reads() -> None:
    rng, read = random.Random(7), 0
    for _ in range(20_000):
        raw = bytearray(ANSWER)
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(raw))
            match rng.randrange(3):
                case 0:
                    raw[at] = rng.choice(b"0123456789 -:\r\nAaz\x00\xff")
                case 1:
                    del raw[at : at + rng.randint(1, 4)]
                case _:
                    raw[at:at] = rng.choice((b"0", b"\r\n", b"x", b"204 "))
        found = _plain_answer(bytes(raw))
        if found is not None:
            read += 1
            assert (*found, b"") == read_by_h11(bytes(raw))
    assert 5_000 < read < 18_000


@pytest.mark.parametrize(
    "raw",
    [
        ANSWER[:-1],
        ANSWER + b"x",
        ANSWER.replace(b"200 OK", b"204 No Content"),
        ANSWER.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ANSWER.replace(b"cache-control: no-store", b"connection: close"),
        ANSWER.replace(b"content-type", b"transfer-encoding: chunked\r\ncontent-type"),
        b"",
    ],
)
def test_an_answer_of_any_other_form_is_left_to_h11(raw: bytes) -> None:
    assert _plain_answer(raw) is None


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ((ANSWER,), True),
        ((ANSWER[:30], ANSWER[30:90], ANSWER[90:]), True),
        ((ANSWER.replace(b"cache-control: no-store", b"x-by: proxy"),), True),
        ((ANSWER + b"HTTP/1.1 200 OK\r\n",), False),
        ((ANSWER.replace(b"cache-control: no-store", b"connection: close"),), False),
    ],
)
async def test_a_connection_is_kept_behind_a_whole_answer_alone(parts: tuple[bytes, ...], kept: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    channel = RelayChannel(WitnessRelay(url, KeyPair.new(ENTROPY).public), PORT)
    try:
        for _ in range(2):
            assert await channel._exchange(ASKED, b"", lambda: None) == (200, BODY)
            assert len(channel._idle) == kept
    finally:
        await channel.close()
        server.close()
        await asyncio.sleep(0.05)  # the server's side of each connection has ended


def test_an_answer_of_a_real_relay_has_that_form(tmp_path: Path) -> None:
    """Else every answer would be read the slow way, and nobody would notice."""
    with relays(tmp_path, "r") as (relay,), socket.create_connection(("127.0.0.1", relay.port)) as caller:
        caller.sendall(b"GET /v1/mailbox/nobody?after=0 HTTP/1.1\r\nhost: r\r\n\r\n")
        raw = caller.recv(65_536)
    assert _plain_answer(raw) is not None, raw
