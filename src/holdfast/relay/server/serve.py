"""A relay process: its key, its store, uvicorn around the app, and an orderly end.

SIGTERM and Ctrl-C stop accepting; requests that are under way are answered within DRAIN_S, and the store writes what
waits before it closes. A kill instead loses nothing that was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.errors import BadSettings, RelayUnfit
from holdfast.host.hardening import harden, tame_collector
from holdfast.host.log import Log
from holdfast.host.private_files import check_place
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.witness.relay_link import why_of
from holdfast.identity.witness.witness_folder import witness_signer
from holdfast.layout.relay_url import host_text
from holdfast.relay.server.app import Relay
from holdfast.relay.server.asked import KNOW
from holdfast.relay.server.limits import InMemory, block_of
from holdfast.relay.server.settings import HINT, RelaySettings
from holdfast.relay.server.store import Store

if TYPE_CHECKING:
    from asyncio.transports import Transport

DRAIN_S = 10
HEADERS_S = 10.0  # until the head of a request is whole
IDLE_S = 15  # of a connection between two requests
SEND_S = 30.0  # until an answer has left for a reader that reads
BACKLOG = 2_048
AGENT_CONNECTIONS = 8  # of an agent that has logged in: its poll, and calls beside it
HANDSHAKES_MAX = 1_024  # of TLS at a time, half of them of one address: the oldest ends for a new one
ACCEPT_AGAIN_S = 0.1
FILES = 256  # that the process has open beside its connections


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRelay:
    """What an operator is shown at the start."""

    key: str
    listen: str
    url: str

    @property
    def address(self) -> str:
        return f"{self.url}#{self.key}"


@dataclass(slots=True)
class Callers:
    """How many connections each address has. One address must not hold all that the relay can have. A connection of an
    agent that has logged in counts for that agent: many of them may be behind one address."""

    most: int
    uncounted: tuple[str, ...] = ()  # proxies: behind one are many callers
    _open: Counter[str] = field(default_factory=Counter[str])

    def enter(self, address: str) -> bool:
        """Whether it may have one more."""
        if address in self.uncounted:
            return True
        self._open[address] += 1
        return self._open[address] <= self.most

    def know(self, address: str, agent: str) -> bool:
        """Whether a connection of this address counts for the agent from now on."""
        if address in self.uncounted or self._open[agent] >= AGENT_CONNECTIONS:
            return False
        self.leave(address)
        self._open[agent] += 1
        return True

    def leave(self, name: str) -> None:
        self._open[name] -= 1
        if self._open[name] <= 0:
            del self._open[name]


class JoinedWrites:
    """A transport that writes once for all that is written in one turn of the loop: uvicorn writes the head and the
    body of an answer one after the other, and each would be a system call here and one more to read it there."""

    def __init__(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if data:
            if not self._parts:
                self._loop.call_soon(self._flush)
            self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # Any: all else is the transport's own
        return getattr(self._transport, name)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class TimedProtocol(H11Protocol):
    """Closes a connection whose request does not begin in time, and one whose reader does not read: uvicorn waits for
    both for ever. And one too many of its address."""

    # Answers that wait because their readers do not read: uvicorn alone would keep them all, for ever.
    slow = InMemory["TimedProtocol"](lambda one: one.transport.abort())
    callers = Callers(most=RelaySettings().connections_of_address)
    _agent: str = ""  # that has logged in on it
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self.transport = cast("Transport", JoinedWrites(transport, self.loop))
        self.app_state = {**self.app_state, KNOW: self._know}
        self._watch()
        if not self.callers.enter(self._address):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._watch()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._is_read()
        self.callers.leave(self._agent or self._address)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(SEND_S, self.transport.abort)
        self.slow.add(self, self._address, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def _know(self, agent: str) -> None:
        if not self._agent and not self.transport.is_closing() and self.callers.know(self._address, agent):
            self._agent = agent

    @property
    def _address(self) -> str:
        return block_of(self.client[0] if self.client else "")

    def _is_read(self) -> None:
        self.slow.remove(self)
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        if self._late is None and self._waits():
            self._late = self.loop.call_later(HEADERS_S, self._close_late)

    def _waits(self) -> bool:
        cycle: Any = self.cycle  # Any: uvicorn leaves it untyped
        return cycle is None or bool(cycle.response_complete)

    def _close_late(self) -> None:
        self._late = None
        if self._waits() and not self.transport.is_closing():
            self.transport.close()

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def serve(folder: Path, settings: RelaySettings, *, log: Log, started: Callable[[RunningRelay], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises RelayUnfit, WitnessDamaged, ModeTooWide; OSError where it cannot listen."""
    harden()
    try:
        check_place(folder)
        store = Store(folder)
    except OSError as error:
        raise RelayUnfit(f"the folder {folder} cannot be used: {why_of(error)}", hint="give another --folder") from None
    try:
        relay = Relay(store, witness_signer(folder), settings, Sodium(), log)
        store.on_change = lambda why: log.event("store-failing", error=why) if why else log.event("store-works-again")
        tame_collector()
        asyncio.run(_serve(relay, started=started))
    finally:
        store.close()


async def _serve(relay: Relay, *, started: Callable[[RunningRelay], None]) -> None:
    settings = relay.settings
    host, port = settings.host_port
    proxies = tuple(map(block_of, settings.proxies)) if settings.behind_proxy else ()
    TimedProtocol.callers = Callers(most=settings.connections_of_address, uncounted=proxies)
    allowed = _allowed_connections(settings.connections_max + (HANDSHAKES_MAX if settings.tls_cert else 0))
    handshakes = min(HANDSHAKES_MAX, allowed // 4) if settings.tls_cert else 0
    config = uvicorn.Config(
        relay.app(),
        host=host,
        port=port,
        http=TimedProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",  # a line for each request that is none would let strangers fill the disk
        server_header=False,
        date_header=False,  # the signed answer says when
        proxy_headers=settings.behind_proxy,  # else any program on this machine could name any sender
        forwarded_allow_ips=list(settings.proxies),
        limit_concurrency=min(settings.connections_max, max(1, allowed - handshakes)),
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )
    tls = _tls(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
    door = _listening(host, port)
    listen = host_text(*door.getsockname()[:2])
    scheme = "https" if settings.tls_cert else "http"
    shown = settings.url if port else f"{scheme}://{listen}"  # a port that the system chose

    relay.settings = msgspec.structs.replace(settings, url=shown)

    def begun() -> None:
        relay.log.event("relay-started", listen=listen, url=shown, key=relay.signer.public)
        started(RunningRelay(key=relay.signer.public, listen=listen, url=shown))

    server = _Server(config, begun, tls, handshakes)

    def stop() -> None:
        relay.stop()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    sweeping = asyncio.create_task(relay.mail.sweep())
    await server.serve(sockets=[door])
    sweeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sweeping
    relay.log.event("relay-stopped")


class _Server(uvicorn.Server):
    """Signals are ours: what is under way is answered, and the process ends with 0. And so is TLS: uvicorn knows of a
    connection only after its handshake, waits a minute for that, and lets anyone have as many as there are files."""

    def __init__(
        self, config: uvicorn.Config, begun: Callable[[], None], tls: ssl.SSLContext | None, handshakes: int
    ) -> None:
        super().__init__(config)
        self._begun, self._tls = begun, tls
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes = InMemory[asyncio.Task[None]](
            lambda one: one.cancel(), bytes_max=handshakes, of_address_max=max(1, handshakes // 2)
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([] if self._tls else sockets)
        if self._tls:
            for door in sockets or ():
                self._accepting = asyncio.create_task(self._accept(door, self._tls))
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        await super().shutdown(sockets)

    async def _accept(self, door: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        door.setblocking(False)
        while True:
            try:
                caller, address = await loop.sock_accept(door)
            except OSError:  # no file is free, or it is gone already
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            one = asyncio.create_task(self._shake_hands(caller, tls))
            one.add_done_callback(self._handshakes.remove)
            self._handshakes.add(one, block_of(str(address[0])), 1)

    async def _shake_hands(self, caller: socket.socket, tls: ssl.SSLContext) -> None:
        def protocol() -> asyncio.Protocol:
            return TimedProtocol(self.config, self.server_state, self.lifespan.state)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, caller, ssl=tls, ssl_handshake_timeout=HEADERS_S
            )
        except OSError:  # TLS faults and time-outs too
            caller.close()
        except asyncio.CancelledError:
            caller.close()
            raise

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _allowed_connections(wanted: int) -> int:
    """As many as were wanted, or as the system lets this process have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted + FILES:
        soft = wanted + FILES if hard == resource.RLIM_INFINITY else min(wanted + FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - FILES))


def _tls(cert: str, key: str) -> ssl.SSLContext:
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        for name in (cert, key):  # ssl does not say which one it cannot read
            Path(name).open("rb").close()
        found.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        why = (error.reason or "").lower().replace("_", " ") or "they cannot be read"
        raise BadSettings(f"{cert} and {key} are not a certificate and its key: {why}", hint=HINT) from error
    except OSError as error:
        raise BadSettings(f"{error.filename} cannot be read: {error.strerror}", hint=HINT) from error
    return found


def _listening(host: str, port: int) -> socket.socket:
    try:
        door = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        raise RelayUnfit(
            f"the relay cannot listen on {host_text(host, port)}: {why_of(error)}",
            hint="stop what listens there, or give another --listen HOST:PORT",
        ) from error
    # asyncio sends at once only on sockets that name TCP as their protocol; on others every second packet of an answer
    # waits 40 ms for the acknowledgement of the first.
    return socket.socket(door.family, door.type, socket.IPPROTO_TCP, fileno=door.detach())
