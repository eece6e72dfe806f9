"""HTTP/1.1 on a loopback socket for a far end: strict parsing by h11, one task per connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct

import h11

from holdfast.downstream.control import control
from holdfast.downstream.order import Ask, Reply, problem
from holdfast.downstream.service import Hangup, Service

BODY_BYTES_MAX = 8 * 1024 * 1024
READ_BYTES = 64 * 1024


class BodyTooLarge(Exception):
    pass


async def listen(service: Service, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled: the service ends
            await _Connection(service, reader, writer).serve()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    name: tuple[str, int] = server.sockets[0].getsockname()
    return server, name[1]


class _Connection:
    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._parser.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._send(problem(error.error_status_hint, str(error)), close=True)
        except BodyTooLarge:
            self._send(problem(413, f"the body is over {BODY_BYTES_MAX} bytes"), close=True)
        finally:
            self._writer.close()

    async def _serve_one(self) -> bool:
        """Answer one request; False ends the connection."""
        ask = await self._receive()
        if ask is None:
            return False
        if ask.path.startswith("/_"):
            answer = await control(self._service, ask)
        else:
            answer = await self._service.handle(ask)
        if isinstance(answer, Hangup):
            if answer is Hangup.RESET:
                self._reset()
            return False
        self._send(answer)
        await self._writer.drain()
        return self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE

    async def _receive(self) -> Ask | None:
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        if self._parser.they_are_waiting_for_100_continue:
            go_on = self._parser.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._writer.write(go_on or b"")
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise BodyTooLarge
        return Ask(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            headers=tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers),
            body=bytes(body),
        )

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._reader.read(READ_BYTES))
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    def _send(self, reply: Reply, *, close: bool = False) -> None:
        """Write head and body in one piece."""
        body = json.dumps(reply.body).encode()
        kind = "application/json" if reply.status < 400 else "application/problem+json"
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *reply.headers]
        if close:
            headers.append(("Connection", "close"))
        parts = (
            self._parser.send(h11.Response(status_code=reply.status, headers=headers)),
            self._parser.send(h11.Data(data=body)),
            self._parser.send(h11.EndOfMessage()),
        )
        self._writer.write(b"".join(part or b"" for part in parts))

    def _reset(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
