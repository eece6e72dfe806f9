"""The lane of claims: which tasks are handed out, under which epochs.

A claim is one transaction. It takes the incarnation's row FOR SHARE, so that nobody raises it meanwhile; it locks the
tasks that it may take and passes over those that others have locked (SKIP LOCKED); it reads and verifies their chains
under the locks, so that what the claimer holds in memory is what is durable; it writes the claims. It is a synced
write: because the log is ordered, its return proves that everything that was read is on the standby too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from holdfast.core.clock import Clock
from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.notices import poison_notice, task_damaged_notice
from holdfast.errors import InvariantViolated, JournalDamaged, SessionLost
from holdfast.journal import rules
from holdfast.journal.bodies import ClaimedBy
from holdfast.journal.builds import MARK, build_when_claimed, name_and_build, names_claimed, pinned_name
from holdfast.journal.contract import Claimed, Hold, TaskNames, WaitingTasks
from holdfast.journal.postgres import standby
from holdfast.journal.postgres.lane import Act, Lane
from holdfast.journal.postgres.links import BEGIN, Link, Links
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.rows import COLUMNS, Chained, chained, folded
from holdfast.journal.postgres.times import CarriedTime
from holdfast.journal.postgres.verbs import inbox, sessions, upkeep
from holdfast.journal.postgres.verbs.sessions import DeadSession, Looks, PagedSession
from holdfast.journal.postgres.writer import KEEP, records_by_column
from holdfast.journal.records import NewRecord, Record, RecordKind, TaskState, TaskView, as_kept, fold
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.verbs.claims import waiting_row
from holdfast.journal.total import RunningTotal

_CANDIDATE = "k.t, k.task_id, k.name, k.state, k.epoch, k.seq, k.head, k.due_ms, k.crashes, k.key_id, k.data_key"
_TIMED = "k.state IN ('queued', 'sleeping', 'waiting') AND k.due_ms <= %s"
_TAKE = "ORDER BY k.due_ms, k.t LIMIT %s FOR UPDATE SKIP LOCKED"
_DUE = f"SELECT {_CANDIDATE} FROM $s.task k WHERE {_TIMED} AND {{willing}} {_TAKE}"
_DUE_BY_NAME = (
    "SELECT c.* FROM unnest(%s::text[]) AS w(name) CROSS JOIN LATERAL "
    f"(SELECT {_CANDIDATE} FROM $s.task k WHERE k.name = w.name AND {_TIMED} AND {{willing}} {_TAKE}) c"
)
_DUE_ONE = f"SELECT {_CANDIDATE} FROM $s.task k WHERE k.task_id = %b AND {_TIMED} AND {{known}} AND {{willing}} {_TAKE}"
_LEFT = (
    f"SELECT {_CANDIDATE} FROM $s.task k WHERE k.session = ANY(%s) AND k.state = 'running' "
    f"AND {{known}} AND {{willing}} {_TAKE}"
)
_CLAIM = (
    "UPDATE $s.task AS k SET name = w.name, state = w.state, session = w.session, due_ms = w.due_ms, epoch = w.epoch, "
    "seq = w.seq, head = w.head, crashes = w.crashes, changed_ms = greatest(k.changed_ms, w.now_ms) "
    "FROM unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::integer[], %b::bytea[], "
    "%b::integer[], %b::bigint[], %b::bigint[]) "
    "AS w(name, state, session, due_ms, epoch, seq, head, crashes, now_ms, t) WHERE k.t = w.t"
)


class Claim(Act, eq=False, kw_only=True):
    session: PagedSession
    names: TaskNames
    limit: int
    task_id: TaskId | None
    alone: bool


@dataclass(slots=True, eq=False)
class Candidate:
    """A locked task: the columns of _CANDIDATE, in their order."""

    row: int
    raw: bytes
    name: str
    state: TaskState
    epoch: int
    seq: int
    head: bytes
    due_ms: int
    crashes: int
    key_id: int
    data_key: bytes
    view: TaskView = field(init=False)
    sealer: DataKeySealer = field(init=False)

    def __post_init__(self) -> None:
        self.state = TaskState(self.state)

    @property
    def task_id(self) -> TaskId:
        return task_id_from_bytes(self.raw)

    def load(self, records: Sequence[Row], wraps: KeyWraps) -> None:
        """Verify the whole chain. Raises JournalDamaged."""
        self.sealer = wraps.open_data_key(self.key_id, self.data_key, self.raw)
        self.view = folded(records, task_id=self.task_id, seq=self.seq, head=self.head, sealer=self.sealer)
        # Raising the incarnation raises the epochs of open tasks without a record.
        if self.view.epoch > self.epoch:
            raise JournalDamaged(
                f"task {self.task_id}: its row has epoch {self.epoch}, its records have {self.view.epoch}"
            )


class Claims(Lane[Claim]):
    def __init__(
        self,
        links: Links,
        running: RunningTotal,
        raise_mark: Callable[[int], None],
        *,
        clock: Clock,
        time: CarriedTime,
        looks: Looks,
        wraps: KeyWraps,
    ) -> None:
        super().__init__(links, running, raise_mark)
        self._running = running
        self._clock = clock
        self._time = time
        self._looks = looks
        self._wraps = wraps

    def next_batch(self, queue: deque[Claim]) -> list[Claim]:
        return [queue.popleft()]

    async def write(self, link: Link, acts: list[Claim]) -> int:
        (act,) = acts
        await link.db.execute(BEGIN)
        await self._check_session(link, act)
        dead = await self._looks.find_dead(link, but=act.session.row)
        if self._looks.promoted:
            if await standby.find_promotion(link) is standby.Promotion.LOSSY:
                raise SessionLost("the database was promoted, and may have lost commits: the journal is opened again")
            self._looks.promoted = False
        candidates = await self._find(link, act, await sessions.bury(link, dead))
        sound = await self._load(link, candidates) if candidates else []
        taken, kept = await self._take(link, act, sound)
        numbers = await link.run(KEEP, records_by_column(kept)) if kept else []
        given = {(t, seq): n for t, seq, n in numbers}
        for claimed, record in taken:
            hold = claimed.hold
            hold.last = record.number = given[hold.row, hold.seq]
            fold(claimed.view, record)
        act.result = [claimed for claimed, _ in taken]
        if not candidates and not any(not one.ended for one in dead):
            await link.roll_back()  # nothing to write: a look that found nothing costs no commit
            return 0
        move = sum(self._running.element(made.head) - self._running.element(made.before) for _, made in kept)
        newest = max((row[2] for row in numbers), default=0)
        await self.count(link, move, newest=newest, at_ms=self._time.now_ms())
        self.committing(move)
        await link.commit()
        return move

    async def _check_session(self, link: Link, act: Claim) -> None:
        """Raises SessionLost."""
        session = act.session
        row = await link.one(
            "SELECT i.number, (SELECT ended FROM $s.session WHERE s = %s) FROM $s.incarnation i FOR SHARE",
            (session.row,),
        )
        if row is None or row[0] != session.incarnation:
            raise SessionLost("the journal has a new incarnation: it was restored or taken over")
        if row[1] != 0:
            raise SessionLost("another process has declared this session dead")
        if self._clock.boot_ms() > session.deadline_boot_ms:
            raise SessionLost("the lease ended before the claim")

    async def _find(self, link: Link, act: Claim, dead: Sequence[int]) -> list[Candidate]:
        """Due tasks and those of dead sessions, locked, the one that has been due for longest first."""
        now_ms = self._time.now_ms()
        wanted = None if act.names is None else names_claimed(act.names, act.session.build)
        known, names = ("true", ()) if wanted is None else ("k.name = ANY(%s)", (wanted,))
        willing = _willing("k.crashes", act.alone)
        if act.task_id is not None:
            raw = task_id_bytes(act.task_id)
            query = _DUE_ONE.format(known=known, willing=willing)
            rows = await link.run(query, (raw, now_ms, *names, act.limit))
            known, names = f"k.task_id = %b AND {known}", (raw, *names)
        elif wanted is None:
            rows = await link.run(_DUE.format(willing=willing), (now_ms, act.limit))
        else:
            rows = await link.run(_DUE_BY_NAME.format(willing=willing), (wanted, now_ms, act.limit))
        if dead:
            query = _LEFT.format(known=known, willing=_willing("k.crashes + 1", act.alone))
            rows += await link.run(query, (list(dead), *names, act.limit))
        found = sorted(
            (Candidate(*row) for row in rows), key=lambda one: rules.claim_order(due_ms=one.due_ms, row=one.row)
        )
        return found[: act.limit]

    async def _load(self, link: Link, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose chains are sound; the others are parked."""
        rows = await link.run(
            f"SELECT r.t, {COLUMNS} FROM $s.record r WHERE r.t = ANY(%s) ORDER BY r.t, r.seq",
            ([one.row for one in candidates],),
        )
        records: dict[int, list[Row]] = {}
        for t, *columns in rows:
            records.setdefault(t, []).append(tuple(columns))
        sound: list[Candidate] = []
        for one in candidates:
            try:
                one.load(records.get(one.row, []), self._wraps)
                sound.append(one)
            except (JournalDamaged, InvariantViolated) as error:
                now_ms = self._time.now_ms()
                await link.run(
                    "UPDATE $s.task SET state = 'parked', due_ms = %s, session = NULL, "
                    "changed_ms = greatest(changed_ms, %s) WHERE t = %s",
                    (rules.NEVER_MS, now_ms, one.row),
                )
                notice = task_damaged_notice(one.task_id, error.message, epoch=one.epoch, now_ms=now_ms)
                await upkeep.add_notice(link, notice, self._wraps, at_ms=now_ms)
        return sound

    async def _take(
        self, link: Link, act: Claim, candidates: Sequence[Candidate]
    ) -> tuple[list[tuple[Claimed, Record]], list[tuple[int, Chained]]]:
        """Write the claims; each with the record that the caller folds once its number is known."""
        now_ms, boot_ms, session = self._time.now_ms(), self._clock.boot_ms(), act.session
        holds: list[tuple[Hold, Candidate, Record]] = []
        kept: list[tuple[int, Chained]] = []
        claims: list[Row] = []
        for one in candidates:
            # The row's count is reset by each step that closes, so progress needs no second look here.
            decision = rules.decide_claim(
                state=one.state,
                due_ms=one.due_ms,
                crashes=one.crashes,
                epoch=one.epoch,
                progress_epoch=-1,
                holder_dead=True,
                alone=True,
                now_ms=now_ms,
            )
            poison = decision.verdict is rules.Claimable.POISON
            name, _ = name_and_build(one.name)
            build, pid = build_when_claimed(name, session.build), str(os.getpid())
            host = self._looks.host_id or UNSET
            by = ClaimedBy(session.session_id, session.boot_id, pid, host, build or UNSET)
            entries = [NewRecord(kind=RecordKind.CLAIMED, body=by.body()), *([rules.poison_entry()] if poison else [])]
            epoch = rules.next_epoch(one.epoch, incarnation=session.incarnation)
            made = chained(
                entries,
                seq=one.seq,
                head=one.head,
                task_id=one.raw,
                epoch=epoch,
                at_ms=now_ms,
                boot_ms=boot_ms,
                sealer=one.sealer,
            )
            kept.append((one.row, made))
            rest = ("parked", None, rules.NEVER_MS) if poison else ("running", session.row, one.due_ms)
            rest = (pinned_name(name, build), *rest)
            claims.append((*rest, epoch, made.seq, made.head, decision.crashes, now_ms, one.row))
            if poison:
                notice = poison_notice(one.task_id, rules.POISON_QUESTION, epoch=epoch, now_ms=now_ms)
                await upkeep.add_notice(link, notice, self._wraps, at_ms=now_ms)
                continue
            record = as_kept(entries[0], number=0, seq=made.seq, epoch=epoch, at_ms=now_ms, boot_ms=boot_ms)
            hold = Hold(
                task_id=one.task_id,
                epoch=epoch,
                session=session,
                row=one.row,
                seq=made.seq,
                head=made.head,
                last=0,
                sealer=one.sealer,
            )
            one.crashes = decision.crashes
            holds.append((hold, one, record))
        if claims:
            await link.run(_CLAIM, [list(column) for column in zip(*claims, strict=True)])
        return await self._claimed(link, holds), kept

    async def _claimed(
        self, link: Link, holds: Sequence[tuple[Hold, Candidate, Record]]
    ) -> list[tuple[Claimed, Record]]:
        if not holds:
            return []
        items = await inbox.pending(link, [hold for hold, _, _ in holds])
        taken: list[tuple[Claimed, Record]] = []
        for hold, one, record in holds:
            given = items.get(hold.row, [])
            hold.seen = max((item.number for item in given), default=0)
            taken.append((Claimed(hold=hold, view=one.view, crashes=one.crashes, inbox=given), record))
        return taken


def _willing(crashes: str, alone: bool) -> str:
    """Leaves out, before the limit counts, what is only handed out alone."""
    return "true" if alone else f"NOT ({crashes} >= {rules.CRASHES_ALONE} AND {crashes} < {rules.CRASHES_MAX})"


async def release(link: Link, hold: Hold, *, now_ms: int) -> bool:
    """The task goes back to the queue unless a newer hold has it or it rests."""
    changed = await link.change(
        "UPDATE $s.task SET state = 'queued', session = NULL, changed_ms = greatest(changed_ms, %s) "
        "WHERE t = %s AND epoch = %s AND state = 'running'",
        (now_ms, hold.row, hold.epoch),
    )
    return changed == 1


async def count_waiting(link: Link, dead: Sequence[DeadSession], *, now_ms: int, parked: bool) -> list[WaitingTasks]:
    rows = await link.run(
        "SELECT name, count(*), min(CASE WHEN due_ms <= %s THEN due_ms ELSE changed_ms END) FROM $s.task "
        "WHERE (state IN ('queued', 'sleeping', 'waiting') AND (due_ms <= %s OR strpos(name, %s) > 0)) "
        "OR (state = 'running' AND session = ANY(%s::bigint[])) "
        "OR (%s AND state = 'parked' AND strpos(name, %s) > 0) GROUP BY name",
        (now_ms, now_ms, MARK, [one.row for one in dead], parked, MARK),
    )
    return [waiting_row(row) for row in rows]
