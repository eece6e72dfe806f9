"""Claims: which tasks are handed out, in which order, under which epochs; and what the death of a process leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.ids import TaskId
from holdfast.errors import JournalDamaged, LeaseLost
from holdfast.journal.contract import InboxKind
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import (
    ENDINGS,
    TTL_MS,
    Process,
    World,
    fact,
    noted,
    planned,
    shown,
    succeeded,
)


class Claims:
    async def test_a_claim_gives_a_hold_and_the_whole_view(self, world: World) -> None:
        worker = await world.process()
        task_id = await world.submit(worker.journal)
        claimed = await worker.take(task_id)

        hold, view, row = claimed.hold, claimed.view, await worker.journal.find_task(task_id)
        assert row is not None
        assert hold.task_id == view.task_id == row.task_id == task_id
        assert hold.epoch == row.epoch == view.epoch
        assert hold.seq == view.seq == 1
        assert row.state is TaskState.RUNNING
        assert row.session_id == worker.session.session_id
        assert claimed.crashes == row.crashes == 0
        claim = view.claims[hold.epoch]
        assert claim.session_id == worker.session.session_id
        assert claim.boot_id == world.clock.boot_id
        assert (claim.boot_ms, claim.at_ms) == (world.clock.boot_ms(), world.clock.wall_ms())
        assert claimed.inbox == []

    async def test_a_claim_is_durable_before_it_returns(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        claimed = await worker.start_task()
        read = await other.read_task(claimed.hold.task_id)
        assert shown(read) == shown(claimed.view)

    async def test_tasks_are_claimed_oldest_first_up_to_the_limit(self, world: World) -> None:
        worker = await world.process()
        ids: list[str] = []
        for _ in range(5):
            ids.append(await world.submit(worker.journal))
            world.clock.advance(5)
        first = await worker.claim(limit=2)
        assert [one.hold.task_id for one in first] == ids[:2]
        rest = await worker.claim(limit=10)
        assert [one.hold.task_id for one in rest] == ids[2:]
        assert await worker.claim(limit=10) == []

    async def test_only_the_named_tasks_are_claimed(self, world: World) -> None:
        worker = await world.process()
        await world.submit(worker.journal, name="trip")
        mail = await world.submit(worker.journal, name="mail")

        async def claim(names: Any) -> list[str]:
            found = await worker.journal.claim(worker.session, names=names, limit=10)
            return [one.hold.task_id for one in found]

        assert await claim(["fax"]) == []
        assert await claim([]) == []
        assert await claim(["mail", "fax"]) == [mail]

    async def test_one_task_can_be_claimed_by_its_id(self, world: World) -> None:
        worker = await world.process()
        for _ in range(3):
            await world.submit(worker.journal)
        last = await world.submit(worker.journal)
        assert [one.hold.task_id for one in await worker.claim(task_id=last)] == [last]
        assert await worker.claim(task_id=last) == []
        assert await worker.claim(task_id=world.submission().task_id) == []

    async def test_epochs_rise_with_every_claim(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        task_id = await world.submit(worker.journal)
        epochs: list[int] = []
        for one in (worker, other, worker, other):
            claimed = await one.take(task_id)
            epochs.append(claimed.hold.epoch)
            assert claimed.hold.epoch >> 32 == one.session.incarnation
            assert list(claimed.view.claims) == epochs
            await one.rest(claimed.hold, TaskState.QUEUED)
        assert epochs == sorted(set(epochs))

    async def test_a_held_task_is_not_claimed_again(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        await worker.start_task()
        assert await other.claim(alone=True) == []
        assert await worker.claim(alone=True) == []

    async def test_racing_claims_give_each_task_one_owner(self, world: World) -> None:
        workers = [await world.process() for _ in range(4)]
        ids = {await world.submit(workers[0].journal) for _ in range(10)}
        claimed = await asyncio.gather(*(worker.claim(limit=4) for worker in workers))
        taken = [one.hold.task_id for some in claimed for one in some]
        assert len(taken) == len(set(taken))
        while more := await workers[0].claim():
            taken += [one.hold.task_id for one in more]
        assert sorted(taken) == sorted(ids)

    @pytest.mark.parametrize("state", [TaskState.QUEUED, TaskState.SLEEPING, TaskState.WAITING])
    async def test_a_task_with_a_due_time_is_claimed_then_and_not_before(self, world: World, state: TaskState) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        due_ms = world.clock.wall_ms() + 500
        await worker.rest(claimed.hold, state, due_ms=due_ms)
        row = await other.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert (row.state, row.due_ms, row.session_id) == (state, due_ms, "")
        assert await other.journal.find_due_ms() == due_ms

        world.clock.advance(499)
        assert await other.claim() == []
        world.clock.advance(1)
        await other.take(claimed.hold.task_id)
        assert (await other.journal.count_tasks()).get(TaskState.RUNNING) == 1

    @pytest.mark.parametrize("state", [TaskState.SLEEPING, TaskState.WAITING, TaskState.PARKED])
    async def test_a_task_that_rests_without_a_due_time_is_not_woken_by_time(
        self, world: World, state: TaskState
    ) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.rest(claimed.hold, state)
        assert await worker.journal.find_due_ms() is None
        world.clock.advance(5_000)
        await worker.journal.renew(worker.session)
        assert await worker.claim() == []

    @pytest.mark.parametrize("state", ENDINGS)
    async def test_an_ended_task_is_never_claimed(self, world: World, state: TaskState) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.rest(claimed.hold, state, due_ms=0)
        row = await worker.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert row.state is state
        assert await worker.claim() == []

    async def test_a_task_put_back_without_a_due_time_is_due_now(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        await worker.rest(claimed.hold, TaskState.QUEUED)
        assert (await other.take(claimed.hold.task_id)).crashes == 0

    async def test_due_tasks_are_claimed_in_the_order_of_their_due_times(self, world: World) -> None:
        worker = await world.process()
        now_ms, expected = world.clock.wall_ms(), list[tuple[int, str]]()
        for wait_ms in (300, 100, 200):
            claimed = await worker.start_task()
            await worker.rest(claimed.hold, TaskState.SLEEPING, due_ms=now_ms + wait_ms)
            expected.append((wait_ms, claimed.hold.task_id))
        assert await worker.journal.find_due_ms() == now_ms + 100
        world.clock.advance(1_000)
        found = [one.hold.task_id for one in await worker.claim()]
        assert found == [task_id for _, task_id in sorted(expected)]

    async def test_a_claim_brings_the_facts_not_yet_applied(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        task_id, journal = claimed.hold.task_id, worker.journal
        one = await journal.drop(fact(task_id, body={"n": 1}))
        two = await journal.drop(fact(task_id, InboxKind.APPROVAL, body={"n": 2}))
        three = await journal.drop(fact(task_id, body={"n": 3}))
        await journal.append(claimed.hold, [planned()], applied=[two])
        await worker.rest(claimed.hold, TaskState.QUEUED)
        again = await worker.take(task_id)
        assert [(item.number, item.body) for item in again.inbox] == [(one, {"n": 1}), (three, {"n": 3})]

    async def test_a_task_with_a_broken_chain_is_parked_and_the_others_go_on(self, world: World) -> None:
        worker = await world.process()
        broken = await world.submit(worker.journal)
        sound = await world.submit(worker.journal)
        await world.damage(broken, seq=0)

        found = [one.hold.task_id for one in await worker.claim()]
        assert found == [sound]
        row = await worker.journal.find_task(broken)
        assert row is not None
        assert row.state is TaskState.PARKED
        (notice,) = await worker.journal.pending_notices(limit=10)
        assert notice.task_id == broken
        with pytest.raises(JournalDamaged):
            await worker.journal.read_task(broken)


async def crash(world: World, *tasks: TaskId, progress: bool = False, alone: bool = False) -> int:
    """A new process claims the tasks and dies; returns the crashes the first one counted."""
    process = await world.process()
    claimed = [await process.take(task_id, alone=alone) for task_id in tasks]
    if progress:
        for one in claimed:
            ordinal = str(len(one.view.steps) + 1)
            await process.journal.append(one.hold, [planned(ordinal), succeeded(ordinal)])
    await process.die()
    return claimed[0].crashes


class Deaths:
    async def test_an_orphan_waits_for_the_end_of_the_lease(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await worker.start_task()
        world.clock.advance(TTL_MS - 1)
        assert await other.claim() == []
        world.clock.advance(1)
        again = await other.take(claimed.hold.task_id)
        assert again.hold.epoch > claimed.hold.epoch
        assert again.crashes == 1

    async def test_a_renewed_lease_keeps_its_tasks(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        await worker.start_task()
        for _ in range(3):
            world.clock.advance(9_700)
            await worker.journal.renew(worker.session)
            assert await other.claim() == []

    async def test_a_released_lock_proves_death_at_once(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        await worker.die()
        assert (await other.take(claimed.hold.task_id)).crashes == 1

    async def test_a_restarted_machine_has_no_living_sessions(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.die()
        world.clock.advance(1_000)
        world.clock.reboot(boot_id="boot-2")
        other = await world.process()
        again = await other.take(claimed.hold.task_id)
        assert again.view.claims[again.hold.epoch].boot_id == "boot-2"

    async def test_an_orphan_keeps_its_place_in_the_queue(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        orphan = await worker.start_task()
        world.clock.advance(10)
        newer = await world.submit(other.journal)
        await worker.die()
        found = [one.hold.task_id for one in await other.claim()]
        assert found == [orphan.hold.task_id, newer]

    async def test_the_name_filter_holds_for_orphans_too(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        await worker.start_task(name="trip")
        await worker.die()
        assert await other.journal.claim(other.session, names=["mail"], limit=9) == []

    async def test_what_the_dead_process_wrote_is_in_the_view(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        (number,) = await worker.journal.append(claimed.hold, [planned()], begins=True)
        await worker.die()
        again = await other.take(claimed.hold.task_id)
        (attempt,) = again.view.steps["1"].attempts
        assert (attempt.epoch, attempt.number, attempt.slot) == (claimed.hold.epoch, number, 3)

    async def test_deaths_without_progress_are_counted(self, world: World) -> None:
        journal = await world.connect()
        task_id = await world.submit(journal)
        assert await crash(world, task_id) == 0
        assert await crash(world, task_id) == 1
        assert await crash(world, task_id, alone=True) == 2

    async def test_progress_forgives_earlier_deaths(self, world: World) -> None:
        journal = await world.connect()
        task_id = await world.submit(journal)
        for _ in range(4):
            await crash(world, task_id, progress=True)
        assert await crash(world, task_id) == 1
        assert await crash(world, task_id, alone=True) == 2

    async def test_an_orderly_rest_forgives_all_deaths(self, world: World) -> None:
        worker = await world.process()
        task_id = await world.submit(worker.journal)
        await crash(world, task_id)
        claimed = await worker.take(task_id)
        assert claimed.crashes == 1
        await worker.rest(claimed.hold, TaskState.QUEUED)
        assert (await worker.take(task_id)).crashes == 0

    async def test_after_two_deaths_a_task_is_only_handed_out_alone(self, world: World) -> None:
        worker = await world.process()
        task_id = await world.submit(worker.journal)
        await crash(world, task_id)
        await crash(world, task_id)
        healthy = await world.submit(worker.journal)
        assert [one.hold.task_id for one in await worker.claim()] == [healthy]
        assert await worker.claim() == []
        (claimed,) = await worker.claim(alone=True)
        assert (claimed.hold.task_id, claimed.crashes) == (task_id, 2)

    async def test_suspects_at_the_head_of_the_queue_starve_nobody(self, world: World) -> None:
        worker = await world.process()
        suspects = [await world.submit(worker.journal) for _ in range(9)]
        await crash(world, *suspects)
        await crash(world, *suspects)
        healthy = await world.submit(worker.journal)
        assert [one.hold.task_id for one in await worker.claim(limit=1)] == [healthy]

    async def test_after_three_deaths_a_task_is_parked_as_poison(self, world: World) -> None:
        worker = await world.process()
        task_id = await poisoned(world, worker)
        healthy = await world.submit(worker.journal)
        before = await worker.journal.find_task(task_id)
        assert before is not None

        assert [one.hold.task_id for one in await worker.claim(limit=5)] == [healthy]
        row = await worker.journal.find_task(task_id)
        assert row is not None
        assert (row.state, row.session_id) == (TaskState.PARKED, "")
        assert row.epoch > before.epoch
        view = await worker.journal.read_task(task_id)
        assert (view.rest.state, view.rest.why) == ("parked", "poison")
        assert view.rest.question
        assert view.epoch == row.epoch
        assert await worker.claim(alone=True) == []
        (notice,) = await worker.journal.pending_notices(limit=10)
        assert (notice.kind, notice.task_id) == ("poison", task_id)

    async def test_the_zombie_of_a_poisoned_task_is_fenced(self, world: World) -> None:
        journal = await world.connect()
        task_id = await world.submit(journal)
        await crash(world, task_id)
        await crash(world, task_id)
        zombie, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await zombie.take(task_id, alone=True)
        world.clock.advance(TTL_MS)
        assert await other.claim() == []
        with pytest.raises(LeaseLost):
            await zombie.journal.append(claimed.hold, [noted()])

    async def test_a_persons_retry_gives_a_poisoned_task_a_fresh_start(self, world: World) -> None:
        worker = await world.process()
        task_id = await poisoned(world, worker)
        await worker.claim()
        await worker.journal.drop(fact(task_id, InboxKind.RETRY))
        assert (await worker.take(task_id)).crashes == 0

    async def test_a_cancel_of_a_poisoned_task_is_applied_alone(self, world: World) -> None:
        worker = await world.process()
        task_id = await poisoned(world, worker)
        await worker.claim()
        await worker.journal.drop(fact(task_id, InboxKind.CANCEL))
        assert await worker.claim() == []
        claimed = await worker.take(task_id, alone=True)
        row = await worker.journal.find_task(task_id)
        assert row is not None
        assert row.cancel_asked
        await worker.rest(claimed.hold, TaskState.CANCELLED)

    async def test_a_woken_poisoned_task_that_kills_again_is_parked_again(self, world: World) -> None:
        worker = await world.process()
        task_id = await poisoned(world, worker)
        await worker.claim()
        await worker.journal.drop(fact(task_id, InboxKind.DECISION))
        await crash(world, task_id, alone=True)
        assert await worker.claim(alone=True) == []
        row = await worker.journal.find_task(task_id)
        assert row is not None
        assert row.state is TaskState.PARKED
        assert len(await worker.journal.pending_notices(limit=10)) == 2


async def poisoned(world: World, process: Process) -> TaskId:
    """A task that has killed three processes and is not yet parked."""
    task_id = await world.submit(process.journal)
    await crash(world, task_id)
    await crash(world, task_id)
    await crash(world, task_id, alone=True)
    return task_id
