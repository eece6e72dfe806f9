"""What the programs of the disk-fault suites do beside living: come up after a power cut, check.

Each of these changes the forked child that calls it, never a program that does real work.
"""

from __future__ import annotations

import contextlib
import mmap
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
import msgspec

from holdfast.app.binder import open_journal
from holdfast.core import clock
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import file_at
from holdfast.host.private_files import FILE_MODE, FOLDER_MODE
from holdfast.host.sqlite import Db, open_db
from holdfast.journal.sqlite import writer
from holdfast.journal.sqlite.opening import open as opening
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.disk_faults.disk import Image
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.places import JOURNAL

T = TypeVar("T")

Synchronous = Literal["FULL", "NORMAL", "OFF"]
_INTENTS_BYTES = 4_096


def sample(trials: Sequence[T], points: int | None, *, seed: int) -> Sequence[T]:
    """So many of them, drawn by the seed, in their order; all of them where no number is given."""
    if points is None or points >= len(trials):
        return trials
    return [trials[at] for at in sorted(random.Random(seed).sample(range(len(trials)), points))]


def put_image(image: Image, folder: Path) -> None:
    """Replace what lies in the folder by the disk that the next program is to find."""
    shutil.rmtree(folder)
    folder.mkdir(mode=FOLDER_MODE)
    for path in image.folders:
        (folder / path).mkdir(mode=FOLDER_MODE)
    for path, data in image.files.items():
        (folder / path).write_bytes(data)
        (folder / path).chmod(FILE_MODE)


def inodes(folder: Path) -> dict[str, int]:
    """The inode number of every file, by its path below the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_ino for path in files}


def boot_anew(number: int = 1) -> None:
    """Another start of the machine: another boot id, and a boot clock that begins now.

    No sooner: the wall clock has not gone on, and both are read together.
    """
    at_start = SystemClock().boot_ms()
    before: Callable[[SystemClock], int] = SystemClock.boot_ms
    boot_id = f"00000000-0000-4000-8000-{number:012x}"
    _replace(clock, "read_boot_id", lambda: boot_id)
    _replace(SystemClock, "boot_ms", lambda self: before(self) - at_start)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def weaken_syncs(synchronous: Synchronous) -> None:
    """The journal with another pragma than it has; FULL leaves it alone."""
    if synchronous == "FULL":
        return
    connect = opening.connect

    def weakened(path: Path, *, sync: str = "FULL") -> Db:
        db = connect(path, sync=sync)
        db.pragma("synchronous", synchronous)
        return db

    _replace(opening, "connect", weakened)


def move_log_often(pages: int) -> None:
    """A wal_checkpoint after so many pages; 0 leaves the writer's own number, as in production."""
    if pages:
        _replace(writer, "WAL_PAGES", pages)


class Intents:
    """Which steps the journal of a dark machine knows, told by the child that looked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _INTENTS_BYTES)

    def read(self, folder: Path) -> None:
        """Look into a copy: reading plays the log, and nothing may be changed before the task."""
        with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(folder / (JOURNAL + suffix), copy)
            self._memory[:] = " ".join(_ordinals(Path(copy) / JOURNAL)).encode().ljust(_INTENTS_BYTES)

    def ordinals(self) -> set[str]:
        return set(self._memory[:].decode().strip("\0 ").split())


def _ordinals(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        db = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            rows = db.execute("SELECT DISTINCT ordinal FROM record WHERE ordinal != ''").fetchall()
        finally:
            db.close()
    except apsw.Error:
        return []  # what cannot be read holds no intent
    return [ordinal for (ordinal,) in rows]


async def work_and_check(life: Life, board: Board) -> None:
    """Bring the task to its end, then open the journal once more and read all of it."""
    await work(life, board)
    journal, _ = await open_journal(file_at(life.folder / JOURNAL), create=False)
    try:
        damage = [finding async for finding in journal.check()]
    finally:
        await journal.close()
    if damage and board.found is not None:
        board.found = msgspec.structs.replace(board.found, damage="; ".join(damage))


def _replace(owner: Any, name: str, new: Any) -> None:  # Any: a module or class, and a function
    setattr(owner, name, new)
