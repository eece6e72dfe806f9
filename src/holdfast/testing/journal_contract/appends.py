"""Appends: fenced, all or none, in one order, never changed."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.notices import Notice
from holdfast.core.step import StepState
from holdfast.errors import InvariantViolated, JournalDamaged, LeaseLost, StatementFailed, StepFailed, TaskNotFound
from holdfast.journal.contract import Change, CommitOutcome, Statement
from holdfast.journal.records import TaskState, as_kept
from holdfast.testing.journal_contract.world import (
    TTL_MS,
    World,
    copied,
    fact,
    finished,
    folded,
    noted,
    planned,
    shown,
    succeeded,
)

CREATE = Statement(sql="CREATE TABLE IF NOT EXISTS seat (name TEXT PRIMARY KEY)")
SEAT = Statement(sql="INSERT INTO seat (name) VALUES (?)", params=("12A",))


class Appends:
    async def test_records_are_read_back_as_they_were_written(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        hold, view = claimed.hold, claimed.view
        world.clock.advance(70)
        batches = [[planned()], [succeeded(result={"a": [1, 2.5, "ü\x00\U0001f600", None]})]]
        batches += [[planned("2"), noted("n1", value=2**63)], [finished()]]
        for batch in batches:
            seq = hold.seq
            numbers = await worker.journal.append(hold, batch)
            assert hold.seq == seq + len(batch)
            kept = [
                as_kept(
                    entry,
                    number=number,
                    seq=seq + nth,
                    epoch=hold.epoch,
                    at_ms=world.clock.wall_ms(),
                    boot_ms=world.clock.boot_ms(),
                )
                for nth, (entry, number) in enumerate(zip(batch, numbers, strict=True), start=1)
            ]
            folded(view, kept)
        read = await other.read_task(hold.task_id)
        assert shown(read) == shown(view)
        assert shown(await worker.journal.read_task(hold.task_id)) == shown(view)
        assert read.steps["1"].state is StepState.SUCCEEDED
        row = await other.find_task(hold.task_id)
        assert row is not None
        assert row.records == read.seq + 1

    async def test_the_newest_record_can_be_read_alone(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        hold = claimed.hold
        world.clock.advance(5)
        _, number = await worker.journal.append(hold, [planned(), succeeded(result=[1.5])])
        expected = as_kept(
            succeeded(result=[1.5]),
            number=number,
            seq=hold.seq,
            epoch=hold.epoch,
            at_ms=world.clock.wall_ms(),
            boot_ms=world.clock.boot_ms(),
        )
        assert await other.read_newest(hold.task_id) == expected
        await worker.rest(hold, TaskState.FAILED)
        newest = await other.read_newest(hold.task_id)
        assert newest is not None
        assert newest.body["state"] == "failed"
        with pytest.raises(TaskNotFound):
            await other.read_newest(world.submission().task_id)

    async def test_a_damaged_newest_record_is_not_believed(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [noted(value="x" * 50)])
        await world.damage(claimed.hold.task_id, seq=claimed.hold.seq)
        with pytest.raises(JournalDamaged):
            await worker.journal.read_newest(claimed.hold.task_id)

    async def test_record_numbers_only_rise_across_tasks_and_processes(self, world: World) -> None:
        one, two = await world.process(), await world.process()
        first, second = await one.start_task(), await two.start_task()
        numbers: list[int] = []
        for nth in range(4):
            numbers += await one.journal.append(first.hold, [noted(f"a{nth}"), noted(f"b{nth}")])
            numbers += await two.journal.append(second.hold, [noted(f"a{nth}")])
        assert len(numbers) == 12
        assert numbers == sorted(set(numbers))

    async def test_what_was_written_does_not_change_with_the_callers_objects(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        entry = noted(value=[1])
        await worker.journal.append(claimed.hold, [entry])
        entry.body["value"].append(2)
        view = await worker.journal.read_task(claimed.hold.task_id)
        view.notes["n1"].body["value"].append(3)
        view.accepted["args"]["where"] = "elsewhere"
        again = await worker.journal.read_task(claimed.hold.task_id)
        assert again.notes["n1"].body["value"] == [1]
        assert again.accepted["args"] == {"where": "LIS"}

    async def test_earlier_records_stay_as_they_were(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        hold, journal = claimed.hold, worker.journal
        await journal.append(hold, [planned(), succeeded(result="first")])
        before = shown(await journal.read_task(hold.task_id))["steps"]["1"]
        world.clock.advance(1_000)
        await journal.append(hold, [planned("2"), succeeded("2", result="second")])
        await worker.rest(hold, TaskState.SUCCEEDED)
        assert shown(await journal.read_task(hold.task_id))["steps"]["1"] == before

    async def test_of_many_appends_at_once_the_stale_one_alone_is_refused(self, world: World) -> None:
        """More of them than a journal writes at a time; one ends its task meanwhile."""
        worker = await world.process()
        holds = [(await worker.start_task()).hold for _ in range(70)]
        *others, ending, stale = holds
        stale.epoch -= 1
        appends = [worker.journal.append(hold, [noted("n1"), noted("n2")]) for hold in (*others, stale)]
        ended = worker.journal.append(ending, [noted("n1"), finished()], change=Change(state=TaskState.SUCCEEDED))
        *written, refused, last = await asyncio.gather(*appends, ended, return_exceptions=True)
        assert isinstance(refused, LeaseLost)
        numbers = [number for one in (*written, last) if isinstance(one, list) for number in one]
        assert len(set(numbers)) == 2 * 69
        for hold in holds:
            view = await worker.journal.read_task(hold.task_id)
            assert list(view.notes) == {stale: [], ending: ["n1"]}.get(hold, ["n1", "n2"])
        await worker.journal.check_total()

    async def test_a_stale_epoch_writes_nothing_at_all(self, world: World) -> None:
        zombie, owner = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await zombie.start_task()
        task_id = claimed.hold.task_id
        number = await zombie.journal.drop(fact(task_id))
        world.clock.advance(TTL_MS)
        newer = await owner.take(task_id)
        before = await owner.journal.find_task(task_id)

        with pytest.raises(LeaseLost) as caught:
            await zombie.journal.append(
                claimed.hold,
                [planned(), succeeded()],
                change=Change(state=TaskState.SUCCEEDED, notice=Notice(notice_id="x", kind="x", text="x")),
                applied=[number],
                statements=[CREATE, SEAT] if zombie.journal.capabilities.statements else (),
            )
        assert (caught.value.task_id, caught.value.epoch) == (task_id, claimed.hold.epoch)
        assert await owner.journal.find_task(task_id) == before
        assert (await owner.journal.read_task(task_id)).steps == {}
        assert [item.applied for item in await owner.journal.inbox_of(task_id)] == [False]
        assert await owner.journal.pending_notices(limit=10) == []
        assert await world.query("SELECT name FROM seat") == []
        await owner.journal.append(newer.hold, [planned()])

    async def test_a_hold_that_lags_behind_writes_nothing(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        lagging = copied(claimed.hold)
        await worker.journal.append(claimed.hold, [noted("n1")])
        with pytest.raises((LeaseLost, InvariantViolated)):
            await worker.journal.append(lagging, [noted("n2")])
        assert list((await worker.journal.read_task(lagging.task_id)).notes) == ["n1"]

    async def test_of_two_holds_at_the_same_place_one_writes(self, world: World) -> None:
        one, two = await world.process(), await world.connect()
        claimed = await one.start_task()
        twin = copied(claimed.hold)
        results = await asyncio.gather(
            one.journal.append(claimed.hold, [noted("n1")]), two.append(twin, [noted("n2")]), return_exceptions=True
        )
        lost = [one for one in results if isinstance(one, BaseException)]
        assert len(lost) == 1
        assert isinstance(lost[0], LeaseLost | InvariantViolated)
        assert len((await two.read_task(twin.task_id)).notes) == 1

    async def test_concurrent_appends_to_many_tasks_all_stand(self, world: World) -> None:
        worker = await world.process()
        claims = [await worker.start_task() for _ in range(20)]
        for nth in range(3):
            numbers = await asyncio.gather(*(worker.journal.append(one.hold, [noted(f"n{nth}")]) for one in claims))
            assert len({number for (number,) in numbers}) == 20
        for one in claims:
            view = await worker.journal.read_task(one.hold.task_id)
            assert list(view.notes) == ["n0", "n1", "n2"]

    async def test_a_refused_append_does_not_disturb_its_neighbours(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        healthy = [await worker.start_task() for _ in range(3)]
        gone = await worker.start_task()
        await worker.rest(gone.hold, TaskState.QUEUED)
        await other.take(gone.hold.task_id)
        results = await asyncio.gather(
            *(worker.journal.append(one.hold, [noted()]) for one in (*healthy[:2], gone)),
            worker.journal.append(healthy[2].hold, [noted()]),
            return_exceptions=True,
        )
        assert [isinstance(one, LeaseLost) for one in results] == [False, False, True, False]

    async def test_a_body_that_cannot_be_kept_leaves_nothing_behind(self, world: World) -> None:
        worker = await world.process()
        one, two = await worker.start_task(), await worker.start_task()
        journal = worker.journal
        before = shown(await journal.read_task(one.hold.task_id))
        async with asyncio.timeout(20):
            results = await asyncio.gather(
                journal.append(one.hold, [noted("n1"), noted("n2", value=object())]),
                journal.append(two.hold, [noted("n1")]),
                return_exceptions=True,
            )
        assert isinstance(results[0], Exception)
        assert isinstance(results[1], list)
        assert shown(await journal.read_task(one.hold.task_id)) == before
        await journal.append(one.hold, [noted("n1")])
        await journal.append(two.hold, [noted("n2")])

    async def test_a_task_at_rest_is_held_by_nobody(self, world: World) -> None:
        worker = await world.process()
        for state in TaskState:
            if state is not TaskState.RUNNING:
                claimed = await worker.start_task()
                await worker.rest(claimed.hold, state)
                with pytest.raises(LeaseLost):
                    await worker.journal.append(claimed.hold, [noted()])

    async def test_a_running_task_may_tell_a_person_and_go_on(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        notice = Notice(notice_id="park/1", kind="parked", text="was it done?", ordinal="1")
        change = Change(state=TaskState.RUNNING, notice=notice)
        await worker.journal.append(claimed.hold, [noted("n1")], change=change)
        await worker.journal.append(claimed.hold, [noted("n2")])
        row = await worker.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert (row.state, row.session_id) == (TaskState.RUNNING, worker.session.session_id)
        (told,) = await worker.journal.pending_notices(limit=10)
        assert (told.notice_id, told.text, told.ordinal) == ("park/1", "was it done?", "1")

    async def test_statements_are_applied_with_the_record(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        append = worker.journal.append
        await append(claimed.hold, [planned()])
        if not worker.journal.capabilities.statements:
            with pytest.raises(StepFailed):
                await append(claimed.hold, [succeeded()], statements=[CREATE])
            return
        await append(claimed.hold, [succeeded()], statements=[CREATE, SEAT])
        assert await world.query("SELECT name FROM seat") == [("12A",)]

    @pytest.mark.parametrize(
        "bad",
        [
            SEAT,  # the row is there already
            Statement(sql="INSERT INTO nowhere VALUES (1)"),
            Statement(sql="not SQL"),
            Statement(sql="COMMIT"),
            Statement(sql="ROLLBACK"),
            Statement(sql="SAVEPOINT mine"),
            Statement(sql="ATTACH ':memory:' AS elsewhere"),
            Statement(sql="PRAGMA synchronous = OFF"),
            Statement(sql="DELETE FROM record"),
            Statement(sql="UPDATE task SET epoch = 0"),
            Statement(sql="DROP TABLE record"),
            Statement(sql="INSERT INTO seat (name) VALUES (?)", params=()),
            Statement(sql="INSERT INTO seat (name) VALUES (?)", params=(2**70,)),
            Statement(sql="INSERT INTO seat (name) VALUES (?)", params=("\ud800",)),
            Statement(sql="INSERT INTO seat (name) VALUES (?)", params=([],)),
            Statement(sql="SELECT 1; DELETE FROM nowhere"),
            Statement(sql="CREATE TRIGGER t AFTER INSERT ON record BEGIN SELECT 1; END"),
            Statement(sql="CREATE INDEX i ON task (name)"),
            Statement(sql="ALTER TABLE task RENAME TO mine"),
            Statement(sql="CREATE TEMP TABLE TASK (name)"),
            Statement(sql="CREATE TEMP VIEW Record AS SELECT 1"),
            Statement(sql="UPDATE sqlite_sequence SET seq = 0"),
            Statement(sql="SELECT count(*) FROM task"),
        ],
        ids=lambda statement: statement.sql[:36].strip(),
    )
    async def test_a_refused_statement_undoes_the_whole_append(self, world: World, bad: Statement) -> None:
        worker = await world.process()
        if not worker.journal.capabilities.statements:
            return
        claimed = await worker.start_task()
        hold, append = claimed.hold, worker.journal.append
        await append(hold, [planned()], statements=[CREATE, SEAT])
        before = shown(await worker.journal.read_task(hold.task_id))
        number = await worker.journal.drop(fact(hold.task_id))

        other = Statement(sql="INSERT INTO seat (name) VALUES ('14C')")
        with pytest.raises(StatementFailed):
            await append(
                hold, [succeeded()], change=Change(state=TaskState.SUCCEEDED), applied=[number], statements=[other, bad]
            )
        assert shown(await worker.journal.read_task(hold.task_id)) == before
        assert await world.query("SELECT name FROM seat") == [("12A",)]
        assert [item.applied for item in await worker.journal.inbox_of(hold.task_id)] == [False]
        await append(hold, [succeeded()], statements=[other])
        assert len(await world.query("SELECT name FROM seat")) == 2

    async def test_every_statement_of_a_text_is_applied(self, world: World) -> None:
        """A statement that gives rows does not keep the one behind it from running."""
        worker = await world.process()
        if not worker.journal.capabilities.statements:
            return
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [planned()], statements=[CREATE])
        two = Statement(sql="SELECT 1 UNION SELECT 2; INSERT INTO seat (name) VALUES ('15D')")
        await worker.journal.append(claimed.hold, [succeeded()], statements=[two])
        assert await world.query("SELECT name FROM seat") == [("15D",)]

    async def test_a_cancelled_append_is_decided_first(self, world: World) -> None:
        """After a cancel the hold says whether the records were kept; the next append fits."""
        worker = await world.process()
        claimed, other = await worker.start_task(), await worker.start_task()
        hold, before = claimed.hold, claimed.hold.seq
        write = asyncio.create_task(worker.journal.append(hold, [noted("n1")]))
        beside = asyncio.create_task(worker.journal.append(other.hold, [noted("n1")]))
        await asyncio.sleep(0)
        write.cancel()
        await asyncio.wait((write, beside))
        view = await worker.journal.read_task(hold.task_id)
        assert (hold.seq, hold.seq - before) == (view.seq, len(view.notes))
        await worker.journal.append(hold, [noted("n2")])
        assert (await worker.journal.read_task(hold.task_id)).seq == hold.seq

    async def test_a_refused_statement_does_not_disturb_its_neighbours(self, world: World) -> None:
        worker = await world.process()
        if not worker.journal.capabilities.statements:
            return
        claims = [await worker.start_task() for _ in range(3)]
        for one in claims:
            await worker.journal.append(one.hold, [planned()], statements=[CREATE])
        good = [Statement(sql="INSERT INTO seat (name) VALUES (?)", params=(name,)) for name in "ab"]
        results = await asyncio.gather(
            worker.journal.append(claims[0].hold, [succeeded()], statements=[good[0]]),
            worker.journal.append(claims[1].hold, [succeeded()], statements=[good[0]]),
            worker.journal.append(claims[2].hold, [succeeded()], statements=[good[1]]),
            return_exceptions=True,
        )
        assert [isinstance(one, StatementFailed) for one in results] == [False, True, False]
        assert sorted(await world.query("SELECT name FROM seat")) == [("a",), ("b",)]

    async def test_confirm_says_what_became_of_a_commit(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await worker.start_task()
        in_doubt = copied(claimed.hold)
        confirm = worker.journal.confirm
        assert await confirm(in_doubt, seq=in_doubt.seq + 1) is CommitOutcome.ABORTED
        await worker.journal.append(claimed.hold, [noted("n1")])
        assert await confirm(in_doubt, seq=claimed.hold.seq) is CommitOutcome.COMMITTED
        assert await confirm(claimed.hold, seq=claimed.hold.seq + 1) is CommitOutcome.ABORTED

        lost_seq = claimed.hold.seq + 1
        world.clock.advance(TTL_MS)
        newer = await other.take(claimed.hold.task_id)
        assert newer.hold.seq == lost_seq
        assert await confirm(claimed.hold, seq=lost_seq) is CommitOutcome.ABORTED
