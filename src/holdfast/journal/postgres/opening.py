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
from holdfast.errors import BadInput, JournalBusy, NotAJournal, ReadOnly
from holdfast.host.machine import host_id
from holdfast.host.private_files import ensure_private_folder
from holdfast.journal.postgres import restoring, schema, totals
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.links import InDoubt, Link, Links
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.sql_errors import NONE_HINT, translated
from holdfast.journal.postgres.verbs import statements
from holdfast.journal.postgres.verbs.guards import check_keys, check_not_older, new_meta, note_tables
from holdfast.journal.postgres.verbs.upkeep import TURN_OVER, turn_ms_max
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.host.journal_names import remember_name
from holdfast.journal.sqlite.host.use_lock import JournalUse

SHARED_WAIT_S = 15.0
LOOK_AGAIN_S = 0.1
ALONE = "alone"  # the turn of whoever changes the journal as a whole
ALONE_MS = 60_000


async def open_journal(
    place: PostgresPlace,
    instance: Path,
    *,
    keys: KeyRing,
    clock: Clock,
    entropy: Entropy,
    create: bool,
    name: str = "",
    pooled: Links | None = None,
) -> PostgresJournal:
    """Open the journal there, or make a new one where there is none; raises as `JournalAdmin.open`. With a `name` this
    machine remembers that it has used it, so that its loss is noticed. `pooled`: the connections that it works over;
    otherwise it has its own."""
    try:
        link = await Link.open(place)
    except psycopg.Error as error:
        raise await asyncio.to_thread(translated, error, opening=True) from error
    links = pooled or Links(link)
    try:
        return await _open(link, links, instance, keys=keys, clock=clock, entropy=entropy, create=create, name=name)
    except BaseException as error:  # also a cancel: no connection is kept without a journal
        await link.close()
        if isinstance(error, psycopg.Error | InDoubt):
            raise translated(
                error if isinstance(error, psycopg.Error) else psycopg.OperationalError(str(error))
            ) from error
        raise
    finally:
        if pooled is not None:
            await link.close()


async def _open(
    link: Link, links: Links, instance: Path, *, keys: KeyRing, clock: Clock, entropy: Entropy, create: bool, name: str
) -> PostgresJournal:
    await _prepare_schema(link, keys, entropy=entropy, create=create)
    journal_id = await check_keys(link, keys)
    statements_off = await statements.prepare(link, journal_id)
    folder = instance / journal_id
    ensure_private_folder(instance)
    ensure_private_folder(folder)
    await _wait_shared(link)
    await note_tables(link)
    await restoring.take_promotion(link, folder, wraps=KeyWraps(keys), clock=clock)
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
            links,
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
    query = f"SELECT 1 FROM $s.turn u WHERE name = %s AND NOT ({TURN_OVER})"
    while await link.one(query, (ALONE, turn_ms_max(ALONE_MS))):
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
            raise NotAJournal(f"there is no journal at {link.place.shown}", hint=NONE_HINT)
        encoding = link.db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise BadInput(
                f"the database of {link.place.shown} has the encoding {encoding}, which cannot keep every text",
                hint="make a database with `CREATE DATABASE NAME ENCODING 'UTF8' TEMPLATE template0`, and give its url",
            )
        # Another process may make it meanwhile; theirs is as good.
        with suppress(pg.DuplicateTable, pg.DuplicateSchema, pg.UniqueViolation, pg.DuplicateObject):
            try:
                await schema.make(link, new_meta(keys, entropy.bytes(8).hex()))
            except pg.InsufficientPrivilege as error:
                user, database = link.db.info.user, link.db.info.dbname
                raise ReadOnly(
                    f"the database user {user} may not make a journal in the database {database}",
                    hint=f'as an administrator of the database: GRANT CREATE ON DATABASE "{database}" TO "{user}"',
                ) from error
    elif found < schema.SCHEMA:
        await check_keys(link, keys)
        await schema.raise_schema(link)
