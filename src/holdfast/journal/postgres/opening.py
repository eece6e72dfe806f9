"""Opening the journal: what is looked at before anybody works with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import errors as pg

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ids import fingerprint_key
from holdfast.core.ports import KeyRing
from holdfast.errors import JournalBusy, JournalDamaged, JournalOlderCopy, KeysWrong, NotAJournal, ReadOnly
from holdfast.host.machine import host_id
from holdfast.host.private_files import ensure_private_folder
from holdfast.journal.admin import HighWater
from holdfast.journal.postgres import schema, totals
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.links import InDoubt, Link
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.sql_errors import translated
from holdfast.journal.postgres.verbs import statements
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.high_water import high_water
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.opening.open import JOURNAL_ID_CHARS, key_check, remember_name

SHARED_WAIT_S = 15.0
LOOK_AGAIN_S = 0.1
ALONE = "alone"  # the turn of whoever changes the journal as a whole


async def open_journal(
    place: PostgresPlace, instance: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy, create: bool, name: str = ""
) -> PostgresJournal:
    """Open the journal there, or make a new one where there is none; raises as `JournalAdmin.open`. With a `name` this
    machine remembers that it has used it, so that its loss is noticed."""
    try:
        link = await Link.open(place)
    except psycopg.Error as error:
        raise translated(error, opening=True) from error
    try:
        return await _open(link, instance, keys=keys, clock=clock, entropy=entropy, create=create, name=name)
    except BaseException as error:  # also a cancel: no connection is kept without a journal
        await link.close()
        if isinstance(error, psycopg.Error | InDoubt):
            raise translated(
                error if isinstance(error, psycopg.Error) else psycopg.OperationalError(str(error))
            ) from error
        raise


async def _open(
    link: Link, instance: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy, create: bool, name: str
) -> PostgresJournal:
    await _prepare_schema(link, keys, entropy=entropy, create=create)
    journal_id = await check_keys(link, keys)
    statements_off = await statements.prepare(link, journal_id)
    folder = instance / journal_id
    ensure_private_folder(instance)
    ensure_private_folder(folder)
    await _wait_shared(link)
    use = await JournalUse.shared(folder, timeout_s=SHARED_WAIT_S)
    try:
        incarnation, newest_ms = await check_not_older(link, folder)
        wraps = KeyWraps(keys)
        live = await link.one("SELECT 1 FROM $s.session WHERE ended = 0 AND until_ms > $now LIMIT 1")
        if live is None:  # nobody else has looked of late
            await totals.check(link, wraps.running_total(journal_id))
        if name:
            remember_name(folder, name)
        own = Instance(folder, clock=clock, entropy=entropy, incarnation=incarnation, use=use)
        journal = PostgresJournal(
            link,
            own,
            journal_id=journal_id,
            wraps=wraps,
            digest_key=fingerprint_key(keys.k_effect),
            host_id=host_id(instance),
            statements_off=statements_off,
            newest_ms=newest_ms,
        )
        await journal.prepare()
    except BaseException:  # also a cancel: the lock is not kept without a journal
        use.close()
        raise
    return journal


async def _wait_shared(link: Link) -> None:
    """Until nobody changes the journal as a whole. Raises JournalBusy."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SHARED_WAIT_S
    while await link.one("SELECT 1 FROM $s.turn WHERE name = %s AND until_ms > $now", (ALONE,)):
        if loop.time() >= until:
            raise JournalBusy(f"{link.place.shown} is being restored or raised by another process")
        await asyncio.sleep(LOOK_AGAIN_S)


async def _prepare_schema(link: Link, keys: KeyRing, *, entropy: Entropy, create: bool) -> None:
    row = await link.one("SELECT pg_is_in_recovery()")
    if row is not None and row[0]:
        raise ReadOnly(
            f"{link.place.shown} is a standby: it can only be read",
            hint="give the url of the primary, or all hosts in one url",
        )
    found = await schema.find_version(link)
    schema.check_version(found, link.place.shown)
    if not found:
        if not create:
            raise NotAJournal(f"there is no journal at {link.place.shown}")
        # Another process may make it meanwhile; theirs is as good.
        with suppress(pg.DuplicateTable, pg.DuplicateSchema, pg.UniqueViolation, pg.DuplicateObject):
            await schema.make(link, new_meta(keys, entropy.bytes(8).hex()))
    elif found < schema.SCHEMA:
        await check_keys(link, keys)
        await schema.raise_schema(link)


def new_meta(keys: KeyRing, journal_id: str) -> dict[str, str]:
    return {"journal_id": journal_id, "key_check": key_check(keys).hex()}


async def check_keys(link: Link, keys: KeyRing) -> str:
    """The journal's id, once the keys are known to be its own. Raises KeysWrong, JournalDamaged."""
    meta = {str(key): str(value) for key, value in await link.run("SELECT key, value FROM $s.meta")}
    journal_id = meta.get("journal_id", "")
    if len(journal_id) != JOURNAL_ID_CHARS or any(char not in "0123456789abcdef" for char in journal_id):
        raise JournalDamaged(f"{link.place.shown}: its journal id is malformed")
    if meta.get("key_check") != key_check(keys).hex():
        raise KeysWrong("the keys do not belong to this journal")
    return journal_id


async def check_not_older(link: Link, folder: Path) -> tuple[int, int]:
    """Its incarnation, and the time of its newest record; JournalOlderCopy where this host's mark is above it."""
    mark = high_water(folder)  # first: another process may commit between the two, and raises it only afterwards
    row = await link.one(
        "SELECT number, (SELECT coalesce(max(last), 0) FROM $s.tally), (SELECT coalesce(max(at_ms), 0) FROM $s.tally) "
        "FROM $s.incarnation"
    )
    if row is None:
        raise JournalDamaged(f"{link.place.shown} has no incarnation")
    incarnation, newest, newest_ms = row
    if HighWater(incarnation, newest) < mark:
        raise JournalOlderCopy(
            f"{link.place.shown} ends at record {newest} of incarnation {incarnation}, but this machine has committed "
            f"record {mark.sequence} of incarnation {mark.incarnation}: the database is an older copy, or was promoted "
            "with loss"
        )
    return incarnation, newest_ms
