"""Making an older copy of the journal a proper restore (T14).

What was committed after the copy is lost to us, but not undone outside: every slot from the
copy's head on is *suspect*. The restore raises the incarnation above every one this machine has
seen, so that no epoch or fence is ever issued twice, and writes into each open task that the
timeline after its newest record is lost. From then on such a task looks up or parks before it
sends; tasks submitted again under an old request id are treated the same, because they may have
run in the lost timeline.

One transaction, then the high-water mark. A crash in between leaves a journal of the new
incarnation, which outranks every older mark: running the restore again is harmless.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import apsw
import msgspec

from holdfast.core.clock import Clock
from holdfast.core.ports import KeyRing
from holdfast.errors import JournalDamaged
from holdfast.host.private_files import check_place, check_private_file, ensure_private_folder
from holdfast.host.sqlite import Db
from holdfast.journal.records import Entry, Kind
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.high_water import HighWater, high_water, raise_stored
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.opening import check
from holdfast.journal.sqlite.opening.open import check_keys, connect, get_meta, peek
from holdfast.journal.sqlite.rows import Tail, add_records
from holdfast.journal.sqlite.writer import Txn, translated

ALONE_WAIT_S = 20.0
SINCE_EVER_MS = 1  # a copy without a record: not 0, which says that nothing is lost


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, or with `dry_run` would do."""

    journal_id: str
    incarnation: int
    sequence: int  # of the copy
    mark_sequence: int  # what this machine had committed
    lost_after_ms: int  # the newest record of the copy
    open_tasks: int  # now suspect


async def restore_journal(
    path: Path, *, keys: KeyRing, clock: Clock, instance_folder: Path, dry_run: bool = False, above: int = 0
) -> Restored:
    """Take the file at this path as the journal from now on, under a new incarnation.

    It is higher than every one that the file and this machine know of, and than `above`: what
    somebody else has seen, such as the head of a newer backup, or an arbiter has granted.

    Raises JournalDamaged where the copy itself is damaged; JournalBusy while anyone uses it.
    """
    check_place(path)
    check_private_file(path)
    try:
        folder = instance_folder / peek(path)
        ensure_private_folder(instance_folder)
        ensure_private_folder(folder)
        with await JournalUse.exclusive(folder, timeout_s=ALONE_WAIT_S):
            return _restore(path, folder, keys=keys, clock=clock, dry_run=dry_run, above=above)
    except apsw.Error as error:
        raise translated(error) from error


def _restore(path: Path, folder: Path, *, keys: KeyRing, clock: Clock, dry_run: bool, above: int) -> Restored:
    wraps = KeyWraps(keys)
    findings = check.find_damage(str(path), wraps)
    if findings:
        raise JournalDamaged(f"{path} cannot be restored from: {findings[0]}")
    db = connect(path)
    try:
        check_keys(db, keys)
        mark = high_water(folder)
        incarnation = max(int(str(get_meta(db, "incarnation"))), mark.incarnation, above) + 1
        db.execute("BEGIN IMMEDIATE")
        number, newest_ms = _newest(db)
        txn = Txn(db, number=number, at_ms=max(newest_ms, clock.wall_ms()), boot_ms=clock.boot_ms())
        tasks = _mark_suspect(txn, wraps, lost_after_ms=newest_ms)
        _set_meta(db, "incarnation", incarnation)
        _set_meta(db, "lost_after_ms", newest_ms)
        _set_meta(db, "restored_ms", txn.at_ms)
        db.execute("UPDATE session SET ended = 2 WHERE ended = 0")
        db.execute("ROLLBACK" if dry_run else "COMMIT")
        if not dry_run:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
    finally:
        db.close()
    if not dry_run:
        raise_stored(folder, HighWater(incarnation, txn.number), at_ms=txn.at_ms)
    return Restored(
        journal_id=folder.name,
        incarnation=incarnation,
        sequence=number,
        mark_sequence=mark.sequence,
        lost_after_ms=newest_ms,
        open_tasks=tasks,
    )


def suspect_entry(lost_after_ms: int) -> Entry:
    return Entry(kind=Kind.RESTORED, body={"lost_after_ms": lost_after_ms})


def _mark_suspect(txn: Txn, wraps: KeyWraps, *, lost_after_ms: int) -> int:
    rows = txn.db.execute(
        "SELECT t, task_id, epoch, seq, head, last, key_id, data_key FROM task "
        "WHERE state NOT IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL"
    ).fetchall()
    for t, raw, epoch, seq, head, last, key_id, data_key in rows:
        tail = Tail(seq=seq, head=head, last=last)
        add_records(
            txn,
            tail,
            (suspect_entry(lost_after_ms),),
            row=t,
            task_id=raw,
            epoch=epoch,
            sealer=wraps.open_data_key(key_id, data_key, raw),
        )
        txn.db.execute(
            "UPDATE task SET state = 'queued', session = NULL, crashes = 0, due_ms = ?, seq = ?, "
            "head = ?, last = ?, changed_ms = ? WHERE t = ?",
            (txn.at_ms, tail.seq, tail.head, tail.last, txn.at_ms, t),
        )
    return len(rows)


def _newest(db: Db) -> tuple[int, int]:
    row = db.execute("SELECT n, at_ms FROM record ORDER BY n DESC LIMIT 1").fetchone()
    return (0, SINCE_EVER_MS) if row is None else (cast(int, row[0]), cast(int, row[1]))


def _set_meta(db: Db, key: str, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))
