"""The embedded journal's second port: `journal.admin.JournalAdmin` over one SQLite file.

It also makes new incarnations of it: by a restore, by a grant, or with an empty file.

**Restore** (T14). What was committed after an older copy was made is lost to us, but not undone
outside: every slot from the copy's head on is *suspect*. The restore raises the incarnation above
every one this machine has seen, so that no epoch or fence is ever issued twice, and writes into each
open task that the timeline after its newest record is lost. From then on such a task looks up or
parks before it sends; tasks submitted again under an old request id are treated the same, because
they may have run in the lost timeline.

**Raise.** An arbiter grants incarnations; the journal of the instance that got one is raised to it
before that instance acts, so that every epoch and fence from then on is above all that an instance
before it can have issued. This loses nothing: it is done only to a journal that is not behind its
high-water mark, and no task becomes suspect.

Both work alone, in one transaction, then the mark. A crash in between leaves a journal of the new
incarnation, which outranks every older mark: repeating either is harmless.

**Start empty.** Where no copy is left, an empty journal is the oldest copy there can be. It is made
under another name and gets its own as the last act but one, so a kill anywhere leaves no journal,
which still counts as lost, or the restored one; then the old one is forgotten.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import apsw
import msgspec

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.errors import InvariantViolated, JournalBusy, JournalDamaged, JournalStopped, NotAJournal, NotNow
from holdfast.host.private_files import (
    check_place,
    check_private_file,
    check_private_folder,
    ensure_private_folder,
    open_private,
    sync_folder,
)
from holdfast.host.sqlite import Db, copy_whole, open_alone, open_existing, open_quietly
from holdfast.journal.admin import (
    ALONE_WAIT_S,
    SINCE_EVER_MS,
    HighWater,
    JournalPosition,
    Restored,
    lost_by_all,
    lost_since,
)
from holdfast.journal.bodies import RestoredFrom
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Life
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite import totals
from holdfast.journal.sqlite.host.disk_trouble import Reserve, find_stopped, stop_on_error
from holdfast.journal.sqlite.host.high_water import high_water, raise_stored
from holdfast.journal.sqlite.host.journal_names import forget_name, journal_names, remember_name
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.opening import check
from holdfast.journal.sqlite.opening.open import (
    check_keys,
    check_never_here,
    check_not_older,
    connect,
    get_meta,
    lost_journals,
    open_journal,
    peek,
    raise_schema,
)
from holdfast.journal.sqlite.rows import Tail, add_records
from holdfast.journal.sqlite.sql_errors import in_our_words
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs.tasks import find_life, find_restore

TASK_SALT = "task_salt"
ASIDE_MAX = 1_000
LEFT = ("-wal", "-journal")  # of SQLite: they may hold what the file did not yet


class SqliteAdmin:
    """The journal file at a path; `instance` holds what this machine knows of it."""

    engine = f"SQLite {apsw.sqlite_lib_version()}"
    hosts = False

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
            self._instance,
            keys,
            clock,
            entropy,
            create=create,
            network_fs=allow_network_fs,
            sync=synchronous,
        )

    # looking

    def exists(self) -> bool:
        return os.path.lexists(self._path)

    def check_place(self, *, allow_network_fs: bool = False) -> str:
        check_place(self._path, allow_network_fs=allow_network_fs)
        if self.exists():
            check_private_file(self._path)
        if os.path.lexists(self._instance):
            check_private_folder(self._instance)
        return f"{self._path}, readable only by its owner"

    def peek(self) -> str:
        with in_our_words():
            return peek(self._path)

    def check_not_lost(self) -> None:
        if not os.path.lexists(self._path):
            check_never_here(self._path, self._instance)

    def used_here(self) -> dict[str, str]:
        return {folder.name: os.fsdecode(name) for folder, name in journal_names(self._instance).items()}

    def task_salt(self) -> bytes | None:
        with in_our_words(), closing(open_existing(self._path, busy_ms=1_000)) as db:
            found = _find_salt(db)
            used = db.execute("SELECT 1 FROM task UNION ALL SELECT 1 FROM record LIMIT 1").fetchone()
        if found is None and (used or self.high_water().sequence):
            return b""  # made by a Holdfast that knew no salts
        return found

    def incarnation(self) -> int:
        if not os.path.lexists(self._path):
            return 0
        check_place(self._path)
        check_private_file(self._path)
        with in_our_words(), closing(open_existing(self._path, busy_ms=1_000)) as db:
            return int(str(get_meta(db, "incarnation")))

    def life(self) -> Life:
        with in_our_words(), closing(open_quietly(self._path)) as db:
            return find_life(db)

    def newest_record(self) -> int:
        with in_our_words(), closing(open_quietly(self._path)) as db:
            row = db.execute("SELECT max(n) FROM record").fetchone()
        return 0 if row is None or row[0] is None else int(str(row[0]))

    def position(self) -> JournalPosition:
        return _position(self._path)

    def high_water(self) -> HighWater:
        return high_water(self._folder)

    def find_older(self) -> str:
        mark, found = self.high_water(), HighWater(self.incarnation(), self.newest_record())
        if found >= mark:
            return ""
        return f"it ends at record {found.sequence}, but this machine has committed record {mark.sequence}"

    def find_stopped(self) -> str | None:
        folder = self._folder
        found = find_stopped(folder) if folder.is_dir() else None
        return None if found is None else found.reason

    def has_reserve(self) -> bool:
        return Reserve(self._folder).held

    def find_damage(self, keys: KeyRing) -> list[str]:
        return check.find_damage(self._path, KeyWraps(keys))

    def copy(self, to: Path) -> JournalPosition:
        with in_our_words():
            found = copy_whole(self._path, to)
        if found:
            raise JournalDamaged(f"the copy of {self._path} is damaged: {found}")
        return _position(to)

    @property
    def _folder(self) -> Path:
        return self._instance / self.peek()

    # changing

    def find_shared(self) -> None:
        return None

    def keep_task_salt(self, salt: bytes) -> bytes:
        folder = self._folder
        with in_our_words(), closing(connect(self._path)) as db, stop_on_error(folder):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)", (TASK_SALT, salt))
            db.execute("COMMIT")
            return _find_salt(db) or b""

    async def use_alone(self, *, wait_s: float = 0.0) -> JournalUse:
        return await JournalUse.exclusive(self._folder, timeout_s=wait_s)

    @asynccontextmanager
    async def _alone(self, wait_s: float) -> AsyncGenerator[Path]:
        """The journal's instance folder, while no other process has the journal open."""
        check_place(self._path)
        check_private_file(self._path)
        with in_our_words():
            folder = self._instance / peek(self._path)
            ensure_private_folder(self._instance)
            ensure_private_folder(folder)
            with await JournalUse.exclusive(folder, timeout_s=wait_s), stop_on_error(folder):
                yield folder

    async def raise_incarnation(self, *, to: int, keys: KeyRing, clock: Clock, wait_s: float = ALONE_WAIT_S) -> None:
        async with self._alone(wait_s) as folder:
            _raise(self._path, folder, to=to, keys=keys, clock=clock)

    async def restore(
        self, *, keys: KeyRing, clock: Clock, dry_run: bool = False, above: int = 0, copied_ms: int = 0
    ) -> Restored:
        async with self._alone(ALONE_WAIT_S) as folder:
            return _restore(
                self._path, folder, keys=keys, clock=clock, dry_run=dry_run, above=above, copied_ms=copied_ms
            )

    async def start_empty(
        self,
        *,
        keys: Callable[[], KeyRing],
        clock: Clock,
        entropy: Entropy,
        dry_run: bool = False,
        above: int = 0,
        known: Callable[[], bool] = lambda: False,
        heir: Callable[[str, list[str]], bytes] = lambda _heir, _lost: b"",
    ) -> Restored:
        path, instance = self._path, self._instance
        self._check_free("run `holdfast recover --journal FILE` to restore it; if that fails, move the file elsewhere")
        lost = lost_journals(path, instance)
        seen = [high_water(folder) for folder in lost]
        above = max([above, *(mark.incarnation for mark in seen)])
        if not lost and not above and not known():
            raise NotAJournal(
                f"this machine has never used a journal at {path}",
                hint="run `holdfast worker APP` or `holdfast submit APP REQUEST` to create one",
            )
        ring = keys()
        sequence = max((mark.sequence for mark in seen), default=0)
        if dry_run:
            return Restored(
                journal_id="", incarnation=above + 1, sequence=0, mark_sequence=sequence, lost_after_ms=0, open_tasks=0
            )
        aside = self._aside()
        for folder in lost_journals(aside, instance):
            forget_name(folder)
        made = SqliteAdmin(aside, instance)
        await (await made.open(keys=ring, clock=clock, entropy=entropy)).close()
        made.keep_task_salt(heir(made.peek(), [folder.name for folder in lost]))
        done = await made.restore(keys=ring, clock=clock, above=above)
        _check_whole(aside)
        self._take_name(aside, done.journal_id)
        for folder in lost:
            forget_name(folder)
        return msgspec.structs.replace(done, mark_sequence=sequence)

    async def fill(
        self, copy: Path, *, keys: KeyRing, clock: Clock, ready: Callable[[], object] = lambda: None
    ) -> JournalPosition:
        check_place(self._path)
        self._check_free("move it elsewhere first, or give another target")
        aside = self._aside()
        os.close(open_private(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        with in_our_words():
            damage = copy_whole(copy, aside)
        if damage:
            raise JournalDamaged(f"the copy {copy} is damaged: {damage}")
        prepare_copy(aside, keys)
        position = _position(aside)
        ready()
        self._take_name(aside, position.journal_id)
        mark = HighWater(position.incarnation, position.sequence)
        raise_stored(self._instance / position.journal_id, mark, at_ms=clock.wall_ms())
        return position

    def set_aside(self) -> str:
        with in_our_words(), closing(connect(self._path)) as db:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
        for number in range(1, ASIDE_MAX):
            to = self._path.with_name(f"{self._path.name}.moved-{number}")
            if not os.path.lexists(to):
                os.rename(self._path, to)
                sync_folder(to.parent)
                return str(to)
        raise NotNow(f"{self._path} was moved {ASIDE_MAX} times", hint="remove the files `*.moved-*` next to it")

    def _check_free(self, hint: str) -> None:
        for end in ("", *LEFT):
            name = self._path.with_name(self._path.name + end)
            if os.path.lexists(name):
                raise NotNow(f"{name} already exists", hint=hint)

    def _aside(self) -> Path:
        """The name under which a new file is made whole."""
        aside = self._path.with_name(f".{self._path.name}.anew")
        for end in ("", "-shm", *LEFT):
            aside.with_name(aside.name + end).unlink(missing_ok=True)
        return aside

    def _take_name(self, aside: Path, journal_id: str) -> None:
        os.rename(aside, self._path)
        sync_folder(self._path.parent)
        ensure_private_folder(self._instance)
        ensure_private_folder(self._instance / journal_id)
        remember_name(self._instance / journal_id, self._path.name)


def prepare_copy(copy: Path, keys: KeyRing) -> None:
    """Make a copy that nobody has open ready for another place: newest schema, next incarnation, no session, all of it
    checked. Raises NotAJournal, JournalNewer, JournalDamaged, KeysWrong."""
    wraps = KeyWraps(keys)
    with in_our_words():
        peek(copy)
        with closing(connect(copy)) as db:
            check_keys(db, keys)
            db.execute("BEGIN IMMEDIATE")
            raise_schema(db, wraps)
            db.execute("UPDATE session SET ended = 2 WHERE ended = 0")
            db.execute("UPDATE meta SET value = value + 1 WHERE key = 'incarnation'")
            db.execute("COMMIT")
            findings = check.find_damage(copy, wraps)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
    if findings:
        raise JournalDamaged(f"the copy {copy} cannot be used: {findings[0]}")
    _check_whole(copy)


def _check_whole(aside: Path) -> None:
    for end in LEFT:
        if os.path.lexists(aside.with_name(aside.name + end)):
            raise InvariantViolated("I1", f"{aside} is not the complete new journal")


def _raise(path: Path, folder: Path, *, to: int, keys: KeyRing, clock: Clock) -> None:
    if find_stopped(folder) is not None:
        raise JournalStopped(f"a write to {path} failed, and no worker has repaired the file yet")
    with closing(connect(path)) as db:
        check_keys(db, keys)
        found = int(str(get_meta(db, "incarnation")))
        sequence = check_not_older(db, path, folder, found)
        if found >= to:
            return
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE meta SET value = ? WHERE key = 'incarnation'", (to,))
        db.execute("COMMIT")
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
    if not raise_stored(folder, HighWater(to, sequence), at_ms=clock.wall_ms()):
        raise JournalBusy(f"another process is updating high-water.json of {path}")


def _restore(
    path: Path, folder: Path, *, keys: KeyRing, clock: Clock, dry_run: bool, above: int, copied_ms: int
) -> Restored:
    wraps = KeyWraps(keys)
    findings = check.find_damage(path, wraps, put_back=False)
    if findings:
        raise JournalDamaged(f"Holdfast cannot restore from {path}: {findings[0]}")
    with closing(connect(path)) as db:
        check_keys(db, keys)
        mark = high_water(folder)
        incarnation = max(int(str(get_meta(db, "incarnation"))), mark.incarnation, above) + 1
        db.execute("BEGIN IMMEDIATE")
        raise_schema(db, wraps)
        number, newest_ms = _newest(db)
        running = wraps.running_total(folder.name)
        put_back = totals.is_put_back(db, running)
        since_ms = lost_since(newest_ms, copied_ms=copied_ms, wall_ms=clock.wall_ms())
        lost_after_ms = SINCE_EVER_MS if put_back else since_ms
        txn = Txn(
            db,
            number=number,
            at_ms=max(newest_ms, clock.wall_ms()),
            boot_ms=clock.boot_ms(),
            running=running,
            total=totals.read_total(db, running),
        )
        txn.total = totals.count_total(db, running)  # from now on what is here is right
        tasks = _mark_suspect(txn, wraps, lost_after_ms=None if put_back else since_ms)
        txn.close()
        _set_meta(db, "incarnation", incarnation)
        before = find_restore(db)
        _set_meta(db, "lost_after_ms", lost_by_all(lost_after_ms, before=before, now_ms=txn.at_ms))
        _set_meta(db, "restored_ms", txn.at_ms)
        db.execute("UPDATE session SET ended = 2 WHERE ended = 0")
        db.execute("ROLLBACK" if dry_run else "COMMIT")
        if not dry_run:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
    if not dry_run:
        raise_stored(folder, HighWater(incarnation, txn.number), at_ms=txn.at_ms)
    return Restored(
        journal_id=folder.name,
        incarnation=incarnation,
        sequence=number,
        mark_sequence=mark.sequence,
        lost_after_ms=lost_after_ms,
        open_tasks=tasks,
        put_back=put_back,
    )


def _mark_suspect(txn: Txn, wraps: KeyWraps, *, lost_after_ms: int | None) -> int:
    """Without `lost_after_ms`, each task has lost what came after its own newest record."""
    rows = txn.db.execute(
        "SELECT t.t, task_id, t.epoch, t.seq, head, last, key_id, data_key, r.at_ms FROM task t "
        "JOIN record r ON r.n = t.last WHERE state NOT IN ('succeeded', 'failed', 'cancelled') AND erased_ms IS NULL"
    ).fetchall()
    for t, raw, epoch, seq, head, last, key_id, data_key, own_ms in rows:
        tail, sealer = Tail(seq=seq, head=head, last=last), wraps.open_data_key(key_id, data_key, raw)
        lost = own_ms if lost_after_ms is None else lost_after_ms
        entry = NewRecord(kind=RecordKind.RESTORED, body=RestoredFrom(lost).body())
        add_records(txn, tail, (entry,), row=t, task_id=raw, epoch=epoch, sealer=sealer)
        txn.db.execute(
            "UPDATE task SET state = 'queued', session = NULL, crashes = 0, due_ms = ?, seq = ?, "
            "head = ?, last = ?, changed_ms = ? WHERE t = ?",
            (txn.at_ms, tail.seq, tail.head, tail.last, txn.at_ms, t),
        )
    return len(rows)


def _newest(db: Db) -> tuple[int, int]:
    row = db.execute("SELECT n, at_ms FROM record ORDER BY n DESC LIMIT 1").fetchone()
    return (0, SINCE_EVER_MS) if row is None else (cast(int, row[0]), cast(int, row[1]))


def _find_salt(db: Db) -> bytes | None:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (TASK_SALT,)).fetchone()
    if row is not None and not isinstance(row[0], bytes):
        raise JournalDamaged(f"the journal's table `meta` has a malformed row {TASK_SALT!r}")
    return None if row is None else row[0]


def _set_meta(db: Db, key: str, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def _position(path: Path) -> JournalPosition:
    try:
        with closing(open_alone(path)) as db:
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
            row = db.execute("SELECT max(n) FROM record").fetchone()
        return JournalPosition(
            journal_id=str(meta["journal_id"]),
            incarnation=int(str(meta["incarnation"])),
            sequence=0 if row is None or row[0] is None else int(str(row[0])),
        )
    except (apsw.Error, KeyError, ValueError) as error:
        raise JournalDamaged(f"{path.name} is not a journal: {error}") from error
