"""Defects that the disk-fault suites have found, each in its smallest form, kept for ever."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.errors import HoldfastError, JournalBusy, JournalFull, JournalStopped, ReadOnly
from holdfast.host.sqlite import Db
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.bind import journal_at
from holdfast.journal.sqlite import admin as sqlite_admin
from holdfast.journal.sqlite import writer
from holdfast.journal.sqlite.host.disk_trouble import find_stopped
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.opening import open as opening
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs import claims


@holdfast.task
async def nothing(run: holdfast.Run) -> str:
    return "done"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder / "journal.db"


async def test_a_sync_that_fails_while_closing_stops_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_claim_that_finds_the_disk_full_is_tried_again_in_the_reserve(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a full disk: the claim was folded twice, looked damaged, and the engine ended."""
    take, refused = claims.take, 0

    def full_once(txn: Txn, *args: Any, **options: Any) -> Any:  # Any: handed through
        nonlocal refused
        taken = take(txn, *args, **options)
        if taken and not refused:
            refused += 1
            raise apsw.FullError("database or disk is full")
        return taken

    monkeypatch.setattr(claims, "take", full_once)
    async with holdfast.open(path, tasks=[nothing]) as hf:
        task = await hf.submit(nothing)
        assert await task.result(timeout_s=20) == "done"
    assert refused == 1


async def test_a_send_that_cannot_be_marked_is_not_sent_and_runs_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a full disk that copies on write: the task failed, because a page was not written.

    Nothing had been sent.
    """
    mark, refused, calls = SessionPage.mark_begun, 0, 0

    def full_once(page: SessionPage, slot: int) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise JournalFull("cannot write the page: no space left on device")
        mark(page, slot)

    @holdfast.tool()
    async def send(call: holdfast.Call) -> str:
        nonlocal calls
        calls += 1
        return "sent"

    @holdfast.task
    async def sending(run: holdfast.Run) -> str:
        return await run.call(send)

    monkeypatch.setattr(SessionPage, "mark_begun", full_once)
    settings = holdfast.Settings(pace=0.05)
    async with holdfast.open(path, tasks=[sending], settings=settings) as hf:
        task = await hf.submit(sending)
        assert await task.result(timeout_s=20) == "sent"
    assert (refused, calls) == (2, 1)


async def test_a_full_disk_is_not_taken_for_missing_rights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a full disk: SQLite cannot make its log, and says only that it cannot open.

    It was told as `read-only`, which a supervisor takes for final: the worker stayed away after
    there was room again.
    """

    def cannot(_path: Path, *, sync: str = "FULL") -> Db:
        raise apsw.CantOpenError("unable to open database file")

    def no_room(**_options: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_rights(_path: Path, _mode: int) -> bool:
        return False

    async def refused_with(kind: type[HoldfastError]) -> None:
        with pytest.raises(kind):
            async with holdfast.open(path, tasks=[nothing]):
                pass

    monkeypatch.setattr(opening, "connect", cannot)
    await refused_with(JournalBusy)  # there is room again: it is worth another try
    monkeypatch.setattr(opening.tempfile, "TemporaryFile", no_room)
    await refused_with(JournalFull)
    monkeypatch.setattr(opening.os, "access", no_rights)
    await refused_with(ReadOnly)


async def stopped_with_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal whose newest commits lie in a log that is not trusted any more."""

    def fails(_db: Db) -> int:
        raise apsw.IOError("disk I/O error")

    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        await hf.submit(nothing)
        monkeypatch.setattr(writer, "raise_stamp", fails)
    monkeypatch.undo()


async def test_a_repair_only_reads_what_it_copies(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a failed sync: the repair moved the log into the old file and synced both."""
    await stopped_with_a_log(path, monkeypatch)
    files = [path, path.with_name("journal.db-wal")]
    before = [file.read_bytes() for file in files]

    def fails(_from: Path, _to: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(opening.os, "replace", fails)
    with pytest.raises(JournalStopped, match="could not be rewritten"):
        async with holdfast.open(path, tasks=[nothing], serve=False):
            pass
    assert [file.read_bytes() for file in files] == before


async def test_the_old_log_is_durably_gone_before_the_new_file_has_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut SQLite would play the old log into a file that it does not belong to."""
    await stopped_with_a_log(path, monkeypatch)
    sync_folder, between = opening.sync_folder, 0

    def watch(folder: Path) -> None:
        nonlocal between
        waiting = (folder / ".journal.db.rewritten").exists()
        between += waiting and not (folder / "journal.db-wal").exists()
        sync_folder(folder)

    monkeypatch.setattr(opening, "sync_folder", watch)
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        assert sum((await hf.journal.count_tasks()).values()) == 1
    assert between == 1


class FailsToCommit:
    """A connection whose commit is not synced."""

    def __init__(self, inner: Db) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, *bindings: Any) -> Any:
        if sql == "COMMIT":
            raise apsw.IOError("disk I/O error")
        return self._inner.execute(sql, *bindings)


@pytest.mark.parametrize("what", ["salt", "schema", "incarnation", "restore"])
async def test_a_commit_without_a_session_stops_the_journal_too(
    what: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a failed sync of the commit that decides a journal's salt: no sign was left. The next program wrote
    behind the page that had been lost, and a power cut took a task that had been accepted."""
    if what != "salt":
        async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
            await hf.submit(nothing)
    keys = load_or_create(path.with_name("keys.json"), journal_exists=what != "salt", entropy=SystemEntropy())
    admin = journal_at(file_at(path))
    connect = opening.connect

    async def commit() -> None:
        if what == "incarnation":
            await admin.raise_incarnation(to=9, keys=keys, clock=SystemClock())
        elif what == "restore":
            await admin.restore(keys=keys, clock=SystemClock())
        else:
            async with holdfast.open(path, tasks=[nothing], serve=False):
                pass

    monkeypatch.setattr(sqlite_admin, "connect", lambda path: FailsToCommit(connect(path)))  # pyright: ignore
    if what == "schema":
        monkeypatch.setattr(opening, "connect", lambda path, sync: FailsToCommit(connect(path, sync=sync)))  # pyright: ignore
        monkeypatch.setattr(opening, "_version", lambda _db: 0)  # pyright: ignore
        monkeypatch.setattr(opening, "raise_schema", lambda _db, _wraps: None)  # pyright: ignore
    with pytest.raises(JournalStopped, match="the disk reported an error"):
        await commit()
    monkeypatch.undo()

    (folder,) = (path.parent / "instance").iterdir()
    assert find_stopped(folder) is not None
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        assert sum((await hf.journal.count_tasks()).values()) == (what != "salt")
    assert find_stopped(folder) is None


async def test_a_task_is_accepted_where_no_page_can_be_made_for_the_mark(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a failed sync in a program that only submits: the error came after the commit, and submit hung."""

    def fails(*_args: object, **_fields: object) -> SessionPage:
        raise OSError(errno.EIO, "Input/output error")

    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        with monkeypatch.context() as patched:
            patched.setattr(SessionPage, "create", fails)
            await hf.submit(nothing)
        await hf.submit(nothing)
        assert journal_at(file_at(path)).high_water().sequence == journal_at(file_at(path)).newest_record(), (
            "the next commit made it"
        )
        assert sum((await hf.journal.count_tasks()).values()) == 2
