"""Leases, and what a dead session's page proves about its sends."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLost, SessionLost
from holdfast.journal.contract import Journal, Session, SessionRow
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import TTL_MS, World, noted

TAG = b"attempt1"


async def row_of(journal: Journal, session: Session) -> SessionRow:
    rows = {row.session_id: row for row in await journal.list_sessions()}
    return rows[session.session_id]


class Sessions:
    async def test_a_sessions_own_deadline_lies_before_the_end_of_its_lease(self, world: World) -> None:
        worker = await world.process()
        session = worker.session
        begun = world.clock.boot_ms()
        assert (session.ttl_ms, session.boot_id) == (TTL_MS, world.clock.boot_id)
        assert session.deadline_boot_ms == begun + 9_700
        row = await row_of(worker.journal, session)
        assert row.lease_until_boot_ms == begun + TTL_MS
        assert (row.worker, row.alive, row.ended, row.tasks) == ("test", True, False, 0)

    async def test_a_session_says_what_it_serves(self, world: World) -> None:
        journal = await world.connect()
        told = await journal.open_session(worker="told", ttl_ms=TTL_MS, serves=["trip", "order"])
        silent = await journal.open_session(worker="silent", ttl_ms=TTL_MS)
        assert (await row_of(journal, told)).serves == {"trip", "order"}
        assert (await row_of(journal, silent)).serves is None
        await journal.end_session(told)
        nothing = await journal.open_session(worker="nothing", ttl_ms=TTL_MS, serves=[])
        assert (await row_of(journal, nothing)).serves == frozenset()

    async def test_what_waits_to_be_claimed_is_counted_by_name(self, world: World) -> None:
        """Due and held by no live session; not what sleeps, runs or has ended."""
        worker, other = await world.process(), await world.process()
        asleep = await worker.start_task()
        await other.start_task()
        await worker.rest(asleep.hold, TaskState.SLEEPING, due_ms=world.clock.wall_ms() + 10**9)
        assert await worker.journal.count_waiting() == []
        since_ms = world.clock.wall_ms()
        await world.submit(worker.journal)
        world.clock.advance(5)
        await world.submit(worker.journal)
        (found,) = await worker.journal.count_waiting()
        assert (found.name, found.tasks, found.since_ms) == ("trip", 2, since_ms)
        await other.die()
        (found,) = await worker.journal.count_waiting()
        assert found.tasks == 3

    async def test_renewing_counts_from_the_request(self, world: World) -> None:
        worker = await world.process()
        world.clock.advance(4_000)
        await worker.journal.renew(worker.session)
        assert worker.session.deadline_boot_ms == world.clock.boot_ms() + 9_700
        row = await row_of(worker.journal, worker.session)
        assert row.lease_until_boot_ms == world.clock.boot_ms() + TTL_MS

    async def test_a_session_past_its_own_deadline_cannot_renew(self, world: World) -> None:
        worker = await world.process()
        world.clock.advance(9_701)
        with pytest.raises(SessionLost):
            await worker.journal.renew(worker.session)

    async def test_setting_the_wall_clock_does_not_touch_a_lease(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        await worker.start_task()
        world.clock.set_wall_ms(world.clock.wall_ms() + 10**10)
        assert await other.claim() == []
        assert (await row_of(other.journal, worker.session)).alive

    async def test_a_session_whose_tasks_were_taken_cannot_renew(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        claimed = await worker.start_task()
        world.clock.advance(TTL_MS)
        await other.take(claimed.hold.task_id)
        with pytest.raises(SessionLost):
            await worker.journal.renew(worker.session)
        assert not (await row_of(other.journal, worker.session)).alive

    async def test_a_session_past_its_lease_cannot_claim(self, world: World) -> None:
        worker = await world.process()
        task_id = await world.submit(worker.journal)
        world.clock.advance(TTL_MS)
        with pytest.raises(SessionLost):
            await worker.claim()
        row = await worker.journal.find_task(task_id)
        assert row is not None
        assert (row.state, row.epoch) == (TaskState.QUEUED, 0)

    async def test_a_result_may_be_written_past_the_lease_while_nobody_took_over(self, world: World) -> None:
        worker = await world.process()
        claimed = await worker.start_task()
        world.clock.advance(10 * TTL_MS)
        await worker.journal.append(claimed.hold, [noted()])

    async def test_an_ended_session_gives_its_tasks_back(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        assert (await row_of(other.journal, worker.session)).tasks == 1
        await worker.journal.end_session(worker.session)
        await worker.journal.end_session(worker.session)

        row = await other.journal.find_task(claimed.hold.task_id)
        assert row is not None
        assert (row.state, row.session_id, row.crashes) == (TaskState.QUEUED, "", 0)
        with pytest.raises(LeaseLost):
            await worker.journal.append(claimed.hold, [noted()])
        with pytest.raises(SessionLost):
            await worker.journal.renew(worker.session)
        ended = await row_of(other.journal, worker.session)
        assert (ended.ended, ended.alive, ended.tasks) == (True, False, 0)
        assert (await other.take(claimed.hold.task_id)).crashes == 0

    async def test_a_lost_session_lets_go_and_its_tasks_count_a_death(self, world: World) -> None:
        """A task that costs its worker the lease is counted like one that kills it."""
        worker, other = await world.process(), await world.process()
        claimed = await worker.start_task()
        await worker.journal.append(claimed.hold, [noted()])
        slot = worker.session.take_slot(TAG)
        await worker.journal.end_session(worker.session, orderly=False)
        assert not begun(other.journal, worker.session, slot)
        assert (await other.take(claimed.hold.task_id)).crashes == 1
        with pytest.raises(LeaseLost):
            await worker.journal.append(claimed.hold, [noted("n2")])

    async def test_an_ended_session_cannot_claim(self, world: World) -> None:
        worker = await world.process()
        await world.submit(worker.journal)
        await worker.journal.end_session(worker.session)
        with pytest.raises(SessionLost):
            await worker.claim()

    async def test_a_dead_session_that_marked_nothing_has_not_begun(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        slot = worker.session.take_slot(TAG)
        assert slot >= 0
        await worker.die()
        assert not begun(other.journal, worker.session, slot)

    async def test_a_marked_slot_has_begun(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        clear, slot = worker.session.take_slot(b"attempt0"), worker.session.take_slot(TAG)
        worker.session.mark_begun(slot)
        await worker.die()
        assert begun(other.journal, worker.session, slot)
        assert not begun(other.journal, worker.session, clear, tag=b"attempt0")

    async def test_what_outlives_its_session_is_known(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        slot, plain = worker.session.take_slot(TAG), worker.session.take_slot(b"attempt0")
        worker.session.mark_left(slot)
        worker.session.mark_left(-1)
        assert (worker.session.is_left(slot), worker.session.is_left(plain)) == (True, False)
        assert not left(other.journal, worker.session, slot)  # alive: its own process knows
        assert left(other.journal, worker.session, slot, in_child=True)
        await worker.die()
        assert left(other.journal, worker.session, slot)
        assert not left(other.journal, worker.session, plain, tag=b"attempt0", in_child=True)
        assert not left(other.journal, worker.session, slot, tag=b"attempt9")
        world.clock.reboot(boot_id="boot-2")
        assert not left((await world.process()).journal, worker.session, slot)

    async def test_a_living_session_may_begin_at_any_moment(self, world: World) -> None:
        worker, other = await world.process(), await world.process(ttl_ms=10 * TTL_MS)
        slot = worker.session.take_slot(TAG)
        assert begun(other.journal, worker.session, slot)
        world.clock.advance(2 * TTL_MS)
        assert begun(other.journal, worker.session, slot)

    async def test_whatever_is_in_doubt_has_begun(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        session = worker.session
        slot = session.take_slot(TAG)
        freed = session.take_slot(b"attempt2")
        session.free_slot(freed)
        again = session.take_slot(b"attempt3")
        await worker.die()

        assert begun(other.journal, session, slot, tag=b"attempt9")
        assert begun(other.journal, session, -1)
        assert begun(other.journal, session, 5_000)
        assert begun(other.journal, session, again + 1)
        assert begun(other.journal, session, freed, tag=b"attempt2")
        ask = other.journal.send_begun
        assert ask(session_id="unknown", boot_id=session.boot_id, slot=slot, tag=TAG)
        assert ask(session_id=session.session_id, boot_id="boot-0", slot=slot, tag=TAG)

    async def test_a_page_proves_nothing_after_a_restart_of_the_machine(self, world: World) -> None:
        worker = await world.process()
        slot = worker.session.take_slot(TAG)
        await worker.die()
        world.clock.reboot(boot_id="boot-2")
        other = await world.process()
        assert begun(other.journal, worker.session, slot)

    async def test_slots_run_out_without_harm(self, world: World) -> None:
        session = (await world.process()).session
        taken: list[int] = []
        while (slot := session.take_slot(TAG)) >= 0:
            taken.append(slot)
            assert len(taken) <= 100_000
        assert len(taken) == len(set(taken))
        assert session.take_slot(TAG) == -1
        session.mark_begun(-1)
        session.free_slot(-1)
        session.free_slot(taken[0])
        assert session.take_slot(TAG) == taken[0]


def left(journal: Journal, session: Session, slot: int, *, tag: bytes = TAG, in_child: bool = False) -> bool:
    return journal.is_left(
        session_id=session.session_id, boot_id=session.boot_id, slot=slot, tag=tag, in_child=in_child
    )


def begun(journal: Journal, session: Session, slot: int, *, tag: bytes = TAG) -> bool:
    return journal.send_begun(session_id=session.session_id, boot_id=session.boot_id, slot=slot, tag=tag)
