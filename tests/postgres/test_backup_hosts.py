"""One host at a time backs up an agent whose journal several hosts share; together they make one chain of snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from holdfast.backup.backups import open_backups
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places.backup_places import PlaceRequest, open_places, states_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.turns import next_number, take_duty, taking_snapshot
from holdfast.backup.upkeep import scheduled
from holdfast.backup.upkeep.prune import prune
from holdfast.backup.upkeep.scheduled import kept_backups, run_due
from holdfast.core.clock import SystemClock
from holdfast.core.notices import Notice
from holdfast.demo.machine import back_up
from holdfast.errors import BackupBusy, EngineMissing
from holdfast.host.log import Log
from holdfast.layout.agent_home import AgentHome

SecondHost = Callable[..., AgentHome]
PLACE = "place-1"


class Told:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def tell(self, notice: Notice) -> None:
        self.notices.append(notice)


async def add_place(home: AgentHome, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    await (await open_places(home)).add(PlaceRequest(name=PLACE, address=str(folder)))


async def test_hosts_make_one_chain_and_know_what_the_other_has_done(
    agent: AgentHome, second_host: SecondHost, tmp_path: Path
) -> None:
    """No host takes what another one made for the sign of an older folder, nor what it pruned for a theft."""
    first = await back_up(agent, [tmp_path / PLACE])
    other = second_host()
    one, two = await open_backups(agent), await open_backups(other)
    second = await one.now()
    assert two.states()[PLACE].verified == second.snapshot.archive
    third = await two.now()
    assert (third.good, third.warnings, third.snapshot.seq) == (True, (), 3)
    assert [head.record.seq for head in HeadFile(other.heads_file).read().heads] == [1, 2, 3]
    later = datetime.now(UTC) + timedelta(days=900)
    (pruned,) = await prune(two.places, now=later)
    assert pruned.plan is not None
    assert set(pruned.plan.remove) == {first.snapshot.archive, second.snapshot.archive}
    found = await one.look()
    assert (found.chain.forks, found.findings) == ((), ())
    assert one.states()[PLACE].missing == ()
    away = replace(other, journal_url="postgresql://holdfast@127.0.0.1:1/postgres")
    assert states_of(away).of(PLACE).verified == third.snapshot.archive  # what this host has seen last


async def test_the_host_that_made_the_last_scheduled_backup_makes_the_next(
    agent: AgentHome, second_host: SecondHost, tmp_path: Path
) -> None:
    """Another one takes over when nothing could be backed up there. Only the one that has the duty tells a person."""
    await add_place(agent, tmp_path / PLACE)
    other, told, made = second_host(), Told(), list[str]()

    async def works(home: AgentHome, names: Sequence[str]) -> None:
        made.append(home.folder.name)
        for name in names:
            states_of(home).tried(name, None, now_ms=SystemClock().wall_ms())

    async def fails(home: AgentHome, names: Sequence[str]) -> None:
        raise EngineMissing(f"no engine for {home.name} and {names}")

    async def look(home: AgentHome, backup: Callable[..., Awaitable[object]] = works) -> tuple[str, ...]:
        clock = SystemClock()
        states_of(home).change(PLACE, lambda _: PlaceState(verified_ms=clock.wall_ms()))  # due at once
        return await run_due(home, partial(backup, home), every_s=300, clock=clock, notices=told)

    assert (await look(agent), await look(other), await look(agent)) == ((PLACE,), (), (PLACE,))
    assert made == ["ada", "ada"]
    assert take_duty(other).endswith(str(agent.folder))
    assert await look(agent, fails) == (PLACE,)
    assert [notice.kind for notice in told.notices] == ["backup-engine-missing"]
    assert (await look(other), await look(agent)) == ((PLACE,), ())
    assert made[2:] == ["second"]


async def test_two_hosts_at_the_same_moment(agent: AgentHome, second_host: SecondHost, tmp_path: Path) -> None:
    await add_place(agent, tmp_path / PLACE)
    other = second_host()
    two = await open_backups(other)
    async with taking_snapshot(agent):
        with pytest.raises(BackupBusy, match=str(agent.folder)):
            await two.now()
        with pytest.raises(BackupBusy):
            await two.verify()
    with ThreadPoolExecutor(8) as threads:  # as if a clock had given both the turn
        drawn = list(threads.map(partial(next_number, above=1), [agent, other] * 10))
    assert sorted(drawn) == list(range(2, 22))
    assert [(await two.now(check=False)).snapshot.seq for _ in range(2)] == [1, 22]


async def test_a_worker_starts_no_backup_that_is_another_hosts(
    agent: AgentHome, second_host: SecondHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_place(agent, tmp_path / PLACE)
    other, started, looked = second_host(), list[str](), asyncio.Event()

    async def run(folder: Path, *_: object) -> None:
        started.append(folder.name)
        looked.set()

    def taken(home: AgentHome) -> str:
        found = take_duty(home)
        if home == other and found:
            loop.call_soon_threadsafe(looked.set)
        return found

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(scheduled, "_run", run)
    monkeypatch.setattr(scheduled, "take_duty", taken)
    for home in (agent, other):
        looked.clear()
        async with kept_backups(home, every="5m", clock=SystemClock(), log=Log(), look_s=0.01):
            await asyncio.wait_for(looked.wait(), 30)
    assert set(started) == {"ada"}
