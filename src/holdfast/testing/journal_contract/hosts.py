"""Several machines on one journal: whose lease is over is judged by the journal's clock, and by no other machine's."""

from __future__ import annotations

from holdfast.journal.contract import Journal
from holdfast.testing.journal_contract.world import TTL_MS, Process, SeveralHosts, World

DAY_MS = 86_400_000


async def several(world: World) -> SeveralHosts | None:
    """The world's machines; None where the journal says that one machine has it."""
    journal = await world.connect()
    assert (world.hosts is not None) == journal.capabilities.hosts
    await journal.close()
    return world.hosts


async def worker_of(world: World, journal: Journal, *, ttl_ms: int = TTL_MS) -> Process:
    return Process(world=world, journal=journal, session=await journal.open_session(worker="test", ttl_ms=ttl_ms))


async def pair(world: World, hosts: SeveralHosts) -> tuple[Process, Process]:
    """A worker here and one on another machine, which has watched the journal's clock for one lease."""
    here, there = await world.process(), await worker_of(world, await hosts.connect_elsewhere(), ttl_ms=10 * TTL_MS)
    await live(here, there, hosts, TTL_MS)
    return here, there


async def live(here: Process, there: Process, hosts: SeveralHosts, for_ms: int) -> None:
    """Time passes; the worker here renews its lease as it should, the other one looks."""
    for _ in range(for_ms // 1_000):
        hosts.let_pass(1_000)
        await here.journal.renew(here.session)
        await there.journal.renew(there.session)


class Hosts:
    async def test_another_machines_boot_is_no_proof_of_death(self, world: World) -> None:
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        assert here.session.boot_id != there.session.boot_id
        await here.start_task()
        assert await there.claim() == []
        rows = {row.session_id: row for row in await there.journal.list_sessions()}
        assert rows[here.session.session_id].alive
        assert rows[here.session.session_id].host_id != rows[there.session.session_id].host_id

    async def test_a_dead_process_of_another_machine_keeps_its_lease_to_the_end(self, world: World) -> None:
        """Its lock cannot be seen from there; nor does its boot clock count."""
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        claimed = await here.start_task()
        await here.die()
        hosts.let_pass(TTL_MS - 1_000)
        assert await there.claim() == []
        hosts.let_pass(1_100)
        again = await there.take(claimed.hold.task_id)
        assert again.crashes == 1
        assert again.view.claims[again.hold.epoch].host_id != again.view.claims[claimed.hold.epoch].host_id

    async def test_the_clock_of_a_host_is_no_matter(self, world: World) -> None:
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        await here.start_task()
        hosts.elsewhere.set_wall_ms(hosts.elsewhere.wall_ms() + DAY_MS)
        assert await there.claim() == []
        world.clock.set_wall_ms(world.clock.wall_ms() - DAY_MS)
        await live(here, there, hosts, 3 * TTL_MS)
        assert await there.claim() == []

    async def test_a_promoted_standby_with_another_time_ends_nobodys_lease(self, world: World) -> None:
        """Not of those who live, until they have renewed; and one who died is taken one full lease later."""
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        claimed = await here.start_task()
        for step_ms in (DAY_MS, -2 * DAY_MS):
            hosts.promote(step_ms)
            assert await there.claim() == []
            await live(here, there, hosts, 2 * TTL_MS)
            assert await there.claim() == []
        await here.die()
        hosts.promote(DAY_MS)
        assert await there.claim() == []
        hosts.let_pass(TTL_MS - 1_000)
        assert await there.claim() == []
        hosts.let_pass(1_100)
        await there.take(claimed.hold.task_id)

    async def test_a_step_of_the_journals_clock_ends_nobodys_lease(self, world: World) -> None:
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        claimed = await here.start_task()
        hosts.step(TTL_MS)
        assert await there.claim() == []
        await live(here, there, hosts, TTL_MS)
        assert await there.claim() == []
        hosts.let_pass(TTL_MS + 100)
        assert (await there.take(claimed.hold.task_id)).crashes == 1

    async def test_one_who_has_just_come_waits_one_lease(self, world: World) -> None:
        """What the clock did before it came is not known to it."""
        if (hosts := await several(world)) is None:
            return
        here, _ = await pair(world, hosts)
        claimed = await here.start_task()
        hosts.step(DAY_MS)
        fresh = await worker_of(world, await hosts.connect_elsewhere(), ttl_ms=10 * TTL_MS)
        assert await fresh.claim() == []
        hosts.let_pass(TTL_MS + 100)
        await fresh.take(claimed.hold.task_id)

    async def test_a_restart_of_the_machine_is_a_proof_there(self, world: World) -> None:
        if (hosts := await several(world)) is None:
            return
        here, there = await pair(world, hosts)
        claimed = await here.start_task()
        await here.die()
        hosts.let_pass(500)
        world.clock.reboot(boot_id="boot-2")
        hosts.let_pass(500)
        assert await there.claim() == []
        await (await world.process()).take(claimed.hold.task_id)

    async def test_a_copy_of_the_machine_is_no_earlier_boot_of_it(self, world: World) -> None:
        """Two machines with one id: the other one's session has renewed since this one was started."""
        if (hosts := await several(world)) is None:
            return
        here, _ = await pair(world, hosts)
        await here.start_task()
        world.clock.reboot(boot_id="boot-of-the-copy")
        hosts.let_pass(100)
        await hosts.renew_as_before(here.session)
        assert await (await world.process()).claim() == []

    async def test_a_restored_task_waits_until_no_worker_of_before_can_send(self, world: World) -> None:
        """Another machine may have it, of which the restored journal knows nothing."""
        if (hosts := await several(world)) is None or (port := world.administered) is None:
            return
        lost = await world.process()
        claimed = await lost.start_task()
        await lost.journal.close()
        hosts.let_pass(2 * TTL_MS)
        await port.at_place.restore(keys=port.keys, clock=world.clock)
        there = await worker_of(world, await hosts.connect_elsewhere(), ttl_ms=10 * TTL_MS)
        assert await there.journal.claim(there.session, names=None, limit=1) == []
        hosts.let_pass(TTL_MS)
        await there.journal.renew(there.session)
        (again,) = await there.journal.claim(there.session, names=None, limit=1)
        assert again.hold.task_id == claimed.hold.task_id
        assert again.view.restored_ms > 0

    async def test_hosts_agree_on_turns_and_texts(self, world: World) -> None:
        hosts, port = await several(world), world.administered
        if port is None:
            return
        shared = port.at_place.find_shared()
        assert (shared is not None) == (hosts is not None) == port.at_place.hosts
        if shared is None or hosts is None:
            return
        assert shared.take_turn("mow", holder="a", who="host A", for_s=TTL_MS / 1000) == ""
        assert shared.take_turn("mow", holder="ab", who="host AB", for_s=1) == "host A"
        assert shared.take_turn("dig", holder="ab", who="host AB", for_s=1) == ""
        hosts.let_pass(TTL_MS - 1)
        assert shared.take_turn("mow", holder="a", who="host A", for_s=TTL_MS / 1000) == ""
        hosts.let_pass(TTL_MS)
        assert shared.take_turn("mow", holder="ab", who="host AB", for_s=1) == ""
        shared.give_turn("mow", holder="a")  # it has not got it any more
        assert shared.take_turn("mow", holder="a", who="host A", for_s=1) == "host AB"
        shared.give_turn("mow", holder="ab")
        assert shared.take_turn("mow", holder="a", who="host A", for_s=1) == ""
        assert shared.read_text("list") == ""
        for word in ("milk", "bread"):
            shared.change_text("list", lambda text, word=word: f"{text} {word}".strip())
        assert (shared.read_text("list"), shared.read_text("other")) == ("milk bread", "")
        shared.drop_text("list")
        shared.drop_text("other")
        assert shared.read_text("list") == ""
