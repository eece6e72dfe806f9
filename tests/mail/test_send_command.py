"""`holdfast mail send` as a person sees it: at a terminal it shows what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, make_correspondent

from holdfast.cli.main import main
from holdfast.errors import TaskUnfinished
from holdfast_proofs.support.relays import RelayProcess, relays

LOOKING, STEP = "looking for", "send_mail"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), "r1", "r2") as started:
        yield started


@pytest.fixture
def words(tmp_path: Path, running: list[RelayProcess]) -> list[str]:
    """The command of an agent that writes to another one."""
    ada, bob = (Correspondent(make_correspondent(tmp_path / name, name)) for name in ("ada", "bob"))
    for one in (ada, bob):
        asyncio.run(one.register(running))
    return ["mail", "send", bob.id, "hello", "--home", str(ada.home.folder)]


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[list[bytes]]:
    """Standard error is a terminal while the block runs; what it has shown is in the list afterwards."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            while part := os.read(ours, 65_536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as screen:
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stderr", screen)
        yield shown
    reader.join(10)
    os.close(ours)


def test_a_terminal_shows_what_is_waited_for(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        assert main(words) == 0
    text = b"".join(shown).decode()
    assert text.index(f"{LOOKING} {words[2]}") < text.index(STEP) < text.index("sent to")
    assert len(capsys.readouterr().out.split()) == 1  # the task alone


def test_a_wait_that_ends_too_early_has_shown_the_step(
    words: list[str], running: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        running[0].stop()
        try:
            assert main([*words, "--timeout", "1"]) == TaskUnfinished.exit_code, "a script must not take it as sent"
        finally:
            running[0].start()
    text = b"".join(shown).decode()
    assert STEP in text
    assert "started" in text
    assert "the message is stored, and a worker of the agent sends it" in text


def test_json_shows_no_progress_at_a_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        assert main([*words, "--json"]) == 0
    assert b"".join(shown) == b""
    assert len(json.loads(capsys.readouterr().out)["sent"]["relays"]) == 2


def test_a_pipe_gets_no_progress(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    said = capsys.readouterr().err
    assert said.startswith("sent to")
    assert LOOKING not in said
    assert STEP not in said
