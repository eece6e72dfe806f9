"""Remarks: what Holdfast has to write into the agent's memory files, kept until it is there.

Numbered without a gap and chained, as in the embedded journal: so whoever adds one holds the row of `counter` that has
the newest number and hash until its commit. Each folder of the agent has a mark of its own: several hosts write the
same remarks into their files, and a remark is erased only when it is in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.journal import rules
from holdfast.journal.chain import first_remark_link, next_remark_link
from holdfast.journal.contract import KeptRemark, Remark, RemarkMark
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.place import Row
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.verbs.remarks import COLUMNS, open_remark, remark_place

_encode = msgspec.json.Encoder().encode


async def add_all(link: Link, remarks: Sequence[Remark], wraps: KeyWraps, *, at_ms: int) -> list[int]:
    """Add those whose id is new; the numbers of all."""
    for remark in remarks:
        rules.check_remark(remark)
    return [await add(link, remark, wraps, at_ms=at_ms) for remark in remarks]


async def add(link: Link, remark: Remark, wraps: KeyWraps, *, at_ms: int) -> int:
    newest = cast(Row, await link.one("SELECT value, head FROM $s.counter WHERE name = 'remark' FOR UPDATE"))
    found = await link.one("SELECT n FROM $s.remark WHERE remark_id = %s", (remark.remark_id,))
    if found is not None:
        return found[0]
    number, before = newest[0] + 1, newest[1] or await _first(link)
    key_id = wraps.current
    body = wraps.payload(key_id).seal(_encode(remark), remark_place(number, remark.remark_id))
    hashed = next_remark_link(before, number=number, at_ms=at_ms, key_id=key_id, remark_id=remark.remark_id, body=body)
    await link.run(
        f"INSERT INTO $s.remark ({COLUMNS}) VALUES (%s, %s, %s, %s, %b, %b, %b)",
        (number, remark.remark_id, key_id, at_ms, body, before, hashed),
    )
    await link.run("UPDATE $s.counter SET value = %s, head = %b WHERE name = 'remark'", (number, hashed))
    return number


async def read_after(link: Link, number: int, limit: int, wraps: KeyWraps) -> list[KeptRemark]:
    """Those with a higher number, in order. Raises JournalDamaged where one was changed."""
    rows = await link.run(f"SELECT {COLUMNS} FROM $s.remark WHERE n > %s ORDER BY n LIMIT %s", (number, limit))
    before = None
    kept: list[KeptRemark] = []
    for row in rows:
        kept.append(open_remark(row, wraps, before=before))
        before = (row[0], row[6])
    return kept


async def find_link(link: Link, number: int) -> bytes | None:
    row = await link.one("SELECT hash FROM $s.remark WHERE n = %s", (number,))
    return None if row is None else row[0]


async def marks(link: Link) -> list[RemarkMark]:
    rows = await link.run("SELECT folder, name, number, at_ms FROM $s.remark_mark ORDER BY number, folder")
    return [RemarkMark(folder=folder, name=name, number=number, at_ms=at_ms) for folder, name, number, at_ms in rows]


async def close(link: Link, number: int, folder: str, name: str, *, at_ms: int) -> None:
    """They are in this folder's files up to this one. A lower number than before changes nothing."""
    await link.run(
        "INSERT INTO $s.remark_mark AS m (folder, name, number, at_ms) "
        "SELECT %s, %s, least(%s, value), %s FROM $s.counter WHERE name = 'remark' AND least(%s, value) > 0 "
        "ON CONFLICT (folder) DO UPDATE SET name = excluded.name, number = excluded.number, at_ms = excluded.at_ms "
        "WHERE excluded.number > m.number",
        (folder, name, number, at_ms, number),
    )


async def forget(link: Link, folder: str) -> bool:
    return await link.change("DELETE FROM $s.remark_mark WHERE folder = %s", (folder,)) == 1


async def erase(link: Link, *, before_ms: int) -> None:
    """Forget those that are in the files of every folder since long; the newest stays."""
    await link.run(
        "WITH gone AS (DELETE FROM $s.remark WHERE at_ms < %s AND n <= (SELECT min(number) FROM $s.remark_mark) "
        "AND n < (SELECT value FROM $s.counter WHERE name = 'remark') RETURNING n) "
        "UPDATE $s.counter SET value = greatest(value, (SELECT max(n) FROM gone)) WHERE name = 'remarks erased'",
        (before_ms,),
    )


async def _first(link: Link) -> bytes:
    row = await link.one("SELECT value FROM $s.meta WHERE key = 'journal_id'")
    if row is None:
        raise JournalDamaged("the journal's table `meta` has no row 'journal_id'")
    return first_remark_link(str(row[0]))
