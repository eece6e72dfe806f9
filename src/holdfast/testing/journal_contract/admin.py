"""The second port: looking changes nothing, an incarnation only rises, an older copy is found out."""

from __future__ import annotations

import pytest
from msgspec import structs

from holdfast.core.clock import CLOCK_TOLERANCE_MS, SystemEntropy
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import file_at
from holdfast.errors import (
    HoldfastError,
    JournalBusy,
    JournalGone,
    JournalOlderCopy,
    KeysWrong,
    NotAJournal,
    NotNow,
    RowsPutBack,
)
from holdfast.journal.admin import HighWater, JournalAdmin, Restored
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Life
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import Administered, World


async def administered(world: World) -> Administered | None:
    """How to get at the second port; None where the journal says that it has none."""
    journal = await world.connect()
    found = world.administered
    assert (found is not None) == journal.capabilities.administered
    await journal.close()
    return found


async def grow(world: World, tasks: int = 1) -> list[TaskId]:
    """So many tasks, submitted by a process that then ends."""
    journal = await world.connect()
    made = [await world.submit(journal) for _ in range(tasks)]
    await journal.close()
    return made


async def opened(port: Administered, admin: JournalAdmin, world: World, *, create: bool = False) -> Journal:
    return await admin.open(keys=port.keys, clock=world.clock, entropy=SystemEntropy(), create=create)


class Admin:
    async def test_looking_works_beside_a_session_and_changes_nothing(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        process = await world.process()
        claimed = await process.start_task()
        before = await process.journal.read_task(claimed.hold.task_id)
        admin = port.at_place
        assert admin.peek() == process.journal.journal_id
        assert admin.incarnation() == process.journal.incarnation == 1
        assert admin.newest_record() == claimed.hold.last
        assert admin.find_damage(port.keys) == []
        assert admin.find_stopped() is None
        assert admin.has_reserve() is not False
        admin.check_not_lost()
        assert admin.engine
        assert (await process.journal.read_task(claimed.hold.task_id)).seq == before.seq
        await process.journal.renew(process.session)

    async def test_the_mark_is_never_ahead_of_the_journal(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        for _ in range(3):
            await grow(world)
            assert HighWater() < port.at_place.high_water() <= HighWater(1, port.at_place.newest_record())

    async def test_a_flipped_bit_is_named(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        (task_id,) = await grow(world)
        await world.damage(task_id, seq=0)
        assert any(task_id in finding for finding in port.at_place.find_damage(port.keys))
        with pytest.raises(HoldfastError):
            await port.at_place.restore(keys=port.keys, clock=world.clock)
        assert port.at_place.incarnation() == 1

    async def test_a_copy_is_the_state_after_some_commit(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        process = await world.process()
        claimed = await process.start_task()
        copy = port.new_copy()
        found = port.at_place.copy(copy)
        assert (found.journal_id, found.incarnation) == (process.journal.journal_id, 1)
        assert found.sequence == port.at_place.newest_record()
        await process.rest(claimed.hold, TaskState.SUCCEEDED)
        assert journal_at(file_at(copy)).position() == found
        assert journal_at(file_at(copy)).find_damage(port.keys) == []

    async def test_the_incarnation_only_rises_and_no_task_is_suspect(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        (task_id,) = await grow(world)
        for to, then in ((5, 5), (5, 5), (3, 5)):
            await port.at_place.raise_incarnation(to=to, keys=port.keys, clock=world.clock)
            assert port.at_place.incarnation() == then
        process = await world.process()
        claimed = await process.take(task_id)
        assert claimed.hold.epoch >> 32 == 5
        assert claimed.view.restored_ms == 0

    async def test_a_journal_in_use_is_neither_raised_nor_restored(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await world.process()
        with pytest.raises(JournalBusy):
            await port.at_place.raise_incarnation(to=2, keys=port.keys, clock=world.clock, wait_s=0.01)
        with pytest.raises(JournalBusy):
            await port.at_place.use_alone()
        assert port.at_place.incarnation() == 1

    async def test_used_alone_it_is_open_to_no_one_else(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await grow(world)
        with await port.at_place.use_alone(), pytest.raises(JournalBusy):
            await port.at_place.use_alone()
        with await port.at_place.use_alone():
            pass

    async def test_other_keys_raise_and_restore_nothing(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await grow(world)
        with pytest.raises(KeysWrong):
            await port.at_place.raise_incarnation(to=2, keys=port.other_keys, clock=world.clock)
        with pytest.raises(HoldfastError):
            await port.at_place.restore(keys=port.other_keys, clock=world.clock)
        assert port.at_place.incarnation() == 1

    async def test_an_older_copy_is_refused_until_it_is_restored(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        (task_id,) = await grow(world)
        copy = port.new_copy()
        kept = port.at_place.copy(copy)
        await grow(world, 3)
        newest = port.at_place.high_water()
        port.put_back(copy)
        with pytest.raises(JournalOlderCopy):
            await world.connect()
        with pytest.raises(JournalOlderCopy):
            await port.at_place.raise_incarnation(to=9, keys=port.keys, clock=world.clock)
        plan = await port.at_place.restore(keys=port.keys, clock=world.clock, dry_run=True, above=6)
        assert port.at_place.incarnation() == 1
        done = await port.at_place.restore(keys=port.keys, clock=world.clock, above=6)
        assert plan == done
        assert (done.incarnation, done.sequence, done.mark_sequence) == (7, kept.sequence, newest.sequence)
        assert done.open_tasks == 1
        assert port.at_place.incarnation() == 7
        assert port.at_place.high_water() >= HighWater(7, kept.sequence)
        again = await (await world.process()).take(task_id)
        assert again.view.restored_ms == done.lost_after_ms > 0

    async def test_nothing_is_lost_before_the_copy_was_made(self, world: World) -> None:
        """The time of a signed snapshot counts where the journal was idle, but not one that has not come yet."""
        if (port := await administered(world)) is None:
            return
        (task_id,) = await grow(world)
        newest_ms = world.clock.wall_ms()
        for ahead_ms, expected_ms in ((3_600_000, newest_ms), (0, newest_ms + 86_400_000 - CLOCK_TOLERANCE_MS)):
            world.set_time(newest_ms + 86_400_000)
            copied_ms = newest_ms + 86_400_000 + ahead_ms
            done = await port.at_place.restore(keys=port.keys, clock=world.clock, copied_ms=copied_ms, dry_run=True)
            assert done.lost_after_ms == expected_ms
        done = await port.at_place.restore(keys=port.keys, clock=world.clock, copied_ms=copied_ms)
        process = await world.process()
        assert (await process.take(task_id)).view.restored_ms == done.lost_after_ms == expected_ms

    async def test_a_second_restore_does_not_forget_what_the_first_lost(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        (task_id,) = await grow(world)
        first = await port.at_place.restore(keys=port.keys, clock=world.clock)
        world.set_time(world.clock.wall_ms() + 86_400_000)
        await grow(world)
        second = await port.at_place.restore(keys=port.keys, clock=world.clock)
        assert second.lost_after_ms > first.lost_after_ms
        journal = await world.connect()
        again = await journal.submit(world.submission(request_id="order-1"))
        for one in (task_id, again.task_id):
            assert (await journal.read_task(one)).restored_ms == first.lost_after_ms

    async def test_a_request_is_suspected_unless_it_did_not_exist_before_this_life(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await grow(world)
        lives = [port.at_place.life()]
        for _ in range(2):
            world.set_time(world.clock.wall_ms() + 1_000)
            await port.at_place.restore(keys=port.keys, clock=world.clock)
            lives.append(port.at_place.life())
        assert [one.incarnation for one in lives] == [1, 2, 3]
        assert 0 == lives[0].restored_ms < lives[1].restored_ms < lives[2].restored_ms
        journal = await world.connect()
        others = (Life(3, lives[1].restored_ms), Life(2, lives[2].restored_ms), Life(4, lives[2].restored_ms))
        suspected = dict[Life | None, bool]()
        for number, since in enumerate((None, *lives, *others)):
            submission = structs.replace(world.submission(request_id=f"order-{number}"), since=since)
            task_id = (await journal.submit(submission)).task_id
            suspected[since] = (await journal.read_task(task_id)).restored_ms > 0
        assert [since for since, is_so in suspected.items() if not is_so] == [lives[2]]

    async def test_a_task_that_something_else_deleted_is_missed_until_a_restore(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        gone, kept = await grow(world, 2)
        port.delete(gone)
        assert port.at_place.find_damage(port.keys)
        with pytest.raises(RowsPutBack):
            await world.connect()
        done = await port.at_place.restore(keys=port.keys, clock=world.clock)
        assert (done.put_back, done.open_tasks) == (True, 1)
        assert port.at_place.find_damage(port.keys) == []
        process = await world.process()
        assert (await process.take(kept)).view.restored_ms > 0
        await process.journal.check_total()

    async def test_a_lost_journal_is_not_one_that_never_was(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        never = journal_at(port.never)
        with pytest.raises(NotAJournal):
            await opened(port, never, world)
        assert never.incarnation() == 0
        never.check_not_lost()
        await grow(world)
        newest = port.at_place.high_water()

        async def start(*, dry_run: bool = False) -> Restored:
            return await port.at_place.start_empty(
                keys=lambda: port.keys, clock=world.clock, entropy=SystemEntropy(), dry_run=dry_run
            )

        with pytest.raises(NotNow):
            await start()
        port.lose()
        with pytest.raises(JournalGone):
            port.at_place.check_not_lost()
        with pytest.raises(JournalGone):
            await opened(port, port.at_place, world, create=True)
        plan = await start(dry_run=True)
        done = await start()
        assert (plan.incarnation, plan.mark_sequence) == (done.incarnation, done.mark_sequence) == (2, newest.sequence)
        port.at_place.check_not_lost()
        journal = await world.connect()
        assert journal.incarnation == 2
        again = await journal.submit(world.submission(request_id="order-1"))
        assert (await journal.read_task(again.task_id)).restored_ms > 0  # it may have run in what is lost

    async def test_a_salt_is_decided_once_and_goes_with_every_copy(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        admin, salt = port.at_place, bytes(range(16))
        journal = await world.connect()
        assert admin.task_salt() is None
        assert admin.used_here() == {journal.journal_id: port.place.name}
        assert admin.keep_task_salt(salt) == salt
        assert admin.keep_task_salt(b"") == admin.task_salt() == salt
        await journal.close()
        await grow(world)
        await admin.restore(keys=port.keys, clock=world.clock)
        assert admin.task_salt() == salt

    async def test_a_used_journal_without_a_salt_has_none(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await grow(world)
        assert port.at_place.task_salt() == b""

    async def test_an_empty_journal_takes_the_salt_of_the_lost_one(self, world: World) -> None:
        if (port := await administered(world)) is None:
            return
        await grow(world)
        lost, salt, told = port.at_place.peek(), bytes(range(16)), list[tuple[str, list[str]]]()
        port.lose()

        def heir(new: str, ids: list[str]) -> bytes:
            told.append((new, ids))
            return salt

        done = await port.at_place.start_empty(
            keys=lambda: port.keys, clock=world.clock, entropy=SystemEntropy(), heir=heir
        )
        assert told == [(done.journal_id, [lost])]
        assert port.at_place.task_salt() == salt
