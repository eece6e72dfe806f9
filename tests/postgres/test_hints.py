"""A commit of one host wakes another sooner than its next look; without hints the look finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest

from holdfast.core.ids import task_id_from_bytes
from holdfast.journal.contract import Claimed, Submission
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.verbs import changes
from holdfast.testing.journal_contract.world import noted
from holdfast.testing.lab import wait_until
from holdfast_proofs.support.postgres import Pgbouncer, Server, pooled

OpenJournal = Callable[..., Awaitable[PostgresJournal]]


@pytest.fixture(scope="module")
def pooler(oldest: Server) -> Generator[Pgbouncer]:
    with pooled(oldest) as pooler:
        yield pooler


async def wake(waits: PostgresJournal, commits: PostgresJournal) -> None:
    """One waits for a change, and the other makes it."""
    seen = await waits.wait_change(timeout_s=0)
    waiting = asyncio.create_task(waits.wait_change(timeout_s=60, seen=seen))
    await asyncio.sleep(0.2)
    given = Submission(task_id=task_id_from_bytes(b"t" * 16), name="trip", args={}, args_fingerprint=b"f" * 16)
    await commits.submit(given)
    assert await waiting > seen


def hears(journal: PostgresJournal) -> bool:
    listener = journal._changes.listener
    return listener is not None and listener.hears


@pytest.mark.parametrize("through", ["the server", "a pooler, with the server named"])
async def test_a_commit_of_another_host_is_heard(
    open_it: OpenJournal, place: PostgresPlace, pooler: Pgbouncer, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    if through != "the server":
        place = PostgresPlace.read(f"{pooler.url()}&schema={place.schema}&direct={pooler.server.folder}:5432")
    one, two = await open_it(place=place), await open_it(place=place, host="there")
    watching = asyncio.create_task(two.wait_change(timeout_s=60))

    async def is_heard() -> bool:
        return hears(two)

    await wait_until(is_heard)
    watching.cancel()
    for name in ("POLL_S", "POLL_MAX_S"):
        monkeypatch.setattr(changes, name, 3_600)  # no look of its own
    two._changes._hinted.set()  # its last one
    async with asyncio.timeout(30):
        await wake(two, one)


async def test_through_a_pooler_the_look_finds_it(
    open_it: OpenJournal, place: PostgresPlace, pooler: Pgbouncer
) -> None:
    place = PostgresPlace.read(f"{pooler.url()}&schema={place.schema}")
    one, two = await open_it(place=place), await open_it(place=place, host="there")
    await wake(two, one)
    assert not hears(two)
    listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND application_name = 'holdfast'"
    assert pooler.server.execute(listening) == []  # nothing is left behind at the server's end
    await two.close()
    assert not changes.Listener._all


async def test_a_lost_listener_comes_back(
    open_it: OpenJournal, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LISTEN_AGAIN_S", 0.05)
    one, two = await open_it(), await open_it(host="there")
    waiting = asyncio.create_task(two.wait_change(timeout_s=60))

    async def is_heard() -> bool:
        return hears(two)

    await wait_until(is_heard)
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    waiting.cancel()
    await wake(two, one)
    await wait_until(is_heard)


async def test_only_steps_of_other_processes_are_changes(open_it: OpenJournal) -> None:
    """With each of its own, everybody in this process would look at the database again."""
    one, two = await open_it(), await open_it(host="there")
    claims: list[Claimed] = []
    for number, journal in enumerate((one, two)):
        session = await journal.open_session(worker="test", ttl_ms=60_000)
        raw = bytes([number]) * 16
        given = Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)
        await journal.submit(given)
        claims += await journal.claim(session, names=None, limit=1, task_id=given.task_id)
    own, others = claims
    seen, before = await one.wait_change(timeout_s=0), -1
    while seen != before:  # what was told until now is heard
        before, seen = seen, await one.wait_change(timeout_s=3 * changes.POLL_S, seen=seen)
    waiting = asyncio.create_task(one.wait_change(timeout_s=1, seen=seen))
    for n in range(8):
        await one.append(own.hold, [noted(f"n{n}")])
        await asyncio.sleep(changes.POLL_S)
    assert await waiting == seen
    waiting = asyncio.create_task(one.wait_change(timeout_s=60, seen=seen))
    await two.append(others.hold, [noted("n0")])
    assert await waiting > seen
