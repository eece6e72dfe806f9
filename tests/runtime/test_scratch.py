"""Scratch files: in every checkpoint, restored exactly, refused in time, removed in the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.core.ids import TaskId
from holdfast.core.step import StepState
from holdfast.errors import (
    BlobNotFound,
    JournalFull,
    Misuse,
    ScratchNotKept,
    ScratchRefused,
    ScratchTooLarge,
    WrongKind,
)
from holdfast.journal.records import TaskState
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.runtime.scratch.scratch import ScratchFolders, sweep
from holdfast.runtime.scratch.store import Store
from holdfast.testing.lab import Lab, Scripted, hang, look_dead, wait_state, wait_step, wait_until
from holdfast_proofs.support.command_line import Commands

# Any in this file: JSON of the tests' own tools, and the journal's signatures.


@holdfast.tool(effect=holdfast.Read())
async def write(call: holdfast.Call, name: str, text: str = "x") -> int:
    return (call.scratch / name).write_text(text)


def names(run: holdfast.Run) -> list[str]:
    folder = run.scratch.path
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def folder_of(lab: Lab, hf: holdfast.Holdfast, task_id: str) -> Path:
    return lab.folder / "scratch" / hf.journal.journal_id / task_id / "files"


def sql(lab: Lab, statement: str) -> list[tuple[Any, ...]]:
    db: Any = apsw.Connection(str(lab.journal))
    try:
        return list(db.execute(statement))
    finally:
        db.close()


def test_a_task_killed_at_any_point_ends_with_the_same_files(tmp_path: Path, script: Callable[[str], Path]) -> None:
    """Real processes, SIGKILL around commits, blobs, code and tools, an empty disk each time.

    Every point: python tests/runtime/programs/scratcher.py FOLDER
    """
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, str(script("scratcher")), str(place), "27"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["killed"] >= 3


async def test_a_task_that_does_not_use_it_has_none(lab: Lab) -> None:
    tool = Scripted(holdfast.Read(), 1)

    @holdfast.task
    async def plain(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(plain) as hf:
        handle = await hf.submit(plain)
        await handle.result(10)
        assert (await handle.view()).files is None
    assert not (lab.folder / "scratch").exists()


async def test_the_folder_is_private_and_removed_when_the_task_has_ended(lab: Lab) -> None:
    """Kept by the journal: `task show` lists the newest files."""
    seen: list[Path] = []

    @holdfast.task
    async def work(run: holdfast.Run) -> list[str]:
        seen.append(run.scratch.path)
        assert os.fspath(run.scratch) == str(run.scratch.path)
        assert run.scratch.path.stat().st_mode & 0o777 == 0o700
        (run.scratch.path / "empty").mkdir()
        await run.call(write, name="a", text="12345")
        return names(run)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        assert await handle.result(10) == ["a", "empty"]
        assert seen == [folder_of(lab, hf, handle.id)]

        async def removed() -> bool:
            return not seen[0].parent.exists()

        await wait_until(removed)
    commands = Commands(lab.folder, main)
    shown = await asyncio.to_thread(commands.look, "task", "show", handle.id, "--json")
    assert shown.json["scratch"] == {
        "bytes": 5,
        "files": [{"path": "a", "size": 5, "executable": False}],
        "empty_folders": ["empty"],
    }
    shown = await asyncio.to_thread(commands.look, "task", "show", handle.id)
    assert [line.split() for line in shown.out.splitlines() if line[:2] in ("a ", "em")] == [
        ["a", "5"],
        ["empty/", "empty"],
    ]


async def test_leftovers_are_never_used(lab: Lab) -> None:
    """A run that follows begins with an empty folder, whatever lies at its path."""
    gate = asyncio.Event()
    held = Scripted(holdfast.Read(), hang, "held")

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        found = names(run)
        (run.scratch.path / "code").write_text("code")
        await run.call(write, name="tool")
        gate.set()
        await run.call(held.tool)
        return [found, names(run)]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await gate.wait()
        await wait_step(handle, "2", StepState.STARTED)
        folder = folder_of(lab, hf, handle.id)
        before = folder.stat().st_ino
        (folder / "half").write_text("written by the step that was cut off")
    folder.mkdir(exist_ok=True)
    (folder / "planted").write_text("by a dead run")
    (folder / "code").unlink(missing_ok=True)
    (folder / "code").symlink_to("/etc/passwd")
    async with lab.open(work) as hf:
        assert await hf.task(handle.id).result(20) == [[], ["code", "tool"]]
    assert before


async def test_an_attempt_on_another_worker_begins_with_the_files_before_its_step(lab: Lab) -> None:
    """While the first worker still lives and writes: its folder is not the new one's."""
    entered = asyncio.Event()
    found: list[list[str]] = []

    @holdfast.tool(effect=holdfast.Read())
    async def half(call: holdfast.Call) -> None:
        found.append(sorted(path.name for path in call.scratch.iterdir()))
        fd = os.open(call.scratch, os.O_RDONLY)
        (call.scratch / "half").write_text("half")
        if len(found) == 1:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                os.close(os.open("late", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.close(fd)

    @holdfast.task
    async def work(run: holdfast.Run) -> list[str]:
        _ = run.scratch
        await run.call(write, name="before")
        await run.call(half)
        return names(run)

    async with lab.open(work) as first:
        handle = await first.submit(work)
        await entered.wait()
        look_dead(first)
        async with lab.open(work) as second:
            assert await second.task(handle.id).result(20) == ["before", "half"]
    assert found == [["before"], ["before"]]


# What is refused


async def test_what_is_refused_before_a_call_is_not_sent(lab: Lab) -> None:
    tool = Scripted(holdfast.Unrepeatable(), "sent")
    said: list[str] = []

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        pipe = run.scratch.path / "pipe"
        os.mkfifo(pipe)
        try:
            await run.call(tool.tool)
        except ScratchRefused as error:
            said.append(error.message)
        pipe.unlink()
        return await run.call(tool.tool)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        assert await handle.result(10) == "sent"
        assert list((await handle.view()).steps) == ["2"]
    assert said == ["scratch file 'pipe' is a named pipe; only files and folders are allowed"]
    assert len(tool.calls) == 1


async def test_what_is_refused_after_a_call_is_told_then_and_on_every_replay(lab: Lab) -> None:
    """The effect is recorded; the folder is as before it, live and replayed."""
    seen: list[list[str]] = []
    held = Scripted(holdfast.Read(), hang, "held")

    @holdfast.tool(effect=holdfast.Unrepeatable())
    async def link(call: holdfast.Call) -> None:
        (call.scratch / "good").write_text("good")
        (call.scratch / "link").symlink_to("good")

    @holdfast.task
    async def work(run: holdfast.Run) -> str:
        (run.scratch.path / "mine").write_text("mine")
        try:
            await run.call(link)
        except ScratchNotKept as error:
            seen.append(names(run))
            await run.call(held.tool)
            return error.message
        return "kept"

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_step(handle, "2", StepState.STARTED)
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
    async with lab.open(work) as hf:
        message = await hf.task(handle.id).result(20)
    assert message == (
        "step 1: the files that link left are lost: scratch file 'link' is a symbolic link; "
        "only files and folders are allowed"
    )
    assert seen == [["mine"], ["mine"]]


@pytest.mark.parametrize("decision", ["done", "skip"])
async def test_a_step_closed_elsewhere_leaves_the_files_before_it(lab: Lab, decision: Literal["done", "skip"]) -> None:
    """Parked, the worker gone, settled by a person: the files are those before the step."""

    @holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01))
    async def lose(call: holdfast.Call) -> None:
        (call.scratch / "half").write_text("half")
        raise ConnectionError("reset")

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "mine").write_text("mine")
        try:
            said = await run.call(lose)
        except holdfast.StepSkipped:
            said = "skipped"
        await run.call(write, name="next")
        return [said, names(run)]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.PARKED)
    async with lab.open(work) as hf:
        await hf.settle(handle.id, "1", decision, result="settled" if decision == "done" else None)
        said, left = await hf.task(handle.id).result(20)
    assert said == ("settled" if decision == "done" else "skipped")
    assert left == ["mine", "next"]


async def test_a_folder_that_was_removed_is_an_empty_one(lab: Lab) -> None:
    """And one that was swapped for another is refused; the outcome is recorded all the same."""

    @holdfast.tool(effect=holdfast.Unrepeatable())
    async def clear(call: holdfast.Call) -> str:
        shutil.rmtree(call.scratch)
        return "cleared"

    @holdfast.tool(effect=holdfast.Unrepeatable())
    async def swap(call: holdfast.Call) -> str:
        call.scratch.rename(call.scratch.with_name("elsewhere"))
        call.scratch.symlink_to("elsewhere")
        return "swapped"

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "a").write_text("a")
        said = await run.call(clear)
        found = names(run)
        (run.scratch.path / "b").write_text("b")
        try:
            await run.call(swap)
        except ScratchNotKept as error:
            run.scratch.path.unlink()
            run.scratch.path.with_name("elsewhere").rename(run.scratch.path)
            return [said, found, error.why.partition("/files ")[2], names(run)]
        return "kept"

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        why = "is no longer the scratch folder that Holdfast made for this run: another folder or file replaced it"
        assert await handle.result(10) == ["cleared", [], why, ["b"]]
        assert (await handle.view()).steps["2"].state is StepState.SUCCEEDED


async def test_limits_are_settings(lab: Lab) -> None:
    @holdfast.task
    async def work(run: holdfast.Run) -> None:
        for number in range(4):
            (run.scratch.path / str(number)).write_text("x")

    async with lab.open(work, scratch_files_max=3) as hf:
        with pytest.raises(holdfast.TaskFailed, match="more than 3 files") as error:
            await (await hf.submit(work)).result(10)
        assert ScratchTooLarge.code in str((await hf.task(error.value.task_id).view()).outcome)


async def test_scopes_and_tasks_without_it_say_so(lab: Lab) -> None:
    @holdfast.task
    async def work(run: holdfast.Run) -> None:
        await run.call(write, name="a")

    async with lab.open(work, tools=[write]) as hf:
        async with hf.scope("s") as scope:
            with pytest.raises(Misuse, match="a scope has no scratch folder"):
                _ = scope.scratch
            with pytest.raises(holdfast.ToolFailed, match="no scratch folder yet"):
                await scope.call(write, slot="1", name="a")
        with pytest.raises(holdfast.TaskFailed, match="no scratch folder yet"):
            await (await hf.submit(work)).result(10)


# Branches


async def test_branches_share_the_folder_and_none_takes_away_what_another_did(lab: Lab) -> None:
    """One branch closed, one open: the open one runs again beside the files of the closed one."""
    runs: list[str] = []

    @holdfast.tool(effect=holdfast.Read())
    async def slow(call: holdfast.Call, name: str) -> list[str]:
        runs.append(name)
        (call.scratch / name).write_text("half")
        if runs.count("slow") == 1 and name == "slow":
            await asyncio.Event().wait()
        (call.scratch / name).write_text("whole")
        return sorted(path.name for path in call.scratch.iterdir())

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "mine").write_text("mine")
        calls = [run.call(slow, name="slow"), run.call(slow, name="quick")]
        found = await run.gather(*calls)
        return [found, {path.name: path.read_text() for path in run.scratch.path.iterdir()}]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_step(handle, "1.2.1", StepState.SUCCEEDED)
        await wait_step(handle, "1.1.1", StepState.STARTED)
    async with lab.open(work) as hf:
        (slow_saw, _), files = await hf.task(handle.id).result(20)
    assert slow_saw == ["mine", "quick", "slow"]
    assert files == {"mine": "mine", "quick": "whole", "slow": "whole"}
    assert runs == ["slow", "quick", "slow"]


# Blocking tools


@holdfast.tool(effect=holdfast.Read())
def in_thread(call: holdfast.Call) -> None:
    (call.scratch / "thread").write_text("x")


@holdfast.tool(effect=holdfast.Unrepeatable())
def in_child(call: Any) -> None:  # a ChildCall
    (call.scratch / "child").write_text("x")


@holdfast.task
async def blocks(run: holdfast.Run) -> list[str]:
    _ = run.scratch
    await run.call(in_thread)
    await run.call(in_child)
    return names(run)


async def test_blocking_tools_find_the_folder(lab: Lab) -> None:
    async with lab.open(blocks) as hf:
        assert await (await hf.submit(blocks)).result(20) == ["child", "thread"]


# Full disks


class FullFor:
    """A journal that has no space for blobs, until it is told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        put = SqliteJournal.put_blobs

        async def refusing(journal: SqliteJournal, contents: Sequence[bytes], *, task_id: TaskId) -> list[str]:
            if self.full:
                self.refused += 1
                raise JournalFull("no space left for the journal")
            return await put(journal, contents, task_id=task_id)

        monkeypatch.setattr(SqliteJournal, "put_blobs", refusing)

    async def met(self) -> bool:
        return self.refused > 0


async def test_a_full_disk_before_a_call_is_waited_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullFor(monkeypatch)
    tool = Scripted(holdfast.Unrepeatable(), "sent")

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "a").write_text("a")
        disk.full = True
        return await run.call(tool.tool)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_until(disk.met)
        assert tool.calls == []
        disk.full = False
        assert await handle.result(10) == "sent"


@pytest.mark.parametrize("dies", [False, True])
async def test_a_full_disk_after_a_call_does_not_keep_its_outcome(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The outcome first, the files when there is space; dead in between, the files are lost."""
    disk = FullFor(monkeypatch)

    @holdfast.tool(effect=holdfast.Unrepeatable())
    async def once(call: holdfast.Call) -> str:
        (call.scratch / "once").write_text("once")
        disk.full = True
        return "done"

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "a").write_text("a")
        try:
            return [await run.call(once), names(run)]
        except ScratchNotKept as error:
            return [error.why, names(run)]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        step = await wait_step(handle, "1", StepState.SUCCEEDED)
        assert step.result == "done"
        await wait_until(disk.met)
        if not dies:
            disk.full = False
            assert await handle.result(10) == ["done", ["a", "once"]]
            return
        look_dead(hf)
        assert hf.engine is not None
        disk.full = False
        monkeypatch.setattr(hf.engine.journal, "append", _never)
        async with lab.open(work) as other:
            why, left = await other.task(handle.id).result(20)
    assert why == "the disk was full, and the worker died before there was space"
    assert left == ["a"]


async def _never(*_args: Any, **_options: Any) -> list[int]:
    await asyncio.Event().wait()
    return []


def test_a_disk_that_is_really_full_while_a_chunk_is_stored(tmp_path: Path, script: Callable[[str], Path]) -> None:
    """Nothing is sent, results under way are recorded, and all goes on when there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = [str(disk), sys.executable, str(script("scratch_full")), str(tmp_path / "files")]
    mount = 'mount -t tmpfs -o size=64m,mode=0700 tmpfs "$1" && exec "$2" "$3" "$1" "$4"'
    done = subprocess.run([*unshare(disk), "sh", "-c", mount, "sh", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout.partition("found ")[2]) == {
        "sent while full": 0,
        "recorded while full": 5,
        "same bytes": True,
        "damage": [],
    }


def unshare(place: Path) -> list[str]:
    """How this user can mount a small file system; skips where there is no way."""
    for way in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        probe = [*way, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(place)]
        if shutil.which("unshare") and not subprocess.run(probe, capture_output=True).returncode:
            return way
    pytest.skip("this user may not mount a file system, not even in a namespace of its own")


async def test_no_space_for_the_folder_itself_is_slept_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    whole = ScratchFolders.open

    def full_at_first(place: ScratchFolders, task_id: TaskId) -> object:
        tries.append(1)
        if len(tries) == 1:
            raise JournalFull("no space for the folder")
        return whole(place, task_id)

    monkeypatch.setattr(ScratchFolders, "open", full_at_first)
    monkeypatch.setattr("holdfast.runtime.scratch.scratch.FULL_REST_S", 0.1)

    @holdfast.task
    async def work(run: holdfast.Run) -> list[str]:
        try:
            return names(run)
        except BaseException:  # noqa: BLE001 - code that swallows everything
            raise ValueError("swallowed") from None

    async with lab.open(work) as hf:
        assert await (await hf.submit(work)).result(20) == []
    assert len(tries) == 2


async def test_a_disk_that_fails_while_files_are_restored_is_slept_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Scripted(holdfast.Read(), hang, "held")
    failed: list[int] = []
    whole = Store.restore

    async def fail_once(store: Store, digest: str) -> None:
        if not failed:
            failed.append(1)
            raise OSError(28, "No space left on device")
        await whole(store, digest)

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        _ = run.scratch
        await run.call(write, name="a")
        return [await run.call(held.tool), names(run)]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_step(handle, "2", StepState.STARTED)
    monkeypatch.setattr(Store, "restore", fail_once)
    monkeypatch.setattr("holdfast.runtime.scratch.scratch.FULL_REST_S", 0.1)
    async with lab.open(work) as hf:
        assert await hf.task(handle.id).result(20) == ["held", ["a"]]
    assert failed


async def test_a_cancel_while_files_are_kept_does_not_lose_the_outcome(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Scripted(holdfast.Unrepeatable(), "sent")
    kept, go_on = asyncio.Event(), asyncio.Event()
    whole = Store.keep

    async def slow(store: Store, *, shared: bool) -> str:
        if tool.calls and not kept.is_set():
            kept.set()
            await go_on.wait()
        return await whole(store, shared=shared)

    monkeypatch.setattr(Store, "keep", slow)

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        _ = run.scratch
        return await run.call(tool.tool)

    async with lab.open(work, grace_s=0.0) as hf:
        handle = await hf.submit(work)
        await kept.wait()
        asyncio.get_running_loop().call_later(0.3, go_on.set)
    async with lab.open(work) as hf:
        assert await hf.task(handle.id).result(20) == "sent"
    assert len(tool.calls) == 1


# Damage, retention, leftovers


def test_a_place_that_is_no_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongKind):
        ScratchFolders(tmp_path / "file" / "x").open(TaskId("0" * 26))


@pytest.mark.parametrize("often", [1, 100])
def test_a_folder_that_others_remove_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    tries: list[int] = []

    def tidied(above: Path) -> None:
        tries.append(1)
        if len(tries) <= often:
            above.rmdir()

    monkeypatch.setattr("holdfast.runtime.scratch.scratch._move_away", tidied)
    place = ScratchFolders(tmp_path / "root")
    if often > 1:
        with pytest.raises(FileNotFoundError):
            place.open(TaskId("0" * 26))
        return
    folder = place.open(TaskId("0" * 26))
    assert folder.path.is_dir()
    folder.remove()


async def test_a_task_whose_files_are_damaged_is_parked(lab: Lab) -> None:
    held = Scripted(holdfast.Read(), hang, "held")

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        _ = run.scratch
        await run.call(write, name="a", text="text")
        return await run.call(held.tool)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_step(handle, "2", StepState.STARTED)
    sql(lab, "DELETE FROM blob WHERE size = 4")
    async with lab.open(work) as hf:
        await wait_state(hf.task(handle.id), TaskState.PARKED)
        rested = (await hf.task(handle.id).view()).rested
        assert "scratch files of step 1 cannot be restored: no blob" in str(rested["question"])


async def test_retention_takes_the_files_with_the_task(lab: Lab) -> None:
    @holdfast.task
    async def work(run: holdfast.Run) -> None:
        (run.scratch.path / "a").write_text("a")

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await handle.result(10)
        files = (await handle.view()).files
        assert files is not None
        digest = files.newest
        assert await hf.journal.get_blob(digest)
        await (await hf.submit(work)).result(10)  # the journal's newest record stays
        await asyncio.sleep(0.01)
        assert await hf.journal.retain(keep_ms=0, tombstone_ms=10**9) >= 1
        assert sql(lab, "SELECT count(*) FROM blob_use") == [(2,)]  # of the second task
        assert (await handle.view()).files is None
        with pytest.raises(BlobNotFound):
            await hf.journal.get_blob("0" * 64)


async def test_a_disk_that_lets_go_of_nothing_does_not_end_a_sweep(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise OSError(5, "Input/output error")

    @holdfast.task
    async def work(run: holdfast.Run) -> None:
        (run.scratch.path / "a").write_text("a")
        raise ValueError("on purpose")

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.FAILED)
        place = ScratchFolders(lab.folder / "scratch" / hf.journal.journal_id)
        (place.root / handle.id / "gone-1").mkdir(parents=True, exist_ok=True)
        (place.root / handle.id / "files").mkdir(exist_ok=True)
        (place.root / handle.id / "files" / "left").write_text("x")
        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir", "scandir"):
                patch.setattr(os, name, refuse)
            await sweep(place, hf.journal)
        assert (place.root / handle.id / "files" / "left").exists()
        await sweep(place, hf.journal)
        assert not (place.root / handle.id / "files" / "left").exists()
        assert not (place.root / handle.id / "gone-1").exists()


async def test_a_sweep_removes_what_dead_runs_left_and_nothing_else(lab: Lab) -> None:
    held = Scripted(holdfast.Read(), hang)

    @holdfast.task
    async def work(run: holdfast.Run, fails: bool) -> None:
        _ = run.scratch
        await run.call(write, name="a")
        if fails:
            raise ValueError("on purpose")
        await run.call(held.tool)

    async with lab.open(work) as hf:
        running = await hf.submit(work, fails=False)
        failed = await hf.submit(work, fails=True)
        await wait_step(running, "2", StepState.STARTED)
        await wait_state(failed, TaskState.FAILED)
        place = ScratchFolders(lab.folder / "scratch" / hf.journal.journal_id)
        unknown = place.root / ("0" * 26)
        (place.root / failed.id / "gone-1").mkdir(parents=True)
        for above in (unknown, place.root / failed.id):
            (above / "files" / "deep").mkdir(parents=True, exist_ok=True)
            (above / "files" / "deep" / "x").write_text("x")
        (place.root / "somebody's").mkdir()
        await sweep(place, hf.journal)
        assert not unknown.exists()
        assert list((place.root / failed.id / "files").iterdir()) == []
        assert not (place.root / failed.id / "gone-1").exists()
        assert (place.root / running.id / "files" / "a").read_text() == "x"
        assert (place.root / "somebody's").exists()
