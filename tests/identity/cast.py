"""An agent with real keys from fixed seeds, its witnesses, and what a thief would make."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.identity.log import drafts
from holdfast.identity.log.log import NOBODY, accept, add_receipt
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signer, Sodium
from holdfast.identity.records.encodings import AgentId, PublicKey, digest_of
from holdfast.identity.records.records import Keys, LogPosition, Receipt, Record, RotationReason, sign_receipt
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, sealed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.witness.witness import WitnessVerdict
from holdfast.identity.witness.witness_folder import Change

SODIUM = Sodium()
NOW = 1_800_000_000
NONCE = "AAAAAAAAAAAAAAAAAAAAAA"


def key(name: str) -> KeyPair:
    return KeyPair(SecretBytes(hashlib.sha256(name.encode()).digest()))


def witnesses(*names: str, needed: int) -> Keys:
    return Keys(tuple(key(name).public for name in names), needed)


def taken(after: KeyLog | Refusal) -> KeyLog:
    assert isinstance(after, KeyLog), after
    return after


def refused(after: object) -> Reason:
    assert isinstance(after, Refusal), after
    return after.reason


def take(
    log: KeyLog | None,
    signed: Signed[Record],
    receipts: Sequence[Signed[Receipt]] = (),
    asked: frozenset[PublicKey] = NOBODY,
) -> KeyLog:
    return taken(accept(log, signed, port=SODIUM, receipts=receipts, asked=asked))


def refuse(log: KeyLog | None, signed: Signed[Record]) -> Reason:
    return refused(accept(log, signed, port=SODIUM))


def receipt(log: KeyLog, signed: Signed[Record], name: str) -> Signed[Receipt]:
    g, s = signed.record.position
    said = Receipt(id=log.id, g=g, s=s, d=signed.digest, wit=key(name).public, at=NOW)
    return sign_receipt(said, key(name))


def vouched(log: KeyLog, signed: Signed[Record], *names: str) -> KeyLog:
    """The log with receipts of these witnesses for the record."""
    for name in names:
        log = taken(add_receipt(log, receipt(log, signed, name), port=SODIUM))
    return log


@dataclass
class Owner:
    """Makes the records of one agent; the n-th keys have names of their own."""

    name: str = "owner"
    wit: Keys = field(default_factory=lambda: witnesses("w1", "w2", "w3", needed=2))

    def op(self, number: int) -> KeyPair:
        return key(f"{self.name} op {number}")

    def next(self, number: int) -> KeyPair:
        return key(f"{self.name} next {number}")

    def paper(self, g: int) -> KeyPair:
        return key(f"{self.name} paper {g}")

    def paper_next(self, g: int) -> KeyPair:
        return key(f"{self.name} paper next {g}")

    def inception(self) -> Signed[Record]:
        return drafts.inception(
            op=(self.op(0),),
            nxt=drafts.committed((self.next(1).public,)),
            rec=drafts.committed((self.paper(1).public,)),
            wit=self.wit,
            nonce=NONCE,
        )

    def begun(self) -> KeyLog:
        return take(None, self.inception())

    def rotation(
        self,
        log: KeyLog,
        number: int,
        *,
        by: Signer | None = None,
        why: RotationReason = RotationReason.PLANNED,
        wit: Keys | None = None,
    ) -> Signed[Record]:
        return drafts.rotation(
            log,
            by=(by or self.next(number),),
            op=(self.op(number),),
            nxt=drafts.committed((self.next(number + 1).public,)),
            why=why,
            wit=wit,
        )

    def recovery(self, log: KeyLog, g: int | None = None, wit: Keys | None = None) -> Signed[Record]:
        at = len(log.generations) if g is None else g
        return drafts.recovery(
            id=log.id,
            g=at,
            rp=log.generations[at - 1].tier.digest,
            by=(self.paper(at),),
            nxt=drafts.committed((self.paper_next(at).public,)),
            rec=drafts.committed((self.paper(at + 1).public,)),
            wit=wit,
        )

    def rotated(self, log: KeyLog, number: int) -> KeyLog:
        return take(log, self.rotation(log, number))

    def back(self, log: KeyLog, number: int = 50) -> KeyLog:
        """The log after a recovery and the rotation that ends the lock."""
        log = take(log, self.recovery(log))
        g = log.position.g
        signed = self.rotation(log, number, by=self.paper_next(g), why=RotationReason.RECOVERED)
        return take(log, signed)


def certificate(
    log: KeyLog,
    signer: Signer,
    *,
    inst: PublicKey | None = None,
    position: LogPosition | None = None,
    role: Role = Role.PRIMARY,
    e: int = 1,
    iat: int = NOW,
    life_s: int = 900,
) -> Signed[Certificate]:
    g, s = position or log.position
    record = Certificate(
        id=log.id,
        g=g,
        s=s,
        inst=inst or key("instance").public,
        role=role,
        e=e,
        iat=iat,
        exp=iat + life_s,
        host=digest_of(b"machine"),
    )
    return sealed(record, Family.CERT, (signer,))


def other_id() -> AgentId:
    return Owner(name="somebody else").begun().id


def cut(log: KeyLog, position: LogPosition) -> KeyLog:
    """The log as it was before this position."""
    g, s = position
    if s == 0:
        return replace(log, generations=log.generations[:g], evidence=())
    generation = replace(log.generations[g], rotations=log.generations[g].rotations[: s - 1])
    return replace(log, generations=(*log.generations[:g], generation), evidence=())


class MemoryLogStore:
    """Logs in this process; gone with it."""

    def __init__(self) -> None:
        self._logs: dict[AgentId, KeyLog] = {}

    def find(self, id: AgentId) -> KeyLog | None:
        return self._logs.get(id)

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal:
        judged = change(self._logs.get(id))
        if isinstance(judged, WitnessVerdict):
            self._logs[id] = judged.log
        return judged
