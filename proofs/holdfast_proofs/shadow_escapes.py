"""Attempts to reach production out of a shadow: each is refused, and a kind of attempt succeeds without its guard.

    python -m holdfast_proofs.shadow_escapes

Production is an agent with vault, second place, witness, arbiter and a place, beside it a signer's socket, a named pipe
with a reader, far ends on loopback, and a process that holds locks. Every attempt is a program in a shadow, with the
rights that a command of a drill has. Refused means: production's files are equal byte for byte, no far end was reached,
nothing that is gone was read. Then the guard of each kind is taken out of the shadow's own code, on another copy of
production, and at least one attempt of the kind must succeed: so it is the guard that refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.host import shadow as under_test
from holdfast.host.shadow import Shadow, ShadowPlan, open_shadow
from holdfast_proofs.drills import make_example
from holdfast_proofs.runner import Proof, ProofFailed, Result

SCRIPT = Path(under_test.__file__).with_name("shadow_init.py")
SCRIPT_NAME = "_SCRIPT"  # of the module under test
LIBC = ctypes.CDLL(None)
TOKENS = (
    "OPENAI_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "SSH_AUTH_SOCK",
    "HOLDFAST_HOME",
    "DATABASE_URL",
    "BORG_PASSPHRASE",
)
SECRET = "held by production"
ATTEMPT_S = 60.0


class World:
    """What a shadow must not reach. `root` is an agent, or a small folder in its shape."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = os.getpid() % 30_000 + 1_000
        self.arrived: list[str] = []
        self.name = f"holdfast-escape-{os.getpid()}-{root.name}"
        self.tcp = self._serve(socket.create_server(("127.0.0.1", 0)))
        self.tcp6 = self._serve(socket.create_server(("::1", 0), family=socket.AF_INET6)) if socket.has_ipv6 else None
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.signer = self._bound(str(root / "signer"))
        self.abstract = self._bound(f"\0{self.name}")
        self.shared = LIBC.shmget(self.key, 4096, 0o1600)
        self.semaphores = LIBC.semget(self.key, 1, 0o1600)
        self.queue = LIBC.msgget(self.key, 0o1600)
        os.mkfifo(root / "pipe")
        self.pipe = os.open(root / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        (root / "link").symlink_to(self.targets()[0])
        self.folder_fd = os.open(root, os.O_RDONLY)

    def _serve(self, server: socket.socket) -> socket.socket:
        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    self.arrived.append("connection")
                    near.close()

        threading.Thread(target=accept, daemon=True).start()
        return server

    def _bound(self, address: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(address)
        made.listen()
        return made

    @property
    def gone(self) -> tuple[Path, ...]:
        """As the loss of a machine takes it."""
        return (self.root / "vault", self.root / "second", self.root / "unlock")

    def targets(self) -> list[Path]:
        """Files that are visible in a shadow: one in each part of the agent."""
        found: list[Path] = []
        for part in ("witness", "arbiter", "place-1", "ada"):
            found += sorted(one for one in (self.root / part).rglob("*") if one.is_file() and one.stat().st_size)[:2]
        return found

    def secrets(self) -> list[Path]:
        found = [path for one in self.gone for path in ([one] if one.is_file() else sorted(one.rglob("*")))]
        return [one for one in found if one.is_file()]

    def state(self) -> str:
        """A digest over every file, with its mode, times and links."""
        seen = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            found = path.lstat()
            seen.update(f"{path} {found.st_mode} {found.st_mtime_ns} {found.st_nlink} {found.st_uid}".encode())
            if path.is_file() and not path.is_symlink():
                seen.update(path.read_bytes())
                if found.st_size < 1 << 20:
                    seen.update(str(os.listxattr(path)).encode())
        return seen.hexdigest()

    def drain(self) -> bool:
        """Whether something arrived since the last look."""
        came = bool(self.arrived)
        self.arrived.clear()
        self.udp.setblocking(False)
        for read in (lambda: self.udp.recv(100), lambda: os.read(self.pipe, 100)):
            with contextlib.suppress(OSError):
                came = bool(read()) or came
        return came

    def close(self) -> None:
        for one in (self.tcp, self.tcp6, self.udp, self.signer, self.abstract):
            if one is not None:
                one.close()
        for fd in (self.pipe, self.folder_fd):
            os.close(fd)
        LIBC.shmctl(self.shared, 0, None)
        LIBC.semctl(self.semaphores, 0, 0)
        LIBC.msgctl(self.queue, 0, None)


def py(text: str, *words: object) -> list[str]:
    return [sys.executable, "-I", "-c", text, *(str(one) for one in words)]


def sh(text: str, *words: object) -> list[str]:
    return ["sh", "-c", text, "sh", *(str(one) for one in words)]


@dataclass(frozen=True, slots=True)
class Kind:
    """`changes`: an attempt is judged by production's files, else by its exit code and by what arrived."""

    name: str
    attempts: Callable[[World], list[list[str]]]
    guard: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # lines of the shadow's script, and what replaces them
    changes: bool = False
    without: Callable[[World], contextlib.AbstractContextManager[None]] | None = None  # a guard outside of that script


WRITES = (
    'echo x >> "$1"',
    ': > "$1"',
    'rm -f "$1"',
    'mv "$1" "$1.moved"',
    'chmod 777 "$1"',
    'touch -d 2001-01-01 "$1"',
    'ln "$1" "$1.link"',
    'echo x > "$(dirname "$1")/new"',
    'mkdir "$(dirname "$1")/new-folder"',
    'ln -sf "$1" "$1.out" && echo x >> "$1.out"',
    'ln "$1" "$1.hard" && echo x >> "$1.hard"',
    'cd "$(dirname "$1")" && echo x >> "./$(basename "$1")"',
    'echo x >> "/proc/self/root$1"',
    'cp /etc/hostname "$1"',
    'rm -rf "$(dirname "$1")"',
    'chown 12345 "$1"',
)
MAPPED = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
    view[0] ^= 1
    view.flush()
"""
XATTR = "import os, sys; os.setxattr(sys.argv[1], 'user.out', b'x')"


def writes(it: World) -> list[list[str]]:
    found = [sh(text, target) for target in it.targets() for text in WRITES]
    found += [py(text, target) for target in it.targets()[:2] for text in (MAPPED, XATTR)]
    return [*found, sh('echo x >> "$1"', it.root / "link"), sh('echo x >> "/proc/1/root$1"', it.targets()[0])]


READS = (
    'cat "$1"',
    'cat "/proc/self/root$1"',
    'cat "/proc/1/root$1"',
    'cd "$(dirname "$1")" && cat "./$(basename "$1")"',
)


def reads(it: World) -> list[list[str]]:
    return [sh(text, one) for one in it.secrets()[:6] for text in READS]


def connect(family: str, address: str, kind: str = "SOCK_STREAM") -> list[str]:
    return py(f"import socket; socket.socket(socket.{family}, socket.{kind}).connect({address})")


def sockets_by_path(it: World) -> list[list[str]]:
    paths = (it.root / "signer", f"/proc/self/root{it.root}/signer", f"/proc/1/root{it.root}/signer")
    found = [connect("AF_UNIX", repr(str(one))) for one in paths]
    pipe = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK), b'x')"
    return [*found, py(pipe, it.root / "pipe")]


def sockets_by_name(it: World) -> list[list[str]]:
    return [connect("AF_UNIX", repr(f"\0{it.name}")), connect("AF_UNIX", repr(f"\0{it.name}".encode()))]


ADDRESSES = ("127.0.0.1", "localhost", "0.0.0.0", "127.1")  # noqa: S104 - connected to


def network(it: World) -> list[list[str]]:
    port = it.tcp.getsockname()[1]
    found = [connect("AF_INET", repr((host, port))) for host in ADDRESSES]
    if it.tcp6 is not None:
        found.append(connect("AF_INET6", repr(("::1", it.tcp6.getsockname()[1]))))
    sent = f"import socket; socket.socket(2, 2).sendto(b'x', {it.udp.getsockname()!r}); raise SystemExit(1)"
    url = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/charge', b'amount=5')"
    return [*found, py(sent), py(url), sh(f"exec 3<>/dev/tcp/127.0.0.1/{port} || exit 1")]


PROCESSES = (
    "import os, sys; os.kill(int(sys.argv[1]), 0)",
    "import os, sys; os.close(os.pidfd_open(int(sys.argv[1])))",
    "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read()",
    "import sys; open(f'/proc/{sys.argv[1]}/root{sys.argv[2]}', 'rb').read()",
    "import sys; open(f'/proc/{sys.argv[1]}/cwd/x', 'wb')",
    "import os, sys; os.listdir(f'/proc/{sys.argv[1]}/fd')",
    "import os, sys; os.sched_setaffinity(int(sys.argv[1]), os.sched_getaffinity(int(sys.argv[1])))",
    "import os, sys; os.setpriority(0, int(sys.argv[1]), os.getpriority(0, int(sys.argv[1])))",
    "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0) != 0)",
    "import ctypes, os, sys\n"
    "fd = os.open(f'/proc/{sys.argv[1]}/ns/mnt', os.O_RDONLY); sys.exit(ctypes.CDLL(None).setns(fd, 0) != 0)",
)


def processes(it: World) -> list[list[str]]:
    return [py(text, pid, it.targets()[0]) for text in PROCESSES for pid in (os.getpid(), os.getppid())]


def shared_memory(it: World) -> list[list[str]]:
    calls = (f"shmget({it.key}, 4096, 0)", f"semget({it.key}, 1, 0)", f"msgget({it.key}, 0)")
    return [py(f"import ctypes, sys; sys.exit(ctypes.CDLL(None).{one} < 0)") for one in calls]


def mounts(it: World) -> list[list[str]]:
    over = str(it.targets()[0].parent)
    return [
        ["mount", "-t", "tmpfs", "none", "/mnt"],
        ["mount", "--bind", "/", "/mnt"],
        ["mount", "-t", "proc", "proc", "/mnt"],
        ["mount", "-o", "remount,rw", "/"],
        ["umount", "-l", "/proc"],
        ["umount", "-l", "/dev"],
        ["umount", over],
        sh('pivot_root "$1" "$1"', over),
        py("import os, sys; os.chroot(sys.argv[1])", over),
        ["unshare", "--mount", "true"],
        ["hostname", "production"],
        sh("ip link add out type dummy"),
    ]


NESTED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if libc.unshare(0x10000000 | 0x20000):
    sys.exit(1)
for line in open("/proc/self/mountinfo").read().splitlines():
    libc.umount2(line.split()[4].encode(), 2)
sys.exit(not os.path.exists(sys.argv[1]))
"""


def old_root(it: World) -> list[list[str]]:
    """In a user namespace of its own a program has every right over its mounts: it takes off what it can."""
    return [py(NESTED, one) for one in it.secrets()[:2]] + [sh(READS[0], one) for one in it.secrets()[:2]]


def devices(_: World) -> list[list[str]]:
    names = [one for one in ("vda", "sda", "nvme0n1", "loop0", "kmsg", "mem") if os.path.exists(f"/dev/{one}")]
    found = [py("import sys; open(sys.argv[1], 'rb').read(1)", f"/dev/{one}") for one in names]
    return [*found, sh("mknod /srv/holdfast-disk b 254 0 && head -c 1 /srv/holdfast-disk"), sh("test -e /sys/class")]


def variables(_: World) -> list[list[str]]:
    return [py("import os, sys; os.environ[sys.argv[1]]", one) for one in TOKENS]


INHERITED = """
import os, sys
for fd in range(3, 256):
    try:
        os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND, dir_fd=fd))
        sys.exit(0)
    except OSError:
        pass
sys.exit(1)
"""


def descriptors(it: World) -> list[list[str]]:
    name = str(it.targets()[0].relative_to(it.root))
    of_first = "import os, sys\nfor fd in os.listdir('/proc/1/fd'):\n    open(f'/proc/1/fd/{fd}/{sys.argv[1]}').close()"
    return [py(INHERITED, name), py(of_first, name), sh('ls "/proc/1/cwd/$1"', name)]


def locks(it: World) -> list[list[str]]:
    """The program takes a lock and waits; production then asks for it (`Runner.blocked`)."""
    return [py(HOLD, it.targets()[0], "flock"), py(HOLD, it.targets()[0], "lockf")]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
TYPED = "import fcntl, termios\nwith open('/dev/tty', 'rb') as tty:\n    fcntl.ioctl(tty, termios.TIOCGWINSZ, bytes(8))"


def terminal(_: World) -> list[list[str]]:
    return [py(TYPED), sh("exec 3< /dev/tty")]


def commands(it: World) -> list[list[str]]:
    """Holdfast's own commands, which publish, sign, prune and back up to whatever the settings name."""
    own = [sys.executable, "-P", "-m", "holdfast"]
    home = ["--home", str(it.root / "ada")]
    listed = (
        ["identity", "rotate", "--yes"],
        ["backup", "now"],
        ["place", "remove", "place-1", "--yes"],
        ["memory", "add", "from a shadow"],
        ["task", "list"],
        ["backup", "prune", "--yes"],
        ["rescue", "add", str(it.root / "escaped")],
        ["handoff"],
    )
    return [[*own, *one, *home] for one in listed]


AS_BIND = 'mount(path, self.at(path), "none", BIND | RECURSIVE); return'
OVERLAY = {'data = f"lowerdir=': AS_BIND + '\n        data = f"lowerdir='}
NETWORK = {"PIDS | NET | IPC": "PIDS | IPC", "        raise_loopback()\n": "", '"mnt", "net", "ipc"': '"mnt", "ipc"'}
PROCESS = {
    "MOUNTS | PIDS |": "MOUNTS |",
    'mount("proc", world.at("/proc"), "proc", NOSUID': 'mount("/proc", world.at("/proc"), "", BIND | RECURSIVE',
    '"uts", "pid_for_children"': '"uts"',
}
ALL_DEVICES = {'    make_devices(world.at("/dev"))\n': '    mount("/dev", world.at("/dev"), "", BIND | RECURSIVE)\n'}


@contextlib.contextmanager
def passing_everything(_: World) -> Generator[None]:
    real = under_test.environment
    under_test.environment = lambda: dict(os.environ)
    try:
        yield
    finally:
        under_test.environment = real


@contextlib.contextmanager
def inheriting(it: World) -> Generator[None]:
    """Programs get every descriptor of this process."""
    real = subprocess.Popen.__init__

    def careless(self: object, *args: object, **options: object) -> None:
        options.pop("pass_fds", None)
        real(self, *args, **{**options, "close_fds": False})  # type: ignore[arg-type]

    os.set_inheritable(it.folder_fd, True)
    subprocess.Popen.__init__ = careless
    try:
        yield
    finally:
        subprocess.Popen.__init__ = real
        os.set_inheritable(it.folder_fd, False)


KINDS: tuple[Kind, ...] = (
    Kind("writing", writes, OVERLAY, changes=True),
    Kind("reading what is gone", reads, {"os.mknod(target": "0 and os.mknod(t"}),
    Kind("sockets and pipes by path", sockets_by_path, OVERLAY),
    Kind("sockets by name", sockets_by_name, NETWORK),
    Kind("network and far ends", network, NETWORK),
    Kind("processes", processes, PROCESS),
    Kind("shared memory", shared_memory, {"NET | IPC": "NET", '"net", "ipc"': '"net"'}),
    Kind("mounts and rights", mounts, {"    drop_capabilities()\n": ""}),
    Kind("the old root", old_root, {'    checked(LIBC.umount2(b".", DETACH), "umount")\n': ""}),
    Kind("devices", devices, ALL_DEVICES),
    Kind("environment", variables, without=passing_everything),
    Kind("descriptors", descriptors, without=inheriting),
    Kind("locks", locks, OVERLAY),
    Kind("terminal", terminal, {"    os.setsid()": "    0  "}),
    Kind("commands", commands, OVERLAY, changes=True),
)


@dataclass(slots=True)
class Runner:
    """Runs attempts in one shadow over one world."""

    it: World
    folder: Path
    every: int = 1  # of the attempts: each, or each of so many

    def reached(self, kind: Kind, *, most: int = 1_000) -> list[list[str]]:
        """The attempts that reached production, or so many of them."""
        found: list[list[str]] = []
        gone = self.it.gone if kind.name in ("reading what is gone", "the old root") else ()
        with open_shadow(ShadowPlan(folder=self.folder, gone=gone)) as shadow:
            for words in kind.attempts(self.it)[:: self.every]:
                if self._try(shadow, kind, words):
                    found.append(words)
                    if len(found) >= most:
                        break
        return found

    def _try(self, shadow: Shadow, kind: Kind, words: list[str]) -> bool:
        before = self.it.state() if kind.changes else ""
        process = shadow.start(words, stdin=subprocess.PIPE if kind.name == "locks" else subprocess.DEVNULL)
        if kind.name == "locks":
            return self._blocked(process, words)
        try:
            process.communicate(timeout=ATTEMPT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        came = self.it.drain()
        if kind.changes:
            return self.it.state() != before
        return came or process.returncode == 0

    def _blocked(self, process: subprocess.Popen[bytes], words: list[str]) -> bool:
        """Whether production cannot lock what the program holds."""
        assert process.stdout is not None
        held = process.stdout.readline() == b"held\n"
        with open(words[-2], "r+b") as file:
            try:
                getattr(fcntl, words[-1])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except OSError:
                free = False
        process.communicate(timeout=ATTEMPT_S)
        return held and not free


@contextlib.contextmanager
def guard_out(kind: Kind, it: World, folder: Path) -> Generator[None]:
    text = SCRIPT.read_text()
    for old, new in kind.guard.items():
        if text.count(old) != 1:
            raise ProofFailed(f"{kind.name}: {old!r} is {text.count(old)} times in {SCRIPT.name}")
        text = text.replace(old, new)
    mutant = folder / "mutant.py"
    mutant.write_text(text)
    setattr(under_test, SCRIPT_NAME, str(mutant))
    try:
        with kind.without(it) if kind.without is not None else contextlib.nullcontext():
            yield
    finally:
        setattr(under_test, SCRIPT_NAME, str(SCRIPT))


def small_world(root: Path) -> World:
    """A folder in the shape of an agent, without one."""
    for part in ("ada", "vault", "second", "witness", "arbiter", "place-1"):
        (root / part).mkdir(parents=True, mode=0o700)
        for name in ("one", "two"):
            (root / part / name).write_text(f"{part} {name}: {SECRET}\n")
    (root / "unlock").write_text(SECRET)
    return World(root)


@contextlib.contextmanager
def tokens() -> Generator[None]:
    before = dict(os.environ)
    os.environ.update({name: os.environ.get(name) or SECRET for name in TOKENS})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def with_terminal(work: Callable[[], object]) -> bytes:
    """What the work prints, done by a process that has a terminal: as a person's shell has one."""
    import pty

    reads, writes = os.pipe()
    pid, fd = pty.fork()
    if not pid:
        code = 1
        try:
            os.write(writes, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writes)
    with open(reads, "rb") as file:
        raw = file.read()
    os.waitpid(pid, 0)
    os.close(fd)
    return raw


def count_reached(kind: Kind, it: World, folder: Path, *, most: int = 1_000, tries: int = 1_000) -> int:
    """How many attempts reached production; `tries`: so many of them, spread over all."""
    runner = Runner(it, folder, every=max(1, len(kind.attempts(it)) // tries))
    if kind.name != "terminal":
        return len(runner.reached(kind, most=most))
    raw = with_terminal(lambda: len(runner.reached(kind, most=most)))
    return int(raw) if raw else -1


def run_all(given: argparse.Namespace) -> Result:
    findings: list[str] = []
    figures: list[dict[str, object]] = []
    attempts = 0
    with tempfile.TemporaryDirectory(prefix="hf-escapes-", dir=given.folder) as text, tokens():
        folder = Path(text)
        os.environ["HOME"] = text
        os.environ.pop("HOLDFAST_HOME")
        make_example(folder / "agent", places=1)
        for number, kind in enumerate(KINDS):
            row: dict[str, object] = {"kind": kind.name}
            for guarded in (True, False):
                root = folder / f"{number}-{'guarded' if guarded else 'open'}" / "agent"
                shutil.copytree(folder / "agent", root, symlinks=True)
                _repoint(root, folder / "agent")
                it = World(root)
                whole = it.state()
                try:
                    with contextlib.nullcontext() if guarded else guard_out(kind, it, root.parent):
                        reached = count_reached(kind, it, root.parent / "drill")
                except HoldfastError as error:
                    reached = -1
                    findings.append(f"{kind.name}: {error.message}")
                row |= {"attempts": len(kind.attempts(it)), "refused" if guarded else "reached_without_guard": reached}
                if guarded:
                    attempts += len(kind.attempts(it))
                    if reached:
                        findings.append(f"{kind.name}: {reached} attempts reached production")
                    if it.state() != whole:
                        findings.append(f"{kind.name}: production changed")
                elif reached < 1:
                    findings.append(f"{kind.name}: no attempt succeeds without its guard: {reached}")
                it.close()
            row["refused"] = int(str(row["attempts"])) - int(str(row["refused"]))
            figures.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    summary = f"{attempts} attempts of {len(KINDS)} kinds to reach production out of a shadow; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def _repoint(root: Path, old: Path) -> None:
    """Let the settings of a copied agent name its own vault, witness and places."""
    for path in root.rglob("*"):
        if path.name in ("holdfast.toml", "places.json", "vault.json", "keys.json") and path.is_file():
            path.write_text(path.read_text().replace(str(old), str(root)))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default=None, help="where the example agents are made")


PROOF = Proof(name="shadow_escapes", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
