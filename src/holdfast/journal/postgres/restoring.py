"""New incarnations of a shared journal: raised by a grant, or by a restore of what is there.

Both are one transaction that holds the incarnation's row, which submissions and claims share, and raise the epoch of
every open task: an append of whoever held one before then finds another epoch in its own statement and writes nothing.
A plain read of the incarnation would be no fence: it may be read a moment before it rises.

**Restore** (T14): the database was promoted with loss, or an older dump was put back. Every open task gets a record
which says that the timeline after its newest record is lost, and all tallies start again from what is there. A worker
of the lost timeline, or one that is cut off, may live, and send what it has begun, until its lease is over by its own
clock; the rows do not show it. So no task is due before the longest lease that the journal knows of has passed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from holdfast.core.clock import Clock
from holdfast.errors import JournalBusy, JournalDamaged
from holdfast.journal import rules
from holdfast.journal.admin import SINCE_EVER_MS, HighWater, Restored, lost_by_all, lost_since
from holdfast.journal.bodies import RestoredFrom
from holdfast.journal.postgres import standby, totals
from holdfast.journal.postgres.lane import Tally
from holdfast.journal.postgres.links import BEGIN_LOCAL, Link, transact
from holdfast.journal.postgres.rows import Chained, chained
from holdfast.journal.postgres.standby import Promotion
from holdfast.journal.postgres.verbs.guards import NOTE_TABLES, check_not_older
from holdfast.journal.postgres.verbs.seen import forget_seen, note_folded
from holdfast.journal.postgres.verbs.sessions import longest_lease_ms
from holdfast.journal.postgres.writer import KEEP, records_by_column
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.high_water import high_water, raise_stored
from holdfast.journal.total import MODULUS, NONCE_BYTES, RunningTotal

_OPEN = "state NOT IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL"
RAISE = (
    f"UPDATE $s.task SET epoch = (%s::bigint << {rules.COUNTER_BITS}) | "
    f"((epoch & {(1 << rules.COUNTER_BITS) - 1}) + 1) WHERE {_OPEN}"
)


_END_SESSIONS = "UPDATE $s.session SET ended = 2 WHERE ended = 0"


class _DryRun(Exception):
    """Everything was done but the commit."""


class _Decided(Exception):
    """Another process was first."""


async def raise_incarnation(link: Link, folder: Path, *, to: int, clock: Clock) -> None:
    """Raises JournalOlderCopy, JournalBusy."""
    found, _ = await check_not_older(link, folder)
    if found >= to:
        return

    async def act(link: Link) -> int:
        row = await link.one("SELECT number FROM $s.incarnation FOR UPDATE")
        if row is not None and row[0] < to:
            await link.run("UPDATE $s.incarnation SET number = %s", (to,))
            await link.run(RAISE, (to,))
            await link.run(_END_SESSIONS)
        newest = await link.one("SELECT coalesce(max(last), 0) FROM $s.tally")
        return 0 if newest is None else newest[0]

    newest = await transact(link, act)
    if not raise_stored(folder, HighWater(to, newest), at_ms=clock.wall_ms()):
        raise JournalBusy("another process is updating high-water.json of this journal")


async def take_promotion(link: Link, folder: Path, *, wraps: KeyWraps, clock: Clock) -> None:
    """Of a server that was promoted with loss: its journal is restored, by the first process that opens it; what is
    there is whole, so it is still compared with its running total. Raises RowsPutBack."""
    found = await standby.find_promotion(link)
    if found is Promotion.LOSSY:
        await totals.check(link, wraps.running_total(folder.name))
        with suppress(_Decided):
            await restore(link, folder, wraps=wraps, clock=clock, promoted=True)
    elif found is Promotion.SOUND:
        kept = (await standby.find_durability(link)).kept
        await transact(link, lambda link: standby.note(link, kept), begin=BEGIN_LOCAL)


async def restore(
    link: Link,
    folder: Path,
    *,
    wraps: KeyWraps,
    clock: Clock,
    dry_run: bool = False,
    above: int = 0,
    copied_ms: int = 0,
    put_back: bool = False,
    promoted: bool = False,
) -> Restored:
    """Take what is there as the journal from now on. Its chains were checked before; those of one that was `promoted`
    are checked by each claim."""
    mark, running = high_water(folder), wraps.running_total(folder.name)
    done: list[tuple[Restored, int]] = []

    async def act(link: Link) -> None:
        row = await link.one(
            "SELECT number, (SELECT coalesce(max(last), 0) FROM $s.tally), "
            "(SELECT coalesce(max(at_ms), 0) FROM $s.tally), $now, lost_after_ms, restored_ms "
            "FROM $s.incarnation FOR UPDATE"
        )
        if row is None:
            raise JournalDamaged("the journal has no incarnation")
        if promoted and await standby.find_promotion(link) is not Promotion.LOSSY:
            raise _Decided
        incarnation, newest_ms = max(row[0], mark.incarnation, above) + 1, row[2] or SINCE_EVER_MS
        since_ms, now_ms = lost_since(newest_ms, copied_ms=copied_ms, wall_ms=row[3]), max(newest_ms, row[3])
        lost_after_ms = SINCE_EVER_MS if put_back else since_ms
        due_ms = now_ms + await longest_lease_ms(link)
        await link.run(_END_SESSIONS)
        tasks, newest = await _mark_suspect(
            link,
            wraps,
            at_ms=now_ms,
            boot_ms=clock.boot_ms(),
            due_ms=due_ms,
            lost_after_ms=None if put_back else since_ms,
        )
        await link.run(RAISE, (incarnation,))
        await link.run(
            "UPDATE $s.incarnation SET number = %s, lost_after_ms = %s, restored_ms = %s",
            (incarnation, lost_by_all(lost_after_ms, before=(row[4], row[5]), now_ms=now_ms), now_ms),
        )
        await link.run(NOTE_TABLES)
        newest = max(newest, row[1])
        await begin_total(link, running, last=newest, at_ms=now_ms)
        await standby.note(link, (await standby.find_durability(link)).kept, decided=True)
        restored = Restored(
            journal_id=folder.name,
            incarnation=incarnation,
            sequence=row[1],
            mark_sequence=mark.sequence,
            lost_after_ms=lost_after_ms,
            open_tasks=tasks,
            put_back=put_back,
        )
        done.append((restored, newest))
        if dry_run:
            raise _DryRun

    try:
        await transact(link, act)
    except _DryRun:
        return done[-1][0]
    restored, newest = done[-1]
    raise_stored(folder, HighWater(restored.incarnation, newest), at_ms=clock.wall_ms())
    forget_seen(folder)
    return restored


async def _mark_suspect(
    link: Link, wraps: KeyWraps, *, at_ms: int, boot_ms: int, due_ms: int, lost_after_ms: int | None
) -> tuple[int, int]:
    """How many open tasks there are, and the highest record number. Without `lost_after_ms`, each task has lost what
    came after its own newest record."""
    rows = await link.run(
        "SELECT k.t, k.task_id, k.epoch, k.seq, k.head, k.key_id, k.data_key, r.at_ms, r.epoch FROM $s.task k "
        f"JOIN $s.record r ON r.t = k.t AND r.seq = k.seq WHERE {_OPEN} ORDER BY k.t FOR UPDATE OF k"
    )
    kept: list[tuple[int, Chained]] = []
    for t, raw, _, seq, head, key_id, data_key, own_ms, epoch in rows:
        lost = own_ms if lost_after_ms is None else lost_after_ms
        made = chained(
            [NewRecord(kind=RecordKind.RESTORED, body=RestoredFrom(lost).body())],
            seq=seq,
            head=head,
            task_id=raw,
            epoch=epoch,  # of its newest record: no claim is behind a higher one
            at_ms=at_ms,
            boot_ms=boot_ms,
            sealer=wraps.open_data_key(key_id, data_key, raw),
        )
        kept.append((t, made))
        await link.run(
            "UPDATE $s.task SET state = 'queued', session = NULL, crashes = 0, due_ms = %s, seq = %s, head = %b, "
            "changed_ms = greatest(changed_ms, %s) WHERE t = %s",
            (due_ms, made.seq, made.head, at_ms, t),
        )
    numbers = await link.run(KEEP, records_by_column(kept)) if kept else []
    return len(rows), max((row[2] for row in numbers), default=0)


async def begin_total(link: Link, running: RunningTotal, *, last: int, at_ms: int) -> None:
    """What is there is right from now on: one row for all."""
    total = 0
    async for rows in link.parts("SELECT head, erased_ms IS NOT NULL FROM $s.task", rows=2_000):
        total += running.of(rows)
    tally = Tally(running)
    stored = running.hide(total % MODULUS, tally.w.encode(), os.urandom(NONCE_BYTES))
    await link.run("DELETE FROM $s.tally")
    now = await link.one("SELECT $now")
    await note_folded(link, max(at_ms, 0 if now is None else int(now[0])))
    await link.run(
        "INSERT INTO $s.tally (w, stamp, total, last, at_ms) VALUES (%s, 1, %b, %s, %s)", (tally.w, stored, last, at_ms)
    )
