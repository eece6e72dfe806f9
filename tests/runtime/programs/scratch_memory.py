"""Keep and restore a file of so many MiB, and say by how many MiB the process grew at most.

python tests/runtime/programs/scratch_memory.py FOLDER 1024
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import sys
import time
from pathlib import Path

from holdfast.app.binder import open_journal
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import file_at
from holdfast.host.tree import Limits, open_folder
from holdfast.journal.contract import Submission
from holdfast.runtime.scratch.store import Store

TASK = TaskId("0" * 26)
MIB = 1 << 20


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def main(folder: Path, size: int) -> None:
    (folder / "j").mkdir(mode=0o700)
    journal, _ = await open_journal(file_at(folder / "j" / "journal.db"))
    await journal.submit(Submission(task_id=TASK, name="t", args={}, args_fingerprint=b"f"))
    files = folder / "files"
    files.mkdir()
    with (files / "large").open("wb") as file:
        for _ in range(size):
            file.write(os.urandom(MIB))
    whole = digest(files / "large")
    store = Store(journal=journal, task_id=TASK, root=open_folder(str(files)), limits=Limits())
    before, began = peak(), time.monotonic()
    manifest = await store.keep(shared=False)
    kept_s, began = time.monotonic() - began, time.monotonic()
    (files / "large").unlink()
    await store.restore(manifest)
    restored_s = time.monotonic() - began
    grown = peak() - before
    assert digest(files / "large") == whole
    await journal.close()
    sys.stdout.write(f"{grown} MiB; kept in {kept_s:.1f} s, restored in {restored_s:.1f} s\n")


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
