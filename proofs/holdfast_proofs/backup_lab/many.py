"""`python -m holdfast_proofs.backup_lab.many FILES FOLDER`: how much memory staging takes.

Makes so many small files, stages them, and prints how many were staged, by how many MiB the
process had grown at its largest, and the seconds.
"""

from __future__ import annotations

import resource
import shutil
import sys
import time
from pathlib import Path

from holdfast.host.private_files import ensure_private_folder
from holdfast_proofs.backup_lab import Owner, snapshot

FOLDER_FILES = 1_000


def main() -> None:
    count, root = int(sys.argv[1]), Path(sys.argv[2]).absolute()
    agent = root / "agent"
    for start in range(0, count, FOLDER_FILES):
        folder = agent / f"d{start // FOLDER_FILES:04d}"
        folder.mkdir(parents=True)
        for number in range(start, min(start + FOLDER_FILES, count)):
            (folder / f"f{number:07d}.txt").write_bytes(b"%d\n" % number)
    ensure_private_folder(root / "warm")
    snapshot(Owner(), root / "warm", root / "warm-staging")
    before, began = _largest_kib(), time.monotonic()
    head = snapshot(Owner(), agent, root / "staging")
    grown = (_largest_kib() - before) / 1024
    print(f"{head.record.files} {grown:.1f} MiB {time.monotonic() - began:.1f} s")
    shutil.rmtree(root)


def _largest_kib() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest // 1024 if sys.platform == "darwin" else largest


if __name__ == "__main__":
    main()
