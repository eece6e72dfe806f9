"""Making and raising the journal's schema.

A journal is made whole or not at all: one transaction. Each version of the schema leads from the one before, in one
transaction that holds the row of `version`, so that of several processes one does it and the others wait. A schema that
is newer than this Holdfast is refused, before anything is changed; an older Holdfast refuses ours in the same way when
it opens the journal, and a process that has it open keeps working as long as its statements do.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from holdfast.errors import BadInput, JournalDamaged, JournalNewer, NotAJournal
from holdfast.journal.postgres.links import Link, transact

SCHEMA = 1
_OTHERS = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('$s') ORDER BY relname LIMIT 1"
TOOLS = "_tools"  # at the end of the name of the schema where the tables of Transactional tools are


@functools.cache
def schema_step(number: int) -> str:
    """What leads from the schema before to this one; the first makes it from nothing."""
    return resources.files("holdfast.journal.postgres").joinpath(f"schema_{number}.sql").read_text()


async def find_version(link: Link) -> int:
    """0 where there is no journal."""
    row = await link.one("SELECT to_regclass('$s.version') IS NOT NULL")
    if row is None or not row[0]:
        return 0
    row = await link.one("SELECT number FROM $s.version")
    return 0 if row is None else row[0]


def check_version(found: int, shown: str) -> None:
    """Raises JournalNewer."""
    if found > SCHEMA:
        raise JournalNewer(
            f"{shown} has schema {found}; this Holdfast reads at most schema {SCHEMA}; nothing was changed"
        )


async def make(link: Link, meta: Mapping[str, str], *, incarnation: int = 1, lost_after_ms: int = 0) -> None:
    """A new, empty journal. Safe to race: whoever is second finds the first one's. With `lost_after_ms` it takes the
    place of one that is lost, and what is submitted to it may have run before."""
    await transact(link, lambda link: build(link, meta, incarnation=incarnation, lost_after_ms=lost_after_ms))


async def build(link: Link, meta: Mapping[str, str], *, incarnation: int, lost_after_ms: int) -> None:
    """The same in a transaction of the caller's. Raises BadInput, NotAJournal."""
    if link.place.schema.endswith(TOOLS):
        raise BadInput(
            f"a journal cannot be in the schema {link.place.schema}: such a name is for the tables of Transactional "
            "tools, which may drop everything in it",
            hint="name another schema in the url (`schema=NAME`)",
        )
    if (other := await link.one(_OTHERS)) is not None and not await find_version(link):
        raise NotAJournal(
            f"the schema of {link.place.shown} has something else in it: {other[0]}; nothing was changed",
            hint="name another schema in the url (`schema=NAME`): Holdfast makes it",
        )
    await link.run("CREATE SCHEMA IF NOT EXISTS $s")
    await link.run(schema_step(1))
    await link.run("INSERT INTO $s.version (number) VALUES (%s)", (1,))
    await link.run(
        "INSERT INTO $s.incarnation (number, lost_after_ms, restored_ms) "
        "SELECT %s, %s, CASE WHEN %s > 0 THEN $now ELSE 0 END",
        (incarnation, lost_after_ms, lost_after_ms),
    )
    for key, value in meta.items():
        await link.run("INSERT INTO $s.meta (key, value) VALUES (%s, %s)", (key, value))
    await link.run("INSERT INTO $s.meta (key, value) VALUES ('created_ms', ($now)::text) ON CONFLICT DO NOTHING")
    await raise_version(link, 1)


async def raise_schema(link: Link) -> None:
    async def act(link: Link) -> None:
        row = await link.one("SELECT number FROM $s.version FOR UPDATE")
        await raise_version(link, 0 if row is None else row[0])

    await transact(link, act)


async def raise_version(link: Link, found: int) -> None:
    """Step by step, in a transaction of the caller's."""
    if not 1 <= found <= SCHEMA:
        raise JournalDamaged(f"this Holdfast cannot migrate schema {found} to {SCHEMA}")
    for number in range(found + 1, SCHEMA + 1):
        await link.run(schema_step(number))
        await link.run("UPDATE $s.version SET number = %s", (number,))
