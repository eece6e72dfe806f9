"""Whether a relay contradicts itself: its signed answers about one mailbox, put side by side.

Three answers say something about the chain of a mailbox: `stored` (number, id and head of an entry), `mail` (a stretch
of entries, from which the heads follow) and `login` (the newest number and its head). Entries are only ever added. So
these are contradictions, and the relay's own signatures prove them to everyone:

- two answers give different heads, or different ids, to one number;
- an answer that was asked for with the digest of an earlier one as its nonce, so it is the later one, has a lower
  newest number than the earlier one.

The proof is a file with the answers and, where the order counts, the request. `python -m holdfast_proofs.relay_proof`
verifies it with code of its own.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json, msgpack_decoder
from holdfast.errors import BadRecord, HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey, digest_of
from holdfast.identity.records.signed import Family, find_bad_signature, read_line
from holdfast.identity.statements.relay_answer import RelayAnswer
from holdfast.relay.protocol.calls import LoginAnswer, MailAnswer, StoredAnswer
from holdfast.relay.protocol.envelope import HASH_BYTES, next_head

HEADS_MAX = 8_192
STATEMENTS_MAX = 8  # besides those that senders showed
FORMAT = 1
KEPT_BYTES_MAX = 1 << 20
PROOF_BYTES_MAX = 16 * 1024 * 1024  # two answers, in base64


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A signed answer, and what it says: heads and ids by number, and the newest number if it says so."""

    raw: bytes
    target: str = ""
    nonce: str = ""
    heads: dict[int, bytes] = field(default_factory=dict[int, bytes])
    ids: dict[int, bytes] = field(default_factory=dict[int, bytes])
    last: int | None = None


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    answer: str  # base64
    target: str
    nonce: str


class ProofFile(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    relay: str
    url: str
    mailbox: str
    why: str
    answers: tuple[_Shown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProof:
    """A file that proves that a relay contradicts itself. The relay is known by its key: with another one it is another
    relay, also under the same url."""

    path: Path
    relay: str
    url: str
    why: str


def find_proofs(folder: Path) -> dict[str, KeptProof]:
    """The first proof against each relay, by its key."""
    found: dict[str, KeptProof] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            said = decode_json(read_private(path, PROOF_BYTES_MAX), ProofFile)
        except (OSError, HoldfastError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # not ours, or cut short: it proves nothing
        found.setdefault(said.relay, KeptProof(path=path, relay=said.relay, url=said.url, why=said.why))
    return found


def statement_of(raw: bytes, *, to: AgentId, key: PublicKey, port: Signatures) -> Statement:
    """What a relay signed about this mailbox. Raises BadRecord for anything else."""
    line, _, content = raw.partition(b"\n")
    signed = read_line(line, RelayAnswer, "a relay's answer")
    if signed.record.wit != key or not signed.signatures or signed.record.st != 200:
        raise BadRecord("the answer is of another relay, or a refusal")
    fault = find_bad_signature(signed, Family.RELAY, (key,), port)
    if fault is not None or signed.record.body != digest_of(content):
        raise BadRecord("the relay did not sign this answer")
    return statement_in(raw, content, to=to)


def statement_in(raw: bytes, content: bytes, *, to: AgentId, target: str = "", nonce: str = "") -> Statement:
    """The same for an answer whose signature the caller has checked. Raises BadRecord."""
    try:
        said = _decoded(content)
        heads, ids, last = _claims(said)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRecord(f"the answer says nothing about a mailbox: {error}") from None
    if said.to != to:
        raise BadRecord("the answer is about another mailbox")
    return Statement(raw=raw, target=target, nonce=nonce, heads=heads, ids=ids, last=last)


def _decoded(content: bytes) -> StoredAnswer | LoginAnswer | MailAnswer:
    if content.startswith(b"{"):
        return decode_json(content, StoredAnswer | LoginAnswer)
    return msgpack_decoder(MailAnswer).decode(content)


def _claims(said: StoredAnswer | LoginAnswer | MailAnswer) -> tuple[dict[int, bytes], dict[int, bytes], int | None]:
    match said:
        case StoredAnswer():
            items = [one for one in said.items if one.seq and not one.code]
            heads = {one.seq: _hash(bytes.fromhex(one.head)) for one in items}
            return heads, {one.seq: _hash(bytes.fromhex(one.id)) for one in items}, None
        case LoginAnswer():
            return {said.last: _hash(bytes.fromhex(said.head))}, {}, said.last
        case MailAnswer():
            head, seq = _hash(said.head), said.after
            heads, ids = {seq: head}, dict[int, bytes]()
            for one in said.items:
                if one.seq != seq + 1:
                    raise ValueError("the list has a gap")
                seq, head = one.seq, next_head(head, one.seq, _hash(one.id))
                heads[seq], ids[seq] = head, one.id
            return heads, ids, said.last


def _hash(raw: bytes) -> bytes:
    if len(raw) != HASH_BYTES:
        raise ValueError("not a digest")
    return raw


def contradict(one: Statement, other: Statement) -> str:
    """Why both cannot be true; empty where they can."""
    for seq in one.heads.keys() & other.heads.keys():
        if one.heads[seq] != other.heads[seq]:
            return f"two heads of the chain after entry {seq}"
    for seq in one.ids.keys() & other.ids.keys():
        if one.ids[seq] != other.ids[seq]:
            return f"two envelopes under the number {seq}"
    for earlier, later in ((one, other), (other, one)):
        newest = max(earlier.heads, default=0)
        if later.last is not None and later.last < newest and later.nonce == digest_of(earlier.raw):
            return f"entry {newest} was confirmed, and later there were only {later.last}"
    return ""


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """A file with the newest answer to a login of each relay, by its key."""

    path: Path

    def find(self, key: str) -> bytes:
        return self._read().get(key, "").encode()

    def keep(self, key: str, raw: bytes) -> None:
        write_atomically(self.path, msgspec.json.encode(self._read() | {key: raw.decode()}) + b"\n")

    def _read(self) -> dict[str, str]:
        try:
            return decode_json(read_private(self.path, KEPT_BYTES_MAX), dict[str, str])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return {}  # only older answers are lost by it


@dataclass
class ChainCheck:
    """What one relay has said about the agent's mailbox."""

    to: AgentId
    key: PublicKey
    url: str
    folder: Path  # of proofs
    port: Signatures
    proven: str = ""  # why the relay is known to contradict itself
    _heads: OrderedDict[int, bytes] = field(default_factory=OrderedDict[int, bytes])
    _statements: list[Statement] = field(default_factory=list[Statement])

    @property
    def last(self) -> int:
        """The newest number that the relay has shown."""
        return max(self._heads, default=0)

    def newest(self) -> Statement:
        """The one that names the newest number."""
        return max(self._statements, key=lambda one: max(one.heads, default=0))

    def add(self, said: Statement) -> None:
        """Take in a statement. What it says is not remembered where it contradicts what is known, whether or not that
        can be proven."""
        fits = all(self._heads.get(seq, head) == head for seq, head in said.heads.items())
        for other in self._statements:
            why = contradict(said, other)
            if why:
                self._prove(why, (other, said))
                fits = False
        self._statements = [*self._statements[-STATEMENTS_MAX:], said]
        if fits:
            self._heads.update(said.heads)
            while len(self._heads) > HEADS_MAX:
                self._heads.popitem(last=False)

    def fits(self, said: Statement) -> bool:
        """Whether heads that are known say the same; unknown ones must be asked for."""
        return all(self._heads.get(seq) == head for seq, head in said.heads.items())

    def _prove(self, why: str, statements: Iterable[Statement]) -> None:
        self.proven = self.proven or why
        answers = tuple(
            _Shown(answer=base64.b64encode(one.raw).decode(), target=one.target, nonce=one.nonce) for one in statements
        )
        proof = ProofFile(format=FORMAT, relay=self.key, url=self.url, mailbox=self.to, why=why, answers=answers)
        ensure_private_folder(self.folder)
        raw = msgspec.json.encode(proof)
        path = self.folder / f"{self.key[-12:]}-{digest_of(raw)[:12]}.json"
        if len(list(self.folder.glob(f"{self.key[-12:]}-*.json"))) < STATEMENTS_MAX:
            write_atomically(path, raw + b"\n")
