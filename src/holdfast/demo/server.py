"""A PostgreSQL server of the demo's own: in a folder for itself, without a port, gone with the demo.

PostgreSQL does not run as root: there the server gets the user `nobody`. Where that one cannot reach its programs,
as in the home of root, it runs in a user namespace in which root is `nobody`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.demo.workers import DemoFailed, end
from holdfast.host.hardening import IS_LINUX, PR_SET_PDEATHSIG, prctl
from holdfast.host.postgres_programs import find_programs, server_environment

USER = "holdfast"
START_S_MAX = 60.0
MEMORY = Path("/dev/shm")  # noqa: S108 - folders there are made by mkdtemp
SOCKET = ".s.PGSQL.5432"
PREFIX = "hf-pg-"
ABANDONED_S = 600.0  # by then a folder is locked, or its server runs


class Servers:
    """The server that several scenes use: started by the first of them, gone with the stack."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._found: tuple[Path | None, str] | None = None

    async def find(self) -> tuple[Path | None, str]:
        """Its socket, or why there is none."""
        if self._found is None:
            self._found = await self._start()
        return self._found

    async def _start(self) -> tuple[Path | None, str]:
        if find_spec("psycopg") is None:
            return None, "the driver of PostgreSQL is missing (pip install 'holdfast[postgres]')"
        programs = await asyncio.to_thread(find_programs)
        if programs is None:
            return None, "there is no PostgreSQL on this machine (15 or newer)"
        return await self._stack.enter_async_context(started(programs)), ""


@contextlib.asynccontextmanager
async def started(programs: Path) -> AsyncGenerator[Path]:
    """The socket of a running server, for the block."""
    with own_folder() as folder:  # not in the demo's, which `nobody` could not reach
        await _make(programs, folder)
        async with _running(programs, folder):
            yield folder / SOCKET


@contextlib.contextmanager
def own_folder(*, on_disk: bool = False) -> Generator[Path]:
    """Short, because a socket's path may have about 100 characters; in memory where there is room. It is locked, so
    that the next one finds what a process that was killed has left, and removes it."""
    place = MEMORY if not on_disk and os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        if is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        give_to_server(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def is_abandoned(folder: Path) -> bool:
    """Whether no process uses it any more: none has it locked, and the server in it has ended."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        running = (folder / "data/postmaster.pid").read_text().split()
        if running and Path("/proc", running[0]).exists():
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass  # no server was ever started there, or it has removed its file
    finally:
        os.close(lock)
    return time.time() - folder.stat().st_mtime > ABANDONED_S


async def _make(programs: Path, folder: Path) -> None:
    made = ("--no-instructions", "--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", f"--username={USER}")
    process = await asyncio.create_subprocess_exec(
        *(*before_program(), programs / "initdb", f"--pgdata={folder / 'data'}", *made),
        cwd=folder,
        stdin=DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        **without_rights(),
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise DemoFailed(f"initdb ended with {process.returncode}: {said.decode(errors='replace').strip()[-600:]}")


@contextlib.asynccontextmanager
async def _running(programs: Path, folder: Path) -> AsyncGenerator[None]:
    log = folder / "log"
    settings = ("listen_addresses=", f"unix_socket_directories={folder}", "shared_buffers=16MB")
    with open(log, "wb") as written:  # noqa: ASYNC230 - a new file of ours
        process = await asyncio.create_subprocess_exec(
            *(*before_program(), programs / "postgres", "-D", folder / "data"),
            *(word for one in settings for word in ("-c", one)),
            cwd=folder,
            stdin=DEVNULL,
            stdout=written,
            stderr=written,
            process_group=0,  # Ctrl-C reaches the demo alone
            preexec_fn=end_with_parent,
            **without_rights(),
        )
    try:
        async with asyncio.timeout(START_S_MAX):
            while "ready to accept connections" not in log.read_text(errors="replace"):
                if process.returncode is not None:
                    raise DemoFailed(f"PostgreSQL did not start: {log.read_text(errors='replace').strip()[-600:]}")
                await asyncio.sleep(0.02)
        yield
    finally:
        await end(process, signal.SIGQUIT)  # at once; its data goes with the folder


def end_with_parent() -> None:
    """In the child, before its program starts."""
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def without_rights() -> dict[str, Any]:
    """Options of a process: PostgreSQL and its helpers refuse to run as root."""
    own: dict[str, Any] = {"env": server_environment()}
    if os.geteuid() == 0 and not is_hidden():
        nobody = pwd.getpwnam("nobody")
        own |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return own


def before_program() -> tuple[str, ...]:
    """What stands before its command."""
    if os.geteuid() != 0 or not is_hidden():
        return ()
    nobody = pwd.getpwnam("nobody")
    return ("unshare", "--user", f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}")


def give_to_server(path: Path) -> None:
    own = without_rights()
    if "user" in own:
        os.chown(path, own["user"], own["group"])


@functools.cache
def is_hidden() -> bool:
    """Whether another user cannot reach what is installed here."""
    return any(not folder.stat().st_mode & 0o001 for folder in (Path(sys.prefix), *Path(sys.prefix).parents))
