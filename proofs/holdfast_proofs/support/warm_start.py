"""Commands of `holdfast` in processes of their own that need not import Holdfast first.

To start Python and to import the package costs ten times what most commands do. So one process
imports everything, once, and forks a child for each command. The child has the words, folder,
environment, input and descriptors that it is given, and no descriptor else; its exit code, output
and files are those of `python -m holdfast`. What a fork cannot show: the words in /proc, options of
the interpreter, variables that the interpreter or the C library read at the start (PYTHON*,
LD_PRELOAD, LC_ALL). A test about those starts Python itself. Borg is spared too: see spare_borg.

    test --(words, descriptors)--> server --fork--> watcher --fork--> command
      ^----------------- process id, then the status -----'

The server ends when the last process that can ask it has ended.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from select import select
from typing import Any

import msgspec

from holdfast.backup import open_engine
from holdfast.backup.borg import verbs
from holdfast.backup.borg.process import Run
from holdfast.backup.borg.verbs import Version, find_program
from holdfast.errors import HoldfastError
from holdfast_proofs.support.warm_fork import end_process, place_descriptors, start_borg

WAIT_S = 60.0  # for a command that takes a fraction of a second on an idle machine
FDS_MAX = 16
HEAD_BYTES = 4
cold_borg = False  # a test about Borg's own processes sets it
WARM_BORG = "HOLDFAST_TESTS_WARM_BORG"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One command. Texts are bytes: what a system gives is not always UTF-8."""

    words: list[bytes]
    folder: bytes
    environment: dict[bytes, bytes]
    fds: list[int]  # the numbers that the descriptors behind the report get in the child


def run_command(
    words: Sequence[str | bytes],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes = b"",
    pass_fds: Sequence[int] = (),
    timeout: float = WAIT_S,
) -> subprocess.CompletedProcess[str]:
    """`python -m holdfast` with these words, as `subprocess.run` would run it."""
    done = run_command_raw(words, cwd=cwd, env=env, input=input, pass_fds=pass_fds, timeout=timeout)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_command_raw(
    words: Sequence[str | bytes],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes = b"",
    pass_fds: Sequence[int] = (),
    timeout: float = WAIT_S,
) -> subprocess.CompletedProcess[bytes]:
    """The same; what it printed is bytes."""
    order = Order(
        words=[os.fsencode(word) for word in words],
        folder=os.fsencode(cwd or os.getcwd()),
        environment={
            os.fsencode(name): os.fsencode(value) for name, value in (os.environ if env is None else env).items()
        },
        fds=[0, 1, 2, *pass_fds],
    )
    told, stdin, stdout, stderr = (os.pipe() for _ in range(4))
    theirs = (told[1], stdin[0], stdout[1], stderr[1])
    try:
        _send(order, [*theirs, *pass_fds])
    finally:
        for fd in theirs:
            os.close(fd)
    raw = input.encode() if isinstance(input, str) else input
    with ThreadPoolExecutor(3) as pool, open(told[0], "rb", buffering=0) as report:
        pool.submit(_feed, stdin[1], raw)
        printed = [pool.submit(_read_all, end) for end in (stdout[0], stderr[0])]
        code = os.waitstatus_to_exitcode(_wait(report.fileno(), timeout))
    return subprocess.CompletedProcess(order.words, code, printed[0].result(), printed[1].result())


def _send(order: Order, fds: list[int]) -> None:
    body = msgspec.msgpack.encode(order)
    with _asking:
        server = _server()
        socket.send_fds(server, [len(body).to_bytes(HEAD_BYTES)], fds)
        server.sendall(body)


def _feed(fd: int, raw: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "wb") as pipe:
        pipe.write(raw)


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as pipe:
        return pipe.read()


def _wait(report: int, timeout: float) -> int:
    pid = int(_line(report, timeout))
    try:
        return int(_line(report, timeout))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise


def _line(fd: int, timeout: float) -> bytes:
    """The watcher writes each line at once."""
    ready, _, _ = select([fd], [], [], timeout)
    if not ready:
        raise TimeoutError(f"the command has not ended after {timeout} s")
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(fd, 1)
        if not part:
            raise RuntimeError("the server of commands has ended")
        line += part
    return line


_asking = threading.Lock()


@functools.cache
def _server() -> socket.socket:
    here, there = socket.socketpair()
    with there:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(_close, here, server)
    return here


def begin_again() -> None:
    """The next command starts another server: the one of now is gone, or is in a network that is removed."""
    _server.cache_clear()


def _close(here: socket.socket, server: subprocess.Popen[bytes]) -> None:
    here.close()
    server.wait()


# --- the server -------------------------------------------------------------------------------


def serve(asked: socket.socket) -> None:
    import_everything()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        head, fds, _, _ = socket.recv_fds(asked, HEAD_BYTES, FDS_MAX)
        if not head:
            return
        order = msgspec.msgpack.decode(_exactly(asked, int.from_bytes(head)), type=Order)
        if os.fork() == 0:
            asked.close()
            _watch(order, fds)
        for fd in fds:
            os.close(fd)
        _reap()


def _reap() -> None:
    """Forget the watchers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def import_everything() -> None:
    import holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    spare_borg()
    with contextlib.suppress(HoldfastError):
        asyncio.run(open_engine.ask_version(find_program()))
    gc.collect()
    gc.freeze()


def spare_borg() -> None:
    """For this process and its forks: a Borg says its version once, as long as it is the same file,
    it does not test its own C code before each act, and it need not import itself (see warm_fork)."""
    plain = verbs.environment

    def untested(*, base: Path, rescue: bool, rsh: str = "", given: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**plain(base=base, rescue=rescue, rsh=rsh, given=given), "BORG_SELFTEST": "disabled"}

    verbs.environment = untested
    with contextlib.suppress(HoldfastError):
        real = find_program()
        started, warm = verbs.running, Path(os.environ.get(WARM_BORG) or start_borg(real))
        os.environ[WARM_BORG] = str(warm)  # for the server of commands, which this process starts

        def warmed(program: Path, *given: Any, **named: Any) -> AbstractAsyncContextManager[Run]:
            return started(warm if program == real and not cold_borg else program, *given, **named)

        verbs.running = warmed
    ask, known = open_engine.ask_version, dict[tuple[Path, int, int, int], Version]()

    async def remembered(program: Path) -> Version:
        if not program.is_file():
            return await ask(program)
        at = program.stat()
        key = (program, at.st_ino, at.st_mtime_ns, at.st_size)
        if key not in known:
            known[key] = await ask(program)
        return known[key]

    open_engine.ask_version = remembered


def _exactly(asked: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = asked.recv(size - len(body))
        if not part:
            raise RuntimeError("half an order")
        body += part
    return body


def _watch(order: Order, fds: list[int]) -> None:
    """Fork the command, wait for it, tell the test. It never returns."""
    pid = os.fork()
    if pid == 0:
        try:
            _be_command(order, fds)
        finally:
            os._exit(1)
    told, *rest = fds
    for fd in rest:
        os.close(fd)
    os.write(told, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(told, b"%d\n" % status)
    os._exit(0)


def _be_command(order: Order, fds: list[int]) -> None:
    place_descriptors(fds[1:], order.fds)
    os.environb.clear()
    os.environb.update(order.environment)
    os.chdir(order.folder)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.argv = ["holdfast", *map(os.fsdecode, order.words)]
    if "" in sys.path:
        sys.path.remove("")
    sys.path.insert(0, os.fsdecode(order.folder))
    code = 0
    try:
        runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    end_process(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
