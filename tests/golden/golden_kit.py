"""What the maker and the tests of the golden files share: commands, far ends, tar files.

Everything is reached as users reach it: `python -m holdfast ...`, and far ends in processes of
their own that say their port in one line of JSON.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import runpy
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import holdfast

HERE = Path(__file__).parent
PROGRAM = str(Path(holdfast.__file__).with_name("__main__.py"))  # `run_module` cannot run what pytest has loaded
APP = HERE / "golden_app.py"
ROOT = b"/golden-root"  # stands in the packed files for the folder they were made in
WAIT_S = 60.0

# Secrets of the golden agent: for these tests alone, they protect nothing.
CREDENTIAL = "golden"
CREDENTIAL_TEXT = "5a" * 32
PASSPHRASE = "a passphrase for the golden vault"
SECOND = "a passphrase for the golden second place"
TOKEN = "tok-golden-0001"
MODEL_KEY = "sk-golden-0001"

CALL = {"tool": "look", "arguments": {"query": "chair"}}
MODEL_SCRIPT: dict[str, Any] = {
    "keys": [MODEL_KEY],
    "answers": [
        {"last": "hello", "text": "Good morning."},
        {"last": "thank you", "text": "You are welcome."},
        {
            "turn": 1,
            "text": "I look first.",
            "tool_calls": [{"tool": "plan", "arguments": {"add": ["look", "pay"]}}, CALL],
        },
        {
            "turn": 2,
            "tool_calls": [
                {"tool": "write_part", "arguments": {"name": "note.txt", "text": "chair\n"}},
                {"tool": "remember", "arguments": {"text": "Chairs cost 42 euros"}},
                {"tool": "pay", "arguments": {"cents": 4200}},
            ],
        },
        {"turn": 3, "text": "Bought: one chair."},
    ],
}


class Commands:
    """Runs commands of this version in one environment. Nothing of the user's own is seen."""

    def __init__(self, root: Path, **more: str) -> None:
        self.root = root
        path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
        self.environment = {
            "PATH": path,
            "HOME": str(root),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **more,
        }

    def run(
        self, *words: str, fds: Mapping[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`fds`: options whose value is read from a descriptor, and that value."""
        pipes = {option: _pipe(text) for option, text in (fds or {}).items()}
        more = [word for option, fd in pipes.items() for word in (option, str(fd))]
        try:
            return subprocess.run(
                [sys.executable, "-P", "-m", "holdfast", *words, *more],
                cwd=self.root,
                env=self.environment,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=3 * WAIT_S,
                pass_fds=tuple(pipes.values()),
            )
        finally:
            for fd in pipes.values():
                os.close(fd)

    def json(self, *words: str, fds: Mapping[str, str] | None = None, stdin: str = "") -> Any:
        """What the command prints with --json. Any: the caller says what it expects."""
        done = self.run(*words, "--json", fds=fds, stdin=stdin)
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def look(self, *words: str) -> Any:
        """The same inside this process, which is sooner: for commands that only read."""
        out, code = io.StringIO(), None
        with (
            patch.dict(os.environ, self.environment, clear=True),
            patch.object(sys, "argv", ["holdfast", *words, "--json"]),
            contextlib.redirect_stdout(out),
        ):
            try:
                runpy.run_path(PROGRAM, run_name="__main__")
            except SystemExit as ended:
                code = ended.code
        assert not code, (words, code)
        return json.loads(out.getvalue())

    def start(self, *words: str, **more: str) -> subprocess.Popen[bytes]:
        """A command that goes on; in a process group of its own."""
        with open(self.root / "log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast", *words],
                cwd=self.root,
                env={**self.environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        return (self.root / "log").read_text(errors="replace")


def _pipe(text: str) -> int:
    reader, writer = os.pipe()
    os.write(writer, text.encode() + b"\n")
    os.close(writer)
    return reader


class FarEnd:
    """A far end or a model server in a process of its own, which keeps its own books."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """GET, or POST where there is a body. Any: JSON."""
        raw = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        request = urllib.request.Request(f"{self.root}{path}", data=raw, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def ledger(self) -> Any:
        return self.ask("/_ledger")

    def requests(self) -> list[Any]:
        """Of a model server: the bodies of all requests, as JSON."""
        return [json.loads(base64.b64decode(one["body_base64"])) for one in self.ask("/_requests")["requests"]]

    def faults(self, *faults: dict[str, Any]) -> None:
        self.ask("/_faults", {"faults": list(faults)})


@contextlib.contextmanager
def far_end(kind: str) -> Generator[FarEnd]:
    with _server("holdfast.downstream", "--class", kind) as server:
        yield server


@contextlib.contextmanager
def model_server(folder: Path) -> Generator[FarEnd]:
    script = folder / "model.json"
    script.write_text(json.dumps(MODEL_SCRIPT))
    with _server("holdfast.testing.model_server", str(script)) as server:
        yield server


@contextlib.contextmanager
def _server(module: str, *words: str) -> Generator[FarEnd]:
    """It lives as long as its input pipe and this process do."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, *words, "--parent", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        assert line, f"{module} did not start"
        yield FarEnd(json.loads(line)["port"])
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@contextlib.contextmanager
def far_ends(folder: Path) -> Generator[dict[str, FarEnd]]:
    """All that golden_app.py talks to, by the names of `variables`."""
    with contextlib.ExitStack() as stack:
        yield {
            "PAYMENT": stack.enter_context(far_end("payment")),
            "MAIL": stack.enter_context(far_end("mail")),
            "LETTER": stack.enter_context(far_end("unrepeatable")),
            "MODEL": stack.enter_context(model_server(folder)),
        }


def variables(ends: Mapping[str, FarEnd]) -> dict[str, str]:
    """The environment in which golden_app.py finds them."""
    return {f"GOLDEN_{name}_URL": end.root + ("/v1" if name == "MODEL" else "") for name, end in ends.items()}


def wait_until(met: Callable[[], bool], said: Callable[[], str] = str) -> None:
    ends = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < ends, said()
        time.sleep(0.05)


def pack(tar: Path, root: Path, *names: str, leave_out: frozenset[str] = frozenset()) -> None:
    """Names below the root into one file: modes kept, nothing that tells of this machine.

    The root's own path becomes ROOT in text files, which `unpack` undoes.
    """

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name in leave_out:
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    for name in names:
        _replace_in_texts(root / name, str(root).encode(), ROOT)
    with (
        tar.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in names:
            archive.add(root / name, arcname=name, filter=plain)
    for name in names:
        _replace_in_texts(root / name, ROOT, str(root).encode())


def unpack(tar: Path, root: Path) -> None:
    """Modes as they were; paths in text files lead to this root."""
    root.mkdir(mode=0o700, exist_ok=True)
    with tarfile.open(tar, "r:gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python 3.11.2 has no filters
        archive.extractall(root)
    _replace_in_texts(root, ROOT, str(root).encode())


def _replace_in_texts(top: Path, old: bytes, new: bytes) -> None:
    """In the files that name folders: settings, the pointer to the vault, the list of places."""
    found = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
    for path in found:
        if path.name in ("holdfast.toml", "keys.json", "places.json"):
            text = path.read_bytes()
            if old in text:
                path.write_bytes(text.replace(old, new))
