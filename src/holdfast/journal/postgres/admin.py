"""The shared journal's second port: `journal.admin.JournalAdmin` over one schema of a PostgreSQL database.

What a database needs no care for is said to be in order: its own sync failures and its disk are the server's matter.
"Alone" means: no session of any host has a lease that runs, and nobody else has taken the turn named `alone`, which
whoever opens the journal respects.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.errors import CommitUnknown, HoldfastError, JournalBusy, JournalDamaged, JournalGone, NotAJournal, NotNow
from holdfast.host.private_files import check_private_folder, ensure_private_folder
from holdfast.journal.admin import ALONE_WAIT_S, SINCE_EVER_MS, HighWater, JournalPosition, Restored
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Life
from holdfast.journal.postgres import restoring, schema, totals
from holdfast.journal.postgres.links import BEGIN_READING, InDoubt, Link, at_once
from holdfast.journal.postgres.opening import ALONE, ALONE_MS, open_journal
from holdfast.journal.postgres.place import PostgresPlace, Row
from holdfast.journal.postgres.sql_errors import GONE_HINT, NONE_HINT, in_our_words, translated
from holdfast.journal.postgres.verbs.guards import POSITION, Marks, check_keys, new_meta
from holdfast.journal.postgres.verbs.shared import PostgresShared
from holdfast.journal.postgres.verbs.upkeep import TURN_OVER, turn_ms_max
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.high_water import high_water, raise_stored
from holdfast.journal.sqlite.host.journal_names import forget_name, journal_names, remember_name

if TYPE_CHECKING:
    from holdfast.journal.postgres.pool import Pools

ASK_AGAIN_S = 0.1
TASK_SALT = "task_salt"
# As much as one more segment of the server's log: sorted in a small memory, it goes through a file that nobody keeps.
_NEEDS_ROOM = (
    b"BEGIN READ ONLY; SET LOCAL work_mem = 64; SELECT count(*) FROM (SELECT repeat(md5(n::text), 32) AS text "
    b"FROM generate_series(1, 16384) AS n ORDER BY text OFFSET 0) AS sorted; ROLLBACK"
)
_NO_ANSWER = (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.QueryCanceled)  # the server allows no such file


class PostgresAdmin:
    """The journal at a url; `instance` holds what this machine knows of it."""

    engine = f"PostgreSQL, through psycopg {psycopg.__version__}"
    hosts = True

    def __init__(
        self, url: str, instance: Path, *, place: PostgresPlace | None = None, pools: Pools | None = None
    ) -> None:
        self._url = url
        self._pools = pools
        self._place = place or PostgresPlace.read(url)
        self._instance = instance
        self._copied: Row | None = None  # how far it had come when it was copied

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
        if not (self.exists() if self._pools is None else await asyncio.to_thread(self.exists)):
            self.check_not_lost()
        return await open_journal(
            self._place,
            self._instance,
            keys=keys,
            clock=clock,
            entropy=entropy,
            create=create,
            name=self._url,
            pooled=None if self._pools is None else self._pools.links(self._place),
        )

    # looking

    def _query(self, text: str, values: tuple[Any, ...] = ()) -> list[Row]:
        with in_our_words(), closing(self._place.connect_at_once()) as db:
            done = db.execute(self._place.sql(text), values or None)
            return done.fetchall() if done.description else []

    def exists(self) -> bool:
        ((found,),) = self._query("SELECT to_regclass('$s.version') IS NOT NULL")
        return bool(found)

    def check_place(self, *, allow_network_fs: bool = False) -> str:
        if os.path.lexists(self._instance):
            check_private_folder(self._instance)
        return self._place.shown

    def peek(self) -> str:
        if not self.exists():
            raise NotAJournal(f"there is no journal at {self._place.shown}", hint=NONE_HINT)
        ((version,),) = self._query("SELECT number FROM $s.version")
        schema.check_version(version, self._place.shown)
        found = self._query("SELECT value FROM $s.meta WHERE key = 'journal_id'")
        if not found:
            raise JournalDamaged(f"{self._place.shown} has no journal id")
        return str(found[0][0])

    def check_not_lost(self) -> None:
        for folder in self._lost() if not self.exists() else ():
            newest = high_water(folder).sequence
            raise JournalGone(
                f"{self._place.shown} is missing, but this machine has used it (journal {folder.name}, record "
                f"{newest})",
                hint=GONE_HINT,
            )

    def _lost(self) -> list[Path]:
        return [folder for folder, name in journal_names(self._instance).items() if name == self._url.encode()]

    def used_here(self) -> dict[str, str]:
        return {folder.name: os.fsdecode(name) for folder, name in journal_names(self._instance).items()}

    def task_salt(self) -> bytes | None:
        found = self._query("SELECT value FROM $s.meta WHERE key = %s", (TASK_SALT,))
        if found:
            return bytes.fromhex(found[0][0])
        used = self._query("SELECT 1 FROM $s.tally WHERE last > 0 UNION ALL SELECT 1 FROM $s.task LIMIT 1")
        return b"" if used or self.high_water().sequence else None

    def incarnation(self) -> int:
        return int(self._query("SELECT number FROM $s.incarnation")[0][0]) if self.exists() else 0

    def life(self) -> Life:
        return Life(*map(int, self._query("SELECT number, restored_ms FROM $s.incarnation")[0]))

    def newest_record(self) -> int:
        return int(self._query("SELECT coalesce(max(last), 0) FROM $s.tally")[0][0])

    def position(self) -> JournalPosition:
        return JournalPosition(journal_id=self.peek(), incarnation=self.incarnation(), sequence=self.newest_record())

    def high_water(self) -> HighWater:
        return high_water(self._folder)

    def find_older(self) -> str:
        marks = Marks.of(self._folder)
        (row,) = self._query(POSITION, (marks.lane,))
        return marks.find_older(row)

    def find_stopped(self) -> str | None:
        return None

    def has_reserve(self) -> None:
        # A user without special rights cannot ask how much is free. What is sorted needs room for a moment.
        with in_our_words(), closing(self._place.connect_at_once()) as db, suppress(*_NO_ANSWER):
            db.execute(_NEEDS_ROOM)

    # A worker needs none of what checks, copies or loads a whole journal: loaded where it is used.

    def find_damage(self, keys: KeyRing) -> list[str]:
        from holdfast.journal.postgres import check

        return check.find_damage(self._place, KeyWraps(keys))

    def copy(self, to: Path) -> JournalPosition:
        from holdfast.journal.postgres import copying

        position, self._copied = copying.copy_journal(self._place, to)
        return position

    def find_shared(self) -> PostgresShared | None:
        return PostgresShared(self._place) if self.exists() else None

    @property
    def _folder(self) -> Path:
        return self._instance / self.peek()

    # changing

    def keep_task_salt(self, salt: bytes) -> bytes:
        self._query("INSERT INTO $s.meta (key, value) VALUES (%s, %s) ON CONFLICT DO NOTHING", (TASK_SALT, salt.hex()))
        return self.task_salt() or b""

    async def use_alone(self, *, wait_s: float = 0.0) -> AbstractContextManager[object]:
        loop = asyncio.get_running_loop()
        until, holder = loop.time() + wait_s, os.urandom(8).hex()
        while not self._take_alone(holder):
            if loop.time() >= until:
                raise JournalBusy(f"{self._place.shown} is open in another process")
            await asyncio.sleep(ASK_AGAIN_S)
        return _Alone(self, holder)

    def _take_alone(self, holder: str) -> bool:
        taken = self._query(
            "INSERT INTO $s.turn AS u (name, holder, until_ms) SELECT %s, %s, $now + %s "
            "WHERE NOT EXISTS (SELECT 1 FROM $s.session WHERE ended = 0 AND until_ms > $now) "
            "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms "
            f"WHERE {TURN_OVER} RETURNING 1",
            (ALONE, holder, ALONE_MS, turn_ms_max(ALONE_MS)),
        )
        return bool(taken)

    def give_alone(self, holder: str) -> None:
        with suppress(NotAJournal):  # it was set aside
            self._query("DELETE FROM $s.turn WHERE name = %s AND holder = %s", (ALONE, holder))

    @asynccontextmanager
    async def _alone(self, keys: KeyRing, wait_s: float) -> AsyncGenerator[tuple[Link, Path]]:
        """A connection and the journal's instance folder, while nobody else has the journal open."""
        folder = self._folder
        ensure_private_folder(self._instance)
        ensure_private_folder(folder)
        with await self.use_alone(wait_s=wait_s):
            try:
                link = await Link.open(self._place)
                try:
                    await check_keys(link, keys)
                    yield link, folder
                finally:
                    await link.close()
            except (psycopg.Error, InDoubt) as error:
                raise _in_our_words(error) from error

    async def raise_incarnation(self, *, to: int, keys: KeyRing, clock: Clock, wait_s: float = ALONE_WAIT_S) -> None:
        async with self._alone(keys, wait_s) as (link, folder):
            await restoring.raise_incarnation(link, folder, to=to, clock=clock)

    async def restore(
        self, *, keys: KeyRing, clock: Clock, dry_run: bool = False, above: int = 0, copied_ms: int = 0
    ) -> Restored:
        from holdfast.journal.postgres import check

        async with self._alone(keys, ALONE_WAIT_S) as (link, folder):
            wraps = KeyWraps(keys)
            findings = await asyncio.to_thread(check.find_damage, self._place, wraps, put_back=False)
            if findings:
                raise JournalDamaged(f"Holdfast cannot restore from {self._place.shown}: {findings[0]}")
            put_back = await asyncio.to_thread(self._is_put_back, wraps, folder.name)
            return await restoring.restore(
                link,
                folder,
                wraps=wraps,
                clock=clock,
                dry_run=dry_run,
                above=above,
                copied_ms=copied_ms,
                put_back=put_back,
            )

    def _is_put_back(self, wraps: KeyWraps, journal_id: str) -> bool:
        with in_our_words(), closing(self._place.connect_at_once()) as db:
            db.execute(BEGIN_READING)
            return totals.is_put_back(db, self._place, wraps.running_total(journal_id))

    async def fill(
        self, copy: Path, *, keys: KeyRing, clock: Clock, ready: Callable[[], object] = lambda: None
    ) -> JournalPosition:
        if self.exists():
            raise NotNow(
                f"there is a journal at {self._place.shown}",
                hint="give another schema (`?schema=NAME`) or database; Holdfast overwrites no journal",
            )
        from holdfast.journal.postgres import loading

        done = await loading.load_journal(self._place, copy, keys=keys, ready=ready)
        folder = self._instance / done.journal_id
        ensure_private_folder(self._instance)
        ensure_private_folder(folder)
        raise_stored(folder, HighWater(done.incarnation, done.sequence), at_ms=clock.wall_ms())
        remember_name(folder, self._url)
        return done

    def set_aside(self) -> str:
        with in_our_words(), at_once(self._place) as db:
            # Whoever is about to write waits here, and then finds no journal under this name.
            db.execute(self._place.sql("LOCK TABLE $s.task, $s.incarnation, $s.counter, $s.tally"))
            if self._copied != db.execute(self._place.sql(totals.VERSION)).fetchone():
                raise JournalBusy(
                    f"{self._place.shown} has changed while it was copied; nothing was moved",
                    hint="stop every process that uses the journal, those that only submit too. Then run it again",
                )
            found = db.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (self._place.schema,))
            names = {str(name) for (name,) in found}
            to = next(one for n in itertools.count(1) if (one := f"{self._place.schema}_moved_{n}") not in names)
            db.execute(f'ALTER SCHEMA "{self._place.schema}" RENAME TO "{to}"'.encode())
        return f"schema {to}"

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
        if self.exists():
            raise NotNow(
                f"there is a journal at {self._place.shown}",
                hint="run `holdfast recover --journal URL` to restore it; if that fails, drop the schema",
            )
        lost = self._lost()
        seen = [high_water(folder) for folder in lost]
        above = max([above, *(mark.incarnation for mark in seen)])
        if not lost and not above and not known():
            raise NotAJournal(
                f"this machine has never used a journal at {self._place.shown}",
                hint="run `holdfast worker APP` or `holdfast submit APP REQUEST` to create one",
            )
        ring, sequence = keys(), max((mark.sequence for mark in seen), default=0)
        if dry_run:
            return Restored(
                journal_id="", incarnation=above + 1, sequence=0, mark_sequence=sequence, lost_after_ms=0, open_tasks=0
            )
        journal_id = entropy.bytes(8).hex()
        salt = heir(journal_id, [folder.name for folder in lost])
        folder = self._instance / journal_id
        ensure_private_folder(self._instance)
        ensure_private_folder(folder)
        meta = {**new_meta(ring, journal_id), TASK_SALT: salt.hex()}
        try:
            link = await Link.open(self._place)
            try:  # in one transaction: a kill leaves no journal, which still counts as lost, or the restored one
                await schema.make(link, meta, incarnation=above + 1, lost_after_ms=SINCE_EVER_MS)
            finally:
                await link.close()
        except (psycopg.Error, InDoubt) as error:
            raise _in_our_words(error) from error
        raise_stored(folder, HighWater(above + 1, 0), at_ms=clock.wall_ms())
        remember_name(folder, self._url)
        for one in lost:
            forget_name(one)
        return Restored(
            journal_id=journal_id,
            incarnation=above + 1,
            sequence=0,
            mark_sequence=sequence,
            lost_after_ms=SINCE_EVER_MS,
            open_tasks=0,
        )


def _in_our_words(error: psycopg.Error | InDoubt) -> HoldfastError:
    if isinstance(error, psycopg.Error):
        return translated(error)
    said = f"the connection was lost while committing, so it may have been done or not: {error}"
    return CommitUnknown(
        said, hint="run the command again once the database can be reached: that is safe in both cases"
    )


class _Alone:
    """The turn to use the journal alone, until the block is left."""

    def __init__(self, admin: PostgresAdmin, holder: str) -> None:
        self._admin = admin
        self._holder = holder

    def __enter__(self) -> _Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.give_alone(self._holder)
