"""SQLite files that many processes open at once."""

from __future__ import annotations

import threading
from pathlib import Path

from holdfast.host.sqlite import log_ahead, open_or_create

ROUNDS = 100  # without the wait, about one round in thirty fails


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    for number in range(ROUNDS):
        gate, path = threading.Barrier(4), tmp_path / f"{number}.db"

        def open_it(gate: threading.Barrier = gate, path: Path = path) -> None:
            gate.wait()
            try:
                db = open_or_create(path)
                log_ahead(db)
                db.close()
            except BaseException as error:  # noqa: BLE001 - a thread's error is the test's
                failed.append(error)

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
