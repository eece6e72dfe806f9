"""A drill's fresh machine that is really another one: `--on ssh://user@host:port`.

The other machine needs an ssh server and Python, nothing else. Holdfast and Borg, as they are installed here, are sent
there with everything that they import; the shadow there is made by the same code as here (host/shadow.py), so neither
a network that the other machine has nor an address in restored settings leads back to production. The repository of
the place is carried there. Far ends of the drill stay here, and are reached through the ssh connection.

One ssh connection carries everything. If it ends, however it ends, the other side ends its shadow and removes its
folder. Secrets go by standard input, never in a command line or an environment.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import select
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.backup.open_engine import engine_program
from holdfast.drills.far import far_side
from holdfast.errors import BadInput, HoldfastError, NotProven
from holdfast.layout.settings import BackupSettings

ANSWER_S = 600.0  # to unpack on a slow machine
CONTROL = "ssh"  # the socket of the connection, in the drill's folder
_ADDRESS = re.compile(
    r"ssh://(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d+)?"
)
_OPTIONS = ("-o", "BatchMode=yes", "-o", f"ControlPath={CONTROL}", "-o", "ServerAliveInterval=15")
_SITE = f"lib/{far_side.VERSION}/site-packages"
# Reads the script of the far side from standard input, and lets it read what follows.
_BOOT = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[2])), 'far_side', 'exec'))"
# Extracts an archive from standard input: folder.
_UNTAR = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    archive.extractall(sys.argv[1], **({"filter": "fully_trusted"} if hasattr(tarfile, "tar_filter") else {}))
"""
# Prints the files of these distributions and of all that they need: [path, name below site-packages]. What draws PDFs
# is large, and a recovery prints nothing.
_LIST = """
import json, re, sys
from importlib.metadata import PackageNotFoundError, distribution
wanted, seen, files = list(sys.argv[1:]), {"fpdf2"}, []
while wanted:
    name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
    if name in seen:
        continue
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    files += [[str(found.locate_file(one)), str(one)] for one in found.files or () if ".." not in one.parts]
    for one in found.requires or ():
        if "extra ==" not in one:
            wanted.append(re.match(r"[A-Za-z0-9._-]+", one)[0])
print(json.dumps(files))
"""
_OURS = ("holdfast", "psycopg", "psycopg-binary", "psycopg-pool")  # the last three where they are installed


def parse_target(text: str) -> str:
    """An address that ssh takes. Raises BadInput."""
    if not _ADDRESS.fullmatch(text):
        raise BadInput(
            f"--on: {text[:80]!r} is not an address", hint="for example --on ssh://user@host or ssh://host:2222"
        )
    return text


@dataclass(slots=True)
class FarShadow:
    """A shadow on another machine; it does what `host.shadow.Shadow` does."""

    target: str
    folder: Path  # of the drill, here
    ssh: tuple[str, ...]
    settings: BackupSettings
    base: str = ""
    hidden: tuple[str, ...] = ()
    _pid: int = 0
    _holder: subprocess.Popen[bytes] | None = None
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    @property
    def _python(self) -> str:
        return f"{self.base}/bundle/bin/python"

    def open(self, tell: list[str]) -> None:
        """Raises NotProven."""
        script = Path(far_side.__file__).read_bytes()
        python = f"$(command -v {far_side.VERSION} || command -v python3 || echo python3)"
        command = f"exec {python} -I -c {shlex.quote(_BOOT)} hold {len(script)}"
        self._holder = subprocess.Popen(
            [*self.ssh, "-o", "ControlMaster=yes", *_OPTIONS, self.target, command],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._send(script)
        there = self._answer()
        _check_fit(self.target, there)
        bundle = make_bundle(self.settings)
        self._send(json.dumps({"bytes": len(bundle)}).encode() + b"\n" + bundle)
        ready = self._answer()
        self.base, self._pid, self.hidden = ready["base"], ready["pid"], tuple(ready["hidden"])
        if ready["left"]:
            tell.append(f"{ready['left']} folders of drills that were killed were removed on {self.target}")
        said = self.start((sys.executable, "-P", "-m", "holdfast", "--version"))
        _, err = said.communicate(timeout=ANSWER_S)
        if said.returncode:
            last = (err.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise NotProven(f"Holdfast does not run on {self.target}: {last}", hint="see `holdfast explain drills`")

    def _send(self, raw: bytes) -> None:
        assert self._holder is not None
        assert self._holder.stdin is not None
        try:
            self._holder.stdin.write(raw)
            self._holder.stdin.flush()
        except BrokenPipeError:
            self._answer()  # says why

    def _answer(self) -> Any:  # Any: JSON of the far side
        assert self._holder is not None
        assert self._holder.stdout is not None
        ready = select.select([self._holder.stdout], [], [], ANSWER_S)[0]
        line = self._holder.stdout.readline() if ready else b""
        if not line:
            self._holder.kill()
            assert self._holder.stderr is not None
            said = self._holder.stderr.read().decode(errors="replace").strip().splitlines()
            raise NotProven(
                f"{self.target} gives no answer: {said[-1] if said else 'it closed the connection'}",
                hint=f"try it: ssh {self.target} python3 --version",
            )
        found = json.loads(line)
        if "error" in found:
            raise NotProven(f"{self.target}: {found['error']}", hint="see `holdfast explain drills`")
        return found

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
        """Start a command there. With `stdin=PIPE` the caller writes its input and closes it."""
        enter = shlex.join((self._python, "-I", "-S", f"{self.base}/bundle/{_SITE}/holdfast/drills/far/far_side.py"))
        process = subprocess.Popen(
            [*self.ssh, *_OPTIONS, self.target, f"exec {enter} enter {self._pid}"],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
        self._started.append(process)
        given = {
            "words": [self._python if one == sys.executable else one for one in words],
            "cwd": str(cwd),
            "more": dict(more or {}),
            "typed": [list(one) for one in typed],
            "data": stdin == subprocess.PIPE,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(given).encode() + b"\n")
            process.stdin.flush()
            if stdin != subprocess.PIPE:
                process.stdin.close()
        if stdin != subprocess.PIPE:
            process.stdin = None
        return process

    def put(self, source: Path, target: Path) -> None:
        """Carry a file or a folder there."""
        process = self.start((sys.executable, "-I", "-c", _UNTAR, "/"), stdin=subprocess.PIPE)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
            archive.add(source, str(target).lstrip("/"))
        _, err = process.communicate(timeout=None)
        if process.returncode:
            last = (err.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise NotProven(f"{source} could not be carried to {self.target}: {last}", hint="is there space?")

    def forward(self, port: int) -> int:
        """Let processes there reach a far end that listens on this port of our loopback; its port there."""
        words = [*self.ssh, *_OPTIONS, "-O", "forward", "-R", f"127.0.0.1:0:127.0.0.1:{port}", self.target]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode or not done.stdout.strip().isdigit():
            raise NotProven(
                f"{self.target} forwards no port: {done.stderr.strip() or 'no message'}",
                hint="its ssh server must allow AllowTcpForwarding remote",
            )
        self._send(json.dumps({"forward": int(done.stdout)}).encode() + b"\n")
        return int(self._answer()["port"])

    def kill(self) -> bool:
        """End everything there and remove it; whether that is known."""
        holder, self._holder = self._holder, None
        if holder is None or holder.stdin is None or holder.stdout is None:
            return False
        removed = False
        with contextlib.suppress(OSError, ValueError):
            holder.stdin.close()
            while select.select([holder.stdout], [], [], ANSWER_S)[0]:
                line = holder.stdout.readline()
                if not line:
                    break
                removed = removed or bool(json.loads(line).get("removed"))
        for one in (*self._started, holder):
            one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout, one.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._started.clear()
        return removed


@contextlib.contextmanager
def open_far(target: str, folder: Path, *, rsh: str, settings: BackupSettings, tell: list[str]) -> Generator[FarShadow]:
    """A shadow on that machine. Raises NotProven."""
    shadow = FarShadow(target, folder, tuple(shlex.split(rsh) if rsh else ("ssh",)), settings)
    try:
        try:
            shadow.open(tell)
        except FileNotFoundError:
            raise NotProven(f"there is no program {shadow.ssh[0]}", hint="install OpenSSH's client") from None
        yield shadow
    finally:
        shadow.kill()


def _check_fit(target: str, there: Any) -> None:  # Any: JSON of the far side
    here = list(sys.version_info[:2]), platform.machine(), platform.libc_ver()[0]
    if (there["version"], there["machine"], there["libc"]) != here:
        found = (
            f"Python {'.'.join(map(str, there['version']))} on {there['machine']} with {there['libc'] or 'no glibc'}"
        )
        own = f"Python {'.'.join(map(str, here[0]))} on {here[1]} with {here[2] or 'no glibc'}"
        raise NotProven(
            f"{target} has {found}; what is installed here needs {own}", hint="install that version of Python there"
        )


def make_bundle(settings: BackupSettings) -> bytes:
    """Holdfast, its packages and Borg, as they are installed here: a compressed archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        package = Path(far_side.__file__).parents[2]
        archive.add(package, f"{_SITE}/holdfast", filter=_plain)
        for path, name in _files_of(sys.executable, *_OURS):
            if not name.startswith("holdfast/"):
                _add(archive, path, f"{_SITE}/{name}")
        _add_borg(archive, settings)
    return made.getvalue()


def _add_borg(archive: tarfile.TarFile, settings: BackupSettings) -> None:
    """Where it is a Python package: with its packages; else the program. Without it the far machine needs its own."""
    try:
        program = engine_program(settings)
    except HoldfastError:
        return
    with open(program, "rb") as file:
        first = file.readline(400)
    if not first.startswith(b"#!") or b"python" not in first:
        archive.add(program.resolve(), "bin/borg")
        return
    for path, name in _files_of(os.fsdecode(first[2:].split()[0]), "borgbackup"):
        _add(archive, path, f"borg/{_SITE}/{name}")


def _files_of(python: str, *names: str) -> list[tuple[str, str]]:
    done = subprocess.run([python, "-I", "-c", _LIST, *names], capture_output=True, check=False)
    return [(path, name) for path, name in json.loads(done.stdout)] if done.returncode == 0 else []


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    if os.path.isfile(path) and not name.endswith(".pyc"):
        archive.add(path, name)


def _plain(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in found.name else found
