"""Many agents in one worker process, each with its own schema of one database: a small fleet of real ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import HoldfastError
from holdfast.journal.durability import Kept
from holdfast.journal.postgres import pool
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.links import Use
from holdfast.journal.postgres.opening import open_journal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.journal_location import journal_in
from holdfast_proofs.support.command_line import Commands, Worker, ask
from holdfast_proofs.support.postgres import Server, pooled

SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"

NewHome = Callable[..., Path]
Start = Callable[..., Worker]


@pytest.fixture
def new_home(server: Server, place: PostgresPlace, tmp_path: Path) -> NewHome:
    """An agent's folder; the schema is one of this test's."""
    shutil.copy(SAMPLE, tmp_path / "app.py")

    def make(name: str, *, schema: str = "") -> Path:
        home = tmp_path / name
        home.mkdir(mode=0o700)
        url = f"{server.url()}&schema={place.schema}_{schema or name}"
        (home / "holdfast.toml").write_text(f'agent = "{name}"\n[journal]\nurl = "{url}"\n')
        return home

    return make


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    workers: list[Worker] = []

    def begin(homes: list[Path], *words: str) -> Worker:
        listed = tmp_path / "agents.txt"
        listed.write_text("# the agents of this test\n\n" + "".join(f"{home}\n" for home in homes))
        order = ("worker", "app.py:tasks", "--fleet", str(listed), "--lease-ttl", "3", *words)
        workers.append(Worker(tmp_path, order, {**os.environ}))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()


async def submit(home: Path, task: str, **args: object) -> str:
    async with holdfast.open(journal_in(home), serve=False) as hf:
        return (await hf.submit(task, request_id="the same in all", **args)).id


async def result(home: Path, task_id: str) -> Any:
    async with holdfast.open(journal_in(home), serve=False) as hf, asyncio.timeout(60):
        return await hf.task(task_id).result()


def events(worker: Worker, name: str) -> list[Any]:
    return [one for line in worker.said if line.startswith("{") and (one := json.loads(line))["event"] == name]


async def until(lines: Path, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while not lines.exists() or len(found := lines.read_text().split()) < count:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        return found


async def test_agents_keep_apart_and_all_survive_a_kill(tmp_path: Path, new_home: NewHome, start: Start) -> None:
    """Six agents inside a payment when their process is killed; two that cannot run, which nobody waits for."""
    homes = [new_home(f"a{number}") for number in range(6)]
    tasks = {home: await submit(home, "pay", cents=700) for home in homes}
    thief = new_home("thief", schema="a0")  # with keys of its own
    async with holdfast.open(tmp_path / "other.db", serve=False):
        (tmp_path / "keys.json").rename(thief / "keys.json")
    worker = start([*homes, thief, tmp_path / "gone"], "--health-port", "0")
    port = worker.wait_event("health")["port"]
    assert (fleet := worker.wait_event("fleet"))["serving"] == 6, worker.said
    assert fleet["agents"] == 8
    left_out = {Path(one["agent"]).name: one["code"] for one in events(worker, "agent-left-out")}
    assert left_out == {"thief": "keys-wrong", "gone": "not-a-journal"}

    # Each with its own keys: one request id in all of them, six effect keys.
    assert len(set(await until(tmp_path / "charged", 6))) == 6
    health, figures = json.loads(ask(port, "/healthz").text), ask(port, "/metrics").text
    assert (health["ok"], health["serving"]) == (True, 6)
    assert set(health["failing"]) == {str(thief), str(tmp_path / "gone")}
    assert f'holdfast_up{{agent="{thief}"}} 0' in figures
    assert f'holdfast_tasks{{agent="{homes[5]}",state="running"}} 1' in figures
    shown = Commands(thief, main)("doctor", "--home", str(thief), "--json", code=6).json
    assert "left this agent out" in str(shown)

    os.kill(events(worker, "serving")[0]["pid"], signal.SIGKILL)
    assert worker.wait_event("fleet")["serving"] == 6
    (tmp_path / "go").touch()
    keys = {(await result(home, task_id))["key"] for home, task_id in tasks.items()}
    charged = (tmp_path / "charged").read_text().split()
    assert keys == set(charged)
    assert sorted(charged) == sorted([*keys, *keys])
    assert worker.stop() == 0
    assert {one["orderly"] for one in events(worker, "session-ended")} == {True}


async def test_a_flood_of_one_agent_leaves_places_to_the_others(
    tmp_path: Path, new_home: NewHome, start: Start
) -> None:
    """Tasks of one agent that do not end take half of the places; and another agent's task finds one."""
    flooded, quiet = new_home("flooded"), new_home("quiet")
    async with holdfast.open(journal_in(flooded), serve=False) as hf:
        flood = [await hf.submit("pay", cents=number) for number in range(9)]
        worker = start([flooded, quiet], "--concurrency", "4")
        worker.wait_event("fleet")
        await until(tmp_path / "charged", 2)
        assert (await result(quiet, await submit(quiet, "hello", who="ada")))["hits"] == 3
        assert len((tmp_path / "charged").read_text().split()) == 2
        (tmp_path / "go").touch()
        async with asyncio.timeout(60):
            assert [(await one.result())["cents"] for one in flood] == list(range(9))


class Keys:
    current_journal_key = 1
    k_effect = b"e" * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


@pytest.fixture
async def journals(
    place: PostgresPlace, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[PostgresJournal]]:
    """Five journals that share a few connections."""
    monkeypatch.setattr(pool, "SHARES", {Use.COMMIT: 6, Use.LOOK: 2, Use.LEASE: 2})
    pools, opened = pool.Pools(), list[PostgresJournal]()
    for number in range(5):
        one = PostgresPlace.read(f"{server.url()}&schema={place.schema}_{number}")
        (tmp_path / str(number)).mkdir(mode=0o700)
        made = await open_journal(
            one,
            tmp_path / str(number) / "instance",
            keys=Keys(),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            create=True,
            pooled=pools.links(one),
        )
        opened.append(made)
    yield opened
    for journal in opened:
        await journal.close()
    await pools.close()


async def test_commits_that_hang_keep_nobody_from_looking(journals: list[PostgresJournal], standby_gone: Any) -> None:
    """While the standby is gone more commits wait than there are connections for them. That it is gone is told."""
    with standby_gone() as until_waiting:
        writes = [
            asyncio.create_task(journal.put_blob(f"{number} {journal.place.schema}".encode()))
            for journal in journals
            for number in range(2 * pool.AGENT_MAX)
        ]
        try:
            await until_waiting()
            async with asyncio.timeout(10):
                found = [(await journal.find_durability()).kept for journal in journals]
        finally:
            assert not any(one.done() for one in writes)
    assert set(found) == {Kept.GONE}
    await asyncio.gather(*writes)


async def test_leases_are_renewed_in_one_commit_and_alone_where_one_journal_fails(
    journals: list[PostgresJournal], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, sent = pool.Renewals._commit, list[int]()

    async def counted(self: pool.Renewals, together: list[pool.Renewal]) -> Any:
        sent.append(len(together))
        return await commit(self, together)

    monkeypatch.setattr(pool.Renewals, "_commit", counted)
    sessions = [await journal.open_session(worker="w", ttl_ms=60_000) for journal in journals]

    async def renew(number: int) -> int:
        await journals[number].renew(sessions[number])
        return sessions[number].deadline_boot_ms

    before = [one.deadline_boot_ms for one in sessions]
    await asyncio.sleep(0.002)  # deadlines are whole milliseconds, and opening a session can take less than one
    assert all(new > old for new, old in zip(await asyncio.gather(*map(renew, range(5))), before, strict=True))
    assert sent == [5]

    schema = journals[0].place.schema
    server.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_away")
    try:
        found = await asyncio.gather(*map(renew, range(5)), return_exceptions=True)
    finally:
        server.execute(f"ALTER SCHEMA {schema}_away RENAME TO {schema}")
    assert [isinstance(one, HoldfastError) for one in found] == [True, False, False, False, False]

    with psycopg.connect(server.url()) as db:  # a session that is locked keeps the others waiting for a moment only
        db.execute(f"SELECT 1 FROM {schema}.session FOR UPDATE".encode())
        late = asyncio.create_task(renew(0))
        async with asyncio.timeout(60):
            await asyncio.gather(*map(renew, range(1, 5)))
        assert not late.done()
    await late


async def test_renewals_are_planned_once_but_not_behind_a_pooler(place: PostgresPlace, server: Server) -> None:
    """A pooler gives each transaction another connection of the server: nothing may be kept there."""
    server.execute(f"CREATE SCHEMA {place.schema}_n; CREATE TABLE {place.schema}_n.counted (n bigint)")
    text = "WITH one AS (INSERT INTO $s.counted VALUES ({}) RETURNING n) SELECT n, {}::bigint FROM one"
    with pooled(server) as pooler:
        for url, kept in ((server.url(), 1), (pooler.url(), 0)):
            one = PostgresPlace.read(f"{url}&schema={place.schema}_n")
            shared = pool.Pool(one)
            for number in range(3):
                assert await shared.renewals.extend(one, text, (number, 7)) == [(number, 7)]
            assert shared.renewals._db is not None
            row = await (await shared.renewals._db.execute("SELECT count(*) FROM pg_prepared_statements")).fetchone()
            assert row == (kept,)
            await shared.close()


async def test_a_server_that_ends_all_connections_costs_no_commit(
    journals: list[PostgresJournal], server: Server
) -> None:
    sessions = [await journal.open_session(worker="w", ttl_ms=60_000) for journal in journals]
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'holdfast' AND pid <> pg_backend_pid()"
    )
    await asyncio.gather(*(one.renew(session) for one, session in zip(journals, sessions, strict=True)))
    assert [one.alive for one in await journals[0].list_sessions()] == [True]
