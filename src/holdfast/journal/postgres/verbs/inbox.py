"""Facts about a task from anyone: evidence, decisions, approvals, cancels.

Item numbers rise in the order of commits, because whoever reads "after" a number must never miss a lower one that is
committed later: the number is drawn last, and its row is held until the commit. A drop locks its task first, so that a
task which goes to rest at the same moment either finds the item or is woken by it. A drop in doubt is made again; its
mark makes the second one the first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.ports import Sealer
from holdfast.errors import TaskNotFound
from holdfast.journal import rules
from holdfast.journal.contract import DropCheck, Hold, InboxItem
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.rows import COLUMNS, folded
from holdfast.journal.records import TaskState
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.verbs.inbox import READ_MAX, item_place, open_item

ITEM_COLUMNS = "i.n, i.ordinal, i.kind, i.body, i.at_ms, i.applied"

_encode = msgspec.json.Encoder().encode


class Drop:
    """One drop; calling it again is the same drop."""

    def __init__(self, item: InboxItem, wraps: KeyWraps, check: DropCheck | None, *, at_ms: int) -> None:
        self._item = item
        self._wraps = wraps
        self._check = check
        self._at_ms = at_ms
        self._mark = os.urandom(16)

    async def __call__(self, link: Link) -> int:
        item, at_ms = self._item, self._at_ms
        raw = task_id_bytes(item.task_id)
        row = await link.one(
            "SELECT t, state, key_id, data_key, crashes, seq, head, changed_ms FROM $s.task "
            "WHERE task_id = %b AND erased_ms IS NULL FOR UPDATE",
            (raw,),
        )
        if row is None:
            raise TaskNotFound(item.task_id)
        t, name, key_id, data_key, crashes, seq, head, changed_ms = cast(
            "tuple[int, str, int, bytes, int, int, bytes, int]", row
        )
        again = await link.one("SELECT n FROM $s.inbox WHERE mark = %b", (self._mark,))
        if again is not None:
            return again[0]
        sealer = self._wraps.open_data_key(key_id, data_key, raw)
        if self._check is not None:
            records = await link.run(f"SELECT {COLUMNS} FROM $s.record r WHERE t = %s ORDER BY seq", (t,))
            view = folded(records, task_id=item.task_id, seq=seq, head=head, sealer=sealer)
            self._check(view, await items(link, t, raw, sealer))
        state = TaskState(name)
        woken = rules.wake(state, item.kind, crashes=crashes, changed_ms=changed_ms)
        if woken is not None:
            await link.change(
                "UPDATE $s.task SET state = %s, due_ms = %s, crashes = %s, changed_ms = greatest(changed_ms, %s) "
                "WHERE t = %s",
                (woken.state.value, woken.due_ms, woken.crashes, at_ms, t),
            )
        if rules.asks_cancel(state, item.kind):
            await link.change("UPDATE $s.task SET cancel_asked = true WHERE t = %s", (t,))
        body = sealer.seal(_encode(item.body), item_place(raw, item.ordinal, item.kind))
        kept = await link.one(
            "WITH next AS (UPDATE $s.counter SET value = value + 1 WHERE name = 'inbox' RETURNING value) "
            "INSERT INTO $s.inbox (n, mark, t, ordinal, kind, body, at_ms) "
            "SELECT value, %b, %s, %s, %s, %b, %s FROM next RETURNING n",
            (self._mark, t, item.ordinal, item.kind.value, body, at_ms),
        )
        return cast(Row, kept)[0]


async def has_unseen(link: Link, hold: Hold) -> bool:
    """Whether the inbox has what the owner was not given. The task's row is locked."""
    query = "SELECT 1 FROM $s.inbox WHERE t = %s AND NOT applied AND n > %s LIMIT 1"
    return await link.one(query, (hold.row, hold.seen)) is not None


async def read_after(link: Link, after: int, wraps: KeyWraps) -> list[InboxItem]:
    rows = await link.run(
        f"SELECT {ITEM_COLUMNS}, k.task_id, k.key_id, k.data_key FROM $s.inbox i JOIN $s.task k ON k.t = i.t "
        "WHERE i.n > %s AND NOT i.applied AND k.erased_ms IS NULL "
        "AND k.state NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY i.n LIMIT %s",
        (after, READ_MAX),
    )
    return [
        open_item(columns, raw, wraps.open_data_key(key_id, data_key, raw)) for *columns, raw, key_id, data_key in rows
    ]


async def of_task(link: Link, task_id: TaskId, wraps: KeyWraps) -> list[InboxItem]:
    raw = task_id_bytes(task_id)
    rows = await link.run(
        f"SELECT {ITEM_COLUMNS}, k.key_id, k.data_key FROM $s.inbox i JOIN $s.task k ON k.t = i.t "
        "WHERE k.task_id = %b AND k.erased_ms IS NULL ORDER BY i.n",
        (raw,),
    )
    return [open_item(columns, raw, wraps.open_data_key(key_id, data_key, raw)) for *columns, key_id, data_key in rows]


async def items(link: Link, t: int, raw: bytes, sealer: Sealer) -> list[InboxItem]:
    rows = await link.run(f"SELECT {ITEM_COLUMNS} FROM $s.inbox i WHERE i.t = %s ORDER BY i.n", (t,))
    return [open_item(list(row), raw, sealer) for row in rows]


async def pending(link: Link, holds: Sequence[Hold]) -> dict[int, list[InboxItem]]:
    """What is not yet applied, by the row of the task."""
    rows = await link.run(
        f"SELECT i.t, {ITEM_COLUMNS} FROM $s.inbox i WHERE i.t = ANY(%s) AND NOT i.applied ORDER BY i.n",
        ([hold.row for hold in holds],),
    )
    known = {hold.row: (task_id_bytes(hold.task_id), cast(Sealer, hold.sealer)) for hold in holds}
    found: dict[int, list[InboxItem]] = {}
    for t, *columns in rows:
        found.setdefault(t, []).append(open_item(columns, *known[t]))
    return found
