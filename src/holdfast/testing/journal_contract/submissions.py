"""Submitting, finding and listing tasks."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import RequestConflict, TaskNotFound
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import World, fact, shown


class Submissions:
    async def test_a_submitted_task_is_queued_and_can_be_read(self, world: World) -> None:
        journal = await world.connect()
        submission = world.submission(args={"to": "BER", "n": [1, 2.5, None]}, request_id="o-77")
        submitted = await journal.submit(submission)

        assert submitted.created
        assert submitted.state is TaskState.QUEUED
        row = await journal.find_task(submission.task_id)
        assert row is not None
        assert (row.name, row.state, row.epoch, row.records) == ("trip", TaskState.QUEUED, 0, 1)
        assert (row.session_id, row.crashes, row.cancel_asked, row.erased) == ("", 0, False, False)
        assert row.created_ms == row.changed_ms == world.clock.wall_ms()
        view = await journal.read_task(submission.task_id)
        assert (view.name, view.request_id, view.seq) == ("trip", "o-77", 0)
        assert view.accepted["args"] == {"to": "BER", "n": [1, 2.5, None]}
        assert view.accepted["code"] == "v1"
        assert view.accepted_ms == world.clock.wall_ms()

    async def test_a_submitted_task_is_seen_by_another_process(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        task_id = await world.submit(journal)
        assert await other.find_task(task_id) == await journal.find_task(task_id)
        assert shown(await other.read_task(task_id)) == shown(await journal.read_task(task_id))

    @pytest.mark.parametrize("request_id", ["", "order-77"])
    async def test_the_same_submission_again_finds_the_task(self, world: World, request_id: str) -> None:
        journal, other = await world.connect(), await world.connect()
        submission = world.submission(request_id=request_id)
        await journal.submit(submission)
        before = await journal.find_task(submission.task_id)
        world.clock.advance(1_000)

        again = await other.submit(submission)
        assert (again.created, again.task_id) == (False, submission.task_id)
        assert await journal.find_task(submission.task_id) == before

    async def test_the_same_submission_again_says_how_the_task_stands(self, world: World) -> None:
        worker = await world.process()
        submission = world.submission(request_id="order-77")
        await worker.journal.submit(submission)
        claimed = await worker.take(submission.task_id)
        assert (await worker.journal.submit(submission)).state is TaskState.RUNNING
        await worker.rest(claimed.hold, TaskState.SUCCEEDED)
        assert (await worker.journal.submit(submission)).state is TaskState.SUCCEEDED

    @pytest.mark.parametrize("request_id", ["", "order-77"])
    async def test_the_same_id_with_other_input_is_a_conflict(self, world: World, request_id: str) -> None:
        journal, other = await world.connect(), await world.connect()
        submission = world.submission(request_id=request_id)
        await journal.submit(submission)
        before = shown(await journal.read_task(submission.task_id))

        changed = msgspec.structs.replace(submission, args={"x": 1}, args_fingerprint=b"x" * 16)
        with pytest.raises(RequestConflict) as caught:
            await other.submit(changed)
        assert caught.value.task_id == submission.task_id
        assert caught.value.request_id == request_id
        assert shown(await journal.read_task(submission.task_id)) == before

    async def test_an_unknown_task_is_not_found(self, world: World) -> None:
        journal = await world.connect()
        unknown = world.submission().task_id
        assert await journal.find_task(unknown) is None
        assert await journal.inbox_of(unknown) == []
        with pytest.raises(TaskNotFound):
            await journal.read_task(unknown)
        with pytest.raises(TaskNotFound):
            await journal.drop(fact(unknown))

    async def test_tasks_are_listed_newest_first_or_oldest_first(self, world: World) -> None:
        journal = await world.connect()
        ids = [await world.submit(journal) for _ in range(4)]
        newest = await journal.list_tasks(Filter())
        assert [row.task_id for row in newest] == ids[::-1]
        oldest = await journal.list_tasks(Filter(newest_first=False, limit=3))
        assert [row.task_id for row in oldest] == ids[:3]

    async def test_lists_are_narrowed_by_state_name_and_prefix(self, world: World) -> None:
        worker = await world.process()
        journal = worker.journal
        trip = await world.submit(journal, name="trip")
        mail = await world.submit(journal, name="mail")
        await worker.take(mail)

        async def ids(**narrow: object) -> set[str]:
            rows = await journal.list_tasks(msgspec.convert(narrow, Filter))
            return {row.task_id for row in rows}

        assert await ids(name="mail") == {mail}
        assert await ids(states=["queued"]) == {trip}
        assert await ids(states=["queued", "running"]) == {trip, mail}
        assert await ids(states=[]) == set()
        assert await ids(prefix=trip[:12]) == {trip}
        assert await ids(prefix="ZZ") == set()
        assert await ids(name="mail", states=["queued"]) == set()

    async def test_tasks_are_counted_by_state(self, world: World) -> None:
        worker = await world.process()
        assert sum((await worker.journal.count_tasks()).values()) == 0
        await world.submit(worker.journal)
        await world.submit(worker.journal)
        await worker.claim(limit=1)
        counts = await worker.journal.count_tasks()
        assert {state: count for state, count in counts.items() if count} == {TaskState.QUEUED: 1, TaskState.RUNNING: 1}
