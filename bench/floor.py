"""The floor: rows of a step's size into raw SQLite, each in a synced transaction of its own.

    python bench/floor.py --folder DIR

Measured in the steady state that a journal reaches within seconds: the write-ahead log has its full size and is
written over, so a sync needs no change of the file's length. Prints one JSON object: commits per second one after the
other, the same while the log still grows, and syncs per second of a plain file, which is what the disk itself can do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import apsw

from holdfast.host.sqlite import open_db

ROW_BYTES = 600
COMMITS = 600
STEADY_COMMITS = 3_000


def measure_commits(folder: Path) -> tuple[float, float]:
    """While the log grows, and afterwards."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = open_db(str(folder / "floor.db"), flags=flags)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "FULL")
    db.execute("CREATE TABLE row (n INTEGER PRIMARY KEY, body BLOB)")
    body = os.urandom(ROW_BYTES)

    def rate(commits: int) -> float:
        began = time.perf_counter()
        for _ in range(commits):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO row (body) VALUES (?)", (body,))
            db.execute("COMMIT")
        return commits / (time.perf_counter() - began)

    growing = rate(COMMITS)
    log, size = folder / "floor.db-wal", -1
    while size != (size := log.stat().st_size):  # it grows until it is first written over
        rate(COMMITS)
    steady = rate(STEADY_COMMITS)
    db.close()
    return growing, steady


def measure_syncs(folder: Path) -> float:
    fd = os.open(folder / "plain", os.O_RDWR | os.O_CREAT, 0o600)
    block = bytes(4_096)
    os.pwrite(fd, block * COMMITS, 0)
    os.fsync(fd)
    began = time.perf_counter()
    for number in range(COMMITS):
        os.pwrite(fd, block, number * len(block))
        os.fdatasync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    return COMMITS / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    growing, steady = measure_commits(folder)
    found = {"commits_per_s": steady, "growing_commits_per_s": growing, "syncs_per_s": measure_syncs(folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
