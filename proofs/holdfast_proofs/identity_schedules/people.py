"""The owner, who has paper, and the thief, who has whatever he stole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.identity.log import drafts
from holdfast.identity.log.log import NOBODY, accept, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog, LogStanding
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.records import Keys, Record, RotationReason
from holdfast.identity.records.signed import Refusal, Signed
from holdfast_proofs.identity_schedules.fake import PORT, FakeSigner, signer
from holdfast_proofs.identity_schedules.places import Broken, Place


@dataclass
class Person:
    """Somebody with keys and a view of the log."""

    name: str
    place: Place
    nxt: dict[Digest, FakeSigner] = field(default_factory=dict[Digest, FakeSigner])
    op: dict[Digest, FakeSigner] = field(default_factory=dict[Digest, FakeSigner])
    rec: dict[Digest, FakeSigner] = field(default_factory=dict[Digest, FakeSigner])
    made: int = 0

    @property
    def log(self) -> KeyLog:
        if self.place.log is None:
            raise Broken(f"{self.name} has no log")
        return self.place.log

    def new_key(self, what: str) -> FakeSigner:
        self.made += 1
        return signer(f"{self.name} {what} {self.made}")

    def can_rotate(self) -> bool:
        return self.log.head.digest in self.nxt and self.log.standing in (LogStanding.ACTIVE, LogStanding.LOCKED)

    def rotation(self, log: KeyLog, by: FakeSigner, why: RotationReason, wit: Keys | None = None) -> Signed[Record]:
        """The rotation after this log's head, to new keys of this person."""
        op, nxt = self.new_key("op"), self.new_key("next")
        signed = remembered(
            (log.head.digest, by, op, nxt, why, wit),
            lambda: drafts.rotation(log, by=(by,), op=(op,), nxt=drafts.committed((nxt.public,)), why=why, wit=wit),
        )
        self.nxt[signed.digest], self.op[signed.digest] = nxt, op
        return signed


class Owner(Person):
    """Has the paper: the recovery key and the first next key of every generation."""

    def paper(self, g: int) -> FakeSigner:
        return signer(f"{self.name} paper recovery {g}")

    def paper_next(self, g: int) -> FakeSigner:
        return signer(f"{self.name} paper next {g}")

    def inception(self, wit: Keys) -> Signed[Record]:
        op, nxt = self.new_key("op"), self.new_key("next")
        signed = remembered(
            (wit,),
            lambda: drafts.inception(
                op=(op,),
                nxt=drafts.committed((nxt.public,)),
                rec=drafts.committed((self.paper(1).public,)),
                wit=wit,
                nonce="nonce-nonce-nonce",
            ),
        )
        self.nxt[signed.digest], self.op[signed.digest] = nxt, op
        return signed

    def recovery(self, wit: Keys | None = None) -> Signed[Record]:
        """From paper and generation alone: the same bytes each time."""
        log = self.log
        g = len(log.generations)
        signed = drafts.recovery(
            id=log.id,
            g=g,
            rp=log.generations[-1].tier.digest,
            by=(self.paper(g),),
            nxt=drafts.committed((self.paper_next(g).public,)),
            rec=drafts.committed((self.paper(g + 1).public,)),
            wit=wit,
        )
        self.nxt[signed.digest] = self.paper_next(g)
        return signed


class Thief(Person):
    def forged_recovery(self, log: KeyLog, g: int, by: FakeSigner, wit: Keys | None) -> Signed[Record]:
        """Another recovery at the position of one whose key was spent, to the thief's own keys."""
        nxt, rec = self.new_key("next"), self.new_key("recovery")
        signed = drafts.recovery(
            id=log.id,
            g=g,
            rp=log.generations[g - 1].tier.digest,
            by=(by,),
            nxt=drafts.committed((nxt.public,)),
            rec=drafts.committed((rec.public,)),
            wit=wit,
        )
        self.nxt[signed.digest], self.rec[signed.digest] = nxt, rec
        return signed


_MADE: dict[object, Signed[Record]] = {}
_MADE_MAX = 50_000


def remembered(what: object, make: Callable[[], Signed[Record]]) -> Signed[Record]:
    """The record as it was made before from the same parts; the worlds begin alike."""
    found = _MADE.get(what)
    if found is None:
        if len(_MADE) >= _MADE_MAX:
            _MADE.clear()
        found = _MADE[what] = make()
    return found


def grown(log: KeyLog, signed: Signed[Record]) -> KeyLog | None:
    """The log with the record, in somebody's own head; None where even that is refused."""
    asked = witnesses_to_ask(log, signed.record) or NOBODY
    after = accept(log, signed, port=PORT, asked=asked)
    return None if isinstance(after, Refusal) else after
