"""`holdfast share`: words go in by a pipe or a hidden prompt, never by the command line."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.host.private_files import is_in_memory
from holdfast.identity.paper.phrase import Phrase
from holdfast_proofs.support.command_line import Commands


@pytest.fixture
def hf(tmp_path: Path) -> Commands:
    return Commands(tmp_path, main)


def leaked(words: str, said: str) -> list[str]:
    """Two words in a row: single ones are found in any message."""
    both = words.split()
    pairs = [" ".join(both[at : at + 2]) for at in range(len(both) - 1)]
    return [pair for pair in pairs if pair in said]


def test_a_phrase_is_split_and_joined_by_pipes(hf: Commands, phrase: Phrase) -> None:
    words = " ".join(phrase.words)
    made = hf("share", "split", "--needed", "2", "--total", "3", "--from-fd", "0", stdin=words)
    blocks = made.out.strip().split("\n\n")
    assert [block.split(",")[0] for block in blocks] == [f"share {n} of 3" for n in (1, 2, 3)]
    assert not set(phrase.words) <= set(made.out.split())
    for pair in (blocks[:2], blocks[1:], blocks[::2]):
        joined = hf("share", "combine", "--from-fd", "0", stdin="\n\n".join(pair))
        assert joined.out == words + "\n"
    few = hf("share", "combine", "--from-fd", "0", stdin=blocks[1], code=2)
    assert "2 different shares are needed; you gave 1" in few.err
    assert not leaked(blocks[1].split("\n")[1], few.err)


def test_words_are_not_taken_from_the_command_line_nor_repeated(hf: Commands, phrase: Phrase) -> None:
    said = hf("share", "combine", *phrase.words, code=2).err
    assert "Never put a secret on the command line" in said
    assert not leaked(" ".join(phrase.words), said)
    hf("share", "combine", stdin=" ".join(phrase.words), code=2)
    for wrong in ("x", "-1", "99", "1e9"):
        hf("share", "combine", f"--from-fd={wrong}", code=2)
    for needed, total in (("0", "3"), ("4", "3"), ("2", "x")):
        options = (f"--needed={needed}", f"--total={total}", "--from-fd", "0")
        hf("share", "split", *options, stdin=" ".join(phrase.words), code=2)
    hf("share", "split", "--needed=2", "--total=3", "--from-fd", "0", stdin=b"\xff", code=2)


def redirected(out: int, *words: str, typed: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "share", *words, "--from-fd", "0"],
        input=typed.encode(),
        stdout=out,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )


VERBS = (("split", "--needed", "2", "--total", "2"), ("combine",))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_words_go_to_no_file_on_a_disk(tmp_path: Path, phrase: Phrase, verb: tuple[str]) -> None:
    """Before a word is read; a pipe may lead anywhere, and a person who writes one means it."""
    if is_in_memory(tmp_path):
        pytest.skip("the folder of the tests lies in memory")
    file = tmp_path / "words"
    with file.open("wb") as out:
        done = redirected(out.fileno(), *verb, typed=" ".join(phrase.words))
    assert (done.returncode, file.read_bytes()) == (2, b"")
    assert b"a file on a disk" in done.stderr
    assert b"| age -p" in done.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_words_go_to_memory_of_ours_alone(phrase: Phrase, verb: tuple[str]) -> None:
    folder = Path("/dev") / "shm"
    if not is_in_memory(folder):
        pytest.skip("no memory is mounted here")
    typed = " ".join(phrase.words)
    if verb[0] == "combine":
        read, write = os.pipe()
        assert redirected(write, *VERBS[0], typed=typed).returncode == 0
        os.close(write)
        with open(read, "rb") as pipe:
            typed = pipe.read().decode()
    with tempfile.NamedTemporaryFile(dir=folder) as out:
        os.fchmod(out.fileno(), 0o644)
        refused = redirected(out.fileno(), *verb, typed=typed)
        assert (refused.returncode, Path(out.name).read_bytes()) == (2, b"")
        assert b"others may read (mode 0644)" in refused.stderr
        os.fchmod(out.fileno(), 0o600)
        assert redirected(out.fileno(), *verb, typed=typed).returncode == 0
        assert len(Path(out.name).read_bytes().split()) >= 24


def test_words_go_to_a_terminal(phrase: Phrase) -> None:
    ours, theirs = pty.openpty()
    done = redirected(theirs, *VERBS[0], typed=" ".join(phrase.words))
    os.close(theirs)
    assert done.returncode == 0
    assert b"share 1 of 2" in os.read(ours, 4096)
    os.close(ours)


def test_a_caller_in_this_process_takes_them(phrase: Phrase) -> None:
    """Where standard output has no descriptor there is no file either."""
    read, write = os.pipe()
    os.write(write, " ".join(phrase.words).encode())
    os.close(write)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["share", "split", "--needed=2", "--total=2", f"--from-fd={read}"]) == 0
    os.close(read)
    assert "share 1 of 2" in out.getvalue()


def test_a_person_types_them_unseen_and_may_mistype(hf: Commands, phrase: Phrase) -> None:
    made = hf("share", "split", "--needed=2", "--total=2", "--from-fd=0", stdin=" ".join(phrase.words))
    shares = [block.split("\n")[1] for block in made.out.strip().split("\n\n")]
    typed = [shares[0], "not a share", "", shares[0], " ".join(w[:4] for w in shares[1].split())]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "share", "combine"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    ) as child:
        os.close(theirs)
        seen = b""
        for line in typed:
            while not seen.endswith(b"(not shown): "):
                seen += os.read(ours, 1024)
            seen += b"|"
            os.write(ours, line.encode() + b"\n")
        assert child.stdout is not None
        found = child.stdout.read().decode()
    os.close(ours)
    assert found == " ".join(phrase.words) + "\n"
    assert b"try again" in seen
    assert b"was already given" in seen
    assert not leaked(shares[0], seen.decode())
