"""The shared journal: contract.Journal over one schema of a PostgreSQL database.

Two lanes write what belongs to tasks: one submissions and appends (writer.py), one claims (claims.py). Everything else
is a transaction of its own that may be repeated (links.py): a commit in doubt is settled by doing the same once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.notices import Notice
from holdfast.errors import HoldfastError, JournalDamaged, JournalFull, SessionLost, TaskNotFound
from holdfast.journal import contract, rules
from holdfast.journal.builds import NO_BUILD, Build, name_and_build
from holdfast.journal.durability import Durability
from holdfast.journal.postgres import standby, totals
from holdfast.journal.postgres.links import BEGIN_LOCAL, Link, Links
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.rows import COLUMNS, TASK_COLUMNS, TASK_FROM, folded
from holdfast.journal.postgres.times import CarriedTime
from holdfast.journal.postgres.verbs import claims, inbox, listing, remarks, sessions, upkeep
from holdfast.journal.postgres.verbs.changes import Changes
from holdfast.journal.postgres.verbs.claims import Claim, Claims
from holdfast.journal.postgres.verbs.gathered import Gathered
from holdfast.journal.postgres.verbs.seen import Seen
from holdfast.journal.postgres.verbs.sessions import Looks, PagedSession
from holdfast.journal.postgres.writer import Confirm, Retain, Submit, Writer
from holdfast.journal.records import NewRecord, Record, TaskState, TaskView
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.rows import open_record, task_row

T = TypeVar("T")

TURN_MS = 60_000
NOTICES = "notices"
TOTAL_REST = 49  # times the time that a check of the running total took: it takes at most a fiftieth


class PostgresJournal:
    """One process's handle; made by `opening.open_journal`."""

    def __init__(
        self,
        links: Links,
        instance: Instance,
        *,
        journal_id: str,
        wraps: KeyWraps,
        digest_key: bytes,
        host_id: str,
        statements_off: str,
        newest_ms: int,
    ) -> None:
        clock = instance.clock
        self.capabilities = contract.Capabilities(
            durable=True,
            statements=not statements_off,
            statements_off=statements_off,
            shared=True,
            hosts=True,
            administered=True,
        )
        self.journal_id, self.incarnation = journal_id, instance.incarnation
        self.place = links.place
        self._clock = clock
        self._entropy = instance.entropy
        self._instance = instance
        self._wraps = wraps
        self._digest_key = digest_key
        self._time = CarriedTime(clock)
        self._newest_ms = newest_ms
        self._running = wraps.running_total(journal_id)
        self._links = links
        self._looks = Looks(clock, self._time, instance, host_id)
        self._writer = Writer(
            self._links,
            self._running,
            time=self._time,
            wraps=wraps,
            boot_ms=clock.boot_ms,
            raise_mark=instance.raise_mark,
        )
        self._writer.statements_off = statements_off
        self._claims = Claims(
            self._links,
            self._running,
            instance.raise_mark,
            clock=clock,
            time=self._time,
            looks=self._looks,
            wraps=wraps,
        )
        self._seen = Seen(instance.folder, incarnation=instance.incarnation)
        self._changes = Changes(self._links, self._entropy.bytes(8).hex(), lambda: self._writer.tally.w)
        self._task_rows, self._newest = Gathered(self._find_rows), Gathered(self._read_newest)
        self._total_seen: object = None
        self._total_after_s = 0.0
        self._total_tasks = 0  # that the last check has seen
        self._closed, self._holds = False, 0
        self.unclean = False  # a worker's death says nothing about the server's disk

    async def prepare(self) -> None:
        """The first look at the database; called once when opened."""

        async def look(link: Link) -> None:
            self._time.heard((await self._looks.look(link)).now_ms, newest_ms=self._newest_ms)
            self._changes.seen = await self._changes.version(link)

        await self._links.read(look)

    # sessions

    async def open_session(
        self, *, worker: str, ttl_ms: int, serves: contract.TaskNames = None, build: Build = NO_BUILD
    ) -> contract.Session:
        await standby.until_there(self._links, ttl_ms=ttl_ms)
        session = PagedSession.begun(self._instance, ttl_ms=ttl_ms, build=build)
        asked = self._clock.boot_ms()

        async def begin(link: Link) -> int:
            await self._looks.look(link)
            return await sessions.begin(
                link,
                session,
                worker=worker,
                host_id=self._looks.host_id,
                asked_boot_ms=asked,
                begun_ms=self.now_ms(),
                serves=serves,
            )

        session.row = await self._links.write(begin)
        session.deadline_boot_ms = rules.deadline_boot_ms(asked, ttl_ms)
        return session

    async def renew(self, session: contract.Session) -> None:
        own, asked = _own(session), self._clock.boot_ms()
        if asked > own.deadline_boot_ms:
            raise SessionLost("the lease ended before this process could renew it")

        found = await self._looks.extend(self._links, own, asked_boot_ms=asked)
        if not found.renewed:
            raise SessionLost("another process has declared this session dead")
        if not await self._seen.heard(found.newest, self._links):
            raise SessionLost("the database has lost commits that this host has seen: the journal is opened again")
        own.deadline_boot_ms = rules.deadline_boot_ms(asked, own.ttl_ms)
        self._changes.renewed(found.version, rouse=found.waits)

    async def end_session(self, session: contract.Session, *, orderly: bool = True) -> None:
        own = _own(session)
        self._set_holds(0)
        if own.row and orderly:
            await self._links.write(lambda link: sessions.end(link, own, now_ms=self.now_ms()))
            self._changes.note()
        # Its slots still say what was sent of the steps that a lost session leaves open.
        self._instance.close_page(own.page, delete=orderly)

    # tasks

    async def submit(
        self, submission: contract.Submission, *, taker: contract.Taker | None = None
    ) -> contract.Submitted:
        wrapped = self._wraps.new_data_key(task_id_bytes(submission.task_id))
        found = await self._writer.do(Submit(submission=submission, wrapped=wrapped), patient=False)
        self._changes.note()
        return found

    async def claim(
        self,
        session: contract.Session,
        *,
        names: contract.TaskNames,
        limit: int,
        task_id: TaskId | None = None,
        alone: bool = False,
    ) -> list[contract.Claimed]:
        act = Claim(session=_own(session), names=names, limit=limit, task_id=task_id, alone=alone)
        taken: list[contract.Claimed] = await self._claims.do(act)
        self._set_holds(self._holds + len(taken))
        return taken

    async def append(
        self,
        hold: contract.Hold,
        entries: Sequence[NewRecord],
        *,
        change: contract.Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[contract.Statement] = (),
        begins: bool = False,
    ) -> list[int]:
        act = self._writer.append(hold, entries, change=change, applied=applied, statements=statements)
        numbers: list[int] = await self._writer.do(act)
        if change is not None and change.state is not TaskState.RUNNING:
            self._set_holds(self._holds - 1)
            self._changes.note()
        return numbers

    async def release(self, hold: contract.Hold) -> None:
        self._set_holds(self._holds - 1)
        if await self._links.write(lambda link: claims.release(link, hold, now_ms=self.now_ms())):
            self._changes.note()

    async def confirm(self, hold: contract.Hold, *, seq: int) -> contract.CommitOutcome:
        try:
            return await self._writer.do(Confirm(hold=hold, seq=seq))
        except HoldfastError:
            return contract.CommitOutcome.UNKNOWN

    async def drop(self, item: contract.InboxItem, *, check: contract.DropCheck | None = None) -> int:
        number = await self._links.write(inbox.Drop(item, self._wraps, check, at_ms=self.now_ms()))
        self._changes.note()
        return number

    async def read_inbox(self, *, after: int) -> list[contract.InboxItem]:
        return await self._links.read(lambda link: inbox.read_after(link, after, self._wraps))

    def send_begun(self, *, session_id: str, boot_id: str, slot: int, tag: bytes) -> bool:
        if boot_id != self._clock.boot_id or slot < 0:
            return True
        return self._instance.send_begun(session_id, slot, tag)

    def is_left(self, *, session_id: str, boot_id: str, slot: int, tag: bytes, in_child: bool) -> bool:
        same_boot = boot_id == self._clock.boot_id
        return same_boot and self._instance.is_left(session_id, slot, tag, in_child=in_child)

    # reading

    async def find_task(self, task_id: TaskId) -> contract.TaskRow | None:
        row = await self._task_rows.get(task_id_bytes(task_id))
        return None if row is None else task_row(row)

    async def _find_rows(self, raws: Sequence[bytes]) -> dict[bytes, Row]:
        query = f"SELECT {TASK_COLUMNS} {TASK_FROM} WHERE k.task_id = ANY(%b::bytea[])"
        return {row[0]: row for row in await self._links.read(lambda link: link.run(query, (raws,)))}

    async def read_task(self, task_id: TaskId) -> TaskView:
        raw = task_id_bytes(task_id)
        # One statement, so one moment: another process may commit between two.
        query = (
            f"SELECT k.seq, k.head, k.key_id, k.data_key, k.erased_ms, k.name, {COLUMNS} FROM $s.task k "
            "LEFT JOIN $s.record r ON r.t = k.t WHERE k.task_id = %b ORDER BY r.seq"
        )
        rows = await self._links.read(lambda link: link.run(query, (raw,)))
        if not rows:
            raise TaskNotFound(task_id)
        seq, head, key_id, data_key, erased_ms, name = rows[0][:6]
        if erased_ms is not None:
            view = TaskView(task_id)
            view.name, _ = name_and_build(name)
            return view
        sealer = self._wraps.open_data_key(key_id, data_key, raw)
        records = [row[6:] for row in rows if row[6] is not None]
        return folded(records, task_id=task_id, seq=seq, head=head, sealer=sealer)

    async def read_newest(self, task_id: TaskId) -> Record | None:
        raw = task_id_bytes(task_id)
        row = await self._newest.get(raw)
        if row is None:
            raise TaskNotFound(task_id)
        _, key_id, data_key, erased_ms, *record = row
        if erased_ms is not None:
            return None
        if record[0] is None:
            raise JournalDamaged(f"task {task_id}: its newest record is missing")
        return open_record(tuple(record), raw, self._wraps.open_data_key(key_id, data_key, raw))

    async def _read_newest(self, raws: Sequence[bytes]) -> dict[bytes, Row]:
        query = (
            f"SELECT k.task_id, k.key_id, k.data_key, k.erased_ms, {COLUMNS} FROM $s.task k "
            "LEFT JOIN $s.record r ON r.t = k.t AND r.seq = k.seq WHERE k.task_id = ANY(%b::bytea[])"
        )
        return {row[0]: row for row in await self._links.read(lambda link: link.run(query, (raws,)))}

    async def inbox_of(self, task_id: TaskId) -> list[contract.InboxItem]:
        return await self._links.read(lambda link: inbox.of_task(link, task_id, self._wraps))

    async def list_tasks(self, filter: contract.Filter) -> list[contract.TaskRow]:
        return await self._links.read(lambda link: listing.list_tasks(link, filter))

    async def count_tasks(self) -> dict[TaskState, int]:
        rows = await self._links.read(lambda link: link.run("SELECT state, count(*) FROM $s.task GROUP BY state"))
        return {TaskState(state): count for state, count in rows}

    async def count_waiting(self, *, parked: bool = False) -> list[contract.WaitingTasks]:
        async def count(link: Link) -> list[contract.WaitingTasks]:
            dead = await self._looks.find_dead(link, but=0)
            return await claims.count_waiting(link, dead, now_ms=self.now_ms(), parked=parked)

        return await self._links.read(count)

    async def list_sessions(self) -> list[contract.SessionRow]:
        return await self._links.read(self._looks.list_sessions)

    async def find_effect(self, effect_key: bytes) -> tuple[TaskId, str] | None:
        query = (
            "SELECT k.task_id, r.ordinal FROM $s.record r JOIN $s.task k ON k.t = r.t WHERE r.effect_key = %b LIMIT 1"
        )
        row = await self._links.read(lambda link: link.one(query, (effect_key,)))
        return None if row is None else (task_id_from_bytes(row[0]), row[1])

    async def find_due_ms(self) -> int | None:
        query = "SELECT min(due_ms) FROM $s.task WHERE state IN ('queued', 'sleeping', 'waiting')"
        row = await self._links.read(lambda link: link.one(query))
        due = None if row is None else row[0]
        return None if due is None or due == rules.NEVER_MS else due

    async def find_over(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        asked = {task_id_bytes(task_id): task_id for task_id in task_ids}
        query = (
            "SELECT task_id FROM $s.task WHERE task_id = ANY(%b::bytea[]) "
            "AND state IN ('queued', 'running', 'sleeping', 'waiting')"
        )
        rows = await self._links.read(lambda link: link.run(query, (list(asked),)))
        moving = {row[0] for row in rows}
        return [task_id for raw, task_id in asked.items() if raw not in moving]

    # changes

    async def wait_change(self, *, timeout_s: float, seen: int | None = None) -> int:
        return await self._changes.wait(timeout_s=timeout_s, seen=seen)

    # blobs

    async def put_blob(self, content: bytes, *, task_id: TaskId | None = None) -> str:
        (digest,) = await self._put((content,), task_id)
        return digest

    async def put_blobs(self, contents: Sequence[bytes], *, task_id: TaskId) -> list[str]:
        return await self._put(contents, task_id)

    async def _put(self, contents: Sequence[bytes], task_id: TaskId | None) -> list[str]:
        for content in contents:
            rules.check_blob(len(content))
        return await self._links.write(
            lambda link: upkeep.put_blobs(link, contents, task_id, self._wraps, self._digest_key, at_ms=self.now_ms())
        )

    async def get_blob(self, digest: str) -> bytes:
        return await self._links.read(lambda link: upkeep.get_blob(link, digest, self._wraps, self._digest_key))

    # remarks

    async def add_remarks(self, given: Sequence[contract.Remark], /) -> list[int]:
        numbers = await self._links.write(lambda link: remarks.add_all(link, given, self._wraps, at_ms=self.now_ms()))
        self._changes.note()
        return numbers

    async def remarks_after(self, number: int, *, limit: int) -> list[contract.KeptRemark]:
        return await self._links.read(lambda link: remarks.read_after(link, number, limit, self._wraps))

    async def find_remark_link(self, number: int) -> bytes | None:
        return await self._links.read(lambda link: remarks.find_link(link, number))

    async def remark_marks(self) -> list[contract.RemarkMark]:
        return await self._links.read(remarks.marks)

    async def close_remarks(self, number: int, *, folder: str, name: str = "") -> None:
        await self._links.write(lambda link: remarks.close(link, number, folder, name, at_ms=self.now_ms()))

    async def forget_folder(self, folder: str) -> bool:
        return await self._links.write(lambda link: remarks.forget(link, folder))

    # upkeep

    @asynccontextmanager
    async def notice_turn(self) -> AsyncGenerator[bool]:
        holder = self._entropy.bytes(8).hex()
        mine = await self._links.write(
            lambda link: upkeep.take_turn(link, NOTICES, holder, for_ms=TURN_MS), begin=BEGIN_LOCAL
        )
        try:
            yield mine
        finally:
            if mine:
                with suppress(HoldfastError):  # it ends by itself
                    await self._links.write(lambda link: upkeep.give_turn(link, NOTICES, holder), begin=BEGIN_LOCAL)

    async def pending_notices(self, *, limit: int) -> list[Notice]:
        return await self._links.read(lambda link: upkeep.pending_notices(link, limit, self._wraps))

    async def close_notice(self, notice_id: str) -> None:
        await self._links.write(
            lambda link: upkeep.close_notice(link, notice_id, at_ms=self.now_ms()), begin=BEGIN_LOCAL
        )

    async def add_notice(self, notice: Notice) -> None:
        # Told also while the standby is gone: that may be what it says.
        await self._links.write(
            lambda link: upkeep.add_notice(link, notice, self._wraps, at_ms=self.now_ms()), begin=BEGIN_LOCAL
        )
        self._changes.note()

    async def retain(self, *, keep_ms: int, tombstone_ms: int) -> int:
        erased: int = await self._writer.do(Retain(keep_ms=keep_ms, tombstone_ms=tombstone_ms))
        kept = await self._links.read(sessions.pages_to_keep)
        self._instance.fold_marks(kept)
        return erased

    async def check(self) -> AsyncIterator[str]:
        """Runs on a thread of its own with a connection of its own."""
        from holdfast.journal.postgres import check  # loads the code of journal files: only where it is asked for

        for finding in await asyncio.to_thread(check.find_damage, self.place, self._wraps):
            yield finding

    async def check_total(self) -> None:
        loop = asyncio.get_running_loop()
        version = await self._links.read(totals.version)
        if version == self._total_seen or loop.time() < self._total_after_s:
            return
        began = loop.time()
        before = self._total_tasks
        self._total_tasks = await self._links.read(lambda link: totals.check(link, self._running, tasks=before))
        self._total_seen = version
        self._total_after_s = loop.time() + TOTAL_REST * (loop.time() - began)

    # the rest

    async def find_durability(self, *, provider: bool = False) -> Durability:
        async def look(link: Link) -> Durability:
            found = await standby.find_durability(link, provider=provider)
            return msgspec.structs.replace(found, since_ms=await standby.note(link, found.kept))

        # Without waiting for a standby: it may be the one that is gone.
        return await self._links.write(look, begin=BEGIN_LOCAL)

    def now_ms(self) -> int:
        return self._time.now_ms()

    @property
    def clock_behind_ms(self) -> int:
        return self._time.behind_ms()

    @property
    def clock_ahead_ms(self) -> int:
        return self._time.host_ahead_ms

    @property
    def commits(self) -> int:
        return self._links.commits + self._writer.commits + self._claims.commits

    @property
    def full(self) -> bool:
        return isinstance(self._writer.trouble, JournalFull) or isinstance(self._claims.trouble, JournalFull)

    @property
    def broken(self) -> str:
        return self._writer.broken or self._claims.broken

    def _set_holds(self, holds: int) -> None:
        self._holds = max(0, holds)
        self._writer.tasks = self._holds

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._changes.close()
        await self._task_rows.close()
        await self._newest.close()
        await self._writer.close()
        await self._claims.close()
        for tally in (self._writer.tally, self._claims.tally):
            self._seen.committed(number=tally.last, lane=tally.w, stamp=tally.stamp, at_ms=tally.at_ms)
        self._seen.store()
        await self._links.close()
        self._instance.close()


def _own(session: contract.Session) -> PagedSession:
    if not isinstance(session, PagedSession):
        raise TypeError("the session belongs to another journal")
    return session
