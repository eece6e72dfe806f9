"""A journal copied back from an older day is refused; made a restore, it repeats nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.journal_address import file_at
from holdfast.errors import JournalGone, JournalOlderCopy, KeysMissing, TaskParked
from holdfast.journal.sqlite.admin import SqliteAdmin
from holdfast.recovery.recover_journal import begin_anew, recover_journal


class World:
    """Far ends that remember what they did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.keys: dict[str, int] = {}
        world = self

        @holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False))
        async def keyed(call: holdfast.Call, n: int) -> int:
            if call.effect_key not in world.keys:
                world.keys[call.effect_key] = n
                world.done.append(("keyed", n))
            return n

        @holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="ignored", refusals_stored=False))
        async def careless(call: holdfast.Call, n: int) -> int:
            world.done.append(("careless", n))
            return n

        @holdfast.tool(effect=holdfast.Queryable(max_delay_s=0.05))
        async def queryable(call: holdfast.Call, n: int) -> int:
            world.done.append(("queryable", n))
            return n

        @queryable.find
        async def find(call: holdfast.Call, n: int) -> holdfast.Found | holdfast.Absent:
            return holdfast.Found(n) if ("queryable", n) in world.done else holdfast.Absent()

        @holdfast.tool
        async def unrepeatable(call: holdfast.Call, n: int) -> int:
            world.done.append(("unrepeatable", n))
            return n

        tools: dict[str, holdfast.Tool[..., Any]] = {
            "keyed": keyed,
            "careless": careless,
            "queryable": queryable,
            "unrepeatable": unrepeatable,
        }

        @holdfast.task
        async def twice(run: holdfast.Run, kind: str) -> list[int]:
            return [await run.call(tools[kind], n=1), await run.call(tools[kind], n=2)]

        self.task = twice


async def lose_a_day(folder: Path, world: World, kinds: list[str]) -> dict[str, str]:
    """Submit, copy the journal, let all tasks finish, put the copy back."""
    journal = folder / "journal.db"
    ids: dict[str, str] = {}
    async with holdfast.open(journal, serve=False) as hf:
        for kind in kinds:
            ids[kind] = (await hf.submit(world.task, request_id=kind, kind=kind)).id
    shutil.copy2(journal, folder / "old.db")
    async with holdfast.open(journal, tasks=[world.task]) as hf:
        for task_id in ids.values():
            await hf.task(task_id).result(20)
    (folder / "old.db").replace(journal)
    return ids


async def test_an_older_copy_is_refused_and_nothing_is_repeated(tmp_path: Path) -> None:
    """Opening it raises, names the command, and begins no step."""
    world = World()
    await lose_a_day(tmp_path, world, ["unrepeatable"])
    done = list(world.done)
    with pytest.raises(JournalOlderCopy) as refused:
        async with holdfast.open(tmp_path / "journal.db", tasks=[world.task]):
            pass
    assert "holdfast recover --journal" in refused.value.hint
    assert world.done == done


async def test_a_restore_adopts_looks_up_or_parks(tmp_path: Path) -> None:
    """Keyed goes out under the same key, queryable is found, the others wait for a person."""
    world = World()
    kinds = ["keyed", "careless", "queryable", "unrepeatable"]
    ids = await lose_a_day(tmp_path, world, kinds)
    done = list(world.done)
    dry = await recover_journal(file_at(tmp_path / "journal.db"), dry_run=True)
    restored = await recover_journal(file_at(tmp_path / "journal.db"))
    assert dry == restored
    assert restored.incarnation == 2
    assert restored.open_tasks == 4
    async with holdfast.open(tmp_path / "journal.db", tasks=[world.task]) as hf:
        assert await hf.task(ids["keyed"]).result(20) == [1, 2]
        assert await hf.task(ids["queryable"]).result(20) == [1, 2]
        for kind in ("careless", "unrepeatable"):
            with pytest.raises(TaskParked):
                await hf.task(ids[kind]).result(20)
        view = await hf.task(ids["keyed"]).view()
        assert view.epoch >> 32 == 2
    assert world.done == done


async def test_a_request_of_the_lost_timeline_is_suspect_and_a_new_one_is_not(tmp_path: Path) -> None:
    """Submitted again under its request id a forgotten task parks; without one it simply runs."""
    world = World()
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False) as hf:
        await hf.submit(world.task, kind="keyed")
    shutil.copy2(journal, tmp_path / "old.db")
    async with holdfast.open(journal, tasks=[world.task]) as hf:
        lost = await hf.submit(world.task, request_id="order-77", kind="unrepeatable")
        await lost.result(20)
    (tmp_path / "old.db").replace(journal)
    await recover_journal(file_at(journal))
    done = list(world.done)
    async with holdfast.open(journal, tasks=[world.task]) as hf:
        again = await hf.submit(world.task, request_id="order-77", kind="unrepeatable")
        assert again.id == lost.id
        with pytest.raises(TaskParked):
            await again.result(20)
        assert [one for one in world.done if one not in done] == []
        fresh = await hf.submit(world.task, kind="unrepeatable")
        assert await fresh.result(20) == [1, 2]


async def test_a_copy_without_a_record_makes_all_requests_suspect(tmp_path: Path) -> None:
    """The copy was made before the first task: what was submitted since may have run."""
    world = World()
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False):
        pass
    shutil.copy2(journal, tmp_path / "old.db")
    async with holdfast.open(journal, tasks=[world.task]) as hf:
        await (await hf.submit(world.task, request_id="one", kind="unrepeatable")).result(20)
    (tmp_path / "old.db").replace(journal)
    await recover_journal(file_at(journal))
    async with holdfast.open(journal, tasks=[world.task]) as hf:
        again = await hf.submit(world.task, request_id="one", kind="unrepeatable")
        with pytest.raises(TaskParked):
            await again.result(20)
    assert world.done == [("unrepeatable", 1), ("unrepeatable", 2)]


async def test_a_restored_call_that_needs_a_yes_is_not_sent_without_one(tmp_path: Path) -> None:
    """The lost timeline may have been refused; parked, then run, it is asked for as usual."""
    done: list[int] = []

    keyed = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False, max_delay_s=0)

    @holdfast.tool(effect=keyed, needs_approval=True)
    async def pay(call: holdfast.Call, n: int) -> int:
        done.append(n)
        return n

    @holdfast.task
    async def order(run: holdfast.Run) -> int:
        return await run.call(pay, n=1)

    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False) as hf:
        task_id = (await hf.submit(order, request_id="order-1")).id
    shutil.copy2(journal, tmp_path / "old.db")
    async with holdfast.open(journal, tasks=[order]) as hf:
        await rested(hf.task(task_id), "waiting")
    (tmp_path / "old.db").replace(journal)
    await recover_journal(file_at(journal))
    async with holdfast.open(journal, tasks=[order]) as hf:
        await rested(hf.task(task_id), "parked")
        assert done == []
        await hf.settle(task_id, "1", "run", by="ada")
        await rested(hf.task(task_id), "waiting")
        assert done == []
        await hf.approve(task_id, "1", granted=True, by="ada")
        assert await hf.task(task_id).result(20) == 1
    assert done == [1]


async def rested(task: holdfast.TaskHandle, state: str) -> None:
    async for row in task.watch():
        if row.state == state:
            return


async def test_a_journal_that_begins_anew_is_a_restore_or_counts_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off before it has its name, nobody makes another one; the same command goes on."""
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False) as hf:
        await hf.submit("order", request_id="order-1")
    for path in tmp_path.glob("journal.db*"):
        path.unlink()

    async def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqliteAdmin, "restore", cut)
        with pytest.raises(KeyboardInterrupt):
            await begin_anew(file_at(journal))
    with pytest.raises(JournalGone):
        async with holdfast.open(journal):
            pass
    done = await begin_anew(file_at(journal))
    assert (done.incarnation, done.mark_sequence > 0) == (2, True)
    assert [path.name for path in tmp_path.glob(".journal.db*")] == []
    async with holdfast.open(journal, serve=False) as hf:
        again = await hf.submit("order", request_id="order-1")
        assert (await again.view()).restored_ms
    journal.unlink()
    with pytest.raises(JournalGone):
        async with holdfast.open(journal):
            pass


async def test_without_its_keys_no_journal_begins_anew(tmp_path: Path) -> None:
    """Lookups with other keys would find nothing of what was done."""
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False):
        pass
    for path in (*tmp_path.glob("journal.db*"), tmp_path / "keys.json"):
        path.unlink()
    with pytest.raises(KeysMissing):
        await begin_anew(file_at(journal))
    with pytest.raises(JournalGone):
        async with holdfast.open(journal):
            pass
