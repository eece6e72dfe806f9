"""What enters from outside: submitted tasks, and facts in the inbox, from which only the owner concludes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import msgspec
import pytest

from holdfast.core.decoding import convert
from holdfast.errors import NotSettleable, RequestConflict, TaskNotFound
from holdfast.journal.contract import Claimed, Filter, InboxItem, InboxKind
from holdfast.journal.records import TaskState, TaskView
from holdfast.testing.journal_contract.world import ENDINGS, World, fact, noted, shown


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

    async def test_a_task_that_may_be_claimed_with_its_submission_is_claimed_once(self, world: World) -> None:
        """A journal may leave it to the next claim."""
        worker = await world.process()
        given: list[Claimed] = []
        submission = world.submission(request_id="order-77")
        first = await worker.journal.submit(submission, taker=(worker.session, given.append))
        again = await worker.journal.submit(submission, taker=(worker.session, given.append))
        assert (first.created, again.created) == (True, False)

        (claimed,) = (*given, *await worker.journal.claim(worker.session, names=None, limit=5))
        assert claimed.hold.task_id == submission.task_id
        assert claimed.inbox == []
        assert shown(claimed.view) == shown(await worker.journal.read_task(submission.task_id))
        await worker.journal.append(claimed.hold, [noted("n1")])
        row = await worker.journal.find_task(submission.task_id)
        assert row is not None
        assert (row.state, row.epoch) == (TaskState.RUNNING, claimed.hold.epoch)

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

    async def test_a_submission_finds_the_task_of_another_id_that_it_names(self, world: World) -> None:
        """Two ids may stand for one request: it is one task, whichever comes first and in the same moment."""
        journal, other = await world.connect(), await world.connect()
        one, two = world.submission(), world.submission()
        pair = [msgspec.structs.replace(a, also=(b.task_id,)) for a, b in ((one, two), (two, one))]
        found = await asyncio.gather(journal.submit(pair[0]), other.submit(pair[1]))
        assert sorted(each.created for each in found) == [False, True]
        assert len({each.task_id for each in found}) == len(await journal.list_tasks(Filter(limit=9))) == 1
        with pytest.raises(RequestConflict) as caught:
            await other.submit(msgspec.structs.replace(pair[1], args_fingerprint=b"x" * 16))
        assert caught.value.task_id == found[0].task_id

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
        for newest_first, order in ((True, ids[::-1]), (False, ids)):
            for at, task_id in enumerate(order):
                rows = await journal.list_tasks(Filter(newest_first=newest_first, limit=2, after=task_id))
                assert [row.task_id for row in rows] == order[at + 1 : at + 3]
        assert await journal.list_tasks(Filter(after=world.submission().task_id)) == []

    async def test_lists_are_narrowed_by_state_name_and_prefix(self, world: World) -> None:
        worker = await world.process()
        journal = worker.journal
        trip = await world.submit(journal, name="trip")
        mail = await world.submit(journal, name="mail")
        await worker.take(mail)

        async def ids(**narrow: object) -> set[str]:
            rows = await journal.list_tasks(convert(narrow, Filter))
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


RESTING = (TaskState.PARKED, TaskState.WAITING, TaskState.SLEEPING)


class Facts:
    async def test_facts_are_read_in_order_by_every_process(self, world: World) -> None:
        journal, other = await world.connect(), await world.connect()
        tasks = [await world.submit(journal) for _ in range(2)]
        assert await journal.read_inbox(after=0) == []
        numbers: list[int] = []
        for nth, (one, task_id) in enumerate(zip((journal, other) * 2, tasks * 2, strict=True)):
            world.clock.advance(1)
            numbers.append(await one.drop(fact(task_id, body={"nth": nth, "ü": [1.5, None]})))
        assert numbers == sorted(set(numbers))

        items = await other.read_inbox(after=0)
        assert [item.number for item in items] == numbers
        assert [item.body for item in items] == [{"nth": n, "ü": [1.5, None]} for n in range(4)]
        assert [item.task_id for item in items] == tasks * 2
        assert [item.ordinal for item in items] == ["1"] * 4
        assert items[-1].at_ms == world.clock.wall_ms()
        assert await journal.read_inbox(after=numbers[1]) == items[2:]
        assert await journal.read_inbox(after=numbers[-1]) == []

    async def test_an_applied_fact_is_not_read_again_and_not_forgotten(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        task_id, journal = claimed.hold.task_id, worker.journal
        numbers = [await journal.drop(fact(task_id)) for _ in range(3)]
        await journal.append(claimed.hold, [noted()], applied=numbers[:2])
        assert [item.number for item in await journal.read_inbox(after=0)] == numbers[2:]
        items = await journal.inbox_of(task_id)
        assert [(item.number, item.applied) for item in items] == list(zip(numbers, (True, True, False), strict=True))

    async def test_a_fact_about_a_task_that_has_ended_is_kept_but_not_read(self, world: World) -> None:
        """The notes of delivered mail come after the end: read each time, they would hide what open tasks wait for."""
        worker = await world.process()
        claimed, waiting = await worker.start_task(), await world.submit(worker.journal)
        await worker.rest(claimed.hold, TaskState.SUCCEEDED)
        late, waited = [await worker.journal.drop(fact(one)) for one in (claimed.hold.task_id, waiting)]
        assert [item.number for item in await worker.journal.read_inbox(after=0)] == [waited]
        assert [item.number for item in await worker.journal.inbox_of(claimed.hold.task_id)] == [late]

    async def test_a_check_decides_in_the_commit_whether_a_fact_is_added(self, world: World) -> None:
        """It is given the task and its inbox as they are then; what it raises is raised, and nothing is written."""
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        task_id = claimed.hold.task_id
        await worker.journal.append(claimed.hold, [noted("n1")])

        def only_one(view: TaskView, inbox: Sequence[InboxItem]) -> None:
            assert view.notes.keys() == {"n1"}
            if any(item.kind is InboxKind.DECISION for item in inbox):
                raise NotSettleable("decided")

        await worker.rest(claimed.hold, TaskState.PARKED)
        facts = [
            one.drop(fact(task_id, InboxKind.DECISION, body={"nth": nth}), check=only_one)
            for nth, one in enumerate((worker.journal, other) * 3)
        ]
        said = await asyncio.gather(*facts, return_exceptions=True)
        assert sum(isinstance(one, int) for one in said) == 1
        assert sum(isinstance(one, NotSettleable) for one in said) == 5
        assert [item.number for item in await other.inbox_of(task_id)] == [one for one in said if isinstance(one, int)]

    async def test_only_a_tasks_own_facts_can_be_concluded(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        other = await world.submit(worker.journal)
        number = await worker.journal.drop(fact(other))
        await worker.journal.append(claimed.hold, [noted()], applied=[number])
        assert [item.number for item in await worker.journal.read_inbox(after=0)] == [number]

    @pytest.mark.parametrize(("state", "kind"), list(itertools.product(RESTING, InboxKind)), ids=str)
    async def test_a_fact_wakes_a_resting_task(self, world: World, state: TaskState, kind: InboxKind) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        due_ms = None if state is TaskState.PARKED else world.clock.wall_ms() + 10**9
        await worker.rest(claimed.hold, state, due_ms=due_ms)
        rested_ms = world.clock.wall_ms()
        world.clock.advance(10)
        await worker.journal.drop(fact(claimed.hold.task_id, kind))
        row = await worker.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert (row.state, row.due_ms) == (TaskState.QUEUED, rested_ms)
        assert row.cancel_asked is (kind is InboxKind.CANCEL)
        again = await other.take(claimed.hold.task_id)
        assert [item.kind for item in again.inbox] == [kind]

    async def test_a_clock_that_was_ahead_does_not_put_off_a_task_that_was_woken(self, world: World) -> None:
        """The fact is no record, so the journal's time falls back with the clock: due "now" would be due in a day."""
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.rest(claimed.hold, TaskState.PARKED)
        right_ms = world.clock.wall_ms()
        world.clock.set_wall_ms(right_ms + 86_400_000)
        await worker.journal.drop(fact(claimed.hold.task_id))
        world.clock.set_wall_ms(right_ms)
        assert [one.hold.task_id for one in await worker.claim()] == [claimed.hold.task_id]

    @pytest.mark.parametrize("state", RESTING, ids=str)
    async def test_a_fact_that_the_owner_has_not_seen_is_not_slept_over(self, world: World, state: TaskState) -> None:
        """A task that rests while a fact is dropped goes back to the queue at once."""
        worker = await world.process()
        claimed = await worker.start_task()
        task_id, journal = claimed.hold.task_id, worker.journal
        await journal.drop(fact(task_id))
        due_ms = None if state is TaskState.PARKED else world.clock.wall_ms() + 10**9
        await worker.rest(claimed.hold, state, due_ms=due_ms)
        row = await journal.find_task(task_id)
        assert row is not None
        assert (row.state, row.due_ms) == (TaskState.QUEUED, world.clock.wall_ms())

        again = await worker.take(task_id)
        assert again.hold.seen == again.inbox[-1].number
        await worker.rest(again.hold, state, due_ms=due_ms)
        rested = await journal.find_task(task_id)
        assert rested is not None
        assert rested.state is state

    @pytest.mark.parametrize("kind", InboxKind)
    async def test_a_fact_about_a_queued_task_only_lies_there(self, world: World, kind: InboxKind) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        due_ms = world.clock.wall_ms() + 1_000
        await worker.rest(claimed.hold, TaskState.QUEUED, due_ms=due_ms)
        await worker.journal.drop(fact(claimed.hold.task_id, kind))
        row = await worker.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert (row.state, row.due_ms) == (TaskState.QUEUED, due_ms)

    @pytest.mark.parametrize("kind", InboxKind)
    async def test_a_fact_about_a_running_task_leaves_the_hold_alone(self, world: World, kind: InboxKind) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        await other.drop(fact(claimed.hold.task_id, kind))
        row = await other.find_task(claimed.hold.task_id)
        assert row is not None
        assert row.state is TaskState.RUNNING
        assert row.cancel_asked is (kind is InboxKind.CANCEL)
        await worker.journal.append(claimed.hold, [noted()])

    @pytest.mark.parametrize("state", ENDINGS)
    async def test_a_fact_does_not_wake_an_ended_task(self, world: World, state: TaskState) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.rest(claimed.hold, state)
        before = await worker.journal.find_task(claimed.hold.task_id)
        kinds = [kind for kind in InboxKind if (state, kind) != (TaskState.FAILED, InboxKind.RETRY)]
        for kind in kinds:
            await worker.journal.drop(fact(claimed.hold.task_id, kind))
        assert await worker.journal.find_task(claimed.hold.task_id) == before
        items = await worker.journal.inbox_of(claimed.hold.task_id)
        assert [item.kind for item in items] == kinds
        assert await worker.claim() == []

    async def test_a_persons_retry_opens_a_failed_task_again(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        task_id = claimed.hold.task_id
        await worker.rest(claimed.hold, TaskState.FAILED)
        assert (await worker.journal.read_task(task_id)).finished is TaskState.FAILED
        await worker.journal.drop(fact(task_id, InboxKind.RETRY))
        again = await worker.take(task_id)
        assert again.view.finished is None
        assert (await worker.journal.count_tasks()).get(TaskState.RUNNING) == 1
