"""Records as rows of PostgreSQL: sealing and chaining; reading back is shared with the embedded journal."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.ports import Sealer
from holdfast.errors import InvariantViolated, JournalDamaged
from holdfast.journal.chain import first_link, next_link, place
from holdfast.journal.postgres.place import Row
from holdfast.journal.records import RECORDS_MAX, NewRecord, TaskView, fold
from holdfast.journal.seal import NONCE_BYTES, PACK_MIN, packed
from holdfast.journal.sqlite.rows import open_record, pack_events, verify_link

_encode = msgspec.json.Encoder().encode

# In the order in which `open_record` and `verify_link` take them; there is no number of the record before.
COLUMNS = (
    "r.n, r.seq, 0, r.kind, r.what, r.ordinal, r.epoch, r.at_ms, r.boot_ms, r.effect_key, r.fingerprint, r.slot, "
    "r.quiet, r.body, r.hash"
)
TASK_COLUMNS = (
    "k.task_id, k.name, k.state, k.epoch, coalesce(s.session_id, ''), k.created_ms, k.changed_ms, "
    "k.due_ms, k.seq + 1, k.crashes, k.cancel_asked, k.erased_ms"
)
TASK_FROM = "FROM $s.task k LEFT JOIN $s.session s ON s.s = k.session"


class Chained(msgspec.Struct, eq=False, gc=False):  # no cycle: every step passes here
    """Records that follow a head, sealed and hashed, ready to be inserted."""

    rows: list[Row]  # seq, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash
    before: bytes
    head: bytes
    seq: int
    at_ms: int


def chained(
    entries: Sequence[NewRecord],
    *,
    seq: int,
    head: bytes,
    task_id: bytes,
    epoch: int,
    at_ms: int,
    boot_ms: int,
    sealer: Sealer,
) -> Chained:
    """The entries behind the record `seq` whose hash is `head`. Raises what a body that cannot be kept raises."""
    rows: list[Row] = []
    before, nonces = head, os.urandom(NONCE_BYTES * len(entries))  # drawn by one call of the system
    for at, entry in enumerate(entries):
        seq += 1
        kind, what, name, key, mark = (
            int(entry.kind),
            pack_events(entry.events),
            entry.ordinal,
            entry.effect_key,
            entry.fingerprint,
        )
        slot, quiet = entry.slot, entry.quiet
        plain = _encode(entry.body)
        if len(plain) >= PACK_MIN:
            plain = packed(plain)
        body = sealer.seal(plain, place(task_id, seq, kind, name, epoch), nonces[at * NONCE_BYTES :][:NONCE_BYTES])
        # Positions, not names, in the order of the chain: every record passes here.
        head = next_link(head, seq, kind, what, epoch, at_ms, boot_ms, slot, quiet, name, key, mark, body)
        rows.append((seq, kind, what, name, epoch, at_ms, boot_ms, key, mark, slot, quiet, body, head))
    if seq >= RECORDS_MAX:
        raise InvariantViolated("limit", f"a task has at most {RECORDS_MAX:,} records")
    return Chained(rows, before, head, seq, at_ms)


def folded(rows: Sequence[Row], *, task_id: TaskId, seq: int, head: bytes, sealer: Sealer) -> TaskView:
    """Verify each link and fold the records, given in the order of their sequence.
    Raises JournalDamaged at the first record that is missing, changed or out of place."""
    if len(rows) != seq + 1:
        raise JournalDamaged(f"task {task_id}: the journal has {len(rows)} of its {seq + 1} records")
    raw = task_id_bytes(task_id)
    link, view = first_link(raw), TaskView(task_id)
    for row in rows:
        link = verify_link(link, row, where=f"task {task_id}")
        fold(view, open_record(row, raw, sealer))
    if link != head:
        raise JournalDamaged(f"task {task_id}: its records do not match the hash that the journal keeps of them")
    return view
