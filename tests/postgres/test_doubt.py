"""Commits whose outcome is not known: connections that are lost, standbys that are gone, waits that are cancelled.

A server whose synchronous standby does not exist keeps every commit waiting; taking the setting back lets them go.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from holdfast.core.clock import SystemClock
from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import CommitUnknown, JournalOlderCopy
from holdfast.journal.contract import Claimed, CommitOutcome, Submission
from holdfast.journal.postgres import adding, lane
from holdfast.journal.postgres.adding import Adding, Addition, Answer
from holdfast.journal.postgres.admin import PostgresAdmin
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.links import LINKS_MAX, InDoubt, Link
from holdfast.journal.postgres.place import PostgresPlace, Row
from holdfast.journal.postgres.verbs.shared import PostgresShared
from holdfast.testing.journal_contract.world import copied, noted
from holdfast_proofs.support.postgres import Server

OpenJournal = Callable[..., Any]
# How a statement ends that comes too late: of one task it has no number for its records, of several it divides by zero.
LATE = {1: psycopg.errors.NotNullViolation.sqlstate, 2: psycopg.errors.DivisionByZero.sqlstate}
StandbyGone = Callable[[], AbstractContextManager[Callable[[], Awaitable[list[int]]]]]


def submission(name: str) -> Submission:
    raw = hashlib.sha256(name.encode()).digest()[:16]
    return Submission(task_id=task_id_from_bytes(raw), name="trip", args={}, args_fingerprint=b"f" * 16)


class Cut:
    """Statements that add records and never reach the server, because the connection is cut. `late` has them."""

    def __init__(self, place: PostgresPlace, *, first: int) -> None:
        self.late: list[tuple[bytes, Sequence[bytes]]] = []
        self._place, self._left = place, first

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send, send_one = Adding.send, Adding.send_one

        def many(of: Adding, link: Link, batch: Sequence[Addition], tally: Any) -> Answer:
            cut = self._cut(link, of._add, lambda: adding._arrays(batch, tally))
            return cut or send(of, link, batch, tally)

        def one(of: Adding, link: Link, addition: Addition, tally: Any) -> Answer:
            text = of._ones[of._names[len(addition.records) - 1]]
            return self._cut(link, text, lambda: adding._values(addition, tally)) or send_one(of, link, addition, tally)

        monkeypatch.setattr(Adding, "send", many)
        monkeypatch.setattr(Adding, "send_one", one)

    def _cut(self, link: Link, text: bytes, values: Callable[[], Sequence[bytes]]) -> Answer | None:
        self.sending()
        if not self._left:
            return None
        self._left -= 1
        self.late.append((text, values()))
        link.db.pgconn.finish()
        return Answer(link, error=psycopg.OperationalError("the connection was cut"))

    def sending(self) -> None:
        """Another one is about to be sent."""

    def arrive(self) -> str:
        """The first one reaches the server now; how that ends."""
        text, values = self.late[0]
        with self._place.connect_at_once() as other:
            done = other.pgconn.exec_params(text, values, param_formats=[1] * len(values))
            return (done.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()


async def claimed_tasks(journal: PostgresJournal, count: int) -> list[Claimed]:
    session = await journal.open_session(worker="test", ttl_ms=60_000)
    await asyncio.gather(*(journal.submit(submission(f"{journal.journal_id} {n}")) for n in range(count)))
    return await journal.claim(session, names=None, limit=count)


@pytest.mark.parametrize(("tasks", "steps"), [(1, 150), (6, 25), (20, 25)])
async def test_nothing_is_lost_or_doubled_while_connections_are_killed(
    server: Server, open_it: OpenJournal, tasks: int, steps: int
) -> None:
    """One task sends at once, a few share commits, of many the first half is sent early."""
    journal: PostgresJournal = await open_it()
    claims, killed = await claimed_tasks(journal, tasks), 0

    async def work(claimed: Claimed) -> None:
        for nth in range(steps):
            await journal.append(claimed.hold, [noted(f"n{nth}")])

    running = asyncio.gather(*map(work, claims))
    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE application_name = 'holdfast' AND pid <> pg_backend_pid()"
    )
    while not running.done():
        killed += (await asyncio.to_thread(server.execute, query))[0][0]
        await asyncio.sleep(0.01)
    await running
    assert killed > 0
    for claimed in claims:
        view = await journal.read_task(claimed.hold.task_id)
        assert list(view.notes) == [f"n{nth}" for nth in range(steps)]
        assert view.seq == claimed.hold.seq
    assert [line async for line in journal.check()] == []


async def test_a_lost_connection_does_not_hide_a_commit_that_still_waits(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone
) -> None:
    """The client is gone, the server's commit goes on: only a locking read waits for its end."""
    journal: PostgresJournal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    await journal.append(claimed.hold, [noted("n0")])
    with standby_gone() as until_waiting:
        lost = [link.db.pgconn.socket for link in journal._links._idle]
        writing = asyncio.create_task(journal.append(claimed.hold, [noted("n1")]))
        await until_waiting()
        for descriptor in lost:
            with socket.socket(fileno=descriptor) as cut:
                cut.shutdown(socket.SHUT_RDWR)
                cut.detach()
        await asyncio.sleep(0.5)
        assert not writing.done()
    (number,) = await writing
    view = await journal.read_task(claimed.hold.task_id)
    assert list(view.notes) == ["n0", "n1"]
    assert view.seq == claimed.hold.seq
    assert number == claimed.hold.last
    await journal.append(claimed.hold, [noted("n2")])
    assert [line async for line in journal.check()] == []


async def test_confirm_waits_for_a_commit_that_still_waits(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone
) -> None:
    journal: PostgresJournal = await open_it()
    other: PostgresJournal = await open_it(host="there")
    (claimed,) = await claimed_tasks(journal, 1)
    in_doubt = copied(claimed.hold)
    with standby_gone() as until_waiting:
        writing = asyncio.create_task(journal.append(claimed.hold, [noted("n1")]))
        await until_waiting()
        assert (await other.read_task(in_doubt.task_id)).seq == in_doubt.seq  # a plain read shows nothing of it
        asking = asyncio.create_task(other.confirm(in_doubt, seq=in_doubt.seq + 1))
        await asyncio.sleep(0.3)
        assert not asking.done()
    assert await asking is CommitOutcome.COMMITTED
    await writing


@pytest.mark.parametrize("tasks", [1, 2])
async def test_what_confirm_finds_aborted_cannot_arrive_any_more(
    place: PostgresPlace, open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """The connection was lost before the server had the statement, and none could be made until it was given up."""
    journal: PostgresJournal = await open_it()
    claimed, *_ = await claimed_tasks(journal, tasks)
    await journal.append(claimed.hold, [noted("n0")])
    cut = Cut(place, first=1)
    cut.install(monkeypatch)
    with monkeypatch.context() as impatient:
        impatient.setattr(lane, "TRY_S", 0)
        with pytest.raises(CommitUnknown):
            await journal.append(claimed.hold, [noted("n1")])
    assert await journal.confirm(claimed.hold, seq=claimed.hold.seq + 1) is CommitOutcome.ABORTED
    assert cut.arrive() == LATE[tasks]
    await journal.append(claimed.hold, [noted("n1")])
    assert list((await journal.read_task(claimed.hold.task_id)).notes) == ["n0", "n1"]
    assert [line async for line in journal.check()] == []


async def test_a_server_that_refuses_while_a_commit_is_in_doubt_leaves_it_in_doubt(
    place: PostgresPlace, open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal: PostgresJournal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    run, send = Link.run, Answer.wait

    async def cut_after(self: Answer) -> Any:
        await send(self)
        await self.link.close()
        raise psycopg.OperationalError("the connection was cut")

    async def cut(self: Link, text: str, values: Sequence[Any] = ()) -> list[Row]:
        if "FOR UPDATE" in text:
            raise psycopg.errors.InsufficientPrivilege("permission denied for table tally")
        return await run(self, text, values)

    with monkeypatch.context() as changed:
        changed.setattr(Link, "run", cut)
        changed.setattr(Answer, "wait", cut_after)
        with pytest.raises(CommitUnknown, match="permission denied"):
            await journal.append(claimed.hold, [noted("n1")])
    assert await journal.confirm(claimed.hold, seq=claimed.hold.seq + 1) is CommitOutcome.COMMITTED


async def test_a_process_that_stops_inside_a_transaction_keeps_nobody_waiting(
    server: Server, open_it: OpenJournal, place: PostgresPlace
) -> None:
    """The server ends its transaction; when the process goes on, it does the same again."""
    journal: PostgresJournal = await open_it()
    tries: list[int] = []
    freed: list[int] = []

    async def stops(link: Link) -> None:
        await link.run("SELECT 1 FROM $s.incarnation FOR UPDATE")
        tries.append(1)
        if len(tries) == 1:
            # A commit of another process gets the lock, within the shortest lease that instances are tried with.
            update = f"UPDATE {place.schema}.incarnation SET number = number"
            await asyncio.to_thread(server.execute, f"SET lock_timeout = '3s'; {update}")
            freed.append(1)
        await link.run("SELECT 1")

    await journal._links.write(stops)
    assert (len(tries), len(freed)) == (2, 1)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_cancelled_wait_for_the_standby_is_no_success(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone, end: str, tasks: int
) -> None:
    """The server then answers with success, or is gone; the row is on this server alone."""
    journal: PostgresJournal = await open_it()
    claimed, *_ = await claimed_tasks(journal, tasks)
    await journal.append(claimed.hold, [noted("n0")])
    with standby_gone() as until_waiting:
        writing = asyncio.create_task(journal.append(claimed.hold, [noted("n1")]))
        for _ in range(2):
            (pid,) = await until_waiting()
            server.execute(f"SELECT {end}({pid})")
            await asyncio.sleep(0.3)
            assert not writing.done()
    await writing
    assert list((await journal.read_task(claimed.hold.task_id)).notes) == ["n0", "n1"]
    assert [line async for line in journal.check()] == []


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("setting", ["synchronous_commit = off", "client_min_messages = error"])
async def test_settings_of_the_user_do_not_turn_a_cancelled_wait_into_a_success(
    server: Server, place: PostgresPlace, open_it: OpenJournal, standby_gone: StandbyGone, setting: str, tasks: int
) -> None:
    """The write that proves the rest must wait too; and what the server warns of must be heard."""
    user = f"set_{place.schema}"
    server.execute(f"CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET {setting}")
    journal: PostgresJournal = await open_it(place=PostgresPlace.read(f"{server.url(user=user)}&schema={place.schema}"))
    claimed, *_ = await claimed_tasks(journal, tasks)
    for nth in range(2):
        await journal.append(claimed.hold, [noted(f"n{nth}")])
    with standby_gone() as until_waiting:
        writing = asyncio.create_task(journal.append(claimed.hold, [noted("n2")]))
        for _ in range(2):
            (pid,) = await until_waiting()
            server.execute(f"SELECT pg_cancel_backend({pid})")
            await asyncio.sleep(0.3)
            assert not writing.done()
    await writing


@pytest.mark.parametrize("tasks", [1, 2])
async def test_an_append_waits_for_the_standby_whatever_the_server_is_set_to(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone, tasks: int
) -> None:
    server.configure({"synchronous_commit": "off"})
    server.reload()
    try:
        journal: PostgresJournal = await open_it()
        claimed, *_ = await claimed_tasks(journal, tasks)
        for nth in range(8):  # the server plans a statement anew for its first uses
            await journal.append(claimed.hold, [noted(f"n{nth}")])
        with standby_gone() as until_waiting:
            writing = asyncio.create_task(journal.append(claimed.hold, [noted("n8")]))
            await until_waiting()
            assert not writing.done()
        await writing
    finally:
        server.configure({"synchronous_commit": "on"})
        server.reload()


async def test_no_lease_is_extended_while_the_standby_is_gone(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone
) -> None:
    """The standby may have been promoted elsewhere: whoever renews here alone would act beside its successor."""
    journal: PostgresJournal = await open_it()
    claims = await claimed_tasks(journal, 3)
    session = claims[0].hold.session
    before = session.deadline_boot_ms
    with standby_gone() as until_waiting:
        writing: list[asyncio.Task[Any]] = [
            *(asyncio.create_task(journal.append(one.hold, [noted("n1")])) for one in claims),
            *(asyncio.create_task(journal.put_blob(bytes([n]))) for n in range(6)),
        ]
        for _ in range(500):
            if len(await until_waiting()) == LINKS_MAX:
                break
            await asyncio.sleep(0.01)
        renewing = asyncio.create_task(journal.renew(session))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.shield(renewing)
        assert len(await until_waiting()) > LINKS_MAX  # it waits for no other connection, but for the standby
        assert session.deadline_boot_ms == before
    await asyncio.gather(renewing, *writing)
    assert session.deadline_boot_ms > before


async def test_a_submission_in_doubt_is_one_task(
    server: Server, open_it: OpenJournal, standby_gone: StandbyGone
) -> None:
    journal: PostgresJournal = await open_it()
    given = submission("in doubt")
    with standby_gone() as until_waiting:
        writing = asyncio.create_task(journal.submit(given))
        (pid,) = await until_waiting()
        server.execute(f"SELECT pg_terminate_backend({pid})")
        await asyncio.sleep(0.3)
        assert not writing.done()
    assert (await writing).created
    assert not (await journal.submit(given)).created
    assert sum((await journal.count_tasks()).values()) == 1


async def test_a_database_that_lost_commits_is_refused(
    server: Server, open_it: OpenJournal, place: PostgresPlace
) -> None:
    """Its process has seen a later stamp than the row has: it was promoted with loss, or put back."""
    journal: PostgresJournal = await open_it()
    (claimed,) = await claimed_tasks(journal, 1)
    for nth in range(3):
        await journal.append(claimed.hold, [noted(f"n{nth}")])
    server.execute(f"UPDATE {place.schema}.tally SET stamp = 1")
    with pytest.raises(JournalOlderCopy):
        await journal.append(claimed.hold, [noted("n9")])
    assert journal.broken


@pytest.mark.parametrize("tasks", [1, 2])
async def test_a_statement_that_arrives_when_it_is_long_given_up_changes_nothing(
    place: PostgresPlace, open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """The connection is lost before the server has the statement; it arrives after the doubt was settled, and before
    the same is written again."""
    journal: PostgresJournal = await open_it()
    claimed, *_ = await claimed_tasks(journal, tasks)
    await journal.append(claimed.hold, [noted("n0")])
    cut, ends = Cut(place, first=1), list[str]()
    cut.sending = lambda: ends.extend([cut.arrive()] if cut.late and not ends else [])
    cut.install(monkeypatch)
    await journal.append(claimed.hold, [noted("n1")])
    await journal.append(claimed.hold, [noted("n2")])
    assert ends == [LATE[tasks]]
    assert list((await journal.read_task(claimed.hold.task_id)).notes) == ["n0", "n1", "n2"]
    assert [line async for line in journal.check()] == []


async def test_a_check_of_the_total_that_is_cancelled_leaves_nothing_open(
    open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends cancels it, at whichever message to the server. What the driver finds open it warns of, and
    a warning fails the test."""
    journal: PostgresJournal = await open_it()
    await claimed_tasks(journal, 2)
    journal._total_tasks = 1_000_000  # as of a journal that is read in parts
    wait, asked, last = psycopg.AsyncConnection[Row].wait, 0, 1

    async def cancelling(self: Any, gen: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == last and (task := asyncio.current_task()) is not None:
            task.cancel()
        return await wait(self, gen, **more)

    monkeypatch.setattr(psycopg.AsyncConnection, "wait", cancelling)
    while True:
        asked = 0
        (ended,) = await asyncio.gather(asyncio.create_task(journal.check_total()), return_exceptions=True)
        gc.collect()
        if ended is None:
            break
        last += 1
    assert last > 5


MONTH_MS = 30 * 86_400_000


@pytest.mark.parametrize("keep_ms", [MONTH_MS, -1])
async def test_retention_of_another_process_meets_a_commit_in_doubt(
    open_it: OpenJournal, monkeypatch: pytest.MonkeyPatch, keep_ms: int
) -> None:
    """Its lane has written nothing before; where retention folds the lane's row all the same, nothing shows whether the
    commit took place, and that is no proof of an older copy."""
    journal: PostgresJournal = await open_it()
    other: PostgresJournal = await open_it(host="there")
    session = await journal.open_session(worker="test", ttl_ms=60_000)
    await journal.submit(submission("retained"))
    commit, cuts = Link.commit, list[Link]()

    async def cut(self: Link) -> None:
        if cuts:
            return await commit(self)
        cuts.append(self)
        await self.close()
        await other.retain(keep_ms=keep_ms, tombstone_ms=MONTH_MS)
        raise InDoubt("the connection was cut")

    monkeypatch.setattr(Link, "commit", cut)
    claims: list[Claimed] = []
    with pytest.raises(CommitUnknown) if keep_ms < 0 else contextlib.nullcontext():
        claims += await journal.claim(session, names=None, limit=1)
    claims += await journal.claim(session, names=None, limit=1)
    assert len(cuts) == len(claims) == 1
    assert [line async for line in journal.check()] == []


async def test_a_connection_that_ends_while_statements_are_prepared_is_a_lost_one(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two results come of it: what the server said, and that it has gone."""
    link = await Link.open(place)

    def ended(pgconn: PGconn) -> Generator[Any, Any, list[PGresult]]:
        return [pgconn.make_empty_result(ExecStatus.FATAL_ERROR) for _ in range(2)]
        yield  # a generator, as the driver's own

    monkeypatch.setattr(adding.generators, "execute", ended)
    with pytest.raises(psycopg.Error):
        await Adding(place).prepare(link)
    monkeypatch.undo()
    await link.close()


@pytest.mark.parametrize("durable", [True, False])
async def test_a_text_of_the_hosts_waits_for_the_standby_if_it_must_not_be_lost(
    server: Server, place: PostgresPlace, open_it: OpenJournal, standby_gone: StandbyGone, durable: bool
) -> None:
    """A roster without a removed host; a turn is taken again anyway, and does not wait."""
    await open_it()
    shared = PostgresShared(place)
    with standby_gone() as until_waiting:
        changing = asyncio.create_task(
            asyncio.to_thread(shared.change_text, "list", lambda _: "without south", durable=durable)
        )
        if durable:  # also where the wait is broken off, which the server calls a success
            for _ in range(2):
                (pid,) = await asyncio.wait_for(until_waiting(), 10)
                server.execute(f"SELECT pg_cancel_backend({pid})")
                await asyncio.sleep(0.3)
                assert not changing.done()
        else:
            await asyncio.wait_for(changing, 10)
    assert await changing == shared.read_text("list") == "without south"


async def test_a_restore_in_doubt_is_an_error_that_says_what_to_do(
    url: str, open_it: OpenJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await open_it()
    keys = journal._wraps._keys
    await journal.close()
    commit = Link.commit

    async def lost(self: Link) -> None:
        await commit(self)
        raise InDoubt("gone")

    admin = PostgresAdmin(url, tmp_path / "here" / "instance")
    monkeypatch.setattr(Link, "commit", lost)
    with pytest.raises(CommitUnknown, match="done or not"):
        await admin.restore(keys=keys, clock=SystemClock())
    monkeypatch.undo()
    assert (await admin.restore(keys=keys, clock=SystemClock())).incarnation == 3
    assert (await open_it()).incarnation == 3
