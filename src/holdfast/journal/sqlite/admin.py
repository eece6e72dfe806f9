"""The embedded journal's second port: `journal.admin.JournalAdmin` over one SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.errors import JournalDamaged
from holdfast.host.sqlite import copy_whole, open_alone, open_quietly
from holdfast.journal.admin import ALONE_WAIT_S, HighWater, JournalPosition, Restored
from holdfast.journal.contract import Journal
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.high_water import high_water
from holdfast.journal.sqlite.host.reserve import Reserve
from holdfast.journal.sqlite.host.stop_flag import find_stopped
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.opening import check, restore
from holdfast.journal.sqlite.opening.open import NAME, check_never_here, open_journal, peek
from holdfast.journal.sqlite.writer import translated


class SqliteAdmin:
    """The journal file at a path; `instance` holds what this machine knows of it."""

    engine = f"SQLite {apsw.sqlite_lib_version()}"

    def __init__(self, path: Path, instance: Path) -> None:
        self._path = path
        self._instance = instance

    async def open(
        self,
        *,
        keys: KeyRing,
        clock: Clock,
        entropy: Entropy,
        create: bool = True,
        allow_network_fs: bool = False,
        synchronous: str = "FULL",
    ) -> Journal:
        return await open_journal(
            self._path,
            keys=keys,
            clock=clock,
            entropy=entropy,
            instance_folder=self._instance,
            create=create,
            allow_network_fs=allow_network_fs,
            synchronous=synchronous,
        )

    # looking

    def peek(self) -> str:
        try:
            return peek(self._path)
        except apsw.Error as error:
            raise translated(error) from error

    def check_not_lost(self) -> None:
        if not os.path.lexists(self._path):
            check_never_here(self._path, self._instance)

    def incarnation(self) -> int:
        return restore.read_incarnation(self._path)

    def newest_record(self) -> int:
        try:
            db = open_quietly(self._path)
            try:
                row = db.execute("SELECT max(n) FROM record").fetchone()
            finally:
                db.close()
        except apsw.Error as error:
            raise translated(error) from error
        return 0 if row is None or row[0] is None else int(str(row[0]))

    def position(self) -> JournalPosition:
        return _position(self._path)

    def high_water(self) -> HighWater:
        return high_water(self._folder)

    def find_stopped(self) -> str | None:
        folder = self._folder
        found = find_stopped(folder) if folder.is_dir() else None
        return None if found is None else found.reason

    def has_reserve(self) -> bool:
        return Reserve(self._folder).held

    def find_damage(self, keys: KeyRing) -> list[str]:
        return check.find_damage(self._path, KeyWraps(keys))

    def copy(self, to: Path) -> JournalPosition:
        try:
            found = copy_whole(self._path, to)
        except apsw.Error as error:
            raise translated(error) from error
        if found:
            raise JournalDamaged(f"the copy of {self._path} is damaged: {found}")
        return _position(to)

    @property
    def _folder(self) -> Path:
        return self._instance / self.peek()

    # changing

    async def use_alone(self, *, wait_s: float = 0.0) -> JournalUse:
        return await JournalUse.exclusive(self._folder, timeout_s=wait_s)

    async def raise_incarnation(self, *, to: int, keys: KeyRing, clock: Clock, wait_s: float = ALONE_WAIT_S) -> None:
        await restore.raise_incarnation(
            self._path, to=to, keys=keys, clock=clock, instance_folder=self._instance, wait_s=wait_s
        )

    async def restore(self, *, keys: KeyRing, clock: Clock, dry_run: bool = False, above: int = 0) -> Restored:
        return await restore.restore_journal(
            self._path, keys=keys, clock=clock, instance_folder=self._instance, dry_run=dry_run, above=above
        )

    async def start_empty(
        self, *, keys: Callable[[], KeyRing], clock: Clock, entropy: Entropy, dry_run: bool = False, above: int = 0
    ) -> Restored:
        return await restore.start_empty(
            self._path,
            keys=keys,
            clock=clock,
            entropy=entropy,
            instance_folder=self._instance,
            dry_run=dry_run,
            above=above,
        )


def _position(path: Path) -> JournalPosition:
    try:
        db = open_alone(path)
        try:
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
            row = db.execute("SELECT max(n) FROM record").fetchone()
        finally:
            db.close()
        return JournalPosition(
            journal_id=str(meta["journal_id"]),
            incarnation=int(str(meta["incarnation"])),
            sequence=0 if row is None or row[0] is None else int(str(row[0])),
        )
    except (apsw.Error, KeyError, ValueError) as error:
        raise JournalDamaged(f"{path.name} is no journal: {error}") from error


async def use_all_alone(instance: Path, *, wait_s: float) -> list[JournalUse]:
    """Hold alone every journal that was opened with this instance folder. Raises JournalBusy."""
    held: list[JournalUse] = []
    try:
        for name in sorted(instance.glob(f"*/{NAME}")):
            held.append(await JournalUse.exclusive(name.parent, timeout_s=wait_s))
    except BaseException:
        for one in held:
            one.close()
        raise
    return held
