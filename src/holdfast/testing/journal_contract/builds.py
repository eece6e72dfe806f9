"""Builds: a task that is pinned to one is claimed by sessions of that build and by no others, whatever befalls them."""

from __future__ import annotations

from holdfast.core.ids import TaskId
from holdfast.journal.builds import Build
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.records import TaskState
from holdfast.testing.journal_contract.world import Process, World

NAMES = frozenset({"trip", "mail"})
PINS = frozenset({"trip"})


async def worker_of(world: World, build: str, **more: object) -> Process:
    """One whose app pins trips and not mails."""
    given = Build(name=build, pins=PINS if build else frozenset(), **more)  # pyright: ignore[reportArgumentType]
    return await world.process(serves=NAMES, build=given)


async def claimed(worker: Process) -> list[TaskId]:
    found = await worker.journal.claim(worker.session, names=NAMES, limit=10, alone=True)
    return [one.hold.task_id for one in found]


async def build_of(journal: Journal, task_id: TaskId) -> str:
    row = await journal.find_task(task_id)
    assert row is not None
    assert row.name in NAMES
    return row.build


class Builds:
    async def test_a_pinned_task_goes_on_with_the_build_that_began_it(self, world: World) -> None:
        old, new, none = await worker_of(world, "v1"), await worker_of(world, "v2"), await worker_of(world, "")
        trip, mail = await world.submit(old.journal), await world.submit(old.journal, name="mail")
        assert sorted(await claimed(old)) == sorted([trip, mail])
        assert (await build_of(old.journal, trip), await build_of(old.journal, mail)) == ("v1", "")
        await old.journal.end_session(old.session)
        assert await claimed(new) == [mail]
        assert await claimed(none) == []
        again = await worker_of(world, "v1")
        assert await claimed(again) == [trip]
        view = await again.journal.read_task(trip)
        assert (view.name, view.claims[view.epoch].build) == ("trip", "v1")

    async def test_a_pinned_task_waits_for_its_build_after_a_death_a_sleep_and_a_drop(self, world: World) -> None:
        old, new = await worker_of(world, "v1"), await worker_of(world, "v2")
        trip = await world.submit(old.journal)
        assert await claimed(old) == [trip]
        await old.die()
        assert await claimed(new) == []
        again = await worker_of(world, "v1")
        (one,) = await again.journal.claim(again.session, names=NAMES, limit=10, alone=True)
        await again.rest(one.hold, TaskState.SLEEPING, due_ms=world.clock.wall_ms() + 5)
        world.clock.advance(6)
        assert await claimed(new) == []
        assert await claimed(again) == [trip]
        assert [finding async for finding in again.journal.check()] == []

    async def test_a_build_that_is_gone_is_taken_over_by_name(self, world: World) -> None:
        old = await worker_of(world, "v1")
        trip = await world.submit(old.journal)
        assert await claimed(old) == [trip]
        await old.journal.end_session(old.session)
        other = await worker_of(world, "v3", takes_over=frozenset({"v2"}))
        assert await claimed(other) == []
        heir = await worker_of(world, "v3", takes_over=frozenset({"v1", "v2"}))
        assert await claimed(heir) == [trip]
        assert await build_of(heir.journal, trip) == "v3"

    async def test_a_session_that_drains_begins_nothing(self, world: World) -> None:
        old = await worker_of(world, "v1")
        trip = await world.submit(old.journal)
        assert await claimed(old) == [trip]
        await old.journal.end_session(old.session)
        await world.submit(old.journal)
        await world.submit(old.journal, name="mail")
        drain = await worker_of(world, "v1", drains=True)
        assert await claimed(drain) == [trip]
        (row,) = [row for row in await drain.journal.list_sessions() if row.alive]
        assert row.serves is not None
        assert not row.serves & NAMES

    async def test_a_pinned_task_is_counted_until_it_ends(self, world: World) -> None:
        """As long as it is open, a worker of its build is needed."""
        old, journal = await worker_of(world, "v1"), await world.connect()
        trip = await world.submit(journal)
        (one,) = await old.journal.claim(old.session, names=NAMES, limit=1)
        assert await journal.count_waiting(parked=True) == []
        at_ms = world.clock.wall_ms()
        await old.rest(one.hold, TaskState.SLEEPING, due_ms=at_ms + 5)
        (found,) = await journal.count_waiting()
        assert (found.name, found.build, found.tasks, found.since_ms) == ("trip", "v1", 1, at_ms)
        world.clock.advance(5)
        (one,) = await old.journal.claim(old.session, names=NAMES, limit=1)
        await old.rest(one.hold, TaskState.PARKED)
        assert await journal.count_waiting() == []
        (found,) = await journal.count_waiting(parked=True)
        assert (found.name, found.build, found.tasks) == ("trip", "v1", 1)
        assert [row.task_id for row in await journal.list_tasks(Filter(name="trip"))] == [trip]
        assert await journal.list_tasks(Filter(name="tri")) == []

    async def test_the_same_submission_finds_a_pinned_task(self, world: World) -> None:
        old = await worker_of(world, "v1")
        given = world.submission(request_id="r1")
        await old.journal.submit(given)
        assert await claimed(old) == [given.task_id]
        assert (await old.journal.submit(given)).created is False
