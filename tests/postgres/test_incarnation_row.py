"""The incarnation is a row of the journal: what is under way when it rises waits for it, and then counts no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import pytest
from msgspec import structs

from holdfast.core.ids import TaskId, task_id_from_bytes
from holdfast.errors import LeaseLost, SessionLost
from holdfast.journal.contract import Submission
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.restoring import RAISE
from holdfast.testing.journal_contract.world import noted
from holdfast_proofs.support.postgres import Server

T = TypeVar("T")
OpenJournal = Callable[..., Awaitable[PostgresJournal]]


def submission(task_id: TaskId) -> Submission:
    return Submission(task_id=task_id, name="trip", args={}, args_fingerprint=b"f" * 16)


async def test_appends_claims_and_submissions_meet_one_that_is_rising(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    """A plain read would show the number of before: all three wait until it is decided."""
    journal = await open_it()
    held, fresh = (task_id_from_bytes(name * 16) for name in (b"h", b"n"))
    await journal.submit(submission(held))
    session = await journal.open_session(worker="w", ttl_ms=60_000)
    (claimed,) = await journal.claim(session, names=None, limit=1)
    await journal.append(claimed.hold, [noted("before")])

    with server.connect() as db:
        db.autocommit = False
        db.execute(place.sql("SELECT number FROM $s.incarnation FOR UPDATE"))
        db.execute(place.sql("UPDATE $s.incarnation SET number = 2"))
        db.execute(place.sql(RAISE), (2,))
        claiming = begun(journal.claim(session, names=None, limit=1))
        adding = begun(journal.append(claimed.hold, [noted("after")]))
        await until_waiting(server, 2)
        submitting = begun(journal.submit(submission(fresh)))  # behind the append, in the same lane
        db.commit()
    with pytest.raises(LeaseLost):
        await adding
    with pytest.raises(SessionLost, match="new incarnation"):
        await claiming
    assert (await submitting).created
    assert list((await journal.read_task(held)).notes) == ["before"]


async def test_a_submission_waits_for_one_that_is_rising(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    """Or it would be accepted as one of before, and not be suspect."""
    journal = await open_it()
    with server.connect() as db:
        db.autocommit = False
        db.execute(place.sql("UPDATE $s.incarnation SET number = 2, lost_after_ms = 1, restored_ms = $now"))
        lost = structs.replace(submission(task_id_from_bytes(b"s" * 16)), request_id="order-7")
        submitting = begun(journal.submit(lost))
        await until_waiting(server, 1)
        db.commit()
    await submitting
    assert (await journal.read_task(lost.task_id)).restored_ms > 0


def begun(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)


async def until_waiting(server: Server, count: int) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'holdfast'"
    async with asyncio.timeout(30):
        while server.execute(query)[0][0] < count:  # noqa: ASYNC110 - the server gives no sign
            await asyncio.sleep(0.01)
