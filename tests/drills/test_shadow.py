"""A shadow cannot reach production. Each attempt is refused; with its guard taken out, the same attempt succeeds."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.errors import ShadowRefused
from holdfast.host import shadow as under_test
from holdfast.host.shadow import ShadowPlan, open_shadow

SCRIPT = Path(under_test.__file__).with_name("shadow_init.py")
LIBC = ctypes.CDLL(None)
KEY = os.getpid()
AS_BIND = 'mount(path, self.at(path), "none", BIND | RECURSIVE); return'


def code(text: str) -> list[str]:
    return [sys.executable, "-I", "-c", text]


class Production:
    """What a shadow must not reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = folder / "agent"
        self.agent.mkdir(mode=0o700)
        (self.agent / "secret").write_text("of production")
        self.place = folder / "place"
        self.place.mkdir()
        (self.place / "head").write_text("1")
        (folder / "link").symlink_to(self.place / "head")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.path_socket = socket.socket(socket.AF_UNIX)
        self.path_socket.bind(str(folder / "s"))
        self.path_socket.listen()
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0holdfast-test-{os.getpid()}")
        self.abstract.listen()
        self.shared = LIBC.shmget(KEY, 4096, 0o1600)

    def close(self) -> None:
        for one in (self.tcp, self.path_socket, self.abstract):
            one.close()
        LIBC.shmctl(self.shared, 0, None)


@dataclass(frozen=True)
class Attempt:
    name: str
    words: Callable[[Production], list[str]]
    guard: dict[str, str]  # lines of the shadow's own script, and what they are without the guard; empty: environment


def connects(address: str, family: str = "AF_UNIX") -> list[str]:
    return code(f"import socket; socket.socket(socket.{family}).connect({address})")


OVERLAY: dict[str, str] = {'data = f"lowerdir=': AS_BIND + '\n        data = f"lowerdir='}
NETWORK = {"PIDS | NET | IPC": "PIDS | IPC", "        raise_loopback()\n": "", '"mnt", "net", "ipc"': '"mnt", "ipc"'}
SIGNALS = {
    "MOUNTS | PIDS |": "MOUNTS |",
    'mount("proc", world.at("/proc"), "proc", NOSUID': 'mount("/proc", world.at("/proc"), "", BIND | RECURSIVE',
    '"uts", "pid_for_children"': '"uts"',
}
ATTEMPTS: list[Attempt] = [
    Attempt("write", lambda it: ["sh", "-c", f"echo 2 > {it.place / 'head'}"], OVERLAY),
    Attempt("write through a link", lambda it: ["sh", "-c", f"echo 2 > {it.folder / 'link'}"], OVERLAY),
    Attempt("remove", lambda it: ["rm", str(it.place / "head")], OVERLAY),
    Attempt("rename", lambda it: ["mv", str(it.place / "head"), str(it.place / "old")], OVERLAY),
    Attempt("new file", lambda it: ["touch", str(it.place / "new")], OVERLAY),
    Attempt("change the mode", lambda it: ["chmod", "777", str(it.place / "head")], OVERLAY),
    Attempt("read what is gone", lambda it: ["cat", str(it.agent / "secret")], {"os.mknod(target": "0 and os.mknod(t"}),
    Attempt("socket by path", lambda it: connects(repr(str(it.folder / "s"))), OVERLAY),
    Attempt("socket by name", lambda it: connects(repr(f"\0holdfast-test-{os.getpid()}")), NETWORK),
    Attempt("port on loopback", lambda it: connects(repr(it.tcp.getsockname()), "AF_INET"), NETWORK),
    Attempt("signal", lambda _: ["sh", "-c", f"kill -0 {os.getpid()}"], SIGNALS),
    Attempt(
        "shared memory",
        lambda _: code(f"import ctypes, sys; sys.exit(ctypes.CDLL(None).shmget({KEY}, 4096, 0) < 0)"),
        {"NET | IPC": "NET", '"net", "ipc"': '"net"'},
    ),
    Attempt("mount", lambda _: ["mount", "-t", "tmpfs", "none", "/mnt"], {"    drop_capabilities()\n": ""}),
    Attempt("environment", lambda _: ["sh", "-c", 'test -n "$A_TOKEN"'], {}),
]


@pytest.fixture
def place(tmp_path: Path):
    (tmp_path / "production").mkdir()
    with closing(Production(tmp_path / "production")) as it:
        yield it


def state(it: Production) -> object:
    return sorted((one.name, one.stat().st_mode, one.read_bytes()) for one in it.place.iterdir())


def reached(it: Production, folder: Path, words: list[str]) -> bool:
    """Whether the command succeeded, and if it writes, whether production shows it."""
    before = state(it)
    with open_shadow(ShadowPlan(folder=folder, gone=(it.agent,))) as shadow:
        process = shadow.start(words)
        process.communicate(timeout=60)
    writes = words[0] in ("rm", "mv", "touch", "chmod") or "echo 2" in words[-1]
    return process.returncode == 0 and (not writes or state(it) != before)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda one: one.name.replace(" ", "-"))
def test_production_is_out_of_reach(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Production
) -> None:
    """Refused with every guard in place; reached with one taken out, so the guard is what refuses."""
    monkeypatch.setenv("A_TOKEN", "secret")
    words = attempt.words(place)
    assert not reached(place, tmp_path / "d1", words)
    text = SCRIPT.read_text()
    for old, new in attempt.guard.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    if attempt.guard:
        (tmp_path / "mutant.py").write_text(text)
        monkeypatch.setattr(under_test, "_SCRIPT", str(tmp_path / "mutant.py"))
    else:
        monkeypatch.setattr(under_test, "environment", lambda: dict(os.environ))
    assert reached(place, tmp_path / "d2", words)


LIVES = """
import subprocess, sys, time
from pathlib import Path
from holdfast.host.shadow import ShadowPlan, open_shadow
with open_shadow(ShadowPlan(folder=Path(sys.argv[1]))) as shadow:
    shadow.start([sys.executable, "-I", "-c", "import time; time.sleep(600)", sys.argv[1]])
    print("started", flush=True)
    time.sleep(600)
"""


def processes_of(folder: Path) -> list[int]:
    found: list[int] = []
    for one in Path("/proc").iterdir():
        try:
            if one.name.isdigit() and str(folder).encode() in (one / "cmdline").read_bytes():
                found.append(int(one.name))
        except OSError:
            continue
    return found


def test_a_killed_drill_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    """SIGKILL of the drill ends everything in its shadow; only its folder is left."""
    folder = tmp_path / "d"
    drill = subprocess.Popen([sys.executable, "-c", LIVES, str(folder)], stdout=subprocess.PIPE)
    assert drill.stdout is not None
    assert drill.stdout.readline() == b"started\n"
    drill.kill()
    drill.wait()
    drill.stdout.close()
    end = time.monotonic() + 20
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_a_second_shadow_finds_what_the_first_wrote_but_for_what_is_gone(tmp_path: Path, place: Production) -> None:
    """Two machines, one after the other, with what is off the machine in common."""
    script = f"mkdir -p {place.folder}/new && echo 2 > {place.folder}/new/f && echo 2 > {place.place}/head"
    for gone, look in (((), script), ((place.folder / "new",), f"cat {place.place}/head && ! ls {place.folder}/new")):
        with open_shadow(ShadowPlan(folder=tmp_path / "d", gone=gone)) as shadow:
            process = shadow.start(["sh", "-c", look])
            assert process.communicate(timeout=60)[0] in (b"", b"2\n")
            assert process.returncode == 0
    assert (place.place / "head").read_text() == "1"


def test_what_is_gone_can_be_made_again_and_renamed(tmp_path: Path, place: Production) -> None:
    """A restore makes a folder beside the target and renames it."""
    script = f"mkdir {place.folder}/.new && touch {place.folder}/.new/f && mv {place.folder}/.new {place.agent}"
    with open_shadow(ShadowPlan(folder=tmp_path / "d", gone=(place.agent,))) as shadow:
        process = shadow.start(["sh", "-c", f"{script} && ls {place.agent}"])
        assert process.communicate(timeout=60)[0] == b"f\n"
    assert (place.agent / "secret").read_text() == "of production"


def test_a_far_end_outside_is_reached_inside(tmp_path: Path) -> None:
    with open_shadow(ShadowPlan(folder=tmp_path / "d")) as shadow:
        listening, port = shadow.listen()
        with listening:
            process = shadow.start(connects(repr(("127.0.0.1", port)), "AF_INET"))
            listening.settimeout(20)
            listening.accept()[0].close()
            process.communicate(timeout=60)
    assert process.returncode == 0


def test_files_of_the_drill_appear_where_they_should(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("another machine\n")
    plan = ShadowPlan(folder=tmp_path / "d", copies=((tmp_path / "id", Path("/etc/machine-id")),))
    with open_shadow(plan) as shadow:
        assert shadow.start(["cat", "/etc/machine-id"]).communicate(timeout=60)[0] == b"another machine\n"


def test_a_refusal_of_the_kernel_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = tmp_path / "mutant.py"
    mutant.write_text(SCRIPT.read_text().replace("LIBC.unshare(USER", "LIBC.unshare(-1 & USER << 3 or 1 | USER"))
    monkeypatch.setattr(under_test, "_SCRIPT", str(mutant))
    with pytest.raises(ShadowRefused, match="this machine refuses a shadow"), open_shadow(ShadowPlan(folder=tmp_path)):
        pass
