"""Acts of upkeep: blobs, notices, turns, retention."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.notices import Notice
from holdfast.errors import BadReference, BlobNotFound, JournalDamaged, TaskNotFound
from holdfast.journal import rules
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.verbs import remarks
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.verbs.upkeep import DIGEST, RETAIN_TASKS_MAX, blob_digest, notice_place

_encode = msgspec.json.Encoder().encode
_decode_notice = json_decoder(Notice).decode


async def put_blobs(
    link: Link, contents: Sequence[bytes], task_id: TaskId | None, wraps: KeyWraps, digest_key: bytes, *, at_ms: int
) -> list[str]:
    use = None if task_id is None else await _row_of(link, task_id)
    digests: list[str] = []
    for content in contents:
        digest, key_id = blob_digest(content, digest_key), wraps.current
        if await link.one("SELECT 1 FROM $s.blob WHERE digest = %b FOR SHARE", (digest,)) is None:
            body = wraps.payload(key_id).seal(content, b"blob\0" + digest)
            await link.run(
                "INSERT INTO $s.blob (digest, size, key_id, at_ms, body) VALUES (%b, %s, %s, %s, %b) "
                "ON CONFLICT DO NOTHING",
                (digest, len(content), key_id, at_ms, body),
            )
        if use is not None:
            await link.run("INSERT INTO $s.blob_use (digest, t) VALUES (%b, %s) ON CONFLICT DO NOTHING", (digest, use))
        digests.append(digest.hex())
    return digests


async def get_blob(link: Link, digest: str, wraps: KeyWraps, digest_key: bytes) -> bytes:
    if not DIGEST.fullmatch(digest):
        raise BadReference(f"{digest!r} is not a blob digest", hint="a blob digest has 64 hex digits")
    raw = bytes.fromhex(digest)
    row = await link.one("SELECT key_id, body FROM $s.blob WHERE digest = %b", (raw,))
    if row is None:
        raise BlobNotFound(f"no blob {digest}")
    content = wraps.payload(row[0]).open(row[1], b"blob\0" + raw)
    if blob_digest(content, digest_key) != raw:
        raise JournalDamaged(f"blob {digest} does not match its digest")
    return content


async def add_notice(link: Link, notice: Notice, wraps: KeyWraps, *, at_ms: int) -> None:
    key_id = wraps.current
    body = wraps.payload(key_id).seal(_encode(notice), notice_place(notice.notice_id))
    await link.run(
        "INSERT INTO $s.notice (notice_id, key_id, body, at_ms) VALUES (%s, %s, %b, %s) ON CONFLICT DO NOTHING",
        (notice.notice_id, key_id, body, at_ms),
    )


async def pending_notices(link: Link, limit: int, wraps: KeyWraps) -> list[Notice]:
    rows = await link.run(
        "SELECT notice_id, key_id, body FROM $s.notice WHERE told_ms IS NULL ORDER BY at_ms, notice_id LIMIT %s",
        (limit,),
    )
    return [_decode_notice(wraps.payload(row[1]).open(row[2], notice_place(row[0]))) for row in rows]


async def close_notice(link: Link, notice_id: str, *, at_ms: int) -> None:
    await link.run("UPDATE $s.notice SET told_ms = %s WHERE notice_id = %s", (at_ms, notice_id))


TURN_OVER = "u.until_ms <= $now OR u.until_ms > $now + %s"  # takes turn_ms_max(...)


def turn_ms_max(for_ms: int) -> int:
    """A turn that lasts longer than this was given before the database's clock was set back. Hosts may differ a little
    in how long they take it for."""
    return max(2 * for_ms, 600_000)


async def take_turn(link: Link, name: str, holder: str, *, for_ms: int) -> bool:
    """Whether it is this holder's turn until so long from now, by the database's clock. A holder that dies is waited
    for that long."""
    row = await link.one(
        "INSERT INTO $s.turn AS u (name, holder, until_ms) VALUES (%s, %s, $now + %s) "
        "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms "
        f"WHERE u.holder = excluded.holder OR {TURN_OVER} RETURNING 1",
        (name, holder, for_ms, turn_ms_max(for_ms)),
    )
    return row is not None


async def give_turn(link: Link, name: str, holder: str) -> None:
    await link.run("DELETE FROM $s.turn WHERE name = %s AND holder = %s", (name, holder))


async def erase_old(link: Link, *, now_ms: int, keep_ms: int) -> list[bytes]:
    """Erase the payloads of what ended long ago; the heads of those tasks."""
    rows = await link.run(
        "SELECT t, head FROM $s.task WHERE state IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL "
        "AND created_ms < %s AND changed_ms < %s AND keep_until_ms <= %s ORDER BY created_ms LIMIT %s "
        "FOR UPDATE SKIP LOCKED",
        (now_ms - keep_ms, now_ms - keep_ms, now_ms, RETAIN_TASKS_MAX),
    )
    if rows:
        tasks = [row[0] for row in rows]
        await link.run("UPDATE $s.task SET erased_ms = %s, data_key = '' WHERE t = ANY(%s)", (now_ms, tasks))
        for table in ("record", "inbox", "blob_use"):
            await link.run(f"DELETE FROM $s.{table} WHERE t = ANY(%s)", (tasks,))
    return [row[1] for row in rows]


async def forget_tombstones(link: Link, *, now_ms: int, tombstone_ms: int) -> list[bytes]:
    """Forget tasks that were erased long ago; their heads."""
    rows = await link.run(
        "SELECT t, head, erased_ms, keep_until_ms FROM $s.task WHERE erased_ms IS NOT NULL AND erased_ms < %s "
        "ORDER BY erased_ms LIMIT %s FOR UPDATE SKIP LOCKED",
        (now_ms - tombstone_ms, RETAIN_TASKS_MAX),
    )
    over = [
        row
        for row in rows
        if rules.tombstone_over(erased_ms=row[2], keep_until_ms=row[3], tombstone_ms=tombstone_ms, now_ms=now_ms)
    ]
    if over:
        await link.run("DELETE FROM $s.task WHERE t = ANY(%s)", ([row[0] for row in over],))
    return [row[1] for row in over]


async def sweep_old(link: Link, *, before_ms: int) -> None:
    """Remarks that are in their files, notices that were told, blobs that no task uses, sessions that ended."""
    await remarks.erase(link, before_ms=before_ms)
    await link.run("DELETE FROM $s.notice WHERE told_ms < %s", (before_ms,))
    await link.run(
        "DELETE FROM $s.blob b WHERE at_ms < %s AND NOT EXISTS (SELECT 1 FROM $s.blob_use u WHERE u.digest = b.digest)",
        (before_ms,),
    )
    await link.run(
        "DELETE FROM $s.session s WHERE ended <> 0 AND begun_ms < %s "
        "AND NOT EXISTS (SELECT 1 FROM $s.task k WHERE k.session = s.s)",
        (before_ms,),
    )


async def _row_of(link: Link, task_id: TaskId) -> int:
    row = await link.one("SELECT t FROM $s.task WHERE task_id = %b", (task_id_bytes(task_id),))
    if row is None:
        raise TaskNotFound(task_id)
    return row[0]
