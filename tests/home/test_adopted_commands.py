"""Every command that works on an agent's folder works on an adopted one, however it is named."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from foreign_folders import openclaw

from holdfast.cli.command import COMMANDS
from holdfast.cli.main import build_parser, main
from holdfast_proofs.support.command_line import Worker

APP = """
import holdfast

@holdfast.tool(effect=holdfast.Read())
async def look(word: str) -> str:
    return word

@holdfast.task
async def hello(run: holdfast.Run) -> str:
    return await run.call(look, word="x")

tasks = [hello]
"""
# Commands that are about no agent's folder, or make one.
ELSEWHERE = {
    "demo",
    "explain",
    "completion",
    "init",
    "adopt",
    "share split",
    "share combine",
    "identity check-answer",
} | {"relay serve", "relay invite"}
# Three ways to name the folder: being in it, the option, the environment.
WAYS = ("here", "--home", "HOLDFAST_HOME")

Run = Callable[..., Any]


class Adopted:
    """An adopted agent, its keys and its backup place apart, and commands run on it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, patch
        self.folder, self.apart, self.place = root / "clawd", root / "keys", root / "place"
        self.folder.mkdir(mode=0o755)
        self.folder.chmod(0o755)
        openclaw(self.folder)
        self.apart.mkdir(mode=0o700)
        self.place.mkdir(mode=0o700)
        self.elsewhere = root / "elsewhere"
        self.elsewhere.mkdir(mode=0o700)
        self.app = root / "app.py"
        self.app.write_text(APP)
        self.ran: set[str] = set()
        for name in ("HOLDFAST_HOME", "HOLDFAST_JOURNAL"):
            patch.delenv(name, raising=False)

    def adopt(self) -> str:
        """The words."""
        reads, writes = os.pipe()
        assert (
            main(
                [
                    "adopt",
                    str(self.folder),
                    "--yes",
                    "--vault",
                    str(self.apart / "vault"),
                    "--second",
                    str(self.apart / "second"),
                    "--witness",
                    str(self.apart / "witness"),
                    "--unlock-file",
                    str(self.apart / "unlock"),
                    "--second-unlock-file",
                    str(self.apart / "unlock2"),
                    "--words-fd",
                    str(writes),
                ]
            )
            == 0
        )
        os.close(writes)
        with open(reads, encoding="utf-8") as pipe:
            return pipe.read().strip()

    def run(self, *words: str, way: str = "here", code: int = 0) -> None:
        """Run it, the folder named in this way, and note that it ran."""
        verbs = (" ".join(words[:2]), words[0])
        self.ran.add(next(one for one in verbs if one in KNOWN))
        self._patch.delenv("HOLDFAST_HOME", raising=False)
        self._patch.chdir(self.folder if way == "here" else self.elsewhere)
        if way == "HOLDFAST_HOME":
            self._patch.setenv(way, str(self.folder))
        named = ("--home", str(self.folder)) if way == "--home" else ()
        assert main([*words, *named]) == code, (words, way)

    def given(self, text: str) -> str:
        """The number of a descriptor from which this is read."""
        reads, writes = os.pipe()
        os.write(writes, f"{text}\n".encode())
        os.close(writes)
        return str(reads)


def each_command() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        yield from _leaves(name, _choices(build_parser([name]))[name])


def _leaves(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    verbs = _choices(parser)
    if not verbs:
        yield words, parser
    for verb, one in verbs.items():
        yield from _leaves(f"{words} {verb}", one)


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return cast("Any", action).choices
    return {}


KNOWN = {words for words, _ in each_command()}
READING = (
    "task list",
    "effect list",
    "approval list",
    "secret list",
    "paper list",
    "identity show",
    "place list",
    "doctor",
    "todo",
    "handoff",
    "backup list",
    "memory show",
    "memory search tea",
    "memory folders",
    "memory blame",
    "journal show",
    "journal check",
    "backup schedule",
    "backup due",
    "rescue list",
    "level show",
    "surface list",
    "target show",
    "drill list",
    "drill findings",
    "drill stand",
    "drill schedule",
    "runbook print",
    "relay list",
    "mail inbox",
    "mail outbox",
    "mail dead",
    "relay doctor",
)


def test_every_command_can_be_told_the_folder() -> None:
    for words, parser in each_command():
        if words not in ELSEWHERE:
            assert "--home" in parser._option_string_actions, words


def test_doctor_in_a_folder_that_was_just_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No journal is no trouble there: such an agent has none unless it uses durable calls."""
    one = Adopted(tmp_path, monkeypatch)
    one.adopt()
    for way in WAYS:
        capsys.readouterr()
        one.run("doctor", "--json", way=way, code=1)  # no paper was printed, no place is named
        found = json.loads(capsys.readouterr().out)
        assert found["journal"] == str(one.folder / ".holdfast" / "journal.db")
        levels = {each["check"]: each["level"] for each in found["findings"]}
        assert levels["journal"] == "ok"
        assert levels["identity"] == "ok"
    assert not (one.folder / "journal.db").exists()


def test_every_command_finds_an_adopted_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its whole life in one go, each command at least once, what only reads in all three ways."""
    one = Adopted(tmp_path, monkeypatch)
    words = one.adopt()
    app, home = f"{one.app}:tasks", one.folder / ".holdfast"

    def shown() -> Any:
        return json.loads(capsys.readouterr().out)

    task = ""
    for way in WAYS:
        capsys.readouterr()
        one.run("submit", app, "{}", "--task", "hello", "--no-follow", "--json", way=way)
        task = shown()["task_id"]
        one.run("task", "show", task, way=way)
        one.run("memory", "add", f"tea by {way}", way=way)
        one.run("task", "cancel", task, "--yes", way=way)
    assert (home / "journal.db").is_file()
    assert not (one.folder / "journal.db").exists()
    assert not (one.elsewhere / "journal.db").exists()
    one.run("place", "add", "disk", str(one.place), way="--home")
    one.run("place", "check", "disk", way="HOLDFAST_HOME")
    one.run("rescue", "add", str(one.apart / "rescue"), way="--home")
    one.run("backup", "now")
    for command in READING:
        for way in WAYS:
            one.run(*command.split(), way=way, code=1 if command == "doctor" else 0)
    one.run("journal", "copy", "--to", str(home / "new.db"), "--dry-run", way="--home")
    away = "http://127.0.0.1:9#z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"  # nothing listens there
    one.run("mail", "send", "ada@127.0.0.1", "hello", "--no-follow", way="--home")
    one.run("relay", "add", away, way="--home", code=8)
    one.run("relay", "remove", away, way="HOLDFAST_HOME", code=2)
    one.run("relay", "find", "ada@127.0.0.1", "--relay", away, way="--home", code=8)
    one.run("target", "set", "--rto", "15m", "--rpo", "1h", way="--home")
    one.run("backup", "verify", way="HOLDFAST_HOME")
    one.run("backup", "prune", "--dry-run", way="--home")
    copy = tmp_path / "copy"
    given = ("--rescue-key", str(one.apart / "rescue"), "--to", str(copy))
    assert main(["recover", "--place", str(one.place), *given]) == 0
    assert main(["task", "list", "--home", str(copy)]) == 0
    assert main(["backup", "now", "--home", str(copy)]) == 4
    one.run("rescue", "revoke", "rescue", "--yes", way="HOLDFAST_HOME")
    one.run("place", "fix-key", "disk")
    one.run("place", "break-lock", "disk", "--yes", way="--home")
    one.run("place", "move", "disk", str(one.place), way="HOLDFAST_HOME")
    for verb, *more in (("set",), ("rotate", "--drop-old")):
        value = one.given(f"value-of-{verb}")
        one.run("secret", verb, "billing", "--from-fd", value, *more, way="HOLDFAST_HOME")
    one.run("secret", "remove", "billing", "--yes", way="--home")
    # These find the journal, and there is nothing that they could decide about this task.
    step = f"{task}/1"
    one.run("task", "retry", task, way="--home", code=4)
    one.run("approval", "grant", step, way="HOLDFAST_HOME", code=3)
    one.run("approval", "refuse", step, way="--home", code=3)
    one.run("effect", "show", step, way="HOLDFAST_HOME", code=3)
    one.run("effect", "settle", step, "--skip", "--yes", way="--home", code=3)
    one.run("effect", "evidence", step, "--did-not-happen", way="--home", code=3)
    one.run("tool", "check", app, "look", '{"word": "x"}', "--yes", way="--home", code=2)
    one.run("paper", "print", "--text", "--words-fd", one.given(words), way="HOLDFAST_HOME")
    one.run("paper", "card", "--text", way="--home")
    one.run("paper", "verify", "--words-fd", one.given(words))
    one.run("paper", "revoke", "1", "--yes", way="HOLDFAST_HOME")
    one.run("identity", "answer", "--challenge", "a" * 22, way="--home")
    one.run("identity", "rotate", "--yes", way="HOLDFAST_HOME")
    one.run("identity", "add-unlock", "--unlock-file", str(one.apart / "another"), way="--home")
    one.run("identity", "evict", "--paper", "--yes", "--words-fd", one.given(words), way="--home")
    # Its place has the eviction already: without --again this would be a second recovery.
    one.run("recover", "--dry-run", "--again", "--words-fd", one.given(words), way="HOLDFAST_HOME")
    reads, writes = os.pipe()
    one.run(
        "paper", "replace", "--yes", "--words-fd", one.given(words), "--new-words-fd", str(writes), way="HOLDFAST_HOME"
    )
    os.close(writes)
    with open(reads, encoding="utf-8") as pipe:
        words = pipe.read().strip()
    one.run("drill", "run", "region-loss", way="--home", code=5)  # it has no PostgreSQL: a report says so
    one.run("drill", "report", way="HOLDFAST_HOME")
    one.run("drill", "verify", way="--home")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    report = next((home / "drills").glob("*.json")).stem
    one.run("drill", "sign", report, "--key", str(tmp_path / "key"), "--name", "Ada", way="HOLDFAST_HOME")
    # Found, and refused: a package would leave the agent's own files behind.
    package, vault = str(tmp_path / "clawd.move"), str(one.apart / "vault")
    capsys.readouterr()
    one.run("migrate", "export", package, way="--home", code=4)
    assert "the agent's own files" in capsys.readouterr().err
    one.run("migrate", "import", package, "--vault", vault, way="--home", code=4)
    one.run("migrate", "cancel", "--nobody-has-it", way="HOLDFAST_HOME", code=4)
    one.run("instance", "list", way="--home")
    one.run("instance", "invite", "south", package, "--as", "north", way="HOLDFAST_HOME", code=4)
    one.run("instance", "join", way="--home", code=2)
    one.run("instance", "promote", "--yes", way="--home", code=4)
    one.run("instance", "yield", way="HOLDFAST_HOME", code=2)
    one.run("instance", "remove", "south", "--yes", way="--home", code=4)
    one.run("place", "remove", "disk", "--yes", way="--home")
    keys = ("--unlock-file", str(one.apart / "unlock"), "--second-unlock-file", str(one.apart / "unlock2"))
    one.run(
        "identity",
        "recover",
        *keys,
        "--witness",
        str(one.apart / "witness"),
        "--yes",
        "--again",
        "--words-fd",
        one.given(words),
        way="HOLDFAST_HOME",
    )
    one.run("identity", "retire", "--yes", "--words-fd", one.given(words), way="--home")
    assert KNOWN - ELSEWHERE - one.ran == {"worker", "identity signer"}, "run as processes, below"


def test_processes_find_an_adopted_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Adopted(tmp_path, monkeypatch)
    one.adopt()
    named = {**os.environ, "HOLDFAST_HOME": str(one.folder)}
    worker = Worker(one.folder, ("worker", f"{one.app}:tasks"), dict(os.environ))
    try:
        journal = worker.wait_event("serving")["journal"]
        assert journal == str(one.folder / ".holdfast" / "journal.db")
        assert worker.stop() == 0
    finally:
        worker.close()
    signer = Worker(one.elsewhere, ("identity", "signer"), named)
    try:
        path = one.folder / ".holdfast" / "signer.sock"
        signer.wait_line(lambda _: path.exists())
    finally:
        signer.close()
