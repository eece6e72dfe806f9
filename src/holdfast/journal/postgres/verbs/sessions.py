"""Sessions of a shared journal: a row with a lease in the database's time, and a page with a lock on this machine.

A lease is extended by a commit that waits for the synchronous standby, like every other: a server that is cut off from
it extends nobody's, so that its region has stopped acting one lease after the cut, before the sessions at a promoted
standby take over (docs/decisions/0057).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.journal import rules
from holdfast.journal.builds import names_claimed
from holdfast.journal.contract import SessionRow, TaskNames
from holdfast.journal.postgres.links import SETTINGS, Link, Links
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.times import CarriedTime
from holdfast.journal.postgres.totals import VERSION_OF
from holdfast.journal.postgres.verbs.seen import NEWEST
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.host.page_reader import page_path
from holdfast.journal.sqlite.verbs.sessions import SqliteSession as PagedSession

__all__ = ["DeadSession", "Looks", "PagedSession", "begin", "bury", "end", "longest_lease_ms", "pages_to_keep"]

FOUND_DEAD = 2  # of `ended`
_LEASE = "s.s, s.session_id, s.ended, s.boot_id, s.until_boot_ms, s.host_id, s.until_ms, s.ttl_ms"
_LEASES = (
    f"$now, $timeline, {_LEASE} FROM (VALUES (1)) AS one LEFT JOIN $s.session s "
    "ON s.ended = 0 OR EXISTS (SELECT 1 FROM $s.task k WHERE k.session = s.s)"
)
# Every renewal changes `until_ms`: others watch for that.
_EXTEND = (
    f"WITH settings AS MATERIALIZED ({SETTINGS}), own AS (UPDATE $s.session AS o SET until_boot_ms = %b, "
    "until_ms = greatest($now + o.ttl_ms, o.until_ms + 1) FROM settings WHERE o.s = %b AND o.ended = 0 RETURNING 1) "
    "SELECT (SELECT count(*) FROM own), "
    "(SELECT min(due_ms) FROM $s.task WHERE state IN ('queued', 'sleeping', 'waiting')), "
    f"{VERSION_OF}, {NEWEST}, {_LEASES}"
)


class Looks:
    """This process's looks at the database's clock and at everybody's lease (docs/decisions/0051)."""

    def __init__(self, clock: Clock, time: CarriedTime, instance: Instance, host_id: str) -> None:
        self._clock = clock
        self._time = time
        self._instance = instance
        self.host_id = host_id
        self._watch: rules.LeaseWatch | None = None
        self._leases: dict[int, rules.Lease] = {}  # of the last look, by row
        self.timeline = ""
        self.promoted = False  # the timeline has changed since this process opened the journal

    async def look(self, link: Link) -> rules.LookedAt:
        asked_boot_ms = self._clock.boot_ms()
        return self._looked(await link.run(f"SELECT {_LEASES}"), asked_boot_ms)

    async def extend(self, links: Links, session: PagedSession, *, asked_boot_ms: int) -> Extended:
        """Extend the session's lease, and look at everything else in the same statement."""
        until_boot_ms = rules.lease_until_boot_ms(asked_boot_ms, session.ttl_ms)
        rows = await links.extend(_EXTEND, (until_boot_ms, session.row))
        renewed, due_ms, *version, newest = rows[0][:6]
        at = self._looked([row[6:] for row in rows], asked_boot_ms)
        waits = (due_ms is not None and due_ms <= at.now_ms) or bool(self._dead(at, but=session.row))
        return Extended(renewed == 1, waits, tuple(version), newest)

    def _looked(self, rows: Sequence[Row], asked_boot_ms: int) -> rules.LookedAt:
        now_ms, timeline = int(rows[0][0]), str(rows[0][1])
        self.promoted = self.promoted or timeline != (self.timeline or timeline)
        self.timeline = timeline
        self._leases = {row[2]: _lease(row[3:]) for row in rows if row[2] is not None}
        open_until_ms = {one.session_id: one.until_ms for one in self._leases.values() if not one.ended}
        self._watch = rules.watch_leases(
            self._watch, timeline=self.timeline, until_ms=open_until_ms, boot_ms=self._clock.boot_ms()
        )
        self._time.heard(now_ms)
        return rules.LookedAt(
            boot_id=self._clock.boot_id, boot_ms=asked_boot_ms, host_id=self.host_id, now_ms=now_ms, watch=self._watch
        )

    def death(self, lease: rules.Lease, at: rules.LookedAt) -> rules.Death:
        return rules.session_dead(lease, at, lock_free=self._lock_free(lease, at))

    def _lock_free(self, lease: rules.Lease, at: rules.LookedAt) -> bool | None:
        """Whether its process has let go of the page's lock; None where that page is not on this machine."""
        here = lease.host_id == at.host_id and lease.boot_id == at.boot_id
        if not here or not page_path(self._instance.folder, lease.session_id).exists():
            return None
        return not self._instance.is_alive(lease.session_id)

    async def find_dead(self, link: Link, *, but: int) -> list[DeadSession]:
        """Sessions whose tasks may be taken: lease over, or their process provably gone."""
        return self._dead(await self.look(link), but=but)

    def _dead(self, at: rules.LookedAt, *, but: int) -> list[DeadSession]:
        dead: list[DeadSession] = []
        for row, lease in self._leases.items():
            death = rules.Death.NO if row == but else self.death(lease, at)
            if death is not rules.Death.NO:
                dead.append(DeadSession(row, lease.until_ms, lease.ended, death is rules.Death.PROVEN))
        return dead

    async def list_sessions(self, link: Link) -> list[SessionRow]:
        at = await self.look(link)
        rows = await link.run(
            "SELECT s.worker, s.pid, s.begun_ms, s.serves, (SELECT count(*) FROM $s.task k WHERE k.session = s.s), "
            f"{_LEASE} FROM $s.session s WHERE s.ended = 0 OR s.s > (SELECT max(s) - 50 FROM $s.session) "
            "ORDER BY s.s DESC"
        )
        found: list[SessionRow] = []
        for worker, pid, begun_ms, serves, tasks, _, *columns in rows:
            lease = _lease(columns)
            found.append(
                SessionRow(
                    session_id=lease.session_id,
                    worker=worker,
                    pid=pid,
                    boot_id=lease.boot_id,
                    lease_until_boot_ms=lease.until_boot_ms,
                    begun_ms=begun_ms,
                    ended=lease.ended,
                    alive=self.death(lease, at) is rules.Death.NO,
                    tasks=tasks,
                    serves=None if serves is None else frozenset(serves),
                    host_id=lease.host_id,
                    lease_until_ms=lease.until_ms,
                    died=columns[1] == FOUND_DEAD,
                )
            )
        return found


class Extended(NamedTuple):
    """What came of a renewal."""

    renewed: bool  # False: the session was found dead
    waits: bool  # a task is due, or its worker has died
    version: Row  # totals.version
    newest: str | None  # seen.NEWEST


class DeadSession(NamedTuple):
    row: int
    until_ms: int
    ended: bool  # its row says so already
    proven: bool  # no renewal can contradict it


async def begin(
    link: Link,
    session: PagedSession,
    *,
    worker: str,
    host_id: str,
    asked_boot_ms: int,
    begun_ms: int,
    serves: TaskNames,
) -> int:
    row = await link.one(
        "INSERT INTO $s.session (session_id, worker, pid, host_id, boot_id, until_ms, until_boot_ms, ttl_ms, begun_ms, "
        "serves) VALUES (%s, %s, %s, %s, %s, $now + %s, %s, %s, %s, %s) "
        "ON CONFLICT (session_id) DO UPDATE SET pid = excluded.pid RETURNING s",
        (
            session.session_id,
            worker,
            os.getpid(),
            host_id,
            session.boot_id,
            session.ttl_ms,
            rules.lease_until_boot_ms(asked_boot_ms, session.ttl_ms),
            session.ttl_ms,
            begun_ms,
            None if serves is None else names_claimed(serves, session.build),
        ),
    )
    return 0 if row is None else row[0]


async def end(link: Link, session: PagedSession, *, now_ms: int) -> None:
    """Tasks still held go back to the queue under their old due time."""
    await link.run("UPDATE $s.session SET ended = 1 WHERE s = %s AND ended = 0", (session.row,))
    await link.run(
        "UPDATE $s.task SET state = 'queued', session = NULL, crashes = 0, changed_ms = greatest(changed_ms, %s) "
        "WHERE session = %s AND state = 'running'",
        (now_ms, session.row),
    )


async def bury(link: Link, dead: Sequence[DeadSession]) -> list[int]:
    """Mark dead sessions, unless one has renewed its lease since it was looked at; the rows of those that are dead."""
    buried = [one.row for one in dead if one.ended]
    for one in dead:
        if not one.ended and await link.change(
            "UPDATE $s.session SET ended = 2 WHERE s = %s AND ended = 0 AND (%s OR until_ms = %s)",
            (one.row, one.proven, one.until_ms),
        ):
            buried.append(one.row)
    return buried


async def longest_lease_ms(link: Link) -> int:
    """Of the open sessions and of the newest ones: as long may one last that the journal does not know of."""
    row = await link.one(
        "SELECT coalesce(max(ttl_ms), 0) FROM $s.session WHERE ended = 0 OR s > (SELECT max(s) - 50 FROM $s.session)"
    )
    return 0 if row is None else int(row[0])


def _lease(columns: Sequence[object]) -> rules.Lease:
    session_id, ended, boot_id, until_boot_ms, host_id, until_ms, ttl_ms = columns
    return rules.Lease(
        session_id=str(session_id),
        ended=bool(ended),
        boot_id=str(boot_id),
        until_boot_ms=int(str(until_boot_ms)),
        host_id=str(host_id),
        until_ms=int(str(until_ms)),
        ttl_ms=int(str(ttl_ms)),
    )


async def pages_to_keep(link: Link) -> set[str]:
    """Of dead sessions: their send-begun slots spare a person a needless question."""
    rows = await link.run(
        "(SELECT session_id FROM $s.session WHERE ended = 2 ORDER BY s DESC LIMIT 64) UNION "
        "(SELECT session_id FROM $s.session s WHERE EXISTS (SELECT 1 FROM $s.task k WHERE k.session = s.s))"
    )
    return {str(row[0]) for row in rows}
