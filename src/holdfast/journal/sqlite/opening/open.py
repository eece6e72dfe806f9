"""Opening a journal: everything that is checked before the first step may begin.

In this order: the place (modes, owner, links, file system); the file (a journal at all, not newer than we are); the
stop sign (a failed sync is repaired alone, into a new file); the stamp (file and log belong together); the definitions
(tables and triggers as they were made); the keys (the ring is this journal's); the high-water mark (not an older copy);
the running total (no task put back or deleted; only where no other process has the journal open, whose sweeps see it).
Each refusal is an error with a code and a hint, and has changed nothing.

A new journal is made whole in a temporary file and linked to its name, so a crash while it is
made leaves no half of it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.core.reading_ring import ReadingRing, refuse
from holdfast.errors import (
    HoldfastError,
    JournalBusy,
    JournalDamaged,
    JournalFull,
    JournalGone,
    JournalNewer,
    JournalOlderCopy,
    JournalStopped,
    KeysWrong,
    NotAJournal,
    ReadOnly,
)
from holdfast.host.private_files import (
    check_place,
    check_private_file,
    ensure_private_folder,
    explained,
    open_private,
    sync_folder,
)
from holdfast.host.sqlite import BUSY_MS, WRITE, Db, log_ahead, open_db, open_existing
from holdfast.journal.seal import KeyWraps, blob_key, key_check
from holdfast.journal.sqlite import totals
from holdfast.journal.sqlite.host.disk_trouble import clear_stopped, find_stopped, stop_on_error
from holdfast.journal.sqlite.host.high_water import HighWater, check_file, high_water
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.host.journal_names import JOURNAL_ID_CHARS, journal_names, remember_name
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.schema import SCHEMA, check_schema, schema_step, whole_schema
from holdfast.journal.sqlite.sql_errors import translated, unreadable
from holdfast.journal.sqlite.writer import BUSY_WAIT_MS, WAL_PAGES

APPLICATION_ID = 0x486F6C64  # "Hold"
LOOK_AGAIN_S = 0.002
REPAIR_WAIT_S = 20.0  # longer than the longest lease: stopped sessions are dead by then

Migration = Callable[[Db, KeyWraps], None]
MIGRATIONS: dict[int, Migration] = {  # from version n to n + 1
    1: lambda db, _wraps: _run_all(db, schema_step(2)),
    2: lambda db, wraps: _begin_total(db, wraps),  # noqa: PLW0108 - it is defined below
    3: lambda db, _wraps: _run_all(db, schema_step(4)),
}


async def open_journal(
    path: Path,
    instance: Path,
    keys: KeyRing,
    clock: Clock,
    entropy: Entropy,
    *,
    create: bool,
    network_fs: bool,
    sync: str,
) -> SqliteJournal:
    """Open the journal at this path, or make a new one where there is none; raises as `JournalAdmin.open`."""
    check_place(path, allow_network_fs=network_fs)
    if not os.path.lexists(path):
        if not create:
            raise NotAJournal(f"there is no journal at {path}")
        check_never_here(path, instance)
        _make(path, keys=keys, clock=clock, entropy=entropy)
    check_private_file(path)
    try:
        folder = instance / peek(path)
        ensure_private_folder(instance)
        ensure_private_folder(folder)
        use, alone = await _use(path, folder)
        return _open(path, use, folder, alone=alone, keys=keys, clock=clock, entropy=entropy, sync=sync)
    except apsw.Error as error:
        raise _explained(error, path.parent) from error
    except (ValueError, TypeError) as error:
        raise unreadable(error) from error


def _open(
    path: Path, use: JournalUse, folder: Path, *, alone: bool, keys: KeyRing, clock: Clock, entropy: Entropy, sync: str
) -> SqliteJournal:
    wraps = KeyWraps(keys)
    try:
        db = connect(path, sync=sync)
        check_keys(db, keys, reading=True)
        with stop_on_error(folder):
            _migrate(db, wraps)
        check_schema(db)
        incarnation = int(str(get_meta(db, "incarnation")))
        check_not_older(db, path, folder, incarnation)
        checked = db.pragma("data_version") if alone else None
        if alone and not wraps.reads_only:
            totals.check_not_put_back(db, wraps.running_total(folder.name))
        remember_name(folder, path.name)
        instance = Instance(folder, clock=clock, entropy=entropy, incarnation=incarnation, use=use)
        instance.reserve.try_restore()
        reader = connect(path, sync=sync)
        reader.execute("PRAGMA query_only = 1")
        if wraps.reads_only:
            db.execute("PRAGMA query_only = 1")
        _sync_names(path.parent)
    except BaseException:  # also a cancel: the lock is not kept without a journal
        use.close()
        raise
    journal = SqliteJournal(
        instance, db=db, reader=reader, wraps=wraps, digest_key=blob_key(keys), path=path, checked=checked
    )
    journal.remember_newest()
    return journal


def _explained(error: apsw.Error, folder: Path) -> HoldfastError:
    """Our word for it; SQLite says the same of a folder without room and of one without rights.
    Where neither is missing, one was a moment ago: that is no reason to give up."""
    if not isinstance(error, apsw.CantOpenError) or not os.access(folder, os.W_OK):
        return translated(error)
    if not _has_room(folder):
        return JournalFull("no space left for the journal's -wal file")
    return JournalBusy(f"the journal in {folder} could not be opened just now: {error}")


def _has_room(folder: Path) -> bool:
    """Whether a small new file fits; True also where it is refused for another reason."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4_096))
    except OSError as refused:
        return refused.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


def _sync_names(folder: Path) -> None:
    """Make the name of the log durable, and the end of what lay there before it. SQLite syncs the folder with the log's
    first commit but does not hear whether that failed: a power cut could then take the log, and every commit in it."""
    try:
        sync_folder(folder)
    except OSError as error:
        raise JournalStopped(
            f"the folder {folder} could not be synced: {error.strerror}",
            hint="check the system log and the disk; nothing was started, and nothing is lost",
        ) from error


def check_never_here(path: Path, instance_folder: Path) -> None:
    """A file that is missing is not the same as one that never was: its effects have happened."""
    for folder in lost_journals(path, instance_folder):
        newest = high_water(folder).sequence
        raise JournalGone(f"{path} is missing, but this machine has used it (journal {folder.name}, record {newest})")


def lost_journals(path: Path, instance_folder: Path) -> list[Path]:
    """The folders of journals that had this name here."""
    return [folder for folder, name in journal_names(instance_folder).items() if name == os.fsencode(path.name)]


def connect(path: Path, *, sync: str = "FULL") -> Db:
    db = open_existing(path)  # who only looks changes nothing; the writer says when its log may be moved
    log_ahead(db, synchronous=sync)
    db.pragma("wal_autocheckpoint", WAL_PAGES)
    db.pragma("trusted_schema", 0)
    db.pragma("cell_size_check", 1)
    if sys.platform == "darwin":
        db.pragma("fullfsync", 1)
        db.pragma("checkpoint_fullfsync", 1)
    db.set_busy_timeout(BUSY_WAIT_MS)
    return db


def get_meta(db: Db, key: str) -> object:
    try:
        row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    except UnicodeDecodeError as error:
        raise unreadable(error) from error
    if row is None:
        raise JournalDamaged(f"the journal's table `meta` has no row {key!r}")
    return row[0]


def _make(path: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy) -> None:
    temporary = path.with_name(f".{path.name}.{entropy.bytes(4).hex()}.new")
    try:
        os.close(open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except OSError as error:
        raise explained(error, path) from error
    try:
        db = open_db(str(temporary), flags=WRITE)
        db.pragma("synchronous", "FULL")
        db.execute("BEGIN IMMEDIATE")
        _run_all(db, whole_schema())
        meta = {
            "journal_id": entropy.bytes(8).hex(),
            "incarnation": 1,
            "created_ms": clock.wall_ms(),
            "key_check": key_check(keys),
        }
        for key, value in meta.items():
            db.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, value))
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", SCHEMA)
        db.execute("COMMIT")
        db.close()
        os.link(temporary, path)
        sync_folder(path.parent)
    except apsw.Error as error:
        raise _explained(error, path.parent) from error
    except FileExistsError:
        pass  # another process made it meanwhile; theirs is as good
    finally:
        temporary.unlink(missing_ok=True)


def peek(path: Path) -> str:
    """The journal's id, once the file is known to be a journal of ours that we may write.
    The file is looked at through SQLite alone: opening and closing it any other way would drop
    the locks that this process may hold on it through another connection."""
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise ReadOnly(f"{path} or its folder cannot be written by this user")
    db = open_existing(path)
    try:
        if db.pragma("application_id") != APPLICATION_ID:
            raise NotAJournal(f"{path} is a database or an empty file, but not a Holdfast journal")
        version = cast(int, db.pragma("user_version"))
        if version > SCHEMA:
            raise JournalNewer(
                f"{path} has schema {version}; this Holdfast reads at most schema {SCHEMA}; nothing was changed"
            )
        found = str(get_meta(db, "journal_id"))
    except apsw.NotADBError as error:
        raise NotAJournal(f"{path} is not a journal, or its first page is damaged") from error
    finally:
        db.close()
    if len(found) != JOURNAL_ID_CHARS or any(char not in "0123456789abcdef" for char in found):
        raise JournalDamaged(f"{path}: its journal id is malformed")
    return found


async def _use(path: Path, folder: Path) -> tuple[JournalUse, bool]:
    """The journal, used beside others; and whether no other process had it open a moment ago."""
    if find_stopped(folder) is None:
        return await _share(path, folder)
    exclusive = await JournalUse.exclusive(folder, timeout_s=REPAIR_WAIT_S)
    with exclusive:
        if find_stopped(folder) is not None:
            _rewrite(path)
            clear_stopped(folder)
    return await JournalUse.shared(folder, timeout_s=REPAIR_WAIT_S), True


async def _share(path: Path, folder: Path) -> tuple[JournalUse, bool]:
    """Use it beside others. The first process checks whether file and log belong together."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REPAIR_WAIT_S
    while True:
        try:
            with await JournalUse.exclusive(folder):
                check_file(path, folder)
            return await JournalUse.shared(folder, timeout_s=REPAIR_WAIT_S), True
        except JournalBusy:
            try:
                return await JournalUse.shared(folder), False
            except JournalBusy:  # another process checks or repairs it
                if loop.time() >= until:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)


def _rewrite(path: Path) -> None:
    """After a failed sync: all that can be read goes into a new file under the old name. The new file gets the name
    `.rewritten` only when it is whole and synced; from then on it is the journal, also after a crash: the old file's
    log must go before the new file comes, or SQLite would play it into a file that it does not belong to."""
    fresh = path.with_name(f".{path.name}.rewritten")
    try:
        if not fresh.exists():
            _copy_readable(path, fresh)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        sync_folder(path.parent)
        os.replace(fresh, path)
        sync_folder(path.parent)
    except (apsw.Error, OSError) as error:
        raise JournalStopped(
            f"the journal could not be rewritten after a failed sync: {error}",
            hint="the disk is failing: restore the journal on another disk",
        ) from error


def _copy_readable(path: Path, fresh: Path) -> None:
    growing = path.with_name(f".{path.name}.rewriting")
    growing.unlink(missing_ok=True)
    # Not to wait: moving its log when it is closed would sync it once more.
    with closing(open_existing(path, busy_ms=0)) as db:
        found = db.execute("PRAGMA quick_check(1)").fetchone()
        if found is None or found[0] != "ok":
            raise JournalDamaged(f"after a failed sync the journal file is damaged: {found}")
        os.close(open_private(growing, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        db.execute("VACUUM INTO ?", (str(growing),))
    with open(growing, "rb") as file:
        os.fsync(file.fileno())
    os.replace(growing, fresh)
    sync_folder(path.parent)


def _migrate(db: Db, wraps: KeyWraps) -> None:
    """Raise the schema, in one transaction.
    Two processes may open an old journal at once: the version is looked at again under the lock."""
    if _version(db) >= SCHEMA:
        return
    db.set_busy_timeout(BUSY_MS)
    db.execute("BEGIN IMMEDIATE")
    try:
        raise_schema(db, wraps)
        db.execute("COMMIT")
    except BaseException:  # whatever it is, no transaction may stay open
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.set_busy_timeout(BUSY_WAIT_MS)


def raise_schema(db: Db, wraps: KeyWraps) -> None:
    """Step by step, in a transaction of the caller's, who has checked the keys."""
    while (version := _version(db)) < SCHEMA:
        step = MIGRATIONS.get(version)
        if step is None:
            raise JournalDamaged(f"this Holdfast cannot migrate schema {version} to {SCHEMA}")
        step(db, wraps)
        db.pragma("user_version", version + 1)


def _begin_total(db: Db, wraps: KeyWraps) -> None:
    """A journal of older days gets its running total: what is there now is taken as right. A copy of a journal on a
    server has that one's, in parts."""
    _run_all(db, schema_step(3))
    running = totals.running_total(db, wraps)
    parts = db.execute("SELECT value FROM meta WHERE key = ?", (totals.PARTS,)).fetchone()
    total = totals.count_total(db, running) if parts is None else totals.joined(str(parts[0]), running)
    totals.store_total(db, running, total)
    db.execute("DELETE FROM meta WHERE key = ?", (totals.PARTS,))


def _version(db: Db) -> int:
    return cast(int, db.pragma("user_version"))


def _run_all(db: Db, sql: str) -> None:
    db.execute(sql).fetchall()


def check_keys(db: Db, keys: KeyRing, *, reading: bool = False) -> None:
    """The ring is this journal's. Raises KeysWrong; RescuedCopy: a rescue key's may only open it for reading."""
    if isinstance(keys, ReadingRing) and not reading:
        refuse()
    if get_meta(db, "key_check") != key_check(keys):
        raise KeysWrong("the keys do not belong to this journal")


def check_not_older(db: Db, path: Path, folder: Path, incarnation: int) -> int:
    """The number of the newest record; JournalOlderCopy where the mark is above it."""
    # The mark first: another process may commit between the two, and raises it only afterwards.
    mark = high_water(folder)
    row = db.execute("SELECT max(n) FROM record").fetchone()
    sequence = 0 if row is None or row[0] is None else cast(int, row[0])
    if HighWater(incarnation, sequence) < mark:
        raise JournalOlderCopy(
            f"{path} ends at record {sequence} of incarnation {incarnation}, but this machine has committed record "
            f"{mark.sequence} of incarnation {mark.incarnation}: the file is an older copy"
        )
    return sequence
