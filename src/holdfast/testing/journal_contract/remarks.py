"""Remarks: lines for the memory files, each once, kept until they are written."""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput, LeaseLost, TooLarge
from holdfast.journal.contract import Journal, Remark, RemarkTo
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.journal.rules import REMARK_CHARS_MAX
from holdfast.testing.journal_contract.world import DAY_MS, World, copied, planned, shown

KEEP_MS = 7 * DAY_MS


def remark(name: str, text: str = "the text", *, to: RemarkTo = RemarkTo.DAY) -> Remark:
    return Remark(remark_id=name, to=to, text=text, origin="user")


def remarked(ordinal: str = "1", text: str = "of a task") -> NewRecord:
    body = {"to": "MEMORY", "text": text, "origin": "task trip"}
    return NewRecord(kind=RecordKind.REMARK, ordinal=ordinal, body=body)


async def texts(journal: Journal, after: int = 0) -> list[str]:
    return [kept.remark.text for kept in await journal.remarks_after(after, limit=100)]


async def findings(journal: Journal) -> list[str]:
    return [finding async for finding in journal.check()]


class Remarks:
    async def test_remarks_are_numbered_and_read_in_order(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        assert await journal.add_remarks([remark("a", "one"), remark("b", "two")]) == [1, 2]
        assert await other.add_remarks([remark("c", "three")]) == [3]
        kept = await other.remarks_after(1, limit=100)
        assert [(one.number, one.remark.text) for one in kept] == [(2, "two"), (3, "three")]
        assert kept[0].at_ms == world.clock.wall_ms()
        assert await journal.find_remark_link(3) == kept[1].link
        assert await journal.find_remark_link(4) is None
        assert await findings(journal) == []

    async def test_the_same_id_is_the_same_remark(self, world: World) -> None:
        journal = await world.connect()
        assert await journal.add_remarks([remark("a", "first")]) == [1]
        assert await journal.add_remarks([remark("a", "second"), remark("b")]) == [1, 2]
        assert await texts(journal) == ["first", "the text"]

    async def test_of_several_none_is_kept_where_one_is_refused(self, world: World) -> None:
        journal = await world.connect()
        with pytest.raises(TooLarge):
            await journal.add_remarks([remark("a"), remark("b", "x" * (REMARK_CHARS_MAX + 1))])
        with pytest.raises(BadInput):
            await journal.add_remarks([remark("a"), remark("b", " ")])
        assert await texts(journal) == []

    async def test_a_tasks_remark_is_kept_by_the_commit_of_its_record(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [planned("1"), remarked("2")])
        (kept,) = await worker.journal.remarks_after(0, limit=10)
        assert kept.remark == Remark(
            remark_id=f"{claimed.hold.task_id}/2", to=RemarkTo.MEMORY, text="of a task", origin="task trip"
        )
        view = await worker.journal.read_task(claimed.hold.task_id)
        assert view.notes["2"].body["text"] == "of a task"
        assert shown(view)["seq"] == 3
        assert await findings(worker.journal) == []

    async def test_a_stale_hold_leaves_no_remark(self, world: World) -> None:
        worker, heir = await world.process(), await world.process()
        claimed = await worker.start_task()
        stale = copied(claimed.hold)
        await worker.die()
        await heir.take(claimed.hold.task_id)
        with pytest.raises(LeaseLost):
            await worker.journal.append(stale, [remarked()])
        assert await texts(heir.journal) == []

    async def test_retention_erases_what_is_written_and_old(self, world: World) -> None:
        journal = await world.connect()
        await journal.add_remarks([remark(name, name) for name in "abcd"])
        assert await journal.remarks_written() == 0
        await journal.close_remarks(2)
        await journal.close_remarks(1)
        assert await journal.remarks_written() == 2
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["a", "b", "c", "d"]
        world.clock.advance(KEEP_MS + 1)
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["c", "d"]
        assert await findings(journal) == []

    async def test_numbers_rise_across_retention(self, world: World) -> None:
        journal = await world.connect()
        await journal.add_remarks([remark("a"), remark("b", "newest")])
        await journal.close_remarks(99)
        assert await journal.remarks_written() == 2
        world.clock.advance(KEEP_MS + 1)
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["newest"]
        assert await journal.add_remarks([remark("c", "next")]) == [3]
        assert await texts(await world.connect(), after=2) == ["next"]
        assert await findings(journal) == []
