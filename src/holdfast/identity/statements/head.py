"""Backup heads: the operational keys say what the n-th snapshot of an agent is.

A head names one snapshot by the digest of its manifest, and the head before it by its digest, so
the heads of an agent are a chain whose newest member stands for everything backed up so far. A
repository can be put back to an older state without a trace inside it; a head that somebody else
keeps cannot be outnumbered by one that is older.

Unlike a certificate a head says something about the past, so it counts as long as the position
that it names is in the log: after later rotations, and while the identity is locked, which is when
a restore needs it. Keys that were stolen could therefore sign heads of their old position for
ever. So heads are compared by position first, then by incarnation, then by number: one head after
the rotation that evicts a thief outranks all that he can still sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, Digest
from holdfast.identity.records.fields import Fields
from holdfast.identity.records.records import GENERATION_MAX, LogPosition, Reason, Refusal
from holdfast.identity.records.signed import VERSION, Family, Signed, read_line, sealed
from holdfast.identity.statements.certificate import find_not_signed_by

KIND = "bkh"
ARCHIVE_FORM = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
JOURNAL_FORM = r"[A-Za-z0-9_-]{1,64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMark:
    """How far the journal had come when the snapshot was made."""

    id: str
    sequence: int  # number of its last record
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    id: AgentId
    g: int
    s: int
    e: int  # incarnation of the agent
    seq: int  # 1, 2, 3: of the snapshot, over all places and incarnations
    at: int  # unix seconds
    manifest: Digest  # of the bytes of MANIFEST.json
    archive: str  # its name in every place
    bytes: int  # of all its files
    files: int
    journal: JournalMark | None = None  # an adopted folder may have none
    prev: Digest | None = None  # of the head before; the first has none

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, self.s)

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The higher of two heads of one agent is the newer one."""
        return (self.g, self.s, self.e, self.seq)

    def to_json(self) -> Json:
        journal: dict[str, Json] = {}
        if self.journal is not None:
            mark = self.journal
            journal["journal"] = {"id": mark.id, "sequence": mark.sequence, "incarnation": mark.incarnation}
        prev: dict[str, Json] = {} if self.prev is None else {"prev": self.prev}
        return {
            "v": VERSION,
            "t": KIND,
            "id": self.id,
            "g": self.g,
            "s": self.s,
            "e": self.e,
            "seq": self.seq,
            "at": self.at,
            "manifest": self.manifest,
            "archive": self.archive,
            "bytes": self.bytes,
            "files": self.files,
            **journal,
            **prev,
        }


def parse_head(raw: bytes) -> Signed[Head]:
    """The head of a line; BadRecord where it is none. Who signed it, nobody has checked yet."""
    return read_line(raw, KIND, "a backup head", _read_head)


def _read_head(fields: Fields) -> Head:
    head = Head(
        id=fields.id(),
        g=fields.whole("g", most=GENERATION_MAX),
        s=fields.whole("s"),
        e=fields.whole("e"),
        seq=fields.whole("seq", least=1),
        at=fields.whole("at"),
        manifest=fields.digest("manifest"),
        archive=fields.text("archive", form=ARCHIVE_FORM),
        bytes=fields.whole("bytes"),
        files=fields.whole("files"),
        journal=_mark(fields.inner("journal")) if "journal" in fields else None,
        prev=fields.digest("prev") if "prev" in fields else None,
    )
    if (head.prev is None) != (head.seq == 1):
        raise fields.bad("prev", "every head but the first names the one before it")
    return head


def sign_head(head: Head, *signers: Signer) -> Signed[Head]:
    return sealed(head, head.to_json(), Family.HEAD, signers)


def find_fault_in_head(signed: Signed[Head], log: KeyLog, *, port: Signatures) -> Refusal | None:
    """Why the head does not count for this agent; None where it does."""
    head = signed.record
    if head.id != log.id:
        return Refusal(Reason.OTHER_ID, "about another agent")
    entry = log.find(head.position)
    if entry is None:
        return Refusal(Reason.OLD_KEYS, f"signed at {tuple(head.position)}, which the log has not")
    return find_not_signed_by(signed, Family.HEAD, entry, port)


def follows(head: Signed[Head], before: Signed[Head] | None) -> bool:
    """Whether the head is the one after `before` in the chain; the first follows nothing."""
    if before is None:
        return head.record.prev is None
    one, other = head.record, before.record
    return one.prev == before.digest and one.id == other.id and one.seq == other.seq + 1 and one.rank > other.rank


def _mark(fields: Fields) -> JournalMark:
    mark = JournalMark(
        id=fields.text("id", form=JOURNAL_FORM),
        sequence=fields.whole("sequence"),
        incarnation=fields.whole("incarnation"),
    )
    fields.end()
    return mark
