"""The signer process: holds the operational key, answers a short list of acts at a socket.

Run it as another user than the one whose tools a model drives. Then no tool, whatever it is talked
into, reads the vault: the files are not its user's, the memory of this process is closed to other
processes, and the socket gives no signature over bytes that someone chose.

It answers only users that it was started for: the kernel says who is at the other end of a Unix
socket. Each request is small and has its time; connections are few; nothing that a client sends
ends the process. The socket is created at every start, under a name of its own that is renamed
into place, so that it is never there with a wider mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import struct
from collections.abc import Collection
from pathlib import Path

from holdfast.core.clock import Clock, SystemClock
from holdfast.errors import BadInput, NotNow, ReadOnly, VaultMissing
from holdfast.host.log import Log
from holdfast.host.private_files import check_place
from holdfast.identity.speaker.open_speaker import home_speaker
from holdfast.identity.speaker.signer import LENGTH, REQUEST_BYTES_MAX, SignerService, refusal
from holdfast.identity.speaker.signer_client import PATH_BYTES_MAX
from holdfast.identity.vault.ring import VaultRing
from holdfast.identity.vault.vault import Vault
from holdfast.layout.agent_home import AgentHome

CONNECTIONS_MAX = 32
REQUEST_S = 5.0  # for one request to arrive whole
IDLE_S = 30.0  # between requests of one connection
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def make_signer(home: AgentHome, vault: Vault, clock: Clock) -> SignerService:
    """A signer over the vault and the log of this home."""
    try:
        ring = VaultRing(vault)
    except VaultMissing:
        ring = None
    return SignerService(home_speaker(home.folder, vault, clock), ring, clock=clock)


async def serve_signer(
    home: AgentHome, vault: Vault, *, path: Path, users: Collection[int], group: int | None, log: Log
) -> None:
    """Answer at this socket until asked to stop. Call `harden` before the vault is opened."""
    served = _Served(make_signer(home, vault, SystemClock()), users=frozenset(users), log=log)
    link = _bound(path, group=group)
    server = await asyncio.start_unix_server(served.connected, sock=link, backlog=CONNECTIONS_MAX)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log.event("signing", socket=str(path), users=sorted(users), pid=os.getpid())
    try:
        async with server:
            await stop.wait()
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        vault.wipe()
    log.event("signer-stopped")


class _Served:
    def __init__(self, signer: SignerService, *, users: frozenset[int], log: Log) -> None:
        self._signer = signer
        self._users = users
        self._log = log
        self._open = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client has left, or was too slow
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, user = _peer(writer)
        if user not in self._users or self._open > CONNECTIONS_MAX:
            self._log.event("signer-refused", user=user, pid=pid, open=self._open)
            writer.write(refusal("not-allowed", f"user {user} may not use this signer"))
            await writer.drain()
            return
        while True:
            raw = await _request(reader)
            if raw is None:
                writer.write(refusal(BadInput.code, f"a request may have at most {REQUEST_BYTES_MAX:,} bytes"))
                await writer.drain()
                return
            verb, frame = self._signer.answer(raw, user=user)
            if verb not in ("id", "log"):
                said = "refused" if b'"error":' in frame[:16] else "done"
                self._log.event("signer-asked", verb=verb, user=user, pid=pid, said=said)
            writer.write(frame)
            await asyncio.wait_for(writer.drain(), REQUEST_S)


async def _request(reader: asyncio.StreamReader) -> bytes | None:
    """One request; None where it is longer than any is."""
    head = await asyncio.wait_for(reader.readexactly(LENGTH.size), IDLE_S)
    (size,) = LENGTH.unpack(head)
    if not 0 < size <= REQUEST_BYTES_MAX:
        return None
    return await asyncio.wait_for(reader.readexactly(size), REQUEST_S)


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Who is at the other end, as the kernel says: process and user."""
    link: socket.socket = writer.get_extra_info("socket")
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _group = _CREDENTIALS.unpack(raw)
    return pid, user


def _bound(path: Path, *, group: int | None) -> socket.socket:
    """A listening socket at this path: 0600, or 0660 for a group."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise BadInput("this system does not report which user connects to a socket", hint="run the signer on Linux")
    check_place(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    for one in (path, fresh):
        if len(os.fsencode(one)) > PATH_BYTES_MAX:
            raise BadInput(f"the path {one} is too long for a socket", hint="choose a shorter path")
    _check_free(path)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        link.bind(str(fresh))  # 0600 by the umask that harden has set
        os.chmod(fresh, 0o600)
        if group is not None:
            _give_to_group(fresh, group)
        link.listen(CONNECTIONS_MAX)
        os.rename(fresh, path)
    except OSError as error:
        link.close()
        fresh.unlink(missing_ok=True)
        raise ReadOnly(f"cannot create the socket {path}: {error.strerror}") from error
    link.setblocking(False)
    return link


def _give_to_group(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group)
    except PermissionError:
        raise ReadOnly(
            f"Holdfast cannot assign the socket to group {group}", hint="make the signer's user a member of that group"
        ) from None
    os.chmod(path, 0o660)  # the group is the agent's; each peer is checked besides


def _check_free(path: Path) -> None:
    """Refuse a path where another signer answers, or where something else lies."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadInput(f"{path} already exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.connect(str(path))
        except ConnectionRefusedError:
            return  # left by one that was killed: the rename takes its place
        except OSError as error:
            raise ReadOnly(f"Holdfast cannot use the socket {path}: {error.strerror}") from error
    raise NotNow(f"another signer already uses the socket {path}", hint="stop it first")
