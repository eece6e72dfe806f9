"""A place in a cloud: copied by rclone after each backup, compared, and enough with the paper to come back.

The cloud is `rclone serve s3` on a free port; Holdfast speaks to it by rclone alone, as its user would.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lost import FACT, BareMachine, Lost

from holdfast.backup.backups import open_backups
from holdfast.backup.places.address import PlaceKind, parse_address
from holdfast.backup.places.backup_places import PlaceRequest
from holdfast.backup.places.cloud_copy import find_rclone
from holdfast.backup.places.places import read_places
from holdfast.backup.report import NowReport, VerifyReport
from holdfast.demo.machine import Machine, give_identity
from holdfast.errors import BadPlace, EngineMissing, PlaceUnreachable
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome

ADDRESS = "rclone:cloud:bucket/agents"
CONFIG = """[cloud]
type = s3
provider = Rclone
access_key_id = accesskey
secret_access_key = secretkey
endpoint = http://127.0.0.1:{port}
use_multipart_uploads = false
"""


@dataclass
class Cloud:
    """A cloud of one bucket, and the rclone configuration that reaches it."""

    root: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def agents(self) -> Path:
        return self.root / "disk" / "bucket" / "agents"

    @property
    def config(self) -> Path:
        return self.root / "rclone.conf"

    def start(self) -> None:
        words = ["serve", "s3", "--addr", f"127.0.0.1:{self.port}", "--auth-key", "accesskey,secretkey"]
        self.process = subprocess.Popen(
            [str(find_rclone()), *words, str(self.root / "disk")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("rclone serve s3 did not begin")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Cloud]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    made = Cloud(tmp_path / "cloud", port)
    (made.root / "disk" / "bucket").mkdir(parents=True, mode=0o700)
    made.config.touch(0o600)
    made.config.write_text(CONFIG.format(port=port))
    monkeypatch.setenv("RCLONE_CONFIG", str(made.config))
    made.start()
    yield made
    made.stop()


async def begun(root: Path) -> tuple[AgentHome, str]:
    """An agent with one place, in the cloud."""
    (root / "ada").mkdir(mode=0o700)
    home, words = await give_identity(root / "ada", Machine(root / "machine"))
    home.memory_file.touch(0o600)
    home.memory_file.write_text(FACT)
    backups = await open_backups(home)
    await backups.places.add(PlaceRequest(name="cloud", address=ADDRESS))
    return home, words


async def backed_up(home: AgentHome) -> NowReport:
    return await (await open_backups(home)).now()


async def verified(home: AgentHome) -> VerifyReport:
    return await (await open_backups(home)).verify()


def test_the_copy_in_the_cloud_and_the_paper_bring_the_agent_back(cloud: Cloud, tmp_path: Path) -> None:
    home, words = asyncio.run(begun(tmp_path))
    report = asyncio.run(backed_up(home))
    assert report.good, report
    (place,) = read_places(home.places_file)
    assert (place.kind, place.domain) == (PlaceKind.RCLONE, "rclone remote cloud")
    assert "local" not in json.loads(home.places_file.read_text())["places"][0]
    id_ = read_own_log(home.folder, Sodium()).id
    for name in ("ada", "machine"):
        shutil.rmtree(tmp_path / name)
    machine = BareMachine(tmp_path / "bare")
    config = ["--place", ADDRESS]
    machine.root.mkdir(mode=0o700)
    (machine.root / ".config" / "rclone").mkdir(parents=True)
    shutil.copy(cloud.config, machine.root / ".config" / "rclone" / "rclone.conf")
    done = machine.recover(Lost(root=tmp_path, words=words, id=id_, task_id=""), *config)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["id"] == id_
    assert (machine.home / "MEMORY.md").read_text() == FACT
    again = machine.run("backup", "now", "--home", str(machine.home))
    assert again.returncode == 0, again.stderr
    heads = (cloud.agents / "ada" / "heads.jsonl").read_text().splitlines()
    assert len(heads) >= 2


def test_a_changed_byte_and_a_cloud_that_is_down_are_told(cloud: Cloud, tmp_path: Path) -> None:
    home, _ = asyncio.run(begun(tmp_path))
    assert asyncio.run(backed_up(home)).good
    assert asyncio.run(verified(home)).good
    segment = max((cloud.agents / "ada" / "repository" / "data").rglob("[0-9]*"), key=lambda one: one.stat().st_size)
    kept = segment.read_bytes()
    segment.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    report = asyncio.run(verified(home))
    assert [one.error for one in report.places] == ["repository-damaged"], report
    segment.write_bytes(kept)
    cloud.stop()
    down = asyncio.run(backed_up(home))
    assert not down.good
    assert [one.error for one in down.places] == [PlaceUnreachable.code]
    cloud.start()
    assert asyncio.run(backed_up(home)).good


def test_a_lost_folder_is_fetched_and_the_place_is_taken_over_when_added_again(cloud: Cloud, tmp_path: Path) -> None:
    home, _ = asyncio.run(begun(tmp_path))
    assert asyncio.run(backed_up(home)).good
    (place,) = read_places(home.places_file)
    shutil.rmtree(place.root)

    async def bring_back() -> None:
        places = (await open_backups(home)).places
        assert (await places.check("cloud")).repository_id == place.repository_id
        places.remove("cloud")
        shutil.rmtree(place.root)
        again = await places.add(PlaceRequest(name="cloud", address=ADDRESS))
        assert (again.repository_id, again.epoch) == (place.repository_id, place.epoch)

    asyncio.run(bring_back())
    assert asyncio.run(backed_up(home)).good


@pytest.mark.parametrize(
    "text", ["rclone:", "rclone:x", "rclone::s3,key=1:x", "rclone:x:", "rclone:-x:y", "rclone:x:-y"]
)
def test_an_address_that_rclone_would_misread_is_refused(text: str) -> None:
    with pytest.raises(BadPlace):
        parse_address(text)


def test_an_unknown_remote_and_a_missing_rclone_are_named(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = asyncio.run(begun(tmp_path))

    async def add() -> None:
        await (await open_backups(home)).places.add(PlaceRequest(name="other", address="rclone:nowhere:x"))

    with pytest.raises(BadPlace) as unknown:
        asyncio.run(add())
    assert "rclone config" in unknown.value.hint
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    if shutil.which("rclone", path=os.defpath) is None:
        with pytest.raises(EngineMissing, match="rclone is not installed"):
            find_rclone()
