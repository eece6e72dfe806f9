"""A disk that is really full, and one that reported a failed write: nothing is sent on trust."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import holdfast
from holdfast.errors import JournalGone, JournalStopped
from holdfast.journal.sqlite.host import file_watch
from holdfast.journal.sqlite.host.disk_trouble import find_stopped, mark_stopped
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing.lab import Lab, Scripted, hang, wait_until

MOUNT = 'mount -t tmpfs -o size=12m,mode=0700 tmpfs "$1" && exec "$2" "$3" "$1"'


def _unshare(place: Path) -> list[str]:
    """How this user can mount a small file system; skips where there is no way."""
    for way in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = [*way, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(place)]
        if shutil.which("unshare") and not subprocess.run(probe, capture_output=True).returncode:
            return way
    pytest.skip("this user may not mount a file system, not even in a namespace of its own")


def test_a_full_disk_stops_new_effects_and_keeps_the_results_of_running_ones(
    tmp_path: Path, script: Callable[[str], Path]
) -> None:
    """Begins are refused before the send; the reserve holds the results; space is noticed."""
    words = [str(tmp_path), sys.executable, str(script("full_disk"))]
    done = subprocess.run(
        [*_unshare(tmp_path), "sh", "-c", MOUNT, "sh", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout.partition("found ")[2]) == {
        "recorded": 8,
        "submit": ["journal-full", True],
        "sent while full": 0,
        "states": ["running"],
        "within 5 s": True,
        "calls": [True, True],
        "damage": [],
    }


async def test_a_journal_with_a_stop_sign_is_rewritten_and_goes_on(lab: Lab) -> None:
    """After a failed sync the file is not trusted: all that can be read goes into a new one."""
    tool = Scripted(holdfast.Unrepeatable(), "sent")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as hf:
        done = await hf.submit(one)
        await done.result(10)
        folder = lab.folder / "instance" / hf.journal.journal_id
    before = lab.journal.stat().st_ino
    mark_stopped(folder, reason="fsync: EIO", session_id="", at_ms=1)
    async with lab.open(one) as hf:
        assert find_stopped(folder) is None
        assert lab.journal.stat().st_ino != before
        assert await hf.task(done.id).result(10) == "sent"
        assert await (await hf.submit(one)).result(10) == "sent"
        assert [finding async for finding in hf.journal.check()] == []
    assert lab.journal.stat().st_mode & 0o777 == 0o600
    assert len(tool.calls) == 2


async def test_a_client_that_waits_does_not_stand_in_the_way_of_the_repair(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only waits, and one that does nothing at all, close the file and say why; the next one repairs."""
    monkeypatch.setattr(file_watch, "LOOK_EVERY_S", 0.05)
    tool = Scripted(holdfast.Read(), "seen")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(serve=False) as client, lab.open(serve=False) as idle:
        handle = await client.submit("one")
        waiting = asyncio.create_task(handle.result(60))
        await asyncio.sleep(0)
        folder = lab.folder / "instance" / client.journal.journal_id
        mark_stopped(folder, reason="fsync: EIO", session_id="", at_ms=1)
        with pytest.raises(JournalStopped, match="fsync: EIO"):
            await waiting
        async with lab.open(one) as worker:
            assert await worker.task(handle.id).result(10) == "seen"
        for refused in (client.submit("one"), idle.submit("one"), idle.task(handle.id).state()):
            with pytest.raises(JournalStopped):
                await refused
    assert find_stopped(folder) is None


async def test_a_session_that_saw_the_failure_and_lives_does_not_stop_the_journal_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page keeps the sign too; the repair takes it away there as well."""
    monkeypatch.setattr(file_watch, "LOOK_EVERY_S", 0.05)
    async with lab.open(serve=False) as hf:
        await hf.submit("one")
        folder, page = lab.folder / "instance" / hf.journal.journal_id, cast(SqliteJournal, hf.journal)._instance
        page.stop("fsync: EIO")
        await wait_until(lambda: _is_told(hf))
        async with lab.open(serve=False):
            assert find_stopped(folder) is None


async def _is_told(hf: holdfast.Holdfast) -> bool:
    try:
        await hf.journal.count_tasks()
    except JournalStopped:
        return True
    return False


async def test_a_journal_that_is_removed_ends_its_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a file without a name reaches no one."""
    monkeypatch.setattr(file_watch, "LOOK_EVERY_S", 0.05)
    tool = Scripted(holdfast.Read(), hang)

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        lab.journal.unlink()
        with pytest.raises(JournalGone, match="was removed or replaced"):
            await handle.result(30)
        with pytest.raises(JournalGone):
            await hf.submit(one)


async def test_an_error_of_the_disk_ends_the_engine_and_is_told_to_whoever_waits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is unknown: nothing more is written to that file, nothing is sent, and the
    next one to open the journal repairs it."""
    tool = Scripted(holdfast.Unrepeatable(max_delay_s=0), "sent")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as hf:
        await (await hf.submit(one)).result(10)
        writer = cast(SqliteJournal, hf.journal)._writer

        def transact(*_args: Any, **_rest: Any) -> bool:
            raise apsw.IOError("disk I/O error")

        monkeypatch.setattr(writer, "_transact", transact)
        with pytest.raises(holdfast.HoldfastError) as failed:
            await hf.submit(one)
        assert failed.value.code == "commit-unknown"
        with pytest.raises(JournalStopped):
            await hf.submit(one)
    monkeypatch.undo()
    folder = next((lab.folder / "instance").iterdir())
    async with lab.open(one) as hf:
        assert find_stopped(folder) is None
        assert await (await hf.submit(one)).result(10) == "sent"
    assert len(tool.calls) == 2
