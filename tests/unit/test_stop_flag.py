"""A failed sync stops everybody until a repair made alone; the use lock says who is alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, JournalBusy, JournalStopped
from holdfast.journal.sqlite.host import disk_trouble, file_watch
from holdfast.journal.sqlite.host.disk_trouble import Stopped, clear_stopped, find_stopped, mark_stopped
from holdfast.journal.sqlite.host.file_watch import FileWatch
from holdfast.journal.sqlite.host.high_water import fold_marks
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.use_lock import JournalUse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "journal"


def _page(folder: Path, session_id: str) -> SessionPage:
    return SessionPage.create(folder, session_id, boot_id="boot", incarnation=1)


def test_the_first_reason_stays_until_it_is_cleared(folder: Path) -> None:
    _page(folder, "s").close(delete=True)
    assert find_stopped(folder) is None
    assert mark_stopped(folder, reason="fsync: EIO", session_id="s", at_ms=7)
    assert mark_stopped(folder, reason="later", session_id="t", at_ms=8)
    assert find_stopped(folder) == Stopped(reason="fsync: EIO", session_id="s", at_ms=7)
    clear_stopped(folder)
    clear_stopped(folder)
    assert find_stopped(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\xff"])
def test_a_sign_that_cannot_be_read_still_stops(folder: Path, text: str) -> None:
    _page(folder, "s").close(delete=True)
    path = folder / "stopped"
    path.write_text(text)
    path.chmod(0o600)
    assert find_stopped(folder) is not None


def test_the_page_keeps_the_sign_when_the_disk_takes_no_new_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = _page(folder, "s")

    def fails(path: Path, data: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk_trouble, "write_atomically", fails)
    assert not mark_stopped(folder, reason="EIO", session_id="s", at_ms=1)
    assert page.mark_stopped()
    found = find_stopped(folder)
    assert found is not None
    assert found.session_id == "s"

    page.close(delete=True)  # also not folded away: it is the only witness
    assert fold_marks(folder, set(), at_ms=0) == []
    assert find_stopped(folder) is not None
    clear_stopped(folder)
    assert find_stopped(folder) is None
    assert fold_marks(folder, set(), at_ms=0) == ["s"]


async def test_many_use_the_journal_together_or_one_alone(folder: Path) -> None:
    first = await JournalUse.shared(folder)
    second = await JournalUse.shared(folder)
    assert not first.is_exclusive
    with pytest.raises(JournalBusy):
        await JournalUse.exclusive(folder)
    first.close()
    second.close()
    second.close()
    with await JournalUse.exclusive(folder) as alone:
        assert alone.is_exclusive
        with pytest.raises(JournalBusy):
            await JournalUse.shared(folder)
        with pytest.raises(JournalBusy):
            await JournalUse.exclusive(folder, timeout_s=0.05)
    (await JournalUse.shared(folder)).close()


async def test_a_wait_ends_when_the_others_leave_and_the_loop_stays_free(folder: Path) -> None:
    other = await JournalUse.shared(folder)
    waiting = asyncio.create_task(JournalUse.exclusive(folder, timeout_s=30))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    other.close()
    (await waiting).close()


async def test_a_cancelled_wait_holds_nothing(folder: Path) -> None:
    other = await JournalUse.shared(folder)
    waiting = asyncio.create_task(JournalUse.exclusive(folder, timeout_s=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (await JournalUse.shared(folder)).close()
    other.close()


async def test_a_journal_that_cannot_let_go_at_once_is_asked_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a commit it says no. It must let go later all the same, or no repair comes to its turn."""
    monkeypatch.setattr(file_watch, "LOOK_EVERY_S", 0.001)
    _page(folder, "s").close(delete=True)
    journal = tmp_path / "journal.db"
    journal.touch()
    answers, asked, gone = [False, True], list[str](), asyncio.Event()

    def let_go(error: HoldfastError) -> bool:
        asked.append(error.code)
        if answers[0]:
            gone.set()
        return answers.pop(0)

    watch = FileWatch(journal, folder, let_go=let_go)
    mark_stopped(folder, reason="fsync: EIO", session_id="", at_ms=1)
    async with asyncio.timeout(10):
        await gone.wait()
    with pytest.raises(JournalStopped, match="fsync: EIO"):
        watch.check()
    await asyncio.sleep(0.02)
    assert asked == ["journal-stopped"] * 2
