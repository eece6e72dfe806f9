"""How appends reach the server: what one task adds, what many add, behind a pooler, and with a hold that is stale."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import LeaseLost
from holdfast.journal.contract import Claimed, Submission
from holdfast.journal.postgres import adding, lane
from holdfast.journal.postgres.adding import Adding, Addition, Answer
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.opening import open_journal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.testing.journal_contract.world import noted
from holdfast_proofs.support.postgres import Server, pooled

OpenJournal = Callable[..., Awaitable[PostgresJournal]]


class Keys:
    current_journal_key = 1
    k_effect = b"e" * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


async def claimed_tasks(journal: PostgresJournal, count: int) -> list[Claimed]:
    session = await journal.open_session(worker="test", ttl_ms=60_000)
    for n in range(count):
        raw = hashlib.sha256(f"{journal.journal_id} {n}".encode()).digest()[:16]
        given = Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)
        await journal.submit(given)
    return await journal.claim(session, names=None, limit=count)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many statements were sent: prepared ones of one task, answered at once or not; of how many tasks else."""
    found: Counter[str] = Counter()
    send, send_one = Adding.send, Adding.send_one

    def many(of: Adding, link: Link, batch: Sequence[Addition], tally: Any) -> Answer:
        found[f"{len(batch)} together"] += 1
        return send(of, link, batch, tally)

    def one(of: Adding, link: Link, addition: Addition, tally: Any) -> Answer:
        answer = send_one(of, link, addition, tally)
        found["one"] += 1
        found["answered"] += answer.is_good
        return answer

    monkeypatch.setattr(Adding, "send", many)
    monkeypatch.setattr(Adding, "send_one", one)
    return found


async def test_a_task_that_runs_alone_has_its_own_prepared_statement(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first append prepares it. Where the answer comes soon no turn of the event loop passes."""
    monkeypatch.setattr(adding, "BRIEF_MS", 10_000)
    journal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    for n in range(4):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    await journal.append(claimed.hold, [noted("n4"), noted("n5")])
    await journal.append(claimed.hold, [noted("n6"), noted("n7"), noted("n8")])  # more than it has place for
    assert sent == {"1 together": 2, "one": 4, "answered": 4}
    view = await journal.read_task(claimed.hold.task_id)
    assert list(view.notes) == [f"n{n}" for n in range(9)]
    newest = await journal.read_newest(claimed.hold.task_id)
    assert newest is not None
    assert newest.number == claimed.hold.last
    assert [line async for line in journal.check()] == []


async def test_no_index_of_tasks_has_a_column_that_a_step_changes(
    open_it: OpenJournal, server: Server, place: PostgresPlace
) -> None:
    """Else every step would write a new entry into each index of its task."""
    await open_it()
    found = server.execute(
        f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{place.schema}' AND tablename = 'task'"
    )
    assert len(found) >= 7
    assert [one for (one,) in found if any(name in one for name in ("changed_ms", "seq", "head", "crashes"))] == []


async def test_an_answer_that_does_not_come_soon_is_awaited_as_everything_else(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding.select, "poll", _NothingComes)
    journal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    for n in range(20):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    assert sent == {"1 together": 1, "one": 19, "answered": 0}
    assert _NothingComes.waits == adding.SLOW  # then it is not awaited in this way any more
    assert len((await journal.read_task(claimed.hold.task_id)).notes) == 20


class _NothingComes:
    waits = 0

    def register(self, *_: object) -> None:
        return None

    def poll(self, timeout_ms: int) -> list[object]:
        _NothingComes.waits += timeout_ms > 0
        return []


async def test_a_statement_is_planned_again_after_a_while(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was made for a few tasks is a bad one for a million."""
    monkeypatch.setattr(adding, "PLAN_S", 0.0)
    journal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    for n in range(4):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    assert sent == {"1 together": 4}
    monkeypatch.setattr(adding, "PLAN_S", 60.0)
    for n in range(4, 8):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    assert sent["one"] == 3
    assert len((await journal.read_task(claimed.hold.task_id)).notes) == 8


async def test_nothing_is_prepared_behind_a_pooler(
    server: Server, place: PostgresPlace, tmp_path: Path, sent: Counter[str]
) -> None:
    """The next transaction may run on another connection of the server, which does not know the statement."""
    with pooled(server) as pooler:
        there = PostgresPlace.read(f"{pooler.url()}&schema={place.schema}")
        clock, entropy = SystemClock(), SystemEntropy()
        journal = await open_journal(there, tmp_path, keys=Keys(), clock=clock, entropy=entropy, create=True)
        (claimed,) = await claimed_tasks(journal, 1)
        for n in range(4):
            await journal.append(claimed.hold, [noted(f"n{n}")])
        await journal.close()
    assert sent == {"1 together": 4}


async def test_a_prepared_statement_that_is_gone_is_replaced_by_the_plain_one(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives the number of the server's process and still shares its connections."""
    monkeypatch.setattr(adding, "BRIEF_MS", 10_000)
    journal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    for n in range(3):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    for link in journal._links._idle:
        await link.run("DEALLOCATE ALL")
    for n in range(3, 6):
        await journal.append(claimed.hold, [noted(f"n{n}")])
    assert sent == {"1 together": 3, "one": 3, "answered": 2}
    assert list((await journal.read_task(claimed.hold.task_id)).notes) == [f"n{n}" for n in range(6)]
    assert [line async for line in journal.check()] == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_texts_are_kept_whatever_encoding_the_user_is_set_to(
    server: Server, place: PostgresPlace, open_it: OpenJournal, encoding: str
) -> None:
    user = f"set_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET client_encoding = '{encoding}'")
    journal = await open_it(place=PostgresPlace.read(f"{server.url(user=user)}&schema={place.schema}"))
    raw = hashlib.sha256(journal.journal_id.encode()).digest()[:16]
    name = "ü\U0001f600"
    await journal.submit(Submission(task_id=task_id_from_bytes(raw), name=name, args={}, args_fingerprint=b"f" * 16))
    assert (await journal.read_task(task_id_from_bytes(raw))).name == name


async def work(journal: PostgresJournal, claims: Sequence[Claimed], steps: int) -> None:
    """Each task adds record after record; at the end the journal has them all."""

    async def one(claimed: Claimed) -> None:
        for _ in range(steps):
            await journal.append(claimed.hold, [noted(f"n{claimed.hold.seq}")])

    await asyncio.gather(*map(one, claims))
    for claimed in claims:
        assert len((await journal.read_task(claimed.hold.task_id)).notes) == steps
    assert [line async for line in journal.check()] == []


async def test_of_many_tasks_the_first_half_is_sent_before_the_others_are_ready(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "TOGETHER", 0)  # however slow this machine is
    journal = await open_it()
    await work(journal, await claimed_tasks(journal, 30), 10)
    assert sent["15 together"] > sent["30 together"]


async def test_while_answers_take_long_all_tasks_share_a_commit(
    open_it: OpenJournal, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a standby far away: half of them would only wait for the other half."""
    wait = Answer.wait

    async def late(answer: Answer) -> Any:
        await asyncio.sleep(0.2)
        return await wait(answer)

    monkeypatch.setattr(Answer, "wait", late)
    journal = await open_it()
    await work(journal, await claimed_tasks(journal, 30), 10)
    assert sent["30 together"] > sent["15 together"]


@pytest.mark.parametrize("tasks", [1, 20])
async def test_a_stale_hold_is_refused_and_disturbs_no_other(
    server: Server, place: PostgresPlace, open_it: OpenJournal, tasks: int
) -> None:
    journal = await open_it()
    claims = await claimed_tasks(journal, tasks)
    for _ in range(2):
        await asyncio.gather(*(journal.append(one.hold, [noted(f"n{one.hold.seq}")]) for one in claims))
    stale, *others = claims
    server.execute(f"UPDATE {place.schema}.task SET epoch = epoch + 1 WHERE t = {stale.hold.row}")
    ends = await asyncio.gather(
        *(journal.append(one.hold, [noted(f"n{one.hold.seq}")]) for one in claims), return_exceptions=True
    )
    assert isinstance(ends[0], LeaseLost)
    assert all(isinstance(end, list) for end in ends[1:])
    assert len((await journal.read_task(stale.hold.task_id)).notes) == 2
    assert all(one.hold.seq == stale.hold.seq + 1 for one in others)
    assert [line async for line in journal.check()] == []
