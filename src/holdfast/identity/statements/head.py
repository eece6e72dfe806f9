"""Backup heads: the operational keys say what the n-th snapshot of an agent is.

A head names one snapshot by the digest of its manifest, and the head before it by its digest, so
the heads of an agent are a chain whose newest member stands for everything backed up so far. A
repository can be put back to an older state without a trace inside it; a head that someone else
keeps cannot be outnumbered by one that is older.

Unlike a certificate a head says something about the past, so it counts as long as the position
that it names is in the log: after later rotations, and while the identity is locked, which is when
a restore needs it. Keys that were stolen could therefore sign heads of their old position for
ever. So heads are compared by position first, then by incarnation, then by number: one head after
the rotation that evicts a thief outranks all that he can still sign.
"""

from __future__ import annotations

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.fields import Fields, inner, of, record, text, whole
from holdfast.identity.records.records import AtPosition, Reason, Refusal
from holdfast.identity.records.signed import Family, Signed, read_line, sealed
from holdfast.identity.statements.certificate import find_not_signed_by

ARCHIVE_FORM = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
JOURNAL_FORM = r"[A-Za-z0-9_-]{1,64}"


@record
class JournalMark:
    """How far the journal had come when the snapshot was made."""

    id: str = of(text(form=JOURNAL_FORM))
    sequence: int = of(whole())  # number of its last record
    incarnation: int = of(whole())


@record
class Head(AtPosition):
    KIND = "bkh"
    e: int = of(whole())  # incarnation of the agent
    seq: int = of(whole(least=1))  # 1, 2, 3: of the snapshot, over all places and incarnations
    at: int = of(whole())  # unix seconds
    manifest: Digest = of(Fields.digest)  # of the bytes of MANIFEST.json
    archive: str = of(text(form=ARCHIVE_FORM))  # its name in every place
    bytes: int = of(whole())  # of all its files
    files: int = of(whole())
    journal: JournalMark | None = of(inner(JournalMark), default=None)  # an adopted folder may have none
    prev: Digest | None = of(Fields.digest, default=None)  # of the head before; the first has none

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The higher of two heads of one agent is the newer one."""
        return (self.g, self.s, self.e, self.seq)


def parse_head(raw: bytes) -> Signed[Head]:
    """The head of a line; BadRecord where it is none. Its signatures are not checked yet."""
    signed = read_line(raw, Head, "a backup head")
    if (signed.record.prev is None) != (signed.record.seq == 1):
        raise BadRecord(f"{Head.KIND}: prev: every head but the first names the one before it")
    return signed


def sign_head(head: Head, *signers: Signer) -> Signed[Head]:
    return sealed(head, Family.HEAD, signers)


def find_fault_in_head(signed: Signed[Head], log: KeyLog, *, port: Signatures) -> Refusal | None:
    """Why the head does not count for this agent; None where it does."""
    head = signed.record
    if head.id != log.id:
        return Refusal(Reason.OTHER_ID, "about another agent")
    entry = log.find(head.position)
    if entry is None:
        return Refusal(Reason.OLD_KEYS, f"signed at {head.position}, a position that the log does not have")
    return find_not_signed_by(signed, Family.HEAD, entry, port)


def follows(head: Signed[Head], before: Signed[Head] | None) -> bool:
    """Whether the head is the one after `before` in the chain; the first follows nothing."""
    if before is None:
        return head.record.prev is None
    one, other = head.record, before.record
    return one.prev == before.digest and one.id == other.id and one.seq == other.seq + 1 and one.rank > other.rank
