"""A newer schema is made while workers of the version before write."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import JournalNewer
from holdfast.journal.contract import Claimed, Submission
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.testing.journal_contract.world import noted
from holdfast_proofs.support.postgres import Server

OpenJournal = Callable[..., Awaitable[PostgresJournal]]
STEPS = 10


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Holdfast whose schema has one column more."""
    first = schema.schema_step

    def schema_step(number: int) -> str:
        return first(1) if number == 1 else "ALTER TABLE $s.task ADD COLUMN added bigint NOT NULL DEFAULT 0"

    monkeypatch.setattr(schema, "schema_step", schema_step)
    monkeypatch.setattr(schema, "SCHEMA", 2)


async def claimed_tasks(journal: PostgresJournal, count: int) -> list[Claimed]:
    session = await journal.open_session(worker="test", ttl_ms=60_000)
    for number in range(count):
        raw = hashlib.sha256(f"{journal.journal_id} {number}".encode()).digest()[:16]
        await journal.submit(
            Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)
        )
    return await journal.claim(session, names=None, limit=count)


async def test_one_of_several_raises_it_and_the_one_before_works_on(
    server: Server, place: PostgresPlace, open_it: OpenJournal, request: pytest.FixtureRequest
) -> None:
    before = await open_it()
    claims = await claimed_tasks(before, 4)
    begun, raised = asyncio.Event(), asyncio.Event()

    async def write(claimed: Claimed) -> int:
        """Until it has gone on for a while after the change."""
        number = left = 0
        while left < STEPS:
            await before.append(claimed.hold, [noted(f"n{number}")])
            begun.set()
            number, left = number + 1, left + raised.is_set()
        return number

    writing = asyncio.gather(*map(write, claims))
    await begun.wait()
    request.getfixturevalue("newer")
    after = await asyncio.gather(*(open_it() for _ in range(3)))
    raised.set()
    written = await writing
    assert server.execute(f"SELECT number FROM {place.schema}.version") == [(2,)]
    for claimed, number in zip(claims, written, strict=True):
        assert len((await after[0].read_task(claimed.hold.task_id)).notes) == number
    assert [damage async for damage in after[0].check()] == []


async def test_the_version_before_is_refused_afterwards(
    open_it: OpenJournal, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue("newer")
    await open_it()
    monkeypatch.undo()
    with pytest.raises(JournalNewer, match="has schema 2; this Holdfast reads at most schema 1; nothing was changed"):
        await open_it()
