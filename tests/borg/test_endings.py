"""Far hosts that do not answer, and commands that are ended: nobody waits long, nothing is left."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from borg_bench import SECRET, Bench

from holdfast.backup import engine as progress_module
from holdfast.backup.borg import verbs as borg_module
from holdfast.backup.borg.verbs import Borg, rsh_of
from holdfast.backup.engine import Amount, Repository
from holdfast.backup.places import companion_files
from holdfast.cli.main import main
from holdfast.errors import BackupInterrupted, PassphraseRefused, PlaceUnreachable, RepositoryReplaced
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.layout.agent_home import AgentHome
from holdfast_proofs.backup_lab.hanging import COMMAND, alive, end_it, hanging_rsh, left_of
from holdfast_proofs.support import warm_start


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Borg's own processes are what these tests are about."""
    monkeypatch.setattr(warm_start, "cold_borg", True)


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str, /) -> None:
        self.said.append(text)

    def reached(self, what: str, amount: Amount, /) -> None:
        pass


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    return hanging_rsh(tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borg_module, "ANSWER_S", 1.5)
    monkeypatch.setattr(borg_module, "SLOW_S", 1.0)
    monkeypatch.setattr(borg_module, "LOCK_WAIT_S", 1)
    monkeypatch.setattr(progress_module, "QUIET_S", 0.3)
    monkeypatch.setattr("holdfast.backup.borg.process.TERM_GRACE_S", 0.5)


async def test_a_far_host_that_does_not_answer_is_told_and_not_waited_for_twice(
    bench: Bench, tmp_path: Path, quick: None
) -> None:
    heard, hanging = Heard(), hanging_rsh(tmp_path, stubborn=True)
    borg = Borg(bench.borg.program, base=bench.folder / "base", progress=heard)
    far = Repository(name="host", address="ssh://ada@far.example/x", passphrase=SecretBytes(SECRET), rsh=str(hanging))
    with pytest.raises(PlaceUnreachable, match=r"no answer within 1\.5 s"):
        await borg.list_archives(far, rescue=True)
    assert heard.said[0] == "asking place host ..."
    assert left_of(hanging) == []
    began = time.monotonic()
    with pytest.raises(PlaceUnreachable):
        await borg.list_archives(replace(far, address="ssh://ada@far.example/x-beside"))
    assert time.monotonic() - began < 0.5, "the same host is not waited for again"
    near = Repository(name="nas", address=str(bench.path), passphrase=SecretBytes(SECRET))
    assert (await borg.list_archives(near)).archives


async def test_an_ssh_that_outlives_its_borg_is_ended(bench: Bench, tmp_path: Path) -> None:
    """Borg is killed from outside; its ssh neither notices nor listens."""
    hanging = hanging_rsh(tmp_path, stubborn=True)
    far = Repository(name="host", address="ssh://ada@far.example/x", passphrase=SecretBytes(SECRET), rsh=str(hanging))
    asking = asyncio.create_task(bench.borg.list_archives(far, rescue=True))
    while not alive(hanging):
        assert not asking.done()
        await asyncio.sleep(0.05)
    ssh = min(alive(hanging))  # it may have forked already
    borg = int(Path(f"/proc/{ssh}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(borg, signal.SIGKILL)
    async with asyncio.timeout(10):
        with pytest.raises(BackupInterrupted):
            await asking
    assert left_of(hanging) == []


def test_ssh_gives_up_and_asks_nobody_also_where_a_person_names_it() -> None:
    for given in ("", "ssh -i ~/.ssh/backup", "/usr/bin/ssh -p 23"):
        made = rsh_of(given)
        assert made.startswith(given or "ssh ")
        for option in ("BatchMode=yes", "ConnectTimeout=", "ServerAliveInterval="):
            assert option in made
    assert rsh_of("ssh -o ConnectTimeout=5").index("=5") < rsh_of("").index("=20") + 30
    assert rsh_of("/opt/tunnel x") == "/opt/tunnel x"


def serving(tmp_path: Path, program: Path) -> str:
    script = tmp_path / "serving"
    script.write_text(f'#!/bin/sh\nexec "{program}" serve\n')
    script.chmod(0o700)
    return str(script)


@pytest.mark.parametrize("far", [False, True])
async def test_another_repository_is_not_called_a_wrong_passphrase(bench: Bench, program: Path, far: bool) -> None:
    """Near and far: its key block names it, though it does not open."""
    known = (await bench.borg.list_archives(bench.repository)).repository_id
    other = bench.folder / "other"
    theirs = Repository(name="nas", address=str(other), passphrase=SecretBytes(b"of somebody else"))
    await bench.fresh().init(theirs)
    address = f"ssh://ada@far.example{other}" if far else str(other)
    swapped = Repository(
        name="nas",
        address=address,
        passphrase=SecretBytes(SECRET),
        id=known,
        rsh=serving(bench.folder, program) if far else "",
    )
    with pytest.raises(RepositoryReplaced, match="was replaced: its id is") as caught:
        await bench.fresh().list_archives(swapped, rescue=True)
    assert known[:16] in caught.value.message
    unknown = Repository(name="nas", address=address, passphrase=SecretBytes(SECRET), rsh=swapped.rsh)
    with pytest.raises(PassphraseRefused):
        await bench.fresh().list_archives(unknown, rescue=True)
    same = Repository(name="nas", address=str(bench.path), passphrase=SecretBytes(b"wrong"), id=known)
    with pytest.raises(PassphraseRefused):
        await bench.fresh().list_archives(same, rescue=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_ended_leaves_neither_borg_nor_ssh(
    hanging: Path, number: signal.Signals, tmp_path: Path
) -> None:
    codes = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
    words = [
        "recover",
        "--place",
        "ssh://a@far.example/x",
        "--rsh",
        str(hanging),
        "--home",
        str(tmp_path / "new"),
        "--dry-run",
        "--words-fd",
        "0",
    ]
    code, said = end_it(words, hanging, number)
    assert code == codes[number], said
    assert left_of(hanging) == []


def test_a_full_disk_under_the_output_is_no_defect_of_ours(make_home: Callable[[], AgentHome]) -> None:
    home = make_home()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "place", "list", "--json", "--home", str(home.folder)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (7, "disk-full")
    assert "No space left on device" in error["message"]
    assert error["hint"]


def test_a_file_of_a_place_that_cannot_be_read_is_told_with_its_path(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails under one file; no word is asked for."""
    place = tmp_path / "nas" / "ada"
    place.mkdir(parents=True)
    (place / "place.json").write_text('{"format": 1, "place": "nas", "epoch": 1, "repository_id": ""}')
    (place / "kel.jsonl").write_text("{}")
    read = companion_files.read_plain

    def failing(path: Path, bytes_max: int) -> bytes:
        if path.name == "kel.jsonl":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path, bytes_max)

    monkeypatch.setattr(companion_files, "read_plain", failing)
    words = ["recover", "--place", str(place.parent), "--home", str(tmp_path / "new"), "--dry-run", "--json"]
    assert main(words) != 0
    error = json.loads(capfd.readouterr().err.splitlines()[-1])["error"]
    assert error["code"] == "repository-damaged", error
    assert "kel.jsonl" in error["message"]
    assert "Input/output error" in error["message"]
