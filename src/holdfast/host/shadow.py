"""A shadow: processes in a world of their own, in which a failure can be rehearsed while production stays as it is.

True at all times, each by something that the kernel enforces:

    files       the shadow sees this machine at the same paths, but every write lands in the drill's folder: its root is
                made of overlays. What the failure destroys is absent: a whiteout in the upper layer
    sockets     no socket of this machine can be reached, by path (overlays have inodes of their own) or by name
                (network namespace)
    network     loopback alone; far ends of the drill listen there (`listen`)
    processes   those of the shadow alone; when its first process ends, the kernel ends all others. It ends with the
                drill: its life pipe closes, and the kernel kills it with its parent
    rights      a user namespace: the user stays who it was, without power over this machine; of root's capabilities
                those over files stay
    environment a short list of variables; nothing else passes

A kill of the drill at any moment leaves no process and no mount, only its folder. Where the kernel refuses one of
these, there is no shadow: `open_shadow` raises, and nothing has run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, Protocol
from urllib.parse import unquote

from holdfast.errors import ShadowRefused

_SCRIPT = str(Path(__file__).with_name("shadow_init.py"))
_PASSED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "TZ", "USER")
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPlan:
    """What a shadow is made of. Two shadows with one folder are two machines one after the other: the second finds what
    the first wrote, but for what is gone."""

    folder: Path  # where all its writes land; on a disk whose file system may be an upper layer
    gone: tuple[Path, ...] = ()  # absent in the shadow
    copies: tuple[tuple[Path, Path], ...] = ()  # files of this machine, and where they appear
    own: tuple[Path, ...] = ()  # folders that are copied: a layer below, or a mount, keeps a folder from being renamed
    small: tuple[tuple[Path, int], ...] = ()  # folders on a disk of their own, which has so many bytes


class Written(NamedTuple):
    """What differs between two writes of one file."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Machine(Protocol):
    """Where the commands of a drill run: a shadow here, one on another machine, or production itself."""

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path = Path("/"),
        more: Mapping[str, str] | None = None,
        typed: Sequence[tuple[str, str]] = (),
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]: ...

    def forward(self, port: int) -> int: ...


@dataclass(slots=True)
class Shadow:
    """An open shadow. Its commands are real processes, with the words that a person would type."""

    plan: ShadowPlan
    left: tuple[str, ...]  # folders of other file systems that it does not show, with the reason
    _first: subprocess.Popen[bytes]
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])
    _forwarded: list[socket.socket] = field(default_factory=list[socket.socket])

    @property
    def pid(self) -> int:
        """Of its first process, here."""
        return self._first.pid

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path = Path("/"),
        more: Mapping[str, str] | None = None,
        typed: Sequence[tuple[str, str]] = (),
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start a command. `more` is added to its environment, `typed` are options whose value is a secret: the
        command gets a descriptor from which it can be read once."""
        given = [(option, pipe_with(text)) for option, text in typed]
        try:
            process = subprocess.Popen(
                [
                    *(*_PYTHON, _SCRIPT, "enter", str(self._first.pid), str(cwd), *words),
                    *(word for option, fd in given for word in (option, str(fd))),
                ],
                env={**environment(), **(more or {})},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[fd for _, fd in given],
                process_group=0,  # Ctrl-C reaches the drill alone, which ends the shadow in order
            )
        finally:
            for _, fd in given:
                os.close(fd)
        self._started.append(process)
        return process

    def listen(self) -> tuple[socket.socket, int]:
        """A listening socket on the shadow's loopback, and its port, for a far end that runs outside."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            done = subprocess.run(
                [*_PYTHON, _SCRIPT, "listen", str(self._first.pid)],
                stdin=theirs.fileno(),
                env={},
                timeout=_ANSWER_S,
                check=False,
            )
            if done.returncode:
                raise ShadowRefused("the shadow's network cannot be reached")
            port, fds, _, _ = socket.recv_fds(ours, 32, 1)
        return socket.socket(fileno=fds[0]), int(port)

    def forward(self, port: int) -> int:
        """Let processes of the shadow reach a far end that listens on this port of our own loopback; its port there."""
        listening, inside = self.listen()
        self._forwarded.append(listening)
        threading.Thread(target=_accept, args=(listening, port), name="holdfast far end", daemon=True).start()
        return inside

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal to the process that has this id in the shadow; False where there is none."""
        own = os.readlink(f"/proc/{self._first.pid}/ns/pid_for_children")
        for one in os.listdir("/proc"):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{one}/status").read_text("ascii", "replace").splitlines() if one.isdigit() else []
                inner = next(line for line in lines if line.startswith("NSpid:")).split()[-1]
                if int(inner) == pid and os.readlink(f"/proc/{one}/ns/pid") == own:
                    os.kill(int(one), number)
                    return True
        return False

    def outside(self, path: Path) -> Path:
        """Where a path that the shadow wrote is on this machine."""
        text, layers = str(path), self.plan.folder / "layers"
        for folder in (path, *path.parents):
            upper = layers / _layer_name(str(folder)) / "upper"
            if upper.is_dir():
                return upper / os.path.relpath(text, folder)
        return Path(f"{self.plan.folder / 'root'}{text}")

    def written(self) -> dict[str, Written]:
        """Every path that differs from this machine's, by its path in the shadow: what was written there by any
        program. Folders only where nothing is in them."""
        found: dict[str, Written] = {}
        for layer in (self.plan.folder / "layers").iterdir():
            start = "/" + unquote(layer.name)
            _add_written(found, str(layer / "upper"), "" if start == "/" else start)
        _add_written(found, str(self.plan.folder / "root"), "")
        return found

    def kill(self) -> None:
        """The machine dies: every process in it, at once. Its files stay in the folder."""
        self._first.kill()
        self._first.wait()
        for one in self._started:
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout, one.stderr):
                if pipe is not None:
                    pipe.close()
        self._started.clear()
        for listening in self._forwarded:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self._forwarded.clear()
        for pipe in (self._first.stdin, self._first.stdout):
            if pipe is not None:
                pipe.close()


def pipe_with(text: str) -> int:
    """A descriptor from which this text can be read once."""
    reads, writes = os.pipe()
    try:
        os.write(writes, text.encode() + b"\n")
    finally:
        os.close(writes)
    return reads


_PYTHON = (sys.executable, "-I", "-S")


def _add_written(found: dict[str, Written], top: str, start: str) -> None:
    for folder, names, files in os.walk(top):
        for name in (*files, *(one for one in names if os.path.islink(os.path.join(folder, one)))):
            with contextlib.suppress(OSError):  # gone again
                _add_file(found, os.path.join(folder, name), f"{start}{os.path.join(folder, name)[len(top) :]}")
        if not names and not files and folder != top:
            with contextlib.suppress(OSError):
                _add_file(found, folder, f"{start}{folder[len(top) :]}/")


def _add_file(found: dict[str, Written], path: str, shown: str) -> None:
    at = os.lstat(path)
    if not (stat.S_ISCHR(at.st_mode) and at.st_rdev == 0):  # a whiteout: it is absent
        found[shown] = Written(at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)


def _layer_name(path: str) -> str:
    """As shadow_init.py names the layer of a folder."""
    return path.strip("/").replace("%", "%25").replace("/", "%2F")


def _accept(listening: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until one side ends; then both end, as they would without us."""
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def environment() -> dict[str, str]:
    """What passes from this process's environment into a shadow."""
    return {name: os.environ[name] for name in _PASSED if name in os.environ}


@contextlib.contextmanager
def open_shadow(plan: ShadowPlan) -> Generator[Shadow]:
    """A new shadow; on leaving, every process in it is killed. Raises ShadowRefused."""
    if sys.platform != "linux":
        raise ShadowRefused("a shadow needs Linux namespaces; this is not Linux")
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    spec = {
        "folder": str(plan.folder),
        "gone": [str(one) for one in plan.gone],
        "copies": [[str(source), str(target)] for source, target in plan.copies],
        "own": [str(one) for one in plan.own],
        "small": [[str(path), size] for path, size in plan.small],
    }
    first = subprocess.Popen(
        [*_PYTHON, _SCRIPT, "init", json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    shadow = Shadow(plan, (), first)
    try:
        _expect(first, "unshared")
        _write_maps(first.pid)
        assert first.stdin is not None
        first.stdin.write(b"m")
        first.stdin.flush()
        shadow.left = tuple(json.loads(_expect(first, "ready")))
        yield shadow
    finally:
        shadow.kill()


def _expect(first: subprocess.Popen[bytes], word: str) -> str:
    assert first.stdout is not None
    if not select.select([first.stdout], [], [], _ANSWER_S)[0]:
        raise ShadowRefused(f"this machine makes no shadow within {_ANSWER_S:g} s")
    said, _, rest = first.stdout.readline().decode(errors="replace").strip().partition(" ")
    if said != word:
        raise ShadowRefused(f"this machine refuses a shadow: {rest or 'its first process ended'}")
    return rest


def _write_maps(pid: int) -> None:
    """The user stays who it was. Root keeps every id of this machine: files keep their owners."""
    try:
        user, group = os.geteuid(), os.getegid()
        if user:
            lines = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        else:
            lines = {name: _same(Path(f"/proc/self/{name}").read_text("ascii")) for name in ("uid_map", "gid_map")}
        for name, text in lines.items():
            Path(f"/proc/{pid}/{name}").write_text(text, "ascii")
    except OSError as error:
        raise ShadowRefused(f"this machine refuses a shadow: {error.strerror}") from error


def _same(ranges: str) -> str:
    return "".join(f"{first} {first} {count}\n" for first, _, count in (line.split() for line in ranges.splitlines()))
