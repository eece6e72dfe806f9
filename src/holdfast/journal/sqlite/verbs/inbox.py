"""Facts about a task from anyone: evidence, decisions, approvals, cancels."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.ports import Sealer
from holdfast.errors import JournalDamaged, TaskNotFound
from holdfast.host.sqlite import Db
from holdfast.journal import rules
from holdfast.journal.contract import DropCheck, Hold, InboxItem, InboxKind
from holdfast.journal.records import Body, TaskState
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.rows import BAD_COLUMN, read_view
from holdfast.journal.sqlite.txn import Txn

READ_MAX = 1_000
ITEM_COLUMNS = "i.n, i.ordinal, i.kind, i.body, i.at_ms, i.applied"

_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Body).decode


def drop(txn: Txn, item: InboxItem, wraps: KeyWraps, check: DropCheck | None = None) -> int:
    raw = task_id_bytes(item.task_id)
    row = txn.db.execute(
        "SELECT t, state, key_id, data_key, crashes, seq, head, last, changed_ms FROM task "
        "WHERE task_id = ? AND erased_ms IS NULL",
        (raw,),
    ).fetchone()
    if row is None:
        raise TaskNotFound(item.task_id)
    t, name, key_id, data_key, crashes, seq, head, last, changed_ms = cast(
        "tuple[int, str, int, bytes, int, int, bytes, int, int]", row
    )
    sealer = wraps.open_data_key(key_id, data_key, raw)
    if check is not None:
        view = read_view(txn.db, task_id=item.task_id, seq=seq, head=head, last=last, sealer=sealer)
        check(view, _items(txn.db, t, raw, sealer))
    body = sealer.seal(_encode(item.body), item_place(raw, item.ordinal, item.kind))
    txn.db.execute(
        "INSERT INTO inbox (t, ordinal, kind, body, at_ms) VALUES (?, ?, ?, ?, ?)",
        (t, item.ordinal, item.kind.value, body, txn.at_ms),
    )
    number = txn.db.last_insert_rowid()
    state = TaskState(name)
    woken = rules.wake(state, item.kind, crashes=crashes, changed_ms=changed_ms)
    if woken is not None:
        txn.db.execute(
            "UPDATE task SET state = ?, due_ms = ?, crashes = ?, changed_ms = ? WHERE t = ?",
            (woken.state.value, woken.due_ms, woken.crashes, txn.at_ms, t),
        )
    if rules.asks_cancel(state, item.kind):
        txn.db.execute("UPDATE task SET cancel_asked = 1 WHERE t = ?", (t,))
    return number


def read_after(db: Db, after: int, wraps: KeyWraps) -> list[InboxItem]:
    rows = db.execute(
        f"SELECT {ITEM_COLUMNS}, t.task_id, t.key_id, t.data_key FROM inbox i JOIN task t ON t.t = i.t WHERE i.n > ? "
        "AND i.applied = 0 AND t.erased_ms IS NULL AND t.state NOT IN ('succeeded', 'failed', 'cancelled') "
        "ORDER BY i.n LIMIT ?",
        (after, READ_MAX),
    ).fetchall()
    return [
        open_item(columns, raw, wraps.open_data_key(key_id, data_key, raw)) for *columns, raw, key_id, data_key in rows
    ]


def of_task(db: Db, task_id: TaskId, wraps: KeyWraps) -> list[InboxItem]:
    raw = task_id_bytes(task_id)
    task = db.execute("SELECT t, key_id, data_key FROM task WHERE task_id = ? AND erased_ms IS NULL", (raw,)).fetchone()
    if task is None:
        return []
    t, key_id, data_key = cast("tuple[int, int, bytes]", task)
    sealer = wraps.open_data_key(key_id, data_key, raw)
    return _items(db, t, raw, sealer)


def _items(db: Db, t: int, raw: bytes, sealer: Sealer) -> list[InboxItem]:
    rows = db.execute(f"SELECT {ITEM_COLUMNS} FROM inbox i WHERE i.t = ? ORDER BY i.n", (t,)).fetchall()
    return [open_item(list(row), raw, sealer) for row in rows]


def pending_of(db: Db, hold: Hold) -> list[InboxItem]:
    raw, sealer = task_id_bytes(hold.task_id), cast(Sealer, hold.sealer)
    query = f"SELECT {ITEM_COLUMNS} FROM inbox i WHERE i.t = ? AND i.applied = 0 ORDER BY i.n"
    return [open_item(list(row), raw, sealer) for row in db.execute(query, (hold.row,)).fetchall()]


def open_item(row: list[Any], raw: bytes, sealer: Sealer) -> InboxItem:
    number, ordinal, kind, body, at_ms, applied = row
    try:
        plain = _decode(sealer.open(body, item_place(raw, ordinal, kind)))
        return InboxItem(
            number=number,
            task_id=task_id_from_bytes(raw),
            ordinal=ordinal,
            kind=InboxKind(kind),
            body=plain,
            at_ms=at_ms,
            applied=bool(applied),
        )
    except BAD_COLUMN as error:
        raise JournalDamaged(f"inbox item {number} cannot be read: {error}") from error


def item_place(raw: bytes, ordinal: str, kind: str) -> bytes:
    return b"inbox\0%s\0%s\0%s" % (raw.hex().encode(), ordinal.encode(), kind.encode())
