"""Who holds a copy of the log in a simulated world: honest witnesses, liars, and peers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from holdfast.identity.log import log as rules_of_log
from holdfast.identity.log.log_state import KeyLog, LogEntry, is_final
from holdfast.identity.records.encodings import Digest, PublicKey
from holdfast.identity.records.records import Keys, LogPosition, Receipt, Record, sign_receipt
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.witness import witness as rules_of_witness
from holdfast_proofs.identity_schedules.fake import PORT, FakeSigner

Receipts = Iterable[Signed[Receipt]]


class Broken(Exception):
    """A promise of the log does not hold in this schedule."""


@dataclass
class Place:
    """A copy of the log. With a signer it is a witness; a liar signs whatever it is given."""

    name: str
    signer: FakeSigner | None = None
    liar: bool = False
    log: KeyLog | None = None
    finals: dict[LogPosition, Digest] = field(default_factory=dict[LogPosition, Digest])

    @property
    def key(self) -> PublicKey:
        if self.signer is None:
            raise Broken(f"{self.name} signs nothing")
        return self.signer.public


class Net:
    """All places, what was ever signed, and what is final anywhere."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.by_key: dict[PublicKey, Place] = {}
        self.receipts: dict[Digest, list[Signed[Receipt]]] = {}
        self.finals: dict[LogPosition, Digest] = {}

    def add(self, place: Place) -> Place:
        self.places.append(place)
        if place.signer is not None:
            self.by_key[place.key] = place
        return place

    def deliver(self, place: Place, signed: Signed[Record], receipts: Receipts = ()) -> None:
        """One letter: a record with some receipts; the witness's own joins what was ever signed."""
        if place.liar:
            self._lie(place, signed)
            return
        asked = rules_of_log.NOBODY
        if place.log is not None:
            # As `KeepingWitness` does: an answer may show witnesses that must be asked as well.
            while missing := rules_of_log.witnesses_to_ask(place.log, signed.record) - asked:
                asked |= missing
                self._ask(place, asked)
        if place.signer is None:
            after = rules_of_log.accept(place.log, signed, port=PORT, receipts=receipts, asked=asked)
            if not isinstance(after, Refusal):
                self._keep(place, after, signed.record.position)
            return
        judged = rules_of_witness.judge_record(
            place.log,
            signed,
            key=place.key,
            port=PORT,
            now=_time_of(signed.record.position),
            receipts=receipts,
            asked=asked,
        )
        if isinstance(judged, Refusal):
            return
        log = judged.log
        if isinstance(judged.answer, Receipt):
            receipt = _receipt(judged.answer, place.signer)
            after = rules_of_log.add_receipt(log, receipt, port=PORT)
            if isinstance(after, Refusal):
                raise Broken(f"{place.name} cannot keep its own receipt: {after.message}")
            self.receipts.setdefault(signed.digest, []).append(receipt)
            log = after
        self._keep(place, log, signed.record.position)

    def absorb(self, place: Place, log: KeyLog) -> None:
        """A whole copy arrives, records with the receipts it has."""
        for entry in entries_of(log):
            if not holds(place, entry):
                self.deliver(place, entry.signed, entry.receipts)

    def send_log(self, place: Place, log: KeyLog) -> None:
        """What a sender does who does not know what the place has: the chosen records, in order."""
        last = log.head
        for entry in log.entries():
            if entry is last or not holds(place, entry):
                self.deliver(place, entry.signed, entry.receipts)

    def known_receipts(self, digest: Digest) -> list[Signed[Receipt]]:
        return self.receipts.get(digest, [])

    def _ask(self, place: Place, keys: frozenset[PublicKey]) -> None:
        """The honest ones answer; their answers are read together, as `sight.merged` does."""
        entries = [
            entry
            for key in sorted(keys)
            if (other := self.by_key.get(key)) is not None
            and not other.liar
            and other is not place
            and other.log is not None
            for entry in entries_of(other.log)
        ]
        vouched: dict[Digest, list[Signed[Receipt]]] = {}
        for entry in entries:
            vouched.setdefault(entry.digest, []).extend(entry.receipts)
        distinct = tuple({entry.digest: entry for entry in entries}.values())
        log = place.log
        for asked in (rules_of_log.NOBODY, keys):
            for entry in distinct:
                held = None if log is None else log.find(entry.position)
                brought = {one.record.wit for one in vouched[entry.digest]}
                if held and held.digest == entry.digest and brought <= _signers(held):
                    continue  # nothing new: most answers say the same
                after = rules_of_log.accept(log, entry.signed, port=PORT, receipts=vouched[entry.digest], asked=asked)
                log = log if isinstance(after, Refusal) else after
        if log is not None:
            self._keep(place, log, log.position)

    def _lie(self, place: Place, signed: Signed[Record]) -> None:
        if place.signer is None or place.log is None:
            return
        if any(one.record.wit == place.key for one in self.known_receipts(signed.digest)):
            return
        g, s = signed.record.position
        said = Receipt(id=place.log.id, g=g, s=s, d=signed.digest, wit=place.key, at=0)
        self.receipts.setdefault(signed.digest, []).append(_receipt(said, place.signer))

    def _keep(self, place: Place, log: KeyLog, position: LogPosition) -> None:
        place.log = log
        held = log.find(position)
        if held is not None and grounded(log, position):
            self.note_final(place, position, held.digest)
        told = place.finals.get(position)
        if told is not None and (held is None or held.digest != told):
            raise Broken(f"{place.name} replaced the final record at {tuple(position)}")

    def note_final(self, place: Place, position: LogPosition, digest: Digest) -> None:
        place.finals.setdefault(position, digest)
        known = self.finals.setdefault(position, digest)
        if known != digest:
            raise Broken(f"two final records at {tuple(position)}, the second at {place.name}")


@lru_cache(maxsize=1 << 16)  # the worlds begin alike, and signing is most of their work
def _receipt(said: Receipt, by: FakeSigner) -> Signed[Receipt]:
    return sign_receipt(said, by)


def _time_of(position: LogPosition) -> int:
    """Slow enough for the limits on rates, which have tests of their own."""
    return 50_000 * position.g + 1_000 * position.s


def holds(place: Place, entry: LogEntry) -> bool:
    """Whether the letter could bring nothing new; most letters could not."""
    held = None if place.log is None else place.log.find(entry.position)
    return held is not None and held.digest == entry.digest and (held is entry or _signers(entry) <= _signers(held))


def _signers(entry: LogEntry) -> set[PublicKey]:
    return {receipt.record.wit for receipt in entry.receipts}


def grounded(log: KeyLog, position: LogPosition) -> bool:
    """Final, on recoveries that are final: those below are what a verifier starts from."""
    return is_final(log, position) and all(is_final(log, LogPosition(g, 0)) for g in range(1, position.g + 1))


def entries_of(log: KeyLog) -> list[LogEntry]:
    return [*log.entries(), *(item.entry for item in log.evidence)]


def keys_of(places: Iterable[Place], needed: int) -> Keys:
    return Keys(tuple(place.key for place in places), needed)
