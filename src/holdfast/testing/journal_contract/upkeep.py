"""Blobs, notices, retention, time, the full check; and remarks: lines for memory files, kept until they are written."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from holdfast.core.ids import TaskId, task_id_from_bytes
from holdfast.core.notices import Notice
from holdfast.errors import BadInput, BlobNotFound, JournalDamaged, LeaseLost, RequestConflict, TaskNotFound, TooLarge
from holdfast.journal.contract import Journal, Remark, RemarkMark, RemarkTo, Submission
from holdfast.journal.records import NewRecord, RecordKind, TaskState
from holdfast.journal.rules import BLOB_BYTES_MAX, REMARK_CHARS_MAX
from holdfast.testing.journal_contract.world import (
    DAY_MS,
    ENDINGS,
    Process,
    World,
    copied,
    noted,
    planned,
    shown,
    succeeded,
)

KEEP_MS = 7 * DAY_MS
TOMBSTONE_MS = 30 * DAY_MS


async def retain(journal: Journal) -> int:
    return await journal.retain(keep_ms=KEEP_MS, tombstone_ms=TOMBSTONE_MS)


async def ended_task(
    world: World, worker: Process, state: TaskState = TaskState.SUCCEEDED, *, keep_until_ms: int = 0
) -> Submission:
    """A task that ended, and a younger one, because the newest record is never erased."""
    submission = world.submission()
    await worker.journal.submit(submission)
    claimed = await worker.take(submission.task_id)
    await worker.journal.append(claimed.hold, [planned(), succeeded(result="secret")])
    await worker.rest(claimed.hold, state, keep_until_ms=keep_until_ms)
    await world.submit(worker.journal)
    return submission


async def is_erased(journal: Journal, task_id: TaskId) -> bool:
    row = await journal.find_task(task_id)
    assert row is not None
    return row.erased


class Upkeep:
    # blobs

    async def test_a_blob_is_kept_once_under_its_digest(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        content = bytes(range(256)) * 300
        digest = await journal.put_blob(content)
        assert await other.put_blob(content) == digest
        assert await other.get_blob(digest) == content
        assert await journal.put_blob(b"") != digest
        assert await journal.get_blob(await journal.put_blob(b"")) == b""

    async def test_several_blobs_are_kept_in_one_go(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        contents = [b"one", b"", b"two", b"one"]
        digests = await worker.journal.put_blobs(contents, task_id=claimed.hold.task_id)
        assert digests[0] == digests[3] == await other.put_blob(b"one")
        assert len(set(digests)) == 3
        assert [await other.get_blob(digest) for digest in digests] == contents
        assert await worker.journal.put_blobs([], task_id=claimed.hold.task_id) == []

    async def test_blobs_that_cannot_all_be_kept_are_not_kept(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        large = bytes(BLOB_BYTES_MAX + 1)
        with pytest.raises(TooLarge):
            await worker.journal.put_blobs([b"small", large], task_id=claimed.hold.task_id)
        with pytest.raises(TaskNotFound):
            await worker.journal.put_blobs([b"small"], task_id=TaskId("0" * 26))
        digest = await worker.journal.put_blob(b"small")
        task_id = claimed.hold.task_id
        assert await worker.journal.put_blobs([b"small"], task_id=task_id) == [digest]

    async def test_several_blobs_go_with_their_task(self, world: World) -> None:
        worker = await world.process()
        task_id = (await ended_task(world, worker)).task_id
        digests = await worker.journal.put_blobs([b"a", b"b"], task_id=task_id)
        world.clock.advance(KEEP_MS)
        assert await retain(worker.journal) == 0
        assert await worker.journal.get_blob(digests[0]) == b"a"
        world.clock.advance(1)
        assert await retain(worker.journal) == 1
        for digest in digests:
            with pytest.raises(BlobNotFound):
                await worker.journal.get_blob(digest)

    async def test_an_unknown_blob_is_not_found(self, world: World) -> None:
        journal = await world.connect()
        with pytest.raises(BlobNotFound):
            await journal.get_blob("0" * 64)

    async def test_a_blob_goes_with_the_last_task_that_uses_it(self, world: World) -> None:
        worker = await world.process()
        first = await ended_task(world, worker)
        world.clock.advance(3 * DAY_MS)
        worker = await world.process()
        second = await ended_task(world, worker)
        digest = await worker.journal.put_blob(b"picture", task_id=first.task_id)
        await worker.journal.put_blob(b"picture", task_id=second.task_id)

        world.clock.advance(KEEP_MS - DAY_MS)
        assert await retain(worker.journal) == 1
        assert await worker.journal.get_blob(digest) == b"picture"
        world.clock.advance(3 * DAY_MS)
        assert await retain(worker.journal) == 1
        with pytest.raises(BlobNotFound):
            await worker.journal.get_blob(digest)

    # retention

    @pytest.mark.parametrize("state", ENDINGS)
    async def test_an_ended_task_is_erased_after_its_time(self, world: World, state: TaskState) -> None:
        worker = await world.process()
        task_id = (await ended_task(world, worker, state)).task_id
        world.clock.advance(KEEP_MS)
        assert await retain(worker.journal) == 0
        world.clock.advance(1)
        assert await retain(worker.journal) == 1
        assert await retain(worker.journal) == 0
        row = await worker.journal.find_task(task_id)
        assert row is not None
        assert (row.state, row.erased) == (state, True)
        view = await worker.journal.read_task(task_id)
        assert (view.accepted, view.steps, view.outcome) == ({}, {}, {})
        assert await worker.journal.read_newest(task_id) is None
        assert [line async for line in worker.journal.check()] == []

    @pytest.mark.parametrize(
        "state", [TaskState.QUEUED, TaskState.RUNNING, TaskState.SLEEPING, TaskState.WAITING, TaskState.PARKED]
    )
    async def test_an_open_task_is_never_erased(self, world: World, state: TaskState) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [planned()])
        if state is not TaskState.RUNNING:
            await worker.rest(claimed.hold, state)
        await world.submit(worker.journal)
        before = shown(await worker.journal.read_task(claimed.hold.task_id))
        world.clock.advance(1_000 * DAY_MS)
        assert await retain(worker.journal) == 0
        assert shown(await worker.journal.read_task(claimed.hold.task_id)) == before

    async def test_a_task_is_kept_while_a_key_window_is_open(self, world: World) -> None:
        worker = await world.process()
        until = world.clock.wall_ms() + 90 * DAY_MS
        task_id = (await ended_task(world, worker, keep_until_ms=until)).task_id
        world.clock.advance(90 * DAY_MS - 1)
        assert await retain(worker.journal) == 0
        assert not await is_erased(worker.journal, task_id)
        world.clock.advance(1)
        assert await retain(worker.journal) == 1

    async def test_the_longest_key_window_counts(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        task_id, until = claimed.hold.task_id, world.clock.wall_ms() + 90 * DAY_MS
        await worker.rest(claimed.hold, TaskState.QUEUED, keep_until_ms=until)
        claimed = await worker.take(task_id)
        await worker.rest(claimed.hold, TaskState.SUCCEEDED, keep_until_ms=until - 80 * DAY_MS)
        await world.submit(worker.journal)
        world.clock.advance(90 * DAY_MS - 1)
        assert await retain(worker.journal) == 0

    async def test_a_tombstone_stands_for_the_same_task(self, world: World) -> None:
        worker = await world.process()
        submission = await ended_task(world, worker)
        world.clock.advance(KEEP_MS + 1)
        await retain(worker.journal)
        world.clock.advance(TOMBSTONE_MS)
        await retain(worker.journal)

        again = await worker.journal.submit(submission)
        assert (again.created, again.state) == (False, TaskState.SUCCEEDED)
        assert await is_erased(worker.journal, submission.task_id)
        other = msgspec.structs.replace(submission, args_fingerprint=b"x" * 16)
        with pytest.raises(RequestConflict):
            await worker.journal.submit(other)
        other_worker = await world.process()
        claimed = await other_worker.claim()
        assert submission.task_id not in [one.hold.task_id for one in claimed]

    async def test_after_its_time_a_tombstone_is_forgotten(self, world: World) -> None:
        worker = await world.process()
        submission = await ended_task(world, worker)
        world.clock.advance(KEEP_MS + 1)
        await retain(worker.journal)
        world.clock.advance(TOMBSTONE_MS + 1)
        await retain(worker.journal)
        assert await worker.journal.find_task(submission.task_id) is None
        assert (await worker.journal.submit(submission)).created

    async def test_record_numbers_rise_across_retention(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        (number,) = await worker.journal.append(claimed.hold, [noted()])
        await worker.rest(claimed.hold, TaskState.SUCCEEDED)
        world.clock.advance(KEEP_MS + 1)
        await retain(worker.journal)
        worker = await world.process()
        again = await worker.start_task()
        (later,) = await worker.journal.append(again.hold, [noted()])
        assert later > number + 1

    # notices

    async def test_a_notice_is_pending_until_closed_and_told_once(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        notices = [Notice(notice_id=f"n{n}", kind="mirror", text=f"nr {n}") for n in range(3)]
        for notice in (*notices, notices[0]):
            await journal.add_notice(notice)
            world.clock.advance(1)
        pending = await other.pending_notices(limit=10)
        assert [(one.notice_id, one.text) for one in pending] == [("n0", "nr 0"), ("n1", "nr 1"), ("n2", "nr 2")]
        assert [one.notice_id for one in await other.pending_notices(limit=2)] == ["n0", "n1"]
        await other.close_notice("n0")
        await other.close_notice("n0")
        await other.close_notice("unknown")
        await journal.add_notice(notices[0])
        assert [one.notice_id for one in await journal.pending_notices(limit=10)] == ["n1", "n2"]

    async def test_one_process_at_a_time_has_the_turn_to_tell_notices(self, world: World) -> None:
        """Nobody waits for it, and it is given back whatever ends the block."""
        journal, other = await world.connect(), await world.connect()
        async with journal.notice_turn() as mine, other.notice_turn() as others:
            assert (mine, others) == (True, False)
        with suppress(RuntimeError):
            async with other.notice_turn() as others:
                assert others
                raise RuntimeError
        async with journal.notice_turn() as mine:
            assert mine

    # time

    async def test_time_never_falls_when_the_clock_is_set_back(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        first, second = await worker.start_task(), await other.start_task()
        world.clock.advance(DAY_MS // 2)
        await worker.journal.append(first.hold, [noted()])
        newest = world.clock.wall_ms()
        world.set_time(newest - DAY_MS)

        for one in (worker.journal, other.journal):
            assert one.now_ms() == newest
            assert one.clock_behind_ms == DAY_MS
        await other.journal.append(second.hold, [noted()])
        view = await other.journal.read_task(second.hold.task_id)
        assert view.notes["n1"].at_ms == newest
        world.set_time(newest + 5)
        assert worker.journal.now_ms() == newest + 5
        assert worker.journal.clock_behind_ms == 0

    async def test_a_clock_set_back_before_opening_is_noticed(self, world: World) -> None:
        journal = await world.connect()
        await world.submit(journal)
        newest = world.clock.wall_ms()
        world.set_time(newest - 5_000)
        other = await world.connect()
        assert (other.now_ms(), other.clock_behind_ms) == (newest, 5_000)

    # the rest

    async def test_a_step_is_found_by_its_effect_key(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        key = b"k" * 16
        assert await other.find_effect(key) is None
        await worker.journal.append(claimed.hold, [planned("4.r1", effect_key=key)])
        await worker.journal.append(claimed.hold, [succeeded("4.r1")])
        assert await other.find_effect(key) == (claimed.hold.task_id, "4.r1")

    async def test_another_processs_change_is_noticed(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        seen = await journal.wait_change(timeout_s=0)
        waiting = asyncio.create_task(journal.wait_change(timeout_s=60, seen=seen))
        await asyncio.sleep(0)
        await world.submit(other)
        async with asyncio.timeout(10):
            await waiting

    async def test_a_change_before_the_wait_is_not_missed(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        seen = await journal.wait_change(timeout_s=0)
        await world.submit(other)
        async with asyncio.timeout(10):
            assert await journal.wait_change(timeout_s=60, seen=seen) > seen

    async def test_everyone_who_waits_is_woken(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        seen = await journal.wait_change(timeout_s=0)
        for changed in (journal, other):
            waiting = [asyncio.create_task(journal.wait_change(timeout_s=60, seen=seen)) for _ in range(3)]
            await asyncio.sleep(0)
            await world.submit(changed)
            async with asyncio.timeout(10):
                counts = await asyncio.gather(*waiting)
            assert min(counts) > seen
            seen = max(counts)

    async def test_one_look_tells_which_tasks_are_over(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        first, second = await worker.start_task(), await worker.start_task()
        ids = [first.hold.task_id, second.hold.task_id]
        unknown = task_id_from_bytes(bytes(16))
        assert await other.find_over(ids) == []
        await worker.rest(first.hold, TaskState.PARKED)
        assert await other.find_over([*ids, unknown]) == [ids[0], unknown]

    async def test_waiting_ends_without_a_change(self, world: World) -> None:
        journal = await world.connect()
        async with asyncio.timeout(10):
            await journal.wait_change(timeout_s=0.01)
            await journal.wait_change(timeout_s=0.01)

    async def test_everything_is_there_when_opened_again(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [planned()])
        before = shown(await worker.journal.read_task(claimed.hold.task_id))
        journal_id = worker.journal.journal_id
        await worker.journal.end_session(worker.session)
        await worker.journal.close()
        await worker.journal.close()

        again = await world.process()
        assert again.journal.journal_id == journal_id
        assert shown(await again.journal.read_task(claimed.hold.task_id)) == before
        assert (await again.take(claimed.hold.task_id)).hold.epoch > claimed.hold.epoch

    async def test_the_full_check_finds_nothing_where_nothing_is_wrong(self, world: World) -> None:
        worker = await world.process()
        await ended_task(world, worker)
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [planned()])
        await worker.journal.put_blob(b"content")
        await worker.journal.add_notice(Notice(notice_id="n", kind="k", text="t"))
        assert [line async for line in worker.journal.check()] == []

    async def test_the_full_check_finds_a_flipped_bit(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        for nth in range(3):
            await worker.journal.append(claimed.hold, [noted(f"n{nth}", value="x" * 50)])
        await world.damage(claimed.hold.task_id, seq=3)
        findings = [line async for line in worker.journal.check()]
        assert any(claimed.hold.task_id in line for line in findings)
        with pytest.raises(JournalDamaged):
            await worker.journal.read_task(claimed.hold.task_id)


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
        assert await journal.remark_marks() == []
        await journal.close_remarks(2, folder="home", name="here:/home")
        await journal.close_remarks(1, folder="home", name="here:/home")
        at_ms = world.clock.wall_ms()
        assert await journal.remark_marks() == [RemarkMark(folder="home", name="here:/home", number=2, at_ms=at_ms)]
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["a", "b", "c", "d"]
        world.clock.advance(KEEP_MS + 1)
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["c", "d"]
        assert await findings(journal) == []

    async def test_no_remark_goes_that_a_folder_has_not_got(self, world: World) -> None:
        """Several hosts write the same remarks into files of their own; one that is gone for good is forgotten."""
        journal, other = await world.connect(), await world.connect()
        await journal.add_remarks([remark(name, name) for name in "abcd"])
        world.clock.advance(KEEP_MS + 1)
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["a", "b", "c", "d"]
        await journal.close_remarks(3, folder="fast")
        await other.close_remarks(1, folder="slow")
        assert [(one.folder, one.number) for one in await journal.remark_marks()] == [("slow", 1), ("fast", 3)]
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["b", "c", "d"]
        assert [await journal.forget_folder(name) for name in ("slow", "slow", "unknown")] == [True, False, False]
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["d"]
        await journal.forget_folder("fast")
        assert await findings(journal) == []

    async def test_numbers_rise_across_retention(self, world: World) -> None:
        journal = await world.connect()
        await journal.add_remarks([remark("a"), remark("b", "newest")])
        await journal.close_remarks(99, folder="home")
        assert [one.number for one in await journal.remark_marks()] == [2]
        world.clock.advance(KEEP_MS + 1)
        await journal.retain(keep_ms=KEEP_MS, tombstone_ms=KEEP_MS)
        assert await texts(journal) == ["newest"]
        assert await journal.add_remarks([remark("c", "next")]) == [3]
        assert await texts(await world.connect(), after=2) == ["next"]
        assert await findings(journal) == []
