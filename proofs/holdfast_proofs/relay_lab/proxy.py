"""A proxy in front of relays that has faults: one process, one port for each relay, told what to do on standard input.

    pass        everything goes through
    blackhole   nothing goes through, in either direction, and new connections are not answered: packets vanish
    half-open   connections are taken, and never answered

With `pass` each request may meet, with some probability: a delay, a reset, an answer of which only half arrives, or a
repeat: the same bytes reach the relay once more up to two seconds later, so also after later requests. Nothing here
knows what the bytes mean, but for the end of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import msgspec

Mode = Literal["pass", "blackhole", "half-open"]
BACKLOG = 2_048
REPEAT_S_MAX = 2.0


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Of one front. Shares are of requests."""

    mode: Mode = "pass"
    delay_ms: float = 0.0  # at most; each piece of a stream waits some of it, and keeps its place
    reset: float = 0.0
    cut: float = 0.0
    repeat: float = 0.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    front: int
    faults: Faults


class _Side(asyncio.Protocol):
    """One end of a connection; `other` is the other one."""

    def __init__(self, front: Front, other: _Side | None = None) -> None:
        self.front, self.other = front, other
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._not_before = 0.0
        self._closed = False
        self.lost = False

    @property
    def _answers(self) -> bool:
        return not isinstance(self, _Client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.front.sides.add(self)
        for raw in self._waiting:
            self.transport.write(raw)
        self._waiting.clear()
        if self.front.faults.mode != "pass":
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        faults, other = self.front.faults, self.other
        if other is None:
            return
        if not self._answers and _is_whole_request(data):
            if faults.repeat and random.random() < faults.repeat:
                self.front.repeat(data)
            if faults.reset and random.random() < faults.reset:
                self.end()
                return
        if self._answers and faults.cut and random.random() < faults.cut:
            other.take(data[: len(data) // 2])
            other.end_soon()
            self.end()
            return
        if faults.delay_ms:
            loop = self.front.loop
            self._not_before = max(self._not_before, loop.time() + random.uniform(0, faults.delay_ms) / 1e3)
            loop.call_at(self._not_before, other.take, data)
        else:
            other.take(data)

    def take(self, data: bytes) -> None:
        if self.transport is None:
            self._waiting.append(data)
        elif not self._closed:
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and self.front.faults.mode == "pass":
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.front.sides.discard(self)
        if self.other is not None:
            self.other.end_soon()

    def end(self) -> None:
        """A reset, for both sides."""
        for side in (self, self.other):
            if side is not None and side.transport is not None and not side._closed:
                side._closed = True
                with contextlib.suppress(OSError):
                    made = side.transport.get_extra_info("socket")
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side.transport.abort()

    def end_soon(self) -> None:
        if self.transport is not None and not self._closed:
            self._closed = True
            self.transport.close()


class _Client(_Side):
    @property
    def is_unanswered(self) -> bool:
        return self.other.transport is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        relay = self.other = _Side(self.front, self)
        if self.front.faults.mode == "pass":
            task = self.front.loop.create_task(self._reach(relay))
            self.front.tasks.add(task)
            task.add_done_callback(self.front.tasks.discard)

    async def _reach(self, relay: _Side) -> None:
        try:
            await self.front.loop.create_connection(lambda: relay, "127.0.0.1", self.front.port)
        except OSError:
            self.end()
        if self.lost:
            relay.end_soon()


@dataclass(eq=False)
class Front:
    """The port that agents use for one relay."""

    port: int  # the relay's
    loop: asyncio.AbstractEventLoop
    door: socket.socket
    faults: Faults = field(default_factory=Faults)
    sides: set[_Side] = field(default_factory=set[_Side])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def open(self) -> None:
        self.door.listen(BACKLOG)
        self.loop.add_reader(self.door, self._accept)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                made, _ = self.door.accept()
            except (BlockingIOError, OSError):
                return
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(self.loop.connect_accepted_socket(lambda: _Client(self), made))

    def _begin(self, coroutine: object) -> None:
        task = self.loop.create_task(_ignored(coroutine))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def change(self, faults: Faults) -> None:
        before, self.faults = self.faults, faults
        if faults.mode == before.mode:
            return
        self.loop.remove_reader(self.door)
        if faults.mode == "blackhole":
            self.door.listen(0)  # one connection waits to be taken; the kernel drops what follows
        else:
            self.open()
        for side in list(self.sides):
            if side.transport is None:
                continue
            if faults.mode != "pass":
                side.transport.pause_reading()
            elif isinstance(side, _Client) and side.is_unanswered:
                side.end()  # it was taken and never answered
            else:
                with contextlib.suppress(RuntimeError):
                    side.transport.resume_reading()

    def repeat(self, raw: bytes) -> None:
        self._begin(self._repeated(raw))

    async def _repeated(self, raw: bytes) -> None:
        await asyncio.sleep(random.uniform(0, REPEAT_S_MAX))
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(raw)
                await reader.read(65_536)
                writer.close()


async def _ignored(coroutine: object) -> None:
    with contextlib.suppress(OSError):
        await coroutine  # type: ignore[misc]


def _is_whole_request(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    if not end or not head.startswith(b"POST "):
        return False
    _, _, rest = head.lower().partition(b"content-length:")
    length = rest.split(b"\r\n")[0].strip()
    return length.isdigit() and len(body) == int(length)


async def _run(ports: list[int], seed: int) -> None:
    random.seed(seed)
    loop = asyncio.get_running_loop()
    fronts: list[Front] = []
    for port in ports:
        door = socket.create_server(("127.0.0.1", 0))
        door.setblocking(False)
        fronts.append(Front(port, loop, door))
        fronts[-1].open()
    print(json.dumps([one.door.getsockname()[1] for one in fronts]), flush=True)
    ended = asyncio.Event()

    def listen() -> None:
        for line in sys.stdin.buffer:
            order = msgspec.json.decode(line, type=Order)
            loop.call_soon_threadsafe(fronts[order.front].change, order.faults)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=listen, daemon=True).start()
    await ended.wait()


class Proxy:
    """The process, as the driver sees it. Close it."""

    def __init__(self, ports: list[int], *, seed: int, log: Path) -> None:
        words = [sys.executable, "-P", "-m", "holdfast_proofs.relay_lab.proxy", str(seed), *map(str, ports)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.ports: list[int] = json.loads(self._process.stdout.readline())

    def set(self, front: int, faults: Faults) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(Order(front=front, faults=faults)) + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    asyncio.run(_run([int(word) for word in sys.argv[2:]], int(sys.argv[1])))
