"""Sessions of the embedded journal: a row with a lease, a page file with a lock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple, cast

from holdfast.core.clock import Clock
from holdfast.host.sqlite import Db, Row
from holdfast.journal import rules
from holdfast.journal.builds import Build
from holdfast.journal.contract import Session, SessionRow
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.host.page import SessionPage


@dataclass(slots=True, kw_only=True, eq=False)
class SqliteSession:
    """contract.Session with its page."""

    session_id: str
    incarnation: int
    boot_id: str
    ttl_ms: int
    page: SessionPage
    build: Build
    deadline_boot_ms: int = 0
    row: int = 0

    @classmethod
    def begun(cls, instance: Instance, *, ttl_ms: int, build: Build) -> SqliteSession:
        session_id = instance.entropy.bytes(8).hex()
        return cls(
            session_id=session_id,
            incarnation=instance.incarnation,
            boot_id=instance.clock.boot_id,
            ttl_ms=ttl_ms,
            page=instance.open_page(session_id),
            build=build,
        )

    def take_slot(self, tag: bytes) -> int:
        slot = self.page.take_slot(tag)
        return -1 if slot is None else slot

    def mark_begun(self, slot: int) -> None:
        if slot >= 0:
            self.page.mark_begun(slot)

    def free_slot(self, slot: int) -> None:
        if slot >= 0:
            self.page.free_slot(slot)

    def left_at(self, slot: int) -> int | None:
        return self.page.left_at(slot) if slot >= 0 else None

    def mark_left(self, slot: int) -> None:
        if slot >= 0:
            self.page.mark_left(slot)

    def is_left(self, slot: int) -> bool:
        return slot >= 0 and self.page.is_left(slot)

    def lock_fd(self) -> int | None:
        return self.page.lock_fd


class DeadSession(NamedTuple):
    row: int
    until_ms: int
    proven: bool  # by its lock or a reboot, so that no renewal can contradict it


def own_session(session: Session) -> SqliteSession:
    if not isinstance(session, SqliteSession):
        raise TypeError("the session belongs to another journal")
    return session


def find_dead_sessions(db: Db, clock: Clock, instance: Instance, *, but: int) -> list[DeadSession]:
    """Sessions whose tasks may be taken: lease over, or their process provably gone."""
    rows = db.execute(
        "SELECT s, session_id, boot_id, until_ms, ended FROM session "
        "WHERE s != ? AND (ended = 0 OR s IN (SELECT session FROM task WHERE session IS NOT NULL))",
        (but,),
    ).fetchall()
    at = rules.LookedAt(boot_id=clock.boot_id, boot_ms=clock.boot_ms())
    dead: list[DeadSession] = []
    for row in rows:
        s, session_id, boot_id, until_ms, ended = cast("tuple[int, str, str, int, int]", row)
        free = None if boot_id != clock.boot_id else not instance.is_alive(session_id)
        lease = rules.Lease(session_id=session_id, ended=bool(ended), boot_id=boot_id, until_boot_ms=until_ms)
        death = rules.session_dead(lease, at, lock_free=free)
        if death is not rules.Death.NO:
            dead.append(DeadSession(row=s, until_ms=until_ms, proven=death is rules.Death.PROVEN))
    return dead


def list_sessions(db: Db, clock: Clock, instance: Instance) -> list[SessionRow]:
    rows = db.execute(
        "SELECT s.session_id, s.worker, s.pid, s.boot_id, s.until_ms, s.begun_ms, s.ended, "
        "(SELECT count(*) FROM task t WHERE t.session = s.s), (SELECT value FROM meta WHERE key = ? || s.session_id) "
        "FROM session s WHERE s.ended = 0 OR s.s > (SELECT max(s) - 50 FROM session) ORDER BY s.s DESC",
        (SERVES,),
    ).fetchall()
    return [_session_row(row, clock, instance) for row in rows]


SERVES = "serves/"  # rows of `meta`, by session id: JSON, the names of the tasks that the session claims
PAGES_KEPT = 64  # of dead sessions: their send-begun slots spare a person a needless question


def pages_to_keep(db: Db) -> set[str]:
    newest = "SELECT session_id FROM session WHERE ended = 2 ORDER BY s DESC LIMIT ?"
    held = "SELECT session_id FROM session WHERE s IN (SELECT session FROM task WHERE session IS NOT NULL)"
    return {str(row[0]) for row in (*db.execute(newest, (PAGES_KEPT,)), *db.execute(held))}


def _session_row(row: Row, clock: Clock, instance: Instance) -> SessionRow:
    here = row[3] == clock.boot_id
    return SessionRow(
        session_id=row[0],
        worker=row[1],
        pid=row[2],
        boot_id=row[3],
        lease_until_boot_ms=row[4],
        begun_ms=row[5],
        ended=bool(row[6]),
        alive=not row[6] and here and row[4] > clock.boot_ms() and instance.is_alive(row[0]),
        tasks=row[7],
        serves=None if row[8] is None else frozenset(json.loads(row[8])),
    )
