"""Acts of upkeep: blobs, notices, retention."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.notices import Notice
from holdfast.errors import BadReference, BlobNotFound, JournalDamaged, TaskNotFound
from holdfast.host.sqlite import Db
from holdfast.journal import rules
from holdfast.journal.records import TaskState
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs import remarks

RETAIN_TASKS_MAX = 500  # in one commit, so that no process waits long for the lock
DIGEST = re.compile(r"[0-9a-f]{64}")

_encode = msgspec.json.Encoder().encode
_decode_notice = json_decoder(Notice).decode


def put_blob(txn: Txn, content: bytes, task_id: TaskId | None, wraps: KeyWraps, digest_key: bytes) -> str:
    return put_blobs(txn, (content,), task_id, wraps, digest_key)[0]


def put_blobs(
    txn: Txn, contents: Sequence[bytes], task_id: TaskId | None, wraps: KeyWraps, digest_key: bytes
) -> list[str]:
    for content in contents:
        rules.check_blob(len(content))
    use = None if task_id is None else _row_of(txn.db, task_id)
    return [_put_blob(txn, content, use, wraps, digest_key) for content in contents]


def _put_blob(txn: Txn, content: bytes, use: int | None, wraps: KeyWraps, digest_key: bytes) -> str:
    digest = blob_digest(content, digest_key)
    if txn.db.execute("SELECT 1 FROM blob WHERE digest = ?", (digest,)).fetchone() is None:
        key_id = wraps.current
        body = wraps.payload(key_id).seal(content, b"blob\0" + digest)
        txn.db.execute(
            "INSERT INTO blob (digest, size, key_id, at_ms, body) VALUES (?, ?, ?, ?, ?)",
            (digest, len(content), key_id, txn.at_ms, body),
        )
    if use is not None:
        txn.db.execute("INSERT OR IGNORE INTO blob_use (digest, t) VALUES (?, ?)", (digest, use))
    return digest.hex()


def get_blob(db: Db, digest: str, wraps: KeyWraps, digest_key: bytes) -> bytes:
    if not DIGEST.fullmatch(digest):
        raise BadReference(f"{digest!r} is not a blob digest", hint="a blob digest has 64 hex digits")
    raw = bytes.fromhex(digest)
    row = db.execute("SELECT key_id, body FROM blob WHERE digest = ?", (raw,)).fetchone()
    if row is None:
        raise BlobNotFound(f"no blob {digest}")
    key_id, body = cast("tuple[int, bytes]", row)
    content = wraps.payload(key_id).open(body, b"blob\0" + raw)
    if blob_digest(content, digest_key) != raw:
        raise JournalDamaged(f"blob {digest} does not match its digest")
    return content


def blob_digest(content: bytes, digest_key: bytes) -> bytes:
    """Keyed: a thief of the file cannot test whether a known text is in it."""
    return hashlib.blake2b(content, key=digest_key, digest_size=32).digest()


def add_notice(txn: Txn, notice: Notice, wraps: KeyWraps) -> None:
    key_id = wraps.current
    body = wraps.payload(key_id).seal(_encode(notice), notice_place(notice.notice_id))
    txn.db.execute(
        "INSERT OR IGNORE INTO notice (notice_id, key_id, body, at_ms) VALUES (?, ?, ?, ?)",
        (notice.notice_id, key_id, body, txn.at_ms),
    )


def pending_notices(db: Db, limit: int, wraps: KeyWraps) -> list[Notice]:
    rows = db.execute(
        "SELECT notice_id, key_id, body FROM notice WHERE told_ms IS NULL ORDER BY at_ms LIMIT ?", (limit,)
    ).fetchall()
    return [
        _decode_notice(wraps.payload(key_id).open(body, notice_place(notice_id))) for notice_id, key_id, body in rows
    ]


def close_notice(txn: Txn, notice_id: str) -> None:
    txn.db.execute("UPDATE notice SET told_ms = ? WHERE notice_id = ?", (txn.at_ms, notice_id))


def retain(txn: Txn, *, keep_ms: int, tombstone_ms: int) -> int:
    """Erase what ended long ago; forget tombstones that outlived the longest key window."""
    now = txn.at_ms
    rows = txn.db.execute(
        "SELECT t, state, changed_ms, keep_until_ms, last FROM task "
        "WHERE state IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL "
        "AND changed_ms < ? ORDER BY t LIMIT ?",
        (now - keep_ms, RETAIN_TASKS_MAX),
    ).fetchall()
    erased = 0
    for row in rows:
        t, state, ended_ms, keep_until_ms, last = cast("tuple[int, str, int, int, int]", row)
        # The newest record stays: record numbers and time must never fall back behind it.
        if last == txn.number or not rules.erasable(
            state=TaskState(state), ended_ms=ended_ms, keep_until_ms=keep_until_ms, keep_ms=keep_ms, now_ms=now
        ):
            continue
        _erase(txn, t)
        erased += 1
    _forget_tombstones(txn, tombstone_ms)
    remarks.erase(txn, keep_ms=keep_ms)
    txn.db.execute("DELETE FROM notice WHERE told_ms IS NOT NULL AND told_ms < ?", (now - keep_ms,))
    txn.db.execute("DELETE FROM blob WHERE at_ms < ? AND digest NOT IN (SELECT digest FROM blob_use)", (now - keep_ms,))
    txn.db.execute(
        "DELETE FROM session WHERE ended != 0 AND begun_ms < ? "
        "AND s NOT IN (SELECT session FROM task WHERE session IS NOT NULL)",
        (now - keep_ms,),
    )
    return erased


def _erase(txn: Txn, t: int) -> None:
    txn.db.execute("UPDATE task SET erased_ms = ?, data_key = x'' WHERE t = ?", (txn.at_ms, t))
    found = txn.db.execute("SELECT last, head FROM task WHERE t = ?", (t,)).fetchone()
    number, head = cast("tuple[Any, bytes]", found)
    txn.erase(head)
    while number:
        row = txn.db.execute("SELECT prev FROM record WHERE n = ?", (number,)).fetchone()
        txn.db.execute("DELETE FROM record WHERE n = ?", (number,))
        number = 0 if row is None else row[0]
    txn.db.execute("DELETE FROM inbox WHERE t = ?", (t,))
    txn.db.execute("DELETE FROM blob_use WHERE t = ?", (t,))


def _forget_tombstones(txn: Txn, tombstone_ms: int) -> None:
    rows = txn.db.execute(
        "SELECT t, erased_ms, keep_until_ms, head FROM task WHERE erased_ms IS NOT NULL AND erased_ms < ? LIMIT ?",
        (txn.at_ms - tombstone_ms, RETAIN_TASKS_MAX),
    ).fetchall()
    for row in rows:
        t, erased_ms, keep_until_ms, head = cast("tuple[int, int, int, bytes]", row)
        if rules.tombstone_over(
            erased_ms=erased_ms, keep_until_ms=keep_until_ms, tombstone_ms=tombstone_ms, now_ms=txn.at_ms
        ):
            txn.db.execute("DELETE FROM task WHERE t = ?", (t,))
            txn.forget(head)


def _row_of(db: Db, task_id: TaskId) -> int:
    row = db.execute("SELECT t FROM task WHERE task_id = ?", (task_id_bytes(task_id),)).fetchone()
    if row is None:
        raise TaskNotFound(task_id)
    return cast(int, row[0])


def notice_place(notice_id: str) -> bytes:
    return b"notice\0" + notice_id.encode()
