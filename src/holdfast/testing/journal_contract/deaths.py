"""What the death of a process leaves: orphans, crash counts, poison."""

from __future__ import annotations

import pytest

from holdfast.core.ids import TaskId
from holdfast.errors import LeaseLost
from holdfast.journal.contract import InboxKind
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import TTL_MS, Process, World, fact, noted, planned, succeeded


async def crash(world: World, *tasks: TaskId, progress: bool = False, alone: bool = False) -> int:
    """A new process claims the tasks and dies; returns the crashes the first one counted."""
    process = await world.process()
    claimed = [await process.take(task_id, alone=alone) for task_id in tasks]
    if progress:
        for one in claimed:
            ordinal = str(len(one.view.steps) + 1)
            await process.journal.append(one.hold, [planned(ordinal), succeeded(ordinal)])
    await process.die()
    return claimed[0].row.crashes


class Deaths:
    async def test_an_orphan_waits_for_the_end_of_the_lease(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await worker.start_task()
        world.clock.advance(TTL_MS - 1)
        assert await other.claim() == []
        world.clock.advance(1)
        again = await other.take(claimed.hold.task_id)
        assert again.hold.epoch > claimed.hold.epoch
        assert again.row.crashes == 1

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
        assert (await other.take(claimed.hold.task_id)).row.crashes == 1

    async def test_a_restarted_machine_has_no_living_sessions(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        await worker.die()
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
        assert claimed.row.crashes == 1
        await worker.rest(claimed.hold, TaskState.QUEUED)
        assert (await worker.take(task_id)).row.crashes == 0

    async def test_after_two_deaths_a_task_is_only_handed_out_alone(self, world: World) -> None:
        worker = await world.process()
        task_id = await world.submit(worker.journal)
        await crash(world, task_id)
        await crash(world, task_id)
        healthy = await world.submit(worker.journal)
        assert [one.hold.task_id for one in await worker.claim()] == [healthy]
        assert await worker.claim() == []
        (claimed,) = await worker.claim(alone=True)
        assert (claimed.hold.task_id, claimed.row.crashes) == (task_id, 2)

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
        assert (await worker.take(task_id)).row.crashes == 0

    async def test_a_cancel_of_a_poisoned_task_is_applied_alone(self, world: World) -> None:
        worker = await world.process()
        task_id = await poisoned(world, worker)
        await worker.claim()
        await worker.journal.drop(fact(task_id, InboxKind.CANCEL))
        assert await worker.claim() == []
        claimed = await worker.take(task_id, alone=True)
        assert claimed.row.cancel_asked
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
