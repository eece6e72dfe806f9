"""Defects that the disk-fault suites have found, each in its smallest form, kept for ever."""

from __future__ import annotations

import errno
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.errors import JournalStopped
from holdfast.journal.sqlite import opening, writer
from holdfast.journal.sqlite.db import Db
from holdfast.journal.sqlite.stop_flag import find_stopped


@holdfast.task
async def nothing(run: holdfast.Run) -> str:
    return "done"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder / "journal.db"


async def test_a_sync_that_fails_while_closing_stops_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a failed sync in a program that only submits: its error was swallowed.

    The next program wrote its commits behind the log page that had been lost, and a power cut
    took all of them: paid steps were not known any more.
    """

    def fails(_db: Db) -> int:
        raise apsw.IOError("disk I/O error")

    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        await hf.submit(nothing)
        monkeypatch.setattr(writer, "raise_stamp", fails)
    monkeypatch.undo()

    (folder,) = (path.parent / "instance").iterdir()
    assert find_stopped(folder) is not None
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        assert sum((await hf.journal.count_tasks()).values()) == 1
    assert find_stopped(folder) is None


async def test_the_log_has_a_durable_name_before_anything_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a failed sync of the folder, which SQLite does not report.

    After a power cut the log was gone and a rollback journal was back: the file was malformed.
    """
    made = [path.parent / name for name in ("journal.db", "journal.db-wal")]
    synced: list[bool] = []

    def fails(folder: Path) -> None:
        if folder == path.parent and all(one.exists() for one in made):
            synced.append(True)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(opening, "sync_folder", fails)
    with pytest.raises(JournalStopped, match="could not be synced"):
        async with holdfast.open(path, tasks=[nothing], serve=False):
            pass
    assert synced == [True]

    monkeypatch.undo()
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        await hf.submit(nothing)
