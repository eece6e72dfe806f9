"""Standbys: whether one is really there, and what a promotion means for open tasks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.app.health import Gauges
from holdfast.cli.task import submit
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import CommitUnknown, JournalBusy, SessionLost
from holdfast.journal.contract import Claimed, Submission
from holdfast.journal.durability import Kept
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine.engine import Engine
from holdfast.testing.journal_contract.world import noted
from holdfast.testing.lab import wait_until
from holdfast_proofs.failovers.writer import ProofKeys
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import STANDBY, Server, find_oldest, standby_of, started

OpenJournal = Callable[..., Awaitable[PostgresJournal]]
NewHost = Callable[..., Host]


def a_submission(name: str) -> Submission:
    raw = hashlib.sha256(name.encode()).digest()[:16]
    return Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)


async def started_task(journal: PostgresJournal) -> Claimed:
    await journal.submit(a_submission(journal.journal_id))
    (claimed,) = await journal.claim(await journal.open_session(worker="w", ttl_ms=60_000), names=None, limit=1)
    return claimed


async def test_no_standby_is_seen(open_it: OpenJournal, standby_gone: Callable[..., Any]) -> None:
    journal: PostgresJournal = await open_it()
    found = await journal.find_durability()
    assert found.kept is Kept.NO_STANDBY
    assert "synchronous_standby_names" in found.hint
    assert (await journal.find_durability(provider=True)).kept is Kept.PROVIDER
    with standby_gone():
        async with asyncio.timeout(10):  # the look waits for no standby
            gone = await journal.find_durability(provider=True)
    assert gone.kept is Kept.GONE
    assert "no step begins" in gone.text


async def test_a_worker_tells_that_the_standby_is_gone_though_its_session_cannot_begin(
    open_it: OpenJournal, standby_gone: Callable[..., Any]
) -> None:
    journal: PostgresJournal = await open_it()
    keys, clock, entropy = ProofKeys(), SystemClock(), SystemEntropy()
    engine = Engine(journal=journal, keys=keys, clock=clock, entropy=entropy, tasks=(), settings=Settings())
    with standby_gone():
        serving = asyncio.create_task(engine.serve())

        async def told() -> bool:
            return [one.kind for one in await journal.pending_notices(limit=9)] == ["standby"]

        await wait_until(told)
        assert engine.lease is None
        assert "\nholdfast_journal_standby 0\n" in await Gauges(engine=engine, journal=journal).metrics()
    engine.stop()
    await serving


async def test_while_the_standby_is_gone_no_session_leaves_a_connection_behind(
    open_it: OpenJournal, server: Server, standby_gone: Callable[..., Any]
) -> None:
    """A server does not notice that a client whose commit waits for a standby is gone. The commit that waits already
    is left alone: broken off, it could be read on a server that the promoted standby has replaced."""
    journal, starting = await open_it(), await open_it(host="two")
    await journal.submit(a_submission("before"))
    with standby_gone() as until_waiting:
        waiting = asyncio.create_task(journal.submit(a_submission("waits")))
        before = await until_waiting()
        await asyncio.sleep(0.1)  # many leases
        for _ in range(3):
            async with asyncio.timeout(10):
                with pytest.raises(JournalBusy, match=r"standby \(nowhere\) is gone"):
                    await starting.open_session(worker="w", ttl_ms=5)
        assert (await until_waiting(), waiting.done()) == (before, False)
    assert (await waiting).created


async def test_a_submission_that_waits_for_a_standby_can_be_given_up(
    open_it: OpenJournal, server: Server, standby_gone: Callable[..., Any]
) -> None:
    journal: PostgresJournal = await open_it()
    await journal.submit(a_submission("before"))
    with standby_gone() as until_waiting:
        waiting = asyncio.create_task(journal.submit(a_submission("given-up")))
        await until_waiting()
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=15)
        assert waiting.cancelled()
        await journal.close()
        assert server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == []
    again: PostgresJournal = await open_it()
    assert not (await again.submit(a_submission("given-up"))).created, "the same request finds out what became of it"


def test_submit_says_at_its_timeout_that_the_standby_is_gone(
    new_host: NewHost, standby_gone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "ACCEPT_S_MIN", 0.2)
    host = new_host("one")
    host.submit('{"cents": 5}', "order-1", "--no-follow")
    words = ("submit", host.app, '{"cents": 5}', "--task", "pay", "--request-id", "order-2", "--timeout", "0.2")
    with standby_gone():
        said = host.look(*words, "--json", code=CommitUnknown.exit_code).error
    assert said["code"] == "commit-unknown"
    assert "the synchronous standby (nowhere) is gone" in said["message"]
    assert "not known whether the request was accepted" in said["message"]
    assert "same --request-id" in said["hint"]


def test_a_database_that_is_read_only_is_told(
    new_host: NewHost, server: Server, place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "ACCEPT_S_MIN", 0.2)
    user = f"reader_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE postgres TO {user}")
    host = new_host("one", at=f"{server.url(user=user)}&schema={place.schema}")
    host.submit('{"cents": 5}', "order-1", "--no-follow")
    server.execute(f"ALTER ROLE {user} SET default_transaction_read_only = on")
    words = ("submit", host.app, '{"cents": 5}', "--task", "pay", "--request-id", "order-2", "--timeout", "0.2")
    said = host.look(*words, "--json", code=CommitUnknown.exit_code).error
    assert "the database is read only" in said["message"]
    shown = host.look("doctor", code=1).out
    assert "the database is read only" in shown
    assert f'for the user "{user}"' in shown


async def test_a_user_who_may_not_look_is_told_the_grant(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    user = f"blind_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN; GRANT CREATE ON DATABASE postgres TO {user}")
    journal = await open_it(place=PostgresPlace.read(f"{server.url(user=user)}&schema={place.schema}"))
    found = await journal.find_durability()
    assert (found.kept, f'GRANT pg_read_all_stats TO "{user}"' in found.hint) == (Kept.UNKNOWN, True)
    server.execute(f"GRANT pg_read_all_stats TO {user}")
    assert (await journal.find_durability()).kept is Kept.NO_STANDBY


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_promotion_without_a_synchronous_standby_makes_open_tasks_suspect(
    open_it: OpenJournal, synchronous: bool
) -> None:
    with started(find_oldest()) as primary, standby_of(primary) as standby:
        if synchronous:
            primary.configure({"synchronous_standby_names": f"'{STANDBY}'"})
            primary.reload()
        place = PostgresPlace.read(primary.url())
        async with asyncio.timeout(60):
            journal: PostgresJournal = await open_it(place=place)
            claimed = await started_task(journal)
            await journal.append(claimed.hold, [noted("n1")])
        kept = Kept.STANDBY if synchronous else Kept.NO_STANDBY

        async def is_known() -> bool:
            return (await journal.find_durability()).kept is kept and _has_caught_up(primary, standby)

        await wait_until(is_known)
        primary.kill()
        standby.execute("SELECT pg_promote()")
        there = replace(place, conninfo=PostgresPlace.read(standby.url()).conninfo)
        again: PostgresJournal = await open_it(place=there)
        view = await again.read_task(claimed.hold.task_id)
        assert (again.incarnation, view.restored_ms > 0) == ((1, False) if synchronous else (2, True))
        assert list(view.notes) == ["n1"]


def _has_caught_up(primary: Server, standby: Server) -> bool:
    ((sent,),) = primary.execute("SELECT pg_current_wal_lsn()")
    ((replayed,),) = standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{sent}'")
    return bool(replayed)


async def test_a_worker_that_sees_a_lossy_promotion_opens_the_journal_again(
    open_it: OpenJournal, place: PostgresPlace, server: Server
) -> None:
    server.execute("CREATE TABLE IF NOT EXISTS timelines (now text); DELETE FROM timelines")
    server.execute("INSERT INTO timelines VALUES ('00000001')")
    turned = replace(place, timeline="(SELECT now FROM public.timelines)")
    journal: PostgresJournal = await open_it(place=turned)
    claimed = await started_task(journal)
    server.execute("UPDATE timelines SET now = '00000002'")
    await journal.renew(claimed.hold.session)
    await journal.find_durability()  # a look at the new server does not hide what has happened
    with pytest.raises(SessionLost, match="promoted"):
        await journal.claim(claimed.hold.session, names=None, limit=1)
    again, other = await asyncio.gather(open_it(place=turned), open_it(place=turned, host="other"))
    assert (again.incarnation, other.incarnation) == (2, 2)
    with pytest.raises(SessionLost):
        await journal.renew(claimed.hold.session)
    session = await again.open_session(worker="w", ttl_ms=90_000)
    lost = Submission(
        task_id=task_id_from_bytes(b"lost" * 4), name="trip", args={}, args_fingerprint=b"f" * 16, request_id="order-7"
    )
    await again.submit(lost)
    # The first worker may be cut off, and send what it has begun until its lease is over by its own clock.
    assert await again.claim(session, names=None, limit=9) == []
    due = f"SELECT due_ms - restored_ms FROM {place.schema}.task, {place.schema}.incarnation ORDER BY t"
    assert server.execute(due) == [(60_000,), (90_000,)]  # of the longest lease that was known then
    server.execute(f"UPDATE {place.schema}.task SET due_ms = due_ms - 90000")
    suspects = await again.claim(session, names=None, limit=9)
    assert [one.view.restored_ms > 0 for one in suspects] == [True, True]
