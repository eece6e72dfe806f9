"""The full check: every chain, every seal, every head, every row, read at one moment.

Reads with a connection of its own and changes nothing. One line per finding. What a task's row may say behind its
records is decided where the embedded journal decides it; only the row's epoch may be higher than its records': raising
the incarnation raises it without a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import HoldfastError, JournalDamaged
from holdfast.journal.chain import first_link, first_remark_link
from holdfast.journal.contract import InboxItem
from holdfast.journal.postgres import totals
from holdfast.journal.postgres.links import BEGIN_READING, may_pass
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.place import Row as PgRow
from holdfast.journal.postgres.rows import COLUMNS
from holdfast.journal.postgres.sql_errors import translated
from holdfast.journal.postgres.verbs.inbox import ITEM_COLUMNS
from holdfast.journal.records import Record, TaskView, fold
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.opening.check import FINDINGS_MAX, ROW_COLUMNS, Row, find_odd, find_odd_item
from holdfast.journal.sqlite.rows import open_record, verify_link
from holdfast.journal.sqlite.verbs.inbox import open_item
from holdfast.journal.sqlite.verbs.remarks import COLUMNS as REMARK_COLUMNS
from holdfast.journal.sqlite.verbs.remarks import open_remark


@dataclass(slots=True)
class _Chain:
    raw: bytes
    seq: int
    head: bytes
    epoch: int
    row: Row
    sealer: DataKeySealer
    link: bytes
    view: TaskView
    last: Record | None = None
    broken: bool = False


class _Check:
    def __init__(self, db: Connection[PgRow], place: PostgresPlace, wraps: KeyWraps) -> None:
        self._db = db
        self._place = place
        self._wraps = wraps
        self.findings: list[str] = []

    def run(self, *, put_back: bool) -> None:
        chains = self._chains()
        self._rows(chains)
        self._sealed()
        self._remarks()
        meta = dict(self._read("SELECT key, value FROM $s.meta"))
        running = self._wraps.running_total(str(meta.get("journal_id", "")))
        if put_back and totals.is_put_back(self._db, self._place, running):
            self.findings.append(totals.PUT_BACK)

    def _read(self, query: str) -> Iterator[Any]:
        """Row by row, however many there are."""
        with self._db.cursor("check", binary=True) as cursor:
            cursor.itersize = 1_000
            yield from cursor.execute(self._place.sql(query))

    def _chains(self) -> dict[int, _Chain]:
        chains: dict[int, _Chain] = {}
        query = (
            f"SELECT t, task_id, seq, head, epoch, key_id, data_key, {ROW_COLUMNS} FROM $s.task WHERE erased_ms IS NULL"
        )
        for t, raw, seq, head, epoch, key_id, data_key, *columns in self._read(query):
            try:
                sealer, view = self._wraps.open_data_key(key_id, data_key, raw), TaskView(task_id_from_bytes(raw))
                chains[t] = _Chain(raw, seq, head, epoch, Row(*columns), sealer, first_link(raw), view)
            except HoldfastError as error:
                self.findings.append(f"task row {t}: {error.message}")
        for t, *columns in self._read(f"SELECT r.t, {COLUMNS} FROM $s.record r ORDER BY r.t, r.seq"):
            chain = chains.get(t)
            if chain is None:
                self.findings.append(f"record number {columns[0]} belongs to no task that can be read")
            elif not chain.broken:
                self._follow(chain, tuple(columns))
        for chain in chains.values():
            matches = (chain.seq, chain.head) == (chain.view.seq, chain.link) and chain.epoch >= chain.view.epoch
            if not chain.broken and not matches:
                chain.broken = True
                self.findings.append(f"task {chain.view.task_id}: its row does not match its last record")
        return chains

    def _follow(self, chain: _Chain, row: PgRow) -> None:
        try:
            chain.link = verify_link(chain.link, row, where=f"task {chain.view.task_id}")
            chain.last = open_record(row, chain.raw, chain.sealer)
            fold(chain.view, chain.last)
        except (HoldfastError, KeyError, ValueError, TypeError) as error:
            chain.broken = True
            self.findings.append(str(error))

    def _rows(self, chains: dict[int, _Chain]) -> None:
        """Clear columns against what the chain says; the inbox's seals on the way."""
        items: dict[int, list[InboxItem]] = {}
        for t, *columns in self._read(f"SELECT i.t, {ITEM_COLUMNS} FROM $s.inbox i ORDER BY i.n"):
            chain = chains.get(t)
            if chain is None:
                continue
            try:
                items.setdefault(t, []).append(open_item(columns, chain.raw, chain.sealer))
            except (HoldfastError, ValueError, TypeError) as error:
                self.findings.append(f"task {chain.view.task_id}: inbox item {columns[0]}: {error}")
        for t, chain in chains.items():
            if chain.broken or chain.last is None:
                continue
            view, inbox = chain.view, items.get(t, [])
            odd = [*find_odd(chain.row, view, chain.last, inbox)]
            for item in inbox:
                odd.extend(find_odd_item(item, view))
            self.findings.extend(f"task {view.task_id}: {finding}" for finding in odd)

    def _sealed(self) -> None:
        queries = (
            ("blob", "SELECT digest, key_id, body FROM $s.blob"),
            ("notice", "SELECT convert_to(notice_id, 'UTF8'), key_id, body FROM $s.notice"),
        )
        for table, query in queries:
            for name, key_id, body in self._read(query):
                try:
                    self._wraps.payload(key_id).open(body, table.encode() + b"\0" + name)
                except (JournalDamaged, ValueError, TypeError) as error:
                    self.findings.append(f"{table}: {error}")

    def _remarks(self) -> None:
        meta = dict(self._read("SELECT key, value FROM $s.meta"))
        (newest,) = self._read("SELECT value, head FROM $s.counter WHERE name = 'remark'")
        (erased,) = self._read("SELECT value FROM $s.counter WHERE name = 'remarks erased'")
        before: tuple[int, bytes] | None = None
        for row in self._read(f"SELECT {REMARK_COLUMNS} FROM $s.remark ORDER BY n"):
            try:
                open_remark(row, self._wraps, before=before)
                if before is None and row[0] == 1 and row[5] != first_remark_link(str(meta["journal_id"])):
                    raise JournalDamaged("remark 1 belongs to another journal")
                if before is None and row[0] - 1 > erased[0]:
                    raise JournalDamaged(f"remark {row[0]}: an earlier remark is missing")
            except (HoldfastError, ValueError, TypeError) as error:
                self.findings.append(str(error))
            before = (row[0], row[6])
        if tuple(newest) != ((0, b"") if before is None else before):
            self.findings.append("remarks: the newest is missing, or its hash differs from the recorded one")


def find_damage(place: PostgresPlace, wraps: KeyWraps, *, put_back: bool = True) -> list[str]:
    """What is wrong with the journal; an empty list when nothing is. `put_back`: rows that were put back count too.
    Raises JournalBusy where the connection is lost: that says nothing about the journal."""
    findings: list[str] = []
    try:
        with closing(place.connect_at_once()) as db:
            db.execute(BEGIN_READING)
            check = _Check(db, place, wraps)
            findings = check.findings
            check.run(put_back=put_back)
    except psycopg.Error as error:
        if may_pass(error):
            raise translated(error) from error
        findings.append(f"reading stopped: {error}")
    except (ValueError, TypeError) as error:
        findings.append(f"reading stopped at a row that cannot be understood: {error}")
    return findings[:FINDINGS_MAX]
