"""One schedule: an agent, its witnesses, a thief, and letters that arrive late, twice or never.

The acts are chosen by the seed. What must hold in every schedule:

* no two records are final at one position, wherever one looks, and no place replaces a final one;
* keys that were spent, and the records signed with them, change nothing where the record that
  spent them is final, and never move a head that stands on it;
* an operational key alone gets nothing into any log;
* at the end the owner recovers with the paper, and every honest witness and every peer that asks
  them stands where the owner stands; nothing that the thief has moves them.

Witnesses that lie are fewer than the thresholds allow for: m > (n + f) / 2.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.identity.log.log import accept, add_receipt
from holdfast.identity.log.log_state import KeyLog, LogStanding
from holdfast.identity.records.records import Keys, LogPosition, Receipt, Record, Recovery, Rotation, RotationReason
from holdfast.identity.records.signed import Refusal, Signed
from holdfast_proofs.identity_schedules.fake import PORT, FakeSigner, signer
from holdfast_proofs.identity_schedules.people import Owner, Person, Thief, grown
from holdfast_proofs.identity_schedules.places import Broken, Net, Place, holds, keys_of

# Witnesses, threshold, liars; and how often.
SHAPES = ((1, 1, 0), (3, 2, 0), (4, 3, 1), (5, 4, 1), (6, 4, 1))
WEIGHTS = (2, 6, 6, 1, 1)
ACTS_MIN, ACTS_MAX = 3, 11


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.net = Net()
        self.seen: Counter[str] = Counter()
        self.records: list[Signed[Record]] = []
        n, m, f = self.dice.choices(SHAPES, WEIGHTS)[0]
        self.sets = [self._witnesses(f"w{part}", n, f) for part in range(2)]
        self.wit = [keys_of(places, m) for places in self.sets]
        self.false = [Place(f"false{i}", signer(f"false {i}"), liar=True) for i in range(1)]
        for place in self.false:
            self.net.add(place)
        self.false_wit = keys_of(self.false, 1)
        self.liars = [place for place in self.net.places if place.liar]
        self.peers = [self.net.add(Place(f"peer{i}")) for i in range(2)]
        self.owner = Owner("owner", self.net.add(Place("owner")))
        self.thief = Thief("thief", Place("thief"))
        self._begin()

    def run(self) -> None:
        acts: Sequence[tuple[Callable[[], None], int]] = (
            (self.owner_rotates, 4),
            (self.owner_recovers, 2),
            (self.thief_rotates, 4),
            (self.thief_has_only_the_operational_key, 1),
            (self.thief_reuses_a_next_key, 3),
            (self.thief_reuses_a_recovery_key, 3),
            (self.letter, 4),
            (self.receipts_travel, 3),
            (self.peer_looks, 2),
        )
        chosen = self.dice.choices(
            [act for act, _ in acts], [weight for _, weight in acts], k=self.dice.randint(ACTS_MIN, ACTS_MAX)
        )
        for act in chosen:
            act()
        self.owner_regains()
        self.nothing_moves()

    # the owner

    def owner_rotates(self) -> None:
        owner = self.owner
        if not owner.can_rotate():
            self.owner_reads()
            return
        wit = self.dice.choice(self.wit) if self.dice.random() < 0.3 else None
        if wit == owner.log.head.witnesses:
            wit = None
        signed = owner.rotation(
            owner.log, owner.nxt[owner.log.head.digest], self.dice.choice(list(RotationReason)), wit
        )
        if self._took(owner, signed):
            self._count("owner rotated" + (" and changed witnesses" if wit else ""))
            self._publish(owner, signed, share=self.dice.choice((0.4, 0.7, 1.0)))

    def owner_recovers(self) -> None:
        owner = self.owner
        self.owner_reads()
        pending = owner.log.generations[-1].tier
        if len(owner.log.generations) > 1 and not pending.final and self.dice.random() < 0.5:
            self._count("owner published a pending recovery again")
            self._publish(owner, pending.signed, share=1.0)
            return
        wit = self.dice.choice(self.wit) if self.dice.random() < 0.2 else None
        old = pending.witnesses
        signed = owner.recovery(wit)
        if owner.recovery(wit).digest != signed.digest:
            raise Broken("a recovery run twice gives two records")
        if self._took(owner, signed):
            self._count("owner recovered" + (" with new witnesses" if wit else ""))
            if wit:  # those of the old witnesses that live are told first, and vouch
                for place in self._places(old):
                    self.net.send_log(place, owner.log)
                self._collect(owner, signed)
            self._publish(owner, signed, share=self.dice.choice((0.5, 1.0)))

    def owner_reads(self) -> None:
        """The owner fetches what the witnesses hold; nobody can stop that for ever."""
        for place in self._honest():
            if place.log is not None and self.dice.random() < 0.7:
                self.net.absorb(self.owner.place, place.log)

    # the thief

    def thief_rotates(self) -> None:
        """Operational and next key stolen: he rotates first, or beside the owner, many times."""
        owner, thief = self.owner, self.thief
        stolen = owner.nxt.get(owner.log.head.digest)
        if stolen is None or owner.log.standing not in (LogStanding.ACTIVE, LogStanding.LOCKED):
            return
        thief.place.log = owner.log
        by: FakeSigner | None = stolen
        for _ in range(self.dice.choice((1, 1, 2, 4))):
            wit = self.false_wit if self.dice.random() < 0.25 else None
            if by is None:
                return
            signed = thief.rotation(thief.log, by, self.dice.choice(list(RotationReason)), wit)
            if not self._took(thief, signed):
                return
            self._count("thief rotated" + (" to witnesses of his own" if wit else ""))
            self._publish(thief, signed, share=self.dice.choice((0.3, 0.6, 1.0)))
            by = thief.nxt.get(signed.digest)

    def thief_has_only_the_operational_key(self) -> None:
        owner = self.owner
        stolen = owner.op.get(owner.log.head.digest)
        if stolen is None:
            return
        signed = self.thief.rotation(owner.log, stolen, RotationReason.PLANNED)
        self._count("thief tried with the operational key alone")
        for place in self._copies():
            before = place.log
            self.net.deliver(place, signed, self._false_receipts(signed))
            if place.log is not before:
                raise Broken(f"{place.name} took a rotation by the operational key")

    def thief_reuses_a_next_key(self) -> None:
        """A next key that the owner has spent, and a longer chain on the forged record."""
        owner = self.owner
        spent = [
            (entry.record, by)
            for entry in owner.log.entries()
            if isinstance(entry.record, Rotation)
            and (by := owner.nxt.get(entry.record.p)) is not None
            and self.net.finals.get(entry.position) == entry.digest
        ]
        if not spent:
            return
        record, by = self.dice.choice(spent)
        self._forge_rotations(_cut(owner.log, record.position), by, record.position)

    def thief_reuses_a_recovery_key(self) -> None:
        owner = self.owner
        spent = [
            generation.tier.record
            for generation in owner.log.generations[1:]
            if isinstance(generation.tier.record, Recovery)
            and self.net.finals.get(generation.tier.position) == generation.tier.digest
        ]
        if not spent:
            return
        record = self.dice.choice(spent)
        wit = self.false_wit if self.dice.random() < 0.5 else None
        self._forge_recoveries(record.g, owner.paper(record.g), wit)

    def _forge_rotations(self, log: KeyLog, by: FakeSigner, position: LogPosition) -> None:
        thief = self.thief
        chain: list[Signed[Record]] = []
        for _ in range(self.dice.choice((1, 3))):
            signed = thief.rotation(log, by, self.dice.choice(list(RotationReason)))
            longer = grown(log, signed)
            if longer is None:
                break
            chain.append(signed)
            log, by = longer, thief.nxt[signed.digest]
        self._count("thief reused a spent next key")
        self._press(chain, position)

    def _forge_recoveries(self, g: int, by: FakeSigner, wit: Keys | None) -> None:
        owner, thief = self.owner, self.thief
        forged = thief.forged_recovery(owner.log, g, by, wit)
        chain = [forged]
        log = grown(_cut(owner.log, LogPosition(g, 0)), forged)
        if log is not None:
            following = thief.forged_recovery(log, g + 1, thief.rec[forged.digest], wit)
            chain.append(following)
            longer = grown(log, following)
            if longer is not None and wit is None:
                chain.append(thief.rotation(longer, thief.nxt[following.digest], RotationReason.RECOVERED))
        self._count("thief reused a spent recovery key")
        self._press(chain, LogPosition(g, 0))

    def _press(self, chain: list[Signed[Record]], position: LogPosition) -> None:
        """Forged records go to some places; where the true one is final nothing may move."""
        for place in self._copies():
            if self.dice.random() < 0.5:
                continue
            settled = position in place.finals
            for signed in chain:
                self.records.append(signed)
                self.net.deliver(place, signed, self._false_receipts(signed))
            if settled:
                self._check_not_taken(place, chain)

    def _check_not_taken(self, place: Place, chain: list[Signed[Record]]) -> None:
        """A place that asked others may have learned something true; none of these stands."""
        forged = {signed.digest for signed in chain}
        if place.log is not None and any(one.digest in forged for one in place.log.entries()):
            raise Broken(f"{place.name}: spent keys moved the head")

    # the network

    def letter(self) -> None:
        """Some record arrives somewhere, late, with some of its receipts."""
        if self.records:
            signed = self.dice.choice(self.records)
            known = self.net.known_receipts(signed.digest)
            some = self.dice.sample(known, self.dice.randint(0, len(known)))
            self.net.deliver(self.dice.choice(self.net.places), signed, some)
            self._count("letter")

    def receipts_travel(self) -> None:
        place = self.dice.choice(self._copies())
        if place.log is None:
            return
        for entry in tuple(place.log.entries())[-3:]:
            self.net.deliver(place, entry.signed, self.net.known_receipts(entry.digest))
        self._count("receipts travelled")

    def peer_looks(self) -> None:
        source = self.dice.choice(self._honest())
        if source.log is not None:
            self.net.absorb(self.dice.choice(self.peers), source.log)
            self._count("peer looked")

    # the end

    def owner_regains(self) -> None:
        owner = self.owner
        for place in self._honest():
            if place.log is not None:
                self.net.absorb(owner.place, place.log)
        signed = owner.recovery()
        if not self._took(owner, signed):
            raise Broken("the owner's own recovery is refused")
        home = self._places(owner.log.head.witnesses)
        self._insist(signed, home)
        rotation = owner.rotation(owner.log, owner.nxt[signed.digest], RotationReason.RECOVERED)
        if not self._took(owner, rotation):
            raise Broken("the owner's rotation after the recovery is refused")
        self._insist(rotation, home)
        self._check_all_stand(home)

    def nothing_moves(self) -> None:
        """All that the thief has, once more, to everybody."""
        owner = self.owner
        self.dice.shuffle(self.records)
        copies = [place for place in self._copies() if place is not owner.place]
        for signed in self.records[:4]:
            for place in copies:
                self.net.deliver(place, signed, self._false_receipts(signed))
        g = self.dice.randrange(1, len(owner.log.generations))
        self._forge_recoveries(g, owner.paper(g), self.dice.choice((None, self.false_wit)))
        self._forge_rotations(
            _cut(owner.log, owner.log.position), owner.nxt[owner.log.generations[-1].tier.digest], owner.log.position
        )
        self._check_all_stand(self._places(owner.log.head.witnesses))

    def _insist(self, signed: Signed[Record], home: list[Place]) -> None:
        """Publish the whole log with all receipts until every witness has answered."""
        for _ in range(2):
            for place in home:
                for entry in self.owner.log.entries():
                    known = self.net.known_receipts(entry.digest)
                    if not holds(place, entry) or entry.signed is signed:
                        self.net.deliver(place, entry.signed, known)
            self._collect(self.owner, signed)
        held = self.owner.log.find(signed.record.position)
        if held is None or not held.final:
            raise Broken("all honest witnesses were asked, and the owner's record is not final")

    def _check_all_stand(self, home: list[Place]) -> None:
        head = self.owner.log.head
        for peer in self.peers:
            for place in home:
                if place.log is not None and not place.liar:
                    self.net.absorb(peer, place.log)
            self.net.deliver(peer, head.signed, head.receipts)
        for place in (*home, *self.peers):
            if place.liar:
                continue
            if place.log is None or place.log.head.digest != head.digest:
                raise Broken(f"{place.name} does not stand where the owner stands")
            if place.log.standing is not LogStanding.ACTIVE:
                raise Broken(f"{place.name} is {place.log.standing.value} after the recovery")

    # helpers

    def _begin(self) -> None:
        signed = self.owner.inception(self.wit[0])
        begun = accept(None, signed, port=PORT)
        if isinstance(begun, Refusal):
            raise Broken(f"an inception is refused: {begun.message}")
        self.owner.place.log = begun
        for place in (*self.sets[0], *self.sets[1], *self.false, *self.peers):
            if place.liar or place.signer is None or self.dice.random() < 0.8:
                place.log = begun
            elif place in self.sets[0]:
                self.net.deliver(place, signed)
        for place in self.sets[0]:
            self.net.deliver(place, signed)
        self._collect(self.owner, signed)

    def _took(self, person: Person, signed: Signed[Record]) -> bool:
        self.records.append(signed)
        longer = grown(person.log, signed)
        if longer is None or longer.find_evidence(signed.digest) is not None:
            return False
        person.place.log = longer
        return True

    def _publish(self, person: Person, signed: Signed[Record], *, share: float) -> None:
        held = person.log.find(signed.record.position)
        needs = () if held is None else held.needs
        for keys in needs:  # the old set first: the new one waits for it
            for place in self._places(keys):
                if self.dice.random() > share:
                    continue
                if self.dice.random() < 0.8:
                    self.net.send_log(place, person.log)
                else:
                    self.net.deliver(place, signed)
            if self.dice.random() < 0.85:
                self._collect(person, signed)

    def _collect(self, person: Person, signed: Signed[Record]) -> None:
        for receipt in self.net.known_receipts(signed.digest):
            after = add_receipt(person.log, receipt, port=PORT)
            if not isinstance(after, Refusal):
                person.place.log = after

    def _false_receipts(self, signed: Signed[Record]) -> list[Signed[Receipt]]:
        for place in self.liars:
            self.net.deliver(place, signed)
        return self.net.known_receipts(signed.digest)

    def _witnesses(self, name: str, n: int, liars: int) -> list[Place]:
        return [self.net.add(Place(f"{name}{i}", signer(f"{name} {i}"), liar=i < liars)) for i in range(n)]

    def _places(self, keys: Keys) -> list[Place]:
        return [self.net.by_key[key] for key in keys.members]

    def _honest(self) -> list[Place]:
        return [place for place in (*self.sets[0], *self.sets[1]) if not place.liar]

    def _copies(self) -> list[Place]:
        return [*self._honest(), *self.peers]

    def _count(self, what: str) -> None:
        self.seen[what] += 1


def _cut(log: KeyLog, position: LogPosition) -> KeyLog:
    """The log as it was before this position."""
    g, s = position
    if s == 0:
        return replace(log, generations=log.generations[:g], evidence=())
    generation = log.generations[g]
    cut = replace(generation, rotations=generation.rotations[: s - 1])
    return replace(log, generations=(*log.generations[:g], cut), evidence=())
