"""How long a claim takes while many tasks wait, each with its own sealed record.

    python bench/postgres_claims.py --folder DIR --url postgresql://... --waiting 1000000

The tasks are put into the tables as submissions would leave them, because a million submissions take longer than the
rest of the bench. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path

from holdfast.app.binder import KEYS, open_journal
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.chain import first_link
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.rows import chained
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.journal.seal import KeyWraps
from holdfast.journal.total import NONCE_BYTES

CLAIMS = 300
NAME = "waits"
PART = 20_000
_TASK = "task_id, name, fingerprint, state, epoch, seq, head, due_ms, created_ms, changed_ms, key_id, data_key"
_RECORD = "t, n, seq, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash"


def fill(place: PostgresPlace, wraps: KeyWraps, journal_id: str, count: int) -> None:
    running, clock = wraps.running_total(journal_id), SystemClock()
    total, w, now_ms = 0, os.urandom(8).hex(), clock.wall_ms()
    with place.connect_at_once() as db:
        for first in range(1, count + 1, PART):
            tasks: list[tuple[object, ...]] = []
            records: list[tuple[object, ...]] = []
            for t in range(first, min(first + PART, count + 1)):
                raw = os.urandom(16)
                key_id, data_key, sealer = wraps.new_data_key(raw)
                body = {"name": NAME, "args": {"n": t}, "request_id": ""}
                made = chained(
                    [NewRecord(kind=RecordKind.ACCEPTED, body=body)],
                    seq=-1,
                    head=first_link(raw),
                    task_id=raw,
                    epoch=0,
                    at_ms=now_ms,
                    boot_ms=clock.boot_ms(),
                    sealer=sealer,
                )
                total += running.element(made.head)
                ends = (b"f" * 16, "queued", 0, made.seq, made.head, now_ms, now_ms, now_ms, key_id, data_key)
                tasks.append((raw, NAME, *ends))
                records.append((t, t, *made.rows[0]))
            for table, columns, rows in (("task", _TASK, tasks), ("record", _RECORD, records)):
                with db.cursor() as cursor, cursor.copy(place.sql(f"COPY $s.{table} ({columns}) FROM STDIN")) as copy:
                    for row in rows:
                        copy.write_row(row)
        stored = running.hide(total, w.encode(), os.urandom(NONCE_BYTES))
        db.execute(
            place.sql("INSERT INTO $s.tally (w, stamp, total, last, at_ms) VALUES (%s, 1, %b, %s, %s)"),
            (w, stored, count, now_ms),
        )
        db.execute(place.sql("SELECT setval('$s.record_number', %s)"), (count + 1,))
        db.execute("ANALYZE")


async def measure(folder: Path, url: str, waiting: int) -> dict[str, float]:
    address = JournalAddress(folder=folder, url=url)
    journal, _ = await open_journal(address)
    await journal.close()
    keys = load_or_create(folder / KEYS, journal_exists=True, entropy=SystemEntropy())
    fill(PostgresPlace.read(url), KeyWraps(keys), journal.journal_id, waiting)
    began = time.perf_counter()
    journal, _ = await open_journal(address)
    opened = time.perf_counter() - began
    session = await journal.open_session(worker="bench", ttl_ms=600_000)
    taken: list[float] = []
    for _ in range(min(CLAIMS, waiting)):
        began = time.perf_counter()
        (claimed,) = await journal.claim(session, names=frozenset((NAME,)), limit=1)
        taken.append(time.perf_counter() - began)
        assert claimed.view.name == NAME
    await journal.close()
    p99 = sorted(taken)[int(len(taken) * 0.99)]
    return {"waiting": waiting, "claim_ms": statistics.median(taken) * 1e3, "p99_ms": p99 * 1e3, "open_s": opened}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--waiting", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.folder, options.url, options.waiting))))


if __name__ == "__main__":
    main()
