"""What the operational keys sign besides certificates: answers, profiles and backup heads.

An answer says that the agent is there. Someone who wants to know draws a challenge; the answer repeats it
under the agent's signature. It proves that a holder of the keys that the log names was reached after the
challenge was drawn, and nothing more: not over which line it came, nor that the one who passed it on is the
agent. Where that matters the asker gives its own name, and the answer says for whom it was made.

The profile says where the agent is to be reached. It is the registration at a relay as well. The newest (g,
s, ver) wins, so anyone who evicts a thief also outranks the profile that the thief signed, whatever number he
gave it.

A head says what the n-th snapshot of the agent is: it names the snapshot by the digest of its manifest, and
the head before it by its digest, so the heads of an agent are a chain whose newest member stands for
everything backed up so far. A repository can be put back to an older state without a trace inside it; a head
that someone else keeps cannot be outnumbered by one that is older.

Unlike a certificate a head says something about the past, so it counts as long as the position
that it names is in the log: after later rotations, and while the identity is locked, which is when
a restore needs it. Keys that were stolen could therefore sign heads of their old position for
ever. So heads are compared by position first, then by incarnation, then by number: one head after
the rotation that evicts a thief outranks all that he can still sign.
"""

from __future__ import annotations

from holdfast.errors import BadInput, BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import Digest, PublicKey
from holdfast.identity.records.fields import Fields, inner, of, record, several, text, texts, whole
from holdfast.identity.records.records import AtPosition, Rotation, RotationReason
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, read_line, sealed
from holdfast.identity.statements.certificate import SKEW_S, find_fault_by_log, find_not_signed_by, find_signing_entry
from holdfast.layout.relay_url import parse_relay_url

CHALLENGE_FORM = r"[A-Za-z0-9_-]{16,86}"
ASKER_FORM = r"[\x21-\x7e]{1,200}"
LIFE_S = 300  # an answer says something about now


@record
class ChallengeAnswer(AtPosition):
    KIND = "ans"
    chal: str = of(text(form=CHALLENGE_FORM))
    at: int = of(whole())  # unix seconds
    to: str = of(text(form=ASKER_FORM), default="")  # who asked; empty where the asker gave no name


def parse_answer(raw: bytes) -> Signed[ChallengeAnswer]:
    """The answer of a line; BadRecord where it is none. Its signatures are not checked yet."""
    return read_line(raw, ChallengeAnswer, "an answer")


def find_fault_in_answer(
    signed: Signed[ChallengeAnswer], log: KeyLog, *, challenge: str, now: int, port: Signatures, asker: str = ""
) -> Refusal | None:
    """Why this is no answer of the agent to the challenge; None where it is one."""
    answer = signed.record
    if (answer.chal, answer.to) != (challenge, asker):
        return Refusal(Reason.WRONG_CHALLENGE, "it answers another challenge, or another asker")
    entry = find_signing_entry(log, answer)
    if isinstance(entry, Refusal):
        return entry
    if answer.at > now + SKEW_S:
        return Refusal(Reason.TOO_EARLY, "the answer is dated in the future")
    if now - answer.at > LIFE_S:
        return Refusal(Reason.EXPIRED, f"the answer is older than {LIFE_S} s")
    return find_not_signed_by(signed, Family.ANSWER, entry, port)


HANDLE_FORM = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?@[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?"
URL_FORM = r"https?://[\x21-\x7e]+"
POLICY_MAX = 16


def read_policy(fields: Fields, name: str = "policy") -> tuple[tuple[str, str | int | bool], ...]:
    value = fields.any(name)
    if not isinstance(value, dict):
        raise fields.bad(name, "it must be a JSON object")
    found: list[tuple[str, str | int | bool]] = []
    for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, str | int | bool):
            raise fields.bad(name, "every value must be text, a whole number, true or false")
        found.append((str(key), item))  # pyright: ignore[reportUnknownArgumentType]
    if len(found) > POLICY_MAX:
        raise fields.bad(name, f"it has more than {POLICY_MAX} entries")
    return tuple(sorted(found, key=lambda pair: pair[0]))


@record
class Relay:
    url: str = of(text(form=URL_FORM))
    wit: PublicKey = of(Fields.key)
    prio: int = of(whole(most=1000))
    domain: str = of(text())  # who runs it: relays of one operator fall together


@record
class EncryptionKey:
    kid: str = of(text(chars_max=64))
    key: str = of(text())
    exp: int = of(whole())


@record
class Profile(AtPosition):
    KIND = "prf"
    ver: int = of(whole())
    relays: tuple[Relay, ...] = of(several(Relay))
    handles: tuple[str, ...] = of(texts(HANDLE_FORM))
    enc: tuple[EncryptionKey, ...] = of(several(EncryptionKey))
    policy: tuple[tuple[str, str | int | bool], ...] = of(read_policy, dict)  # read by relays; sorted by name
    exp: int = of(whole())
    left: tuple[str, ...] = of(texts(URL_FORM), default=())  # relays it has left, for those who still ask there

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.g, self.s, self.ver)


def parse_profile(raw: bytes) -> Signed[Profile]:
    return read_line(raw, Profile, "a profile")


def find_bad_url(profile: Profile) -> str:
    """A url in it that no relay can have; empty where there is none. Not judged when a profile is read: what is stored
    must stay readable."""
    for url in (*(one.url for one in profile.relays), *(one.partition("#")[0] for one in profile.left)):
        try:
            parse_relay_url(url)
        except BadInput:
            return url
    return ""


def judge_profile(
    signed: Signed[Profile], held: Signed[Profile] | None, log: KeyLog, *, now: int, port: Signatures
) -> Signed[Profile] | Refusal:
    """The profile that counts from now on: the new one, the same one again, or a refusal. FORK is proof: both profiles
    are validly signed, have one rank and say different things, so a caller keeps both."""
    profile = signed.record
    if held is not None and held.digest == signed.digest:
        return held
    if url := find_bad_url(profile):
        return Refusal(Reason.MALFORMED, f"{url!r} is not the address of a relay")
    entry = find_signing_entry(log, profile)
    if isinstance(entry, Refusal):
        return entry
    if now >= profile.exp:
        return Refusal(Reason.EXPIRED, "the profile has expired")
    if held is not None and profile.rank < held.record.rank:
        return Refusal(Reason.OLD_VERSION, f"profile {profile.rank} is not newer than profile {held.record.rank}")
    fault = find_not_signed_by(signed, Family.PROF, entry, port)
    if fault is None and held is not None and profile.rank == held.record.rank:
        return Refusal(Reason.FORK, f"the agent's keys signed two different profiles {profile.rank}")
    return fault or signed


def profile_stands(profile: Profile, log: KeyLog, *, now: int) -> bool:
    """Whether a profile that was taken once may still be used. It outlives planned rotations, until the owner signs the
    next one. A rotation for any other reason, or a recovery, says that someone else may have signed it."""
    since = log.generations[-1].rotations[profile.s :]
    return (
        now < profile.exp
        and profile.g == log.position.g
        and log.find(profile.position) is not None
        and all(isinstance(one.record, Rotation) and one.record.why is RotationReason.PLANNED for one in since)
    )


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
        raise BadRecord(f"{Head.KIND}: prev: every head except the first must name the previous head")
    return signed


def sign_head(head: Head, *signers: Signer) -> Signed[Head]:
    return sealed(head, Family.HEAD, signers)


def find_fault_in_head(signed: Signed[Head], log: KeyLog, *, port: Signatures) -> Refusal | None:
    """Why the head does not count for this agent; None where it does."""
    return find_fault_by_log(signed, Family.HEAD, log, port)


def follows(head: Signed[Head], before: Signed[Head] | None) -> bool:
    """Whether the head is the one after `before` in the chain; the first follows nothing."""
    if before is None:
        return head.record.prev is None
    one, other = head.record, before.record
    return one.prev == before.digest and one.id == other.id and one.seq == other.seq + 1 and one.rank > other.rank
