"""What a relay knows of an agent beside its key log: profile, handles, backup head, and who may register.

Each function is one act of the store: it reads, decides with the rules that every reader of these records has
(`judge_profile`, `find_fault_in_head`), and writes. The newest rank wins and a lower one never comes back. Two
statements of one rank that say different things are both kept: one of them was signed by a second copy of the agent,
or by a thief, and its owner must hear of it.

A handle belongs to the agent whose signed profile named it first. It is bound to the id and not to a key, so rotations
and recoveries keep it. An agent that gives a handle up, because it has moved or does not want it any more, keeps it
for FORWARD_S: until then the relay answers with the agent's newest profile, which says where it is now.
"""

from __future__ import annotations

from holdfast.host.sqlite import Db
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, digest_of
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements.statements import (
    Head,
    Profile,
    find_fault_in_head,
    judge_profile,
    parse_head,
    parse_profile,
)
from holdfast.relay.protocol.calls import HANDLES_MAX

FORWARD_S = 90 * 86_400
EVIDENCE_MAX = 16  # lines for one agent


def admit(db: Db, id: AgentId, invite: str, *, is_open: bool, agents_max: int) -> str | Refusal:
    """Whether an unknown agent may register: with an invite, or anyone where the relay is open. The digest of the
    invite that is used up by it, empty without one; or why not."""
    count = db.execute("SELECT count(*) FROM agent").fetchall()[0][0]
    if count >= agents_max:
        return Refusal(Reason.FULL, f"the relay has {count:,} agents and takes no more")
    if not invite:
        why = "this relay registers only agents that bring an invite of its operator"
        return "" if is_open else Refusal(Reason.NOT_ADMITTED, why)
    digest = digest_of(invite.encode())
    row = db.execute("SELECT agent FROM invite WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return Refusal(Reason.NOT_ADMITTED, "the relay does not know this invite")
    if row[0] not in (None, id):
        return Refusal(Reason.NOT_ADMITTED, "another agent has used this invite")
    db.execute("UPDATE invite SET agent = ? WHERE digest = ?", (id, digest))
    return digest


def add_invite(db: Db, token: str, *, note: str, now: int) -> None:
    db.execute("INSERT INTO invite VALUES (?, ?, ?, NULL)", (digest_of(token.encode()), now, note))


def put_profile(
    db: Db, signed: Signed[Profile], log: KeyLog, *, relay_name: str, now: int, port: Signatures
) -> Signed[Profile] | Refusal:
    """The profile that counts at this relay from now on."""
    number, held = _row(db, log.id, "profile")
    before = None if held is None else parse_profile(held)
    judged = judge_profile(signed, before, log, now=now, port=port)
    if isinstance(judged, Refusal):
        if judged.reason is Reason.FORK and before is not None:
            _keep_evidence(db, number, (before.digest, before.line()), (signed.digest, signed.line()), now=now)
        return judged
    if judged is not before:
        fault = _bind_handles(db, number, signed.record, relay_name=relay_name, now=now)
        if fault is not None:
            return fault
        db.execute("UPDATE agent SET profile = ? WHERE number = ?", (judged.line(), number))
    return judged


def put_head(db: Db, signed: Signed[Head], log: KeyLog, *, now: int, port: Signatures) -> Signed[Head] | Refusal:
    """The backup head that counts at this relay from now on."""
    number, held = _row(db, log.id, "head")
    before = None if held is None else parse_head(held)
    if before is not None and before.digest == signed.digest:
        return before
    fault = find_fault_in_head(signed, log, port=port)
    if fault is not None:
        return fault
    if before is not None and signed.record.rank <= before.record.rank:
        if signed.record.rank == before.record.rank:
            _keep_evidence(db, number, (before.digest, before.line()), (signed.digest, signed.line()), now=now)
            return Refusal(Reason.FORK, "the relay holds another backup head of the same rank; both are kept")
        return Refusal(Reason.OLD_VERSION, f"head {signed.record.seq} is not newer than head {before.record.seq}")
    db.execute("UPDATE agent SET head = ? WHERE number = ?", (signed.line(), number))
    return signed


def find_line(db: Db, id: AgentId, column: str) -> bytes | None:
    """The stored line of a known column: profile or head."""
    row = db.execute(f"SELECT {column} FROM agent WHERE id = ?", (id,)).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def find_evidence(db: Db, id: AgentId) -> list[bytes]:
    rows = db.execute(
        "SELECT line FROM evidence JOIN agent ON agent.number = evidence.agent WHERE agent.id = ? ORDER BY evidence.at",
        (id,),
    ).fetchall()
    return [bytes(line) for (line,) in rows]


def find_handle(db: Db, name: str, *, now: int) -> bytes | None:
    """The newest profile of the agent that has this name."""
    row = db.execute(
        "SELECT agent.profile FROM handle JOIN agent ON agent.number = handle.agent "
        "WHERE handle.name = ? AND coalesce(handle.free_at, ?) >= ?",
        (name, now, now),
    ).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def _bind_handles(db: Db, number: int, profile: Profile, *, relay_name: str, now: int) -> Refusal | None:
    asked = [name for name, _, relay in (one.partition("@") for one in profile.handles) if relay == relay_name]
    if len(asked) > HANDLES_MAX:
        return Refusal(Reason.FULL, f"an agent may have {HANDLES_MAX} handles at this relay")
    for name in asked:
        row = db.execute("SELECT agent, free_at FROM handle WHERE name = ?", (name,)).fetchone()
        if row is not None and row[0] != number and (row[1] is None or row[1] >= now):
            return Refusal(Reason.HANDLE_TAKEN, f"another agent has the handle {name}@{relay_name}")
    for name in asked:
        db.execute(
            "INSERT INTO handle VALUES (?, ?, ?, NULL) ON CONFLICT (name) DO UPDATE SET agent = excluded.agent, "
            "at = CASE WHEN agent = excluded.agent THEN at ELSE excluded.at END, free_at = NULL",
            (name, number, now),
        )
    kept = ",".join("?" * len(asked))
    db.execute(
        f"UPDATE handle SET free_at = ? WHERE agent = ? AND free_at IS NULL AND name NOT IN ({kept})",
        (now + FORWARD_S, number, *asked),
    )
    return None


def _row(db: Db, id: AgentId, column: str) -> tuple[int, bytes | None]:
    number, held = db.execute(f"SELECT number, {column} FROM agent WHERE id = ?", (id,)).fetchall()[0]
    return number, None if held is None else bytes(held)


def _keep_evidence(db: Db, number: int, *lines: tuple[Digest, bytes], now: int) -> None:
    count = db.execute("SELECT count(*) FROM evidence WHERE agent = ?", (number,)).fetchall()[0][0]
    for digest, line in lines[: max(0, EVIDENCE_MAX - count)]:
        db.execute("INSERT OR IGNORE INTO evidence VALUES (?, ?, ?, ?)", (number, digest, now, line))
