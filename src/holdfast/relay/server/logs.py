"""Key logs in the relay's store: a `LogStore` for the witness that every folder has too.

Lines are appended and never changed. A log is replayed from its lines, every signature checked, and kept in memory
together with the number of lines it was made of; a changed store is seen by that number. What does not replay is
damage, and the relay then signs nothing for that agent.

An unknown agent is admitted in the same transaction that keeps its first record, so that an invite is used by exactly
one agent, also after a kill.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.host.sqlite import Db
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest
from holdfast.identity.records.records import Inception, Recovery
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.witness.relay_link import LOOKUP_MAX
from holdfast.identity.witness.witness import WitnessVerdict
from holdfast.identity.witness.witness_folder import Change, added_lines, replayed
from holdfast.relay.bounded import keep_newest
from holdfast.relay.server.store import Store

LOGS_CACHED = 2_048
LOG_BYTES_MAX = 8 * 1024 * 1024  # of one agent: the longest generation is a third of it

Admit = Callable[[Db, AgentId], "str | Refusal"]  # the digest of the invite, empty without one; or why not


class KeyLogs:
    """All logs of the store."""

    def __init__(self, store: Store, *, port: Signatures) -> None:
        self.store = store
        self._port = port
        self._cached: OrderedDict[AgentId, tuple[int, KeyLog]] = OrderedDict()
        self._caching = threading.Lock()

    def find(self, id: AgentId) -> KeyLog | None:
        row = self.store.known(("log", id), lambda db: _number_and_lines(db, id))
        if row is None:
            return None
        return self._find_cached(id, row[1]) or self.store.read(lambda db: self.load(db, id, keep=True))

    def load(self, db: Db, id: AgentId, *, keep: bool = False) -> KeyLog | None:
        """As this connection sees it; kept in memory only where all of it is committed. Raises WitnessDamaged."""
        row = _number_and_lines(db, id)
        if row is None:
            return None
        number, count = row
        if (known := self._find_cached(id, count)) is not None:
            return known
        rows = db.execute("SELECT line FROM log_line WHERE agent = ? ORDER BY n", (number,)).fetchall()
        log = replayed(b"".join(bytes(line) + b"\n" for (line,) in rows), f"the log of {id}", self._port)
        if keep:
            self.keep(id, count, log)
        return log

    def _find_cached(self, id: AgentId, count: int) -> KeyLog | None:
        with self._caching:
            known = self._cached.get(id)
            if known is None or known[0] != count:
                return None
            self._cached.move_to_end(id)
            return known[1]

    def keep(self, id: AgentId, count: int, log: KeyLog) -> None:
        with self._caching:
            keep_newest(self._cached, id, (count, log), most=LOGS_CACHED)

    def find_by_recovery_keys(self, digests: tuple[Digest, ...]) -> list[AgentId]:
        """The first registered first: a later log can copy the commitment of an earlier one, but not its place."""
        marks = ",".join("?" * len(digests))
        rows = self.store.read(
            lambda db: db.execute(
                f"SELECT DISTINCT agent.id, agent.number FROM recovery JOIN agent ON agent.number = recovery.agent "
                f"WHERE recovery.digest IN ({marks}) ORDER BY agent.number LIMIT {LOOKUP_MAX}",
                digests,
            ).fetchall()
        )
        return [AgentId(one) for one, _ in rows]


def _number_and_lines(db: Db, id: AgentId) -> tuple[int, int] | None:
    return db.execute("SELECT number, log_lines FROM agent WHERE id = ?", (id,)).fetchone()


@dataclass(frozen=True, slots=True)
class AdmittingLogs:
    """witness_folder.LogStore over the relay's logs, for a request whose sender may register an agent by this rule."""

    logs: KeyLogs
    admit: Admit

    def find(self, id: AgentId) -> KeyLog | None:
        return self.logs.find(id)

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal:
        judged, count = self.logs.store.write(lambda db: self._change(db, id, change))
        if count and isinstance(judged, WitnessVerdict):
            self.logs.keep(id, count, judged.log)
        return judged

    def _change(self, db: Db, id: AgentId, change: Change) -> tuple[WitnessVerdict | Refusal, int]:
        before = self.logs.load(db, id)
        judged = change(before)
        if isinstance(judged, Refusal) or judged.log is before:
            return judged, 0
        if before is None:
            invite = self.admit(db, id)
            if isinstance(invite, Refusal):
                return invite, 0
            db.execute("INSERT INTO agent (id, at, invite) VALUES (?, unixepoch(), ?)", (id, invite or None))
        number, lines, size = db.execute(
            "SELECT number, log_lines, log_bytes FROM agent WHERE id = ?", (id,)
        ).fetchall()[0]
        added = added_lines(before, judged.log)
        size += sum(map(len, added))
        if size > LOG_BYTES_MAX:
            return Refusal(Reason.FULL, f"the log has more than {LOG_BYTES_MAX:,} bytes"), 0
        db.executemany(
            "INSERT INTO log_line VALUES (?, ?, ?)", [(number, lines + n, line) for n, line in enumerate(added, 1)]
        )
        db.executemany(
            "INSERT OR IGNORE INTO recovery VALUES (?, ?)", [(one, number) for one in _commitments(judged.log)]
        )
        count = lines + len(added)
        db.execute("UPDATE agent SET log_lines = ?, log_bytes = ? WHERE number = ?", (count, size, number))
        return judged, count


def _commitments(log: KeyLog) -> list[Digest]:
    """Digests of the recovery keys that the chosen records of the recovery tier commit to."""
    tiers = (one.tier.record for one in log.generations)
    return [digest for one in tiers if isinstance(one, Inception | Recovery) for digest in one.rec.members]
