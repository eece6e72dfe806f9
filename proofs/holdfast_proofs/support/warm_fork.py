"""Programs in Python, in processes of their own, that need not import themselves first.

To start Borg or Holdfast costs four times what most of their acts do, and the tests start them
thousands of times. So one process imports the program, once, and forks a child for each act. In the
program's place a small one hands on its words, folder, environment and descriptors, passes signals on
and ends as the child ends; when it is killed, the child is killed.

    test --starts--> forwarder --(words, descriptors)--> server --fork--> watcher --fork--> program
                         ^---------------- process id, then the status ---'

What a fork cannot show: a library loaded before the program, other limits or another namespace than
those of the tests. The forwarder then becomes the real program. The server ends with its starter.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD_BYTES = 4
FDS_MAX = 64
FD_MIN = 512  # where received descriptors wait until each gets its own number
Act = Callable[[], object]
NAMESPACES = ("mnt", "pid", "net", "user")

# It imports nothing that is not built in: its start is what each act pays.
_FORWARDER = """#!{python} -IS
import _signal, _socket, posix, sys

def around():
    with open("/proc/self/limits") as limits:
        kept = [line for line in limits if not line.startswith("Max core")]
        return "".join(kept) + "".join(posix.readlink("/proc/self/ns/" + one) for one in {namespaces!r})

if b"LD_PRELOAD" in posix.environ or around() != {around!r}:
    posix.execv({real[0]!r}, {real!r} + sys.argv[1:])
environment = posix.environ

def is_open(fd):
    try:
        return posix.fstat(fd) is not None
    except OSError:
        return False

fds = [fd for fd in sorted(map(int, posix.listdir("/proc/self/fd"))) if is_open(fd)]
parts = [posix.getcwdb(), b" ".join(b"%d" % fd for fd in fds), b"%d" % len(sys.argv)]
parts += [word.encode("utf-8", "surrogateescape") for word in sys.argv]
parts += [name + b"=" + value for name, value in environment.items()]
body = b"\\0".join(parts)
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
link.connect({address!r})
packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
link.sendmsg([len(body).to_bytes({head_bytes}, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
link.sendall(body)

def number():
    text = b""
    while not text.endswith(b"\\n"):
        part = link.recv(1)
        if not part:
            posix._exit(70)
        text += part
    return int(text)

pid = number()
for one in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
    _signal.signal(one, lambda number, frame: posix.killpg(pid, number))
status = number()
if posix.WIFSIGNALED(status):
    _signal.signal(posix.WTERMSIG(status), _signal.SIG_DFL) if posix.WTERMSIG(status) != 9 else None
    posix.kill(posix.getpid(), posix.WTERMSIG(status))
posix._exit(posix.WEXITSTATUS(status))
"""


def start_borg(real: Path) -> Path:
    """Start a server for this Borg; the program to run in its place."""
    variables = {"BORG_EXIT_CODES": "modern", "BORG_SELFTEST": "disabled"}
    return _start("borg", real.resolve().parent / "python", [str(real)], variables)


def start_holdfast() -> Path:
    """Start a server for `python -m holdfast`; the program to run in its place."""
    return _start("holdfast", Path(sys.executable), [sys.executable, "-m", "holdfast"], {})


def _start(name: str, python: Path, real: list[str], variables: dict[str, str]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-warm-"))
    ready, told = os.pipe()
    ours, theirs = os.pipe()
    with open(ready, "rb", buffering=0) as ready_file:
        server = subprocess.Popen(
            [python, "-I", __file__, name, str(folder), str(told), str(ours)],
            pass_fds=[told, ours],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC", **variables},
        )
        os.close(told)
        os.close(ours)
        if not ready_file.read(1):
            raise RuntimeError(f"the server of {name} did not start")
    program = folder / name
    program.write_text(
        _FORWARDER.format(
            python=python,
            namespaces=NAMESPACES,
            around=_around(),
            real=real,
            address=f"\0{folder}".encode(),
            head_bytes=HEAD_BYTES,
        )
    )
    program.chmod(0o700)
    atexit.register(_close, os.getpid(), theirs, server, folder)
    return program


def _around() -> str:
    limits = Path("/proc/self/limits").read_text().splitlines(keepends=True)
    kept = [line for line in limits if not line.startswith("Max core")]  # dumps are the business of a test, not Borg's
    return "".join(kept) + "".join(os.readlink(f"/proc/self/ns/{one}") for one in NAMESPACES)


def _close(owner: int, alive: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    if os.getpid() != owner:
        return
    os.close(alive)
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


# --- the server, in the program's own Python --------------------------------------------------


def serve(name: str, address: str, told: int, alive: int) -> None:
    act = {"borg": _import_borg, "holdfast": _import_holdfast}[name]()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"\0{address}")
    listening.listen(64)
    gc.collect()
    gc.freeze()
    os.write(told, b"1")
    os.close(told)
    while True:
        ready, _, _ = select.select([listening, alive], [], [])
        if alive in ready:
            return
        link, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(alive)
            _watch(link, act)
        link.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue


def _import_borg() -> Act:
    """Import it, and build the parser of its words, which takes as long as an act. New keys are made with
    one round of the passphrase's hash: the strength of that hash is Borg's business, not a test's."""
    sys.argv = ["borg"]  # the parser keeps its name
    archiver: Any = importlib.import_module("borg.archiver")
    keys: Any = importlib.import_module("borg.crypto.key")
    keys.PBKDF2_ITERATIONS = 1
    only = archiver.Archiver()
    parser = only.build_parser()
    only.build_parser = lambda: parser
    archiver.Archiver = lambda: only
    return archiver.main


def _import_holdfast() -> Act:
    importlib.import_module("holdfast_proofs.support.warm_start").import_everything()
    return lambda: runpy.run_module("holdfast", run_name="__main__", alter_sys=True)


def _watch(link: socket.socket, act: Act) -> None:
    """Fork the program, wait for it, say how it ended; kill it when the forwarder has ended first. Never returns."""
    try:
        fds, body = _order(link)
        pid = os.fork()
        if pid == 0:
            try:
                _be_program(fds, body, act)
            finally:
                os._exit(71)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it has begun, and did it itself
            os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        link.sendall(b"%d\n" % pid)
        running = os.pidfd_open(pid)
        ready, _, _ = select.select([link, running], [], [])
        if running not in ready:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            link.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def _order(link: socket.socket) -> tuple[list[int], bytes]:
    head, passed, _, _ = link.recvmsg(HEAD_BYTES, socket.CMSG_SPACE(FDS_MAX * 4))
    fds = array.array("i")
    for _, _, raw in passed:
        fds.frombytes(raw)
    size, body = int.from_bytes(head, "big"), b""
    while len(body) < size:
        part = link.recv(size - len(body))
        if not part:
            raise RuntimeError("half an order")
        body += part
    return list(fds), body


def _be_program(fds: list[int], body: bytes, act: Act) -> None:
    folder, numbers, count, *rest = body.split(b"\0")
    words, variables = rest[: int(count)], rest[int(count) :]
    os.setpgid(0, 0)
    place_descriptors(fds, [int(number) for number in numbers.split()])
    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    os.chdir(folder)
    sys.argv = [os.fsdecode(word) for word in words]
    # Both names, as at a start: Borg wraps these streams, and the last name that goes closes one.
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    if b"PYTHONUNBUFFERED" in os.environb:
        sys.stdout.reconfigure(write_through=True)
    if "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    code = 0
    try:
        act()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    end_process(code)


def place_descriptors(fds: list[int], numbers: list[int]) -> None:
    """Give each received descriptor its own number, and close all others."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, FD_MIN) for fd in fds]
    os.closerange(3, FD_MIN)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
    os.closerange(FD_MIN, max(high) + 1)


def end_process(code: int) -> None:
    """As an interpreter ends: threads, what was registered, then what is still in buffers."""
    ended = threading.main_thread()
    for thread in threading.enumerate():
        if thread is not ended and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
