"""The full check: the file's own structure, every chain, every seal, every head, every row.

Reads with a connection of its own and changes nothing. One line per finding.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import apsw

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import HoldfastError, JournalDamaged
from holdfast.host.sqlite import Db, open_to_read
from holdfast.journal.chain import first_link
from holdfast.journal.contract import InboxItem
from holdfast.journal.records import Record, TaskView, fold
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.opening.row_check import ROW_COLUMNS, Row, find_odd, find_odd_item
from holdfast.journal.sqlite.rows import COLUMNS, open_record, verify_link
from holdfast.journal.sqlite.verbs import remarks
from holdfast.journal.sqlite.verbs.inbox import ITEM_COLUMNS, open_item

FINDINGS_MAX = 100


def find_damage(path: Path, wraps: KeyWraps) -> list[str]:
    """What is wrong with the journal at this path; an empty list when nothing is."""
    findings: list[str] = []
    try:
        db = open_to_read(path)
    except apsw.Error as error:
        return [f"the file cannot be opened: {error}"]
    try:
        db.execute("BEGIN")  # one moment for the whole check
        _check_file(db, findings)
        chains = _check_chains(db, wraps, findings)
        _check_rows(db, chains, findings)
        _check_sealed_rows(db, wraps, findings)
        if cast(int, db.pragma("user_version")) >= remarks.SINCE:
            findings.extend(remarks.find_damage(db, wraps))
    except apsw.Error as error:
        findings.append(f"reading stopped: {error}")
    except (ValueError, TypeError) as error:
        findings.append(f"reading stopped at a row that cannot be understood: {error}")
    finally:
        db.close()
    return findings[:FINDINGS_MAX]


def _check_file(db: Db, findings: list[str]) -> None:
    for row in db.execute(f"PRAGMA integrity_check({FINDINGS_MAX})"):
        if row[0] != "ok":
            findings.append(f"structure: {row[0]}")


class _Chain:
    __slots__ = ("last", "link", "raw", "sealer", "view", "wanted")

    def __init__(self, raw: bytes, wanted: tuple[int, bytes, int], sealer: DataKeySealer) -> None:
        self.raw = raw
        self.wanted = wanted
        self.sealer = sealer
        self.link = first_link(raw)
        self.view = TaskView(task_id_from_bytes(raw))
        self.last: Record | None = None


def _check_chains(db: Db, wraps: KeyWraps, findings: list[str]) -> dict[int, _Chain]:
    """One pass in the order of the numbers: a task's records follow each other in it.

    Returns the chains that are sound, by the number of their task's row.
    """
    chains: dict[int, _Chain] = {}
    broken: set[int] = set()
    for row in db.execute("SELECT t, task_id, seq, head, epoch, key_id, data_key FROM task WHERE erased_ms IS NULL"):
        t, raw, seq, head, epoch, key_id, data_key = row
        try:
            sealer = wraps.open_data_key(key_id, data_key, raw)
            chains[t] = _Chain(raw, (seq, head, epoch), sealer)
        except HoldfastError as error:
            broken.add(t)
            findings.append(f"task row {t}: {error.message}")
    for row in db.execute(f"SELECT {COLUMNS}, t FROM record ORDER BY n"):
        *columns, t = row
        chain = chains.get(t)
        if t in broken:
            continue
        if chain is None:
            findings.append(f"record number {columns[0]} belongs to no task")
            continue
        try:
            where = f"task {chain.view.task_id}"
            chain.link = verify_link(chain.link, tuple(columns), where=where)
            chain.last = open_record(tuple(columns), chain.raw, chain.sealer)
            fold(chain.view, chain.last)
        except (HoldfastError, KeyError, ValueError, TypeError) as error:
            broken.add(t)
            findings.append(str(error))
    for t, chain in chains.items():
        if t not in broken and chain.wanted != (chain.view.seq, chain.link, chain.view.epoch):
            broken.add(t)
            findings.append(f"task {chain.view.task_id}: its row does not match its last record")
    return {t: chain for t, chain in chains.items() if t not in broken}


def _check_rows(db: Db, chains: dict[int, _Chain], findings: list[str]) -> None:
    """Clear columns against what the chain says; the inbox's seals on the way."""
    items = _open_inbox(db, chains, findings)
    for t, *columns in db.execute(f"SELECT t, {ROW_COLUMNS} FROM task WHERE erased_ms IS NULL"):
        chain = chains.get(t)
        if chain is None or chain.last is None:
            continue
        view, inbox = chain.view, items.get(t, [])
        where = f"task {view.task_id}"
        odd = find_odd(Row(*columns), view, chain.last, inbox)
        findings.extend(f"{where}: {finding}" for finding in odd)
        for item in inbox:
            odd = find_odd_item(item, view)
            findings.extend(f"{where}: {finding}" for finding in odd)


def _open_inbox(db: Db, chains: dict[int, _Chain], findings: list[str]) -> dict[int, list[InboxItem]]:
    items: dict[int, list[InboxItem]] = {}
    for t, *columns in db.execute(f"SELECT i.t, {ITEM_COLUMNS} FROM inbox i ORDER BY i.n"):
        chain = chains.get(t)
        if chain is None:
            continue  # erased, or found broken already
        try:
            items.setdefault(t, []).append(open_item(columns, chain.raw, chain.sealer))
        except (HoldfastError, ValueError, TypeError) as error:
            findings.append(f"task {chain.view.task_id}: inbox item {columns[0]}: {error}")
    return items


def _check_sealed_rows(db: Db, wraps: KeyWraps, findings: list[str]) -> None:
    queries = (
        ("blob", "SELECT digest, key_id, body FROM blob"),
        ("notice", "SELECT CAST(notice_id AS BLOB), key_id, body FROM notice"),
    )
    for table, query in queries:
        for row in db.execute(query):
            name, key_id, body = cast("tuple[bytes, int, bytes]", row)
            try:
                wraps.payload(key_id).open(body, table.encode() + b"\0" + name)
            except (JournalDamaged, ValueError, TypeError) as error:
                findings.append(f"{table}: {error}")
