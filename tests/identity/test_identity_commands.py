"""`holdfast init` and `holdfast identity` at the command line: secrets, refusals, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast_proofs.support.command_line import Commands
from holdfast_proofs.support.warm_start import run_command


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return Commands(tmp_path, main)


def init(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process that gets the descriptor of the file `words`."""
    Path("words").touch(0o600)
    with open("words", "ab") as file:
        fd = file.fileno()
        done = run_command(("init", *words, "--words-fd", str(fd)), pass_fds=[fd])
    assert done.returncode == code, done.stderr
    return done


def make(*more: str, code: int = 0) -> str:
    """An agent whose words are in the file `words`; standard output, or the error."""
    given = ("--second", "second", "--unlock-file", "u1", "--second-unlock-file", "u2")
    done = init("ada", *given, *more, code=code)
    return done.stderr if code else done.stdout


def test_an_agent_is_made_shown_and_not_made_twice(hf: Commands) -> None:
    made = json.loads(make("--json"))
    assert len(Path("words").read_text().split()) == 24
    shown = json.loads(hf("identity", "show", "--home", "ada", "--json").out)
    assert shown["id"] == made["id"]
    assert (shown["standing"], shown["head"]["final"]) == ("active", True)
    assert Path(made["vault"]) == Path.home() / ".config/holdfast/vault/ada"
    assert "already" in make(code=4)
    said = hf("identity", "show", "--home", "nowhere", code=3).err
    assert "no agent" in said


def test_nothing_is_made_where_something_is_missing(hf: Commands) -> None:
    assert "--words-fd" in hf("init", "ada", "--second", "s", "--unlock-file", "u", code=2).err
    assert "not a valid name" in hf("init", "Ada Lovelace", code=2).err
    assert "--second" in init("ada", code=2).stderr
    given = ("ada", "--second", "s", "--unlock-file", "u")
    assert "--second-passphrase-fd" in init(*given, code=2).stderr
    assert "have the same passphrase or unlock file" in init(*given, "--second-unlock-file", "u", code=2).stderr
    inside = init("ada", "--second", "ada/s", "--unlock-file", "u", code=2)
    assert "is inside" in inside.stderr
    assert "Never put a secret on the command line" in init("ada", "my passphrase", code=2).stderr
    assert not Path("ada").exists()
    assert not Path(".config/holdfast/vault").exists()


def test_a_dangerous_command_asks_first(hf: Commands) -> None:
    make()
    for words in (("rotate",), ("evict",), ("evict", "--paper"), ("retire",)):
        said = hf("identity", *words, "--home", "ada", code=2).err
        assert "--yes" in said
    assert json.loads(hf("identity", "show", "--home", "ada", "--json").out)["head"]["s"] == 0


def test_rotate_evict_and_retire_by_command(hf: Commands) -> None:
    make()
    words = Path("words").read_text()

    said = ""

    def head(*given: str, stdin: str = "") -> tuple[int, int, str]:
        nonlocal said
        done = hf("identity", *given, "--home", "ada", "--yes", "--json", stdin=stdin)
        shown, said = json.loads(done.out), done.err
        return shown["head"]["g"], shown["head"]["s"], shown["standing"]

    assert head("rotate") == (0, 1, "active")
    assert head("rotate", "--witness", "n1", "--witness", "n2", "--witness", "n3")[:2] == (0, 2)
    assert head("evict") == (0, 3, "active")
    paper = ("--words-fd", "0")
    assert head("evict", "--paper", "--lock-only", *paper, stdin=words) == (1, 0, "locked")
    assert "ada is locked" in said
    assert head("evict", "--paper", *paper, stdin=words) == (1, 1, "active")
    assert "locked" not in said
    wrong = hf(
        "identity",
        "evict",
        "--paper",
        "--words-fd",
        "0",
        "--yes",
        "--home",
        "ada",
        stdin=" ".join(["zoo"] * 24),
        code=2,
    )
    assert "these words do not belong to this agent" in wrong.err
    assert head("retire", *paper, stdin=words) == (2, 0, "retired")


def test_the_places_have_new_keys_at_once(hf: Commands) -> None:
    """An evicted machine looks there: it must not go on until the next backup."""
    make()
    words, nas = Path("words").read_text(), Path("nas").absolute()
    nas.mkdir()
    hf("place", "add", "nas", str(nas), "--home", "ada")
    evict = ("identity", "evict", "--paper", "--words-fd", "0", "--yes", "--home", "ada")
    assert "do not have the new keys" not in hf(*evict, stdin=words).err
    told = sorted(path.name for path in (nas / "ada").glob("record-*"))
    assert told == ["record-1-0-0.jsonl", "record-1-1-0.jsonl"]
    nas.rename(nas.with_name("unplugged"))
    said = hf(*evict, stdin=words).err
    assert "place nas does not have the new keys yet" in said
    assert json.loads(hf("identity", "show", "--home", "ada", "--json").out)["head"]["g"] == 2
    nas.with_name("unplugged").rename(nas)
    Path("new").touch(0o600)
    with open("words", "rb") as old, open("new", "ab") as new:
        fds = [old.fileno(), new.fileno()]
        given = ("--words-fd", str(fds[0]), "--new-words-fd", str(fds[1]), "--yes", "--home", "ada")
        done = run_command(("paper", "replace", *given), pass_fds=fds)
    assert done.returncode == 0, done.stderr
    assert (nas / "ada" / "record-3-0-0.jsonl").is_file()


def test_an_answer_to_another_challenge_or_of_old_keys_is_refused(hf: Commands) -> None:
    make()
    ask = ("--challenge", "challenge-challenge")
    answer = hf("identity", "answer", "--home", "ada", *ask).out
    check = ("identity", "check-answer", "--log", "ada/kel.jsonl", "--answer", "-")
    assert json.loads(hf(*check, *ask, "--json", stdin=answer).out)["s"] == 0
    other = hf(*check, "--challenge", "another-challenge", stdin=answer, code=2)
    assert "another challenge" in other.err
    hf("identity", "rotate", "--home", "ada", "--yes")
    assert "are no longer valid" in hf(*check, *ask, stdin=answer, code=2).err


def test_a_damaged_log_is_fetched_again(hf: Commands) -> None:
    make()
    hf("identity", "rotate", "--home", "ada", "--yes")
    path = Path("ada/kel.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"s":1', b'"s":7'))
    assert "log-damaged" in hf("identity", "show", "--home", "ada", code=6).err
    hf("identity", "show", "--home", "ada", "--fetch")
    assert path.read_bytes() == whole


def test_a_person_at_the_terminal_is_led_through(tmp_path: Path) -> None:
    """Two passphrases, 24 words one by one, four asked back, all typed again."""
    tmp_path.chmod(0o700)
    leader, follower = pty.openpty()
    env = {**os.environ, "HOME": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "init", "ada"],
        cwd=tmp_path,
        env=env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    seen, words = "", dict[int, str]()
    replies: list[tuple[str, Callable[[re.Match[str]], str]]] = [
        (r"second place \[[^\]]*\]: $", lambda _: ""),
        (r"address of a relay \[none\]: $", lambda _: ""),
        (r"passphrase for the vault[^\n]*: $", lambda _: "correct horse battery"),
        (
            r"once more: $",
            lambda _: (
                "correct horse battery"
                if "second place (" not in seen and "for the second" not in seen
                else "another staple entirely"
            ),
        ),
        (r"passphrase for the second place[^\n]*: $", lambda _: "another staple entirely"),
        (r"word (\d+) of 24: (\w+)   \[Enter\] $", lambda _: ""),
        (r"word (\d+) \(not shown\): $", lambda found: words[int(found[1])]),
        (r"all 24 words[^:]*: $", lambda _: " ".join(words[n] for n in range(1, 25))),
    ]
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and child.poll() is None:
            if not select.select([leader], [], [], 0.5)[0]:
                continue
            try:
                seen += os.read(leader, 4096).decode()
            except OSError:
                break
            shown = re.search(r"word (\d+) of 24: (\w+)   \[Enter\] $", seen)
            if shown:
                words[int(shown[1])] = shown[2]
            for pattern, reply in replies:
                found = re.search(pattern, seen)
                if found:
                    os.write(leader, reply(found).encode() + b"\n")
                    seen += "\n"
                    break
        assert child.wait(10) == 0, seen[-800:]
    finally:
        if child.poll() is None:
            child.kill()
        os.close(leader)
    assert len(words) == 24
    assert "risk: the second place is on the same disk" in seen
    assert (tmp_path / "ada" / "identity.json").exists()


@pytest.mark.parametrize(("mode", "bits"), [("wb", 0o600), ("ab", 0o644)])
def test_words_do_not_go_to_a_file_that_a_second_run_empties_or_that_others_read(
    hf: Commands, mode: str, bits: int
) -> None:
    Path("words").touch()
    Path("words").chmod(bits)
    with open("words", mode) as file:
        done = run_command(
            (
                "init",
                "ada",
                "--second",
                "s",
                "--unlock-file",
                "u1",
                "--second-unlock-file",
                "u2",
                "--words-fd",
                str(file.fileno()),
            ),
            pass_fds=[file.fileno()],
        )
    assert done.returncode == 2, done.stderr
    assert "--words-fd" in done.stderr
    assert not Path("ada").exists()


def test_what_opens_a_vault_does_not_lie_in_the_agents_folder(hf: Commands) -> None:
    done = init("ada", "--second", "s", "--unlock-file", "ada/u1", "--second-unlock-file", "u2", code=2)
    assert "every backup would contain it" in done.stderr


def test_a_damaged_identity_file_stops_no_act(hf: Commands) -> None:
    init("ada", "--second", "s", "--unlock-file", "u1", "--second-unlock-file", "u2")
    Path("ada/identity.json").write_text("")
    hf("identity", "rotate", "--home", "ada", "--yes")
    shown = hf("identity", "show", "--home", "ada", "--json").json
    assert (shown["head"]["s"], shown["pending"]) == (1, None)
    assert Path("ada/identity.json.damaged").exists()
