"""File and log of a journal belong together: an older file under a newer log is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.errors import HighWaterDamaged, JournalOlderCopy
from holdfast.journal.sqlite import writer
from holdfast.journal.sqlite.host.high_water import HighWater, note, noted

FILES = ("journal.db", "journal.db-wal", "journal.db-shm")


@holdfast.task
async def nothing(run: holdfast.Run, number: int) -> int:
    return number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder


def known(folder: Path) -> HighWater:
    (instance,) = (folder / "instance").iterdir()
    return noted(instance)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files as a killed process would leave them now."""
    return {name: (folder / name).read_bytes() for name in FILES}


def leave(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(0o600)


async def submit(hf: Holdfast, count: int) -> None:
    for number in range(count):
        await hf.submit(nothing, number=number)


async def test_file_of_an_earlier_checkpoint_under_the_newest_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs for weeks; a copy of its file is put back after it was killed."""
    monkeypatch.setattr(writer, "WAL_PAGES", 20)
    async with holdfast.open(folder / "journal.db", tasks=[nothing], serve=False) as hf:
        await submit(hf, 20)
        first = known(folder)
        copy = bytes_of(folder)["journal.db"]
        await submit(hf, 20)
        assert known(folder) > first > HighWater(), "every complete wal_checkpoint is noted"
        killed = bytes_of(folder)

    leave(folder, {**killed, "journal.db": copy})
    with pytest.raises(JournalOlderCopy, match="stamp"):
        async with holdfast.open(folder / "journal.db", tasks=[nothing], serve=False):
            pass

    leave(folder, killed)
    async with holdfast.open(folder / "journal.db", tasks=[nothing], serve=False) as hf:
        assert sum((await hf.journal.count_tasks()).values()) == 40


async def test_looking_leaves_the_log_of_a_killed_process(folder: Path) -> None:
    path = folder / "journal.db"
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        await submit(hf, 3)
        killed = bytes_of(folder)
    leave(folder, killed)

    async with holdfast.open(path, serve=False) as hf:
        assert sum((await hf.journal.count_tasks()).values()) == 3

    assert bytes_of(folder)["journal.db"] == killed["journal.db"]
    assert bytes_of(folder)["journal.db-wal"] == killed["journal.db-wal"]


async def test_whoever_wrote_leaves_one_file(folder: Path) -> None:
    """Closed in order, the journal is its file alone: what is copied then is all of it."""
    for count in (1, 2):
        async with holdfast.open(folder / "journal.db", tasks=[nothing], serve=False) as hf:
            await submit(hf, count)
        assert not (folder / "journal.db-wal").exists()
        assert not (folder / "journal.db-shm").exists()


def test_a_note_is_never_lowered(tmp_path: Path) -> None:
    note(tmp_path, HighWater(1, 7))
    note(tmp_path, HighWater(1, 6))
    assert noted(tmp_path) == HighWater(1, 7)
    note(tmp_path, HighWater(2, 1))
    assert noted(tmp_path) == HighWater(2, 1), "a restore begins a new count"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', json.dumps({"format": 1, "journal_id": "other", "incarnation": 1, "stamp": 1})],
)
def test_a_note_that_cannot_be_read_refuses(tmp_path: Path, text: str) -> None:
    (tmp_path / "stamp.json").write_text(text)
    (tmp_path / "stamp.json").chmod(0o600)
    with pytest.raises(HighWaterDamaged):
        noted(tmp_path)
