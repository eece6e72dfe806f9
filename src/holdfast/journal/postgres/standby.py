"""Whether a synchronous standby is really there, and what a change of timeline means.

Without one (or where this user may not look, which counts as none) a promotion may lose what was acknowledged. The
journal keeps the timeline of the server's log and what was known of the standby when it was last looked at. A new
timeline where a standby was there has lost nothing. A new timeline otherwise has lost a tail that nobody knows: workers
that see it claim no more and open the journal again, and whoever opens it first takes it as a restore (rule 7):
incarnation raised, every open task suspect.

What this cannot see: a server that went on without its standby in the minute before it died. There the marks that
workers keep of their own commits decide: a process or host that has seen a later commit refuses the database.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from holdfast.errors import JournalBusy
from holdfast.journal.durability import Durability, Kept
from holdfast.journal.postgres.links import Link, Links

LOOK_AGAIN_S = 0.2
WAIT_SHARE = 0.8  # of a lease: then the process may be killed
TIMELINE, STANDBY, SINCE = "timeline", "standby", "standby_since_ms"  # in `meta`
_NOTE = (
    "INSERT INTO $s.meta AS m (key, value) VALUES (%s, {value}) ON CONFLICT (key) DO UPDATE "
    "SET value = excluded.value WHERE m.value <> excluded.value RETURNING 1"
)
_LOOK = (
    "SELECT current_setting('synchronous_standby_names'), "
    "pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), "
    "(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming'), "
    "current_user, current_setting('default_transaction_read_only')::boolean"
)

# A row that ON CONFLICT leaves as it is was locked, which is a write: so first look.
_AS_NOTED = (
    "SELECT $timeline IS NOT DISTINCT FROM (SELECT value FROM $s.meta WHERE key = 'timeline') "
    "AND %s::text IS NOT DISTINCT FROM (SELECT value FROM $s.meta WHERE key = 'standby')"
)


async def find_durability(link: Link, *, provider: bool = False) -> Durability:
    names, may_look, standbys, user, read_only = (await link.one(_LOOK)) or ("", False, 0, "", False)
    if read_only:
        return Durability(
            kept=Kept.READ_ONLY,
            text="the database is read only (default_transaction_read_only): no commit is possible, so no step begins",
            hint="make room on the server's disk if it is full: some services set this then. Else set it to off for "
            f'the database, and for the user "{user}"',
        )
    if may_look and names and standbys:
        return Durability(kept=Kept.STANDBY, text="a synchronous standby has every commit before it counts")
    if provider and not names:
        text = "the provider of the database is said to replicate it: a claim, not proven"
        return Durability(kept=Kept.PROVIDER, text=text)
    if not may_look:
        return Durability(
            kept=Kept.UNKNOWN,
            text="it is not known whether the server has a synchronous standby: this database user may not look",
            hint=f'as an administrator of the database: GRANT pg_read_all_stats TO "{user}"',
        )
    if names:
        return Durability(
            kept=Kept.GONE,
            text=f"the synchronous standby ({names}) is gone: no commit returns, so no step begins",
            hint="bring the standby back, or take it out of synchronous_standby_names",
        )
    return Durability(
        kept=Kept.NO_STANDBY,
        text="the server has no synchronous standby: if it is lost, what it has committed may be lost",
        hint='set synchronous_standby_names, or [journal] durability = "provider" where a service replicates below it',
    )


async def until_there(links: Links, *, ttl_ms: int) -> None:
    """Before a session begins: while the standby is gone, its commit would only wait, and its process be killed. A
    server does not notice that, so each such commit would leave a connection behind. The waits themselves are never
    broken off: that makes commits visible which no standby has. Raises JournalBusy."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SHARE * ttl_ms / 1000
    while (found := await links.read(find_durability)).kept in (Kept.GONE, Kept.READ_ONLY):
        if loop.time() >= until:
            raise JournalBusy(found.text, hint=found.hint)
        await asyncio.sleep(LOOK_AGAIN_S)


async def note(link: Link, kept: Kept, *, decided: bool = False) -> int:
    """Keep what was seen, where it has changed; since when it is so. In a transaction of the caller's. Not after a
    promotion with loss, until that is `decided`: it would look as if nothing had happened."""
    differs = kept is not Kept.READ_ONLY and await link.one(_AS_NOTED, (kept.value,)) != (True,)
    if differs and (decided or await find_promotion(link) is not Promotion.LOSSY):
        await link.run(_NOTE.format(value="$timeline"), (TIMELINE,))
        if await link.run(_NOTE.format(value="%s"), (STANDBY, kept.value)):
            await link.run(_NOTE.format(value="($now)::text"), (SINCE,))
    row = await link.one("SELECT value FROM $s.meta WHERE key = %s", (SINCE,))
    return 0 if row is None else int(row[0])


class Promotion(Enum):
    """Since the journal was last looked at."""

    NONE = auto()
    SOUND = auto()  # of a standby that had every commit; or nobody has looked before
    LOSSY = auto()


async def find_promotion(link: Link) -> Promotion:
    row = await link.one(
        "SELECT $timeline, (SELECT value FROM $s.meta WHERE key = 'timeline'), "
        "(SELECT value FROM $s.meta WHERE key = 'standby')"
    )
    timeline, known, kept = row or ("", None, None)
    if timeline == known:
        return Promotion.NONE
    sound = known is None or kept in (Kept.STANDBY, Kept.PROVIDER)
    return Promotion.SOUND if sound else Promotion.LOSSY
