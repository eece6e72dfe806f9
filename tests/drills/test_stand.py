"""A standing copy is restored once, follows each verified snapshot, and can be ended; a kill leaves a whole one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from holdfast.app.worker import JobContext
from holdfast.backup.backups import open_backups
from holdfast.cli.main import main
from holdfast.drills.catalogue import get_drill
from holdfast.drills.execute import run_drill
from holdfast.drills.standing import copy as standing_copy
from holdfast.drills.standing.job import find_stand, keep_forward, newest_verified, stands_folder
from holdfast.errors import BadInput, NotProven
from holdfast.host.log import Log
from holdfast.host.shadow import ShadowPlan, open_shadow
from holdfast_proofs.drills import Example, make_example


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    made = make_example(tmp_path / "root", places=1)
    assert main(["rescue", "add", str(tmp_path / "rescue"), "--home", str(made.home.folder)]) == 0
    return made


def shown(words: list[str], capture: pytest.CaptureFixture[str]) -> dict[str, object]:
    capture.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capture.readouterr().out)


def note_of(example: Example) -> str:
    folder = stands_folder() / "ada" / "world"
    with open_shadow(ShadowPlan(folder=folder)) as shadow:
        return shadow.start(["cat", f"{standing_copy.COPY}/notes.txt"]).communicate(timeout=60)[0].decode()


def test_a_copy_stays_and_follows(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, key = example.home, tmp_path / "rescue"
    order = replace(example.order("test-restore"), stand=True)
    assert run_drill(get_drill("test-restore"), order).report.reason.startswith("the rescue key was not given")
    report = run_drill(get_drill("test-restore"), replace(order, rescue_key=key)).report
    assert (report.verdict, report.infrastructure) == ("pass", "fresh root"), report.reason
    assert report.key_used == "rescue key", "also if it is the key of the copy that is there"
    restored = next(one for one in report.timeline if one.name == "state_restored")
    assert "its journal at 1/" in restored.evidence, "so that a reader can compute the loss"
    assert note_of(example) == "kept\n"
    (home.folder / "notes.txt").write_text("newer\n")
    asyncio.run(backup(example))
    assert shown(["drill", "stand"], capsys)["stands"][0]["behind"] is True  # type: ignore[index]
    before = find_stand("ada")
    monkeypatch.setattr(standing_copy, "SWAP", "exit 1")  # what a kill before it leaves
    with pytest.raises(NotProven):
        standing_copy.forward(home, rescue_key=key, place=str(example.root / "place-1"))
    assert (find_stand("ada"), note_of(example)) == (before, "kept\n")
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(example.root))
    asyncio.run(follow(example))
    moved = find_stand("ada")
    assert moved is not None
    file = stands_folder() / "ada" / "stand.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(moved, id="hf1another", home="/srv/another")))
    with pytest.raises(NotProven, match="another agent of this name, in /srv/another"):
        standing_copy.forward(home, rescue_key=key, place=str(example.root / "place-1"))
    file.write_bytes(b"{")
    with pytest.raises(BadInput, match=r"stand\.json"):
        find_stand("ada")
    file.write_bytes(msgspec.json.encode(moved))
    assert moved.archive == newest_verified(home)
    assert note_of(example) == "newer\n"
    assert shown(["drill", "stand", "end", "--home", str(home.folder)], capsys)["ended"] is True
    assert not (stands_folder() / "ada").exists()
    assert shown(["drill", "stand"], capsys) == {"stands": []}


async def follow(example: Example) -> None:
    """A worker's job brings it forward."""
    context = JobContext(address=example.home.journal, journal=Mock(), keys=Mock(), notices=None, log=Log())
    job = asyncio.create_task(keep_forward(context))
    async with asyncio.timeout(60):
        while (found := find_stand("ada")) is None or found.archive != newest_verified(example.home):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


async def backup(example: Example) -> None:
    await asyncio.sleep(1.1)
    await (await open_backups(example.home)).now()
