"""The examples of the documents work.

A page is one shell session in a fresh folder, from its first block to its last:

* ```` ```python ```` is run as a script; with `file=NAME` it is saved under that name instead;
* ```` ```console ```` holds commands after `$ `; what follows a command must appear in its
  output, line by line in this order, but for ids and times; `...` stands for anything;
* ```` ```text ```` is not run. Data (`json`, `toml`, `ini`, `sql`, `yaml`) is not either.

Ports from 8400 to 8499 are replaced by free ones, so that pages can be tested side by side. A page with urls at
`db.example` gets a PostgreSQL server there, prepared by its own ```` ```sql ```` blocks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast_proofs.support.postgres import NEWEST, Server, started
from holdfast_proofs.support.transcript import find_missing, shape
from holdfast_proofs.support.warm_fork import start_holdfast

PROJECT = Path(__file__).parents[2]
PAGES = sorted(
    page for place in (".", "examples", "proofs", "docs", "docs/**") for page in set(PROJECT.glob(f"{place}/*.md"))
)
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("python", "console")
SHOWN = ("text", "json", "toml", "ini", "sql", "yaml")
PAGE_S_MAX = 120
URL = re.compile(r"postgresql://(\w+)@db\.example/(\w+)")
MARK = "\x1e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    expected: tuple[str, ...] = ()


def relative(page: Path) -> str:
    return str(page.relative_to(PROJECT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block is run, or marked as one that is not."""
    kinds = {kind for kind, _, _ in BLOCK.findall(page.read_text())}
    assert kinds <= {*RUN, *SHOWN}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(kind in RUN for kind, _, _ in BLOCK.findall(p.read_text()))], ids=relative
)
def test_page_works_from_its_first_block_to_its_last(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ports = free_ports(page.read_text())
    for file in page.parent.glob("*.py"):  # an example lies beside its page
        (tmp_path / file.name).write_text(replaced(file.read_text(), ports))
    text = replaced(page.read_text(), ports)
    if URL.search(text):
        text = served(text, request.getfixturevalue("server"))
    commands = list(read_commands(text, tmp_path))
    outputs = run(commands, tmp_path)
    for number, command in enumerate(commands):
        said, code = outputs[number] if number < len(outputs) else ("(not reached)", -1)
        assert code == 0, f"$ {command.text}\n{said}"
        missing = find_missing(shape("\n".join(command.expected)), shape(said))
        assert missing is None, f"$ {command.text}\n{said}"


@pytest.fixture
def server() -> Iterator[Server]:
    """One for each page: two pages may make a role of the same name."""
    with started(NEWEST) as server:
        yield server


def served(text: str, server: Server) -> str:
    """The page as it is where the server is: its SQL is run, its urls lead there."""
    for kind, _, body in BLOCK.findall(text):
        for statement in re.sub(r"--.*", "", body).split(";") if kind == "sql" else ():
            if statement.strip():
                server.execute(statement)
    return URL.sub(lambda found: server.url(found[2], user=found[1]), text)


def read_commands(text: str, folder: Path) -> Iterator[Command]:
    """The commands of a page; files that it shows are written."""
    for number, (kind, options, body) in enumerate(BLOCK.findall(text)):
        name = options.strip().removeprefix("file=")
        if kind == "python":
            (folder / (name or f"block_{number}.py")).write_text(body)
            if not name:
                yield Command(text=f"python block_{number}.py")
        elif kind == "console":
            yield from read_console(body)


def read_console(body: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        said = next((n for n, line in enumerate(lines[1:], 1) if line[:2] != "> "), len(lines))
        words = [lines[0], *(line[2:] for line in lines[1:said])]
        yield Command(text="\n".join(words), expected=tuple(lines[said:]))


def run(commands: list[Command], folder: Path) -> list[tuple[str, int]]:
    """Output and exit code of each command, in one shell; ends at the first that fails."""
    script = "\n".join(
        f"{{ {command.text}\n}}\n__code=$?; printf '{MARK}%d{MARK}' $__code\ntest $__code = 0 || exit $__code"
        for command in commands
    )
    said_file = folder / ".output"  # not a pipe: what runs in the background would keep it open
    with said_file.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        shell.wait(PAGE_S_MAX)
    end_group(shell.pid)
    shell.wait()
    parts = said_file.read_text(errors="replace").split(MARK)
    return [(text, int(code)) for text, code in zip(parts[::2], parts[1::2], strict=False)]


def end_group(group: int) -> None:
    """What a page has left running in the background ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def environment(folder: Path) -> dict[str, str]:
    """`python` and `holdfast` are those under test, `borg` the one that set-up built."""
    programs = folder / ".programs"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (programs / "python").chmod(0o700)
    (programs / "holdfast").symlink_to(warm_holdfast())
    borg = Path(sys.executable).parent / "borg"
    if borg.exists():
        (programs / "borg").symlink_to(borg)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


warm_holdfast = functools.cache(start_holdfast)


def free_ports(text: str) -> dict[str, str]:
    return {old: free_port() for old in sorted(set(re.findall(r"\b84\d\d\b", text)))}


def replaced(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"\b84\d\d\b", lambda found: ports.get(found[0], found[0]), text)


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
