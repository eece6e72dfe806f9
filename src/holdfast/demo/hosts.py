"""Hosts of the demo: a worker process in a network of its own, which can be cut off.

In the network namespace of a host nothing exists but its own loopback. All that the worker can reach are sockets which
it opened there and gave to the demo, and the demo carries the bytes between them and the rest of the world. While a
host is cut off nothing is refused and nothing is closed: bytes do not arrive, as behind a broken cable. What is under
way arrives when the host is connected again.

`python -m holdfast.demo.hosts PARENT CHANNEL ORDER` is such a worker process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.app.worker import Order
from holdfast.app.worker import main as serve
from holdfast.demo.workers import DemoFailed, Worker, start_worker
from holdfast.errors import Terminal
from holdfast.host.hardening import die_with_parent, unshare_network

FIRST_PORT = 7000  # in a namespace of its own every port is free
PIECE = 64 * 1024
START_S_MAX = 30.0
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

Connect = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]


class NoNetwork(Terminal):
    """The kernel lets this user make no network namespace, so the demo cannot cut a host off."""

    code = "demo-no-network"


def port_of(number: int) -> int:
    """The port, on the host's loopback, of the address with this number."""
    return FIRST_PORT + number


@dataclass(frozen=True, slots=True)
class Host:
    worker: Worker
    cable: Cable


class Cable:
    """Carries bytes between one host and everything else."""

    def __init__(self) -> None:
        self._whole = asyncio.Event()
        self._whole.set()
        self._carrying: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    @contextlib.asynccontextmanager
    async def plugged(self, sockets: Mapping[socket.socket, Connect]) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for listening, connect in sockets.items():
                server = await asyncio.start_server(partial(self._join, connect), sock=listening)
                stack.callback(server.close)
            try:
                yield
            finally:
                for task in self._carrying:
                    task.cancel()
                await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _join(self, connect: Connect, here: StreamReader, back: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            await self._whole.wait()
            there, forth = await connect()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(here, forth))
                both.create_task(self._carry(there, back))
        except* (OSError, asyncio.CancelledError):
            pass  # one of the two ends is gone: the other sees it
        finally:
            back.close()
            self._carrying.discard(task)

    async def _carry(self, source: StreamReader, sink: StreamWriter) -> None:
        while True:
            piece = await source.read(PIECE)
            await self._whole.wait()
            if not piece:
                sink.close()
                return
            sink.write(piece)
            await sink.drain()


@contextlib.asynccontextmanager
async def start_host(
    order: Order, addresses: Sequence[Connect], *, log: Path, environment: Mapping[str, str]
) -> AsyncGenerator[Host]:
    """A worker on a host of its own, to which these addresses are at `port_of` 0, 1, ... of its loopback.
    Raises NoNetwork."""
    ours, theirs = socket.socketpair()
    cable = Cable()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(ours.close)
        with theirs:
            words = ("holdfast.demo.hosts", str(os.getpid()), str(theirs.fileno()), str(len(addresses)))
            starting = start_worker(order, words=words, log=log, environment=environment, give=(theirs.fileno(),))
            worker = await stack.enter_async_context(starting)
        sockets = await asyncio.to_thread(_take_sockets, ours, len(addresses))
        if not sockets:
            raise NoNetwork(log.read_text(errors="replace").strip() or "the host's process ended")
        await stack.enter_async_context(cable.plugged(dict(zip(sockets, addresses, strict=True))))
        yield Host(worker, cable)


def _take_sockets(channel: socket.socket, count: int) -> list[socket.socket]:
    channel.settimeout(START_S_MAX)
    try:
        _, numbers, _, _ = socket.recv_fds(channel, 1, count)
    except TimeoutError:
        raise DemoFailed(f"a host did not start within {START_S_MAX:g} s") from None
    return [socket.socket(fileno=number) for number in numbers]


def _move_out(channel: int, count: int) -> None:
    """Leave the machine's network; give the demo the sockets through which it carries bytes. Raises OSError."""
    unshare_network()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
    sockets = [socket.create_server(("127.0.0.1", port_of(number))) for number in range(count)]
    with socket.socket(fileno=channel) as sent:
        socket.send_fds(sent, [b"."], [one.fileno() for one in sockets])
    for one in sockets:
        one.close()


if __name__ == "__main__":
    _, parent, channel, count, text = sys.argv
    try:
        _move_out(int(channel), int(count))
    except OSError as error:
        sys.exit(f"the kernel refuses a network of its own: {error.strerror}")
    die_with_parent(int(parent))  # after the move: it resets this
    sys.exit(serve(text))
