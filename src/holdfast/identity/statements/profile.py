"""The profile: where the agent is to be reached, signed by its operational keys.

It is the registration at a relay as well. The newest (g, s, ver) wins, so anyone who evicts a thief
also outranks the profile that the thief signed, whatever number he gave it.
"""

from __future__ import annotations

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.records.fields import Fields, of, record, several, text, texts, whole
from holdfast.identity.records.records import AtPosition, LogPosition, Reason, Refusal, Rotation, RotationReason
from holdfast.identity.records.signed import Family, Signed, read_line
from holdfast.identity.statements.certificate import find_not_signed_by, find_signing_entry

HANDLE_FORM = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?@[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?"
URL_FORM = r"(?:https?|wss?)://[\x21-\x7e]+"
POLICY_MAX = 16


def read_policy(fields: Fields, name: str = "policy") -> tuple[tuple[str, str | int | bool], ...]:
    value = fields.any(name)
    if not isinstance(value, dict):
        raise fields.bad(name, "not an object")
    found: list[tuple[str, str | int | bool]] = []
    for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, str | int | bool):
            raise fields.bad(name, "a value that is not text, a whole number or true/false")
        found.append((str(key), item))  # pyright: ignore[reportUnknownArgumentType]
    if len(found) > POLICY_MAX:
        raise fields.bad(name, f"more than {POLICY_MAX} entries")
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
    policy: tuple[tuple[str, str | int | bool], ...] = of(read_policy, write=dict)  # read by relays; sorted by name
    exp: int = of(whole())
    left: tuple[str, ...] = of(texts(URL_FORM), default=())  # relays it has left, for those who still ask there

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.g, self.s, self.ver)


def parse_profile(raw: bytes) -> Signed[Profile]:
    return read_line(raw, Profile, "a profile")


def judge_profile(
    signed: Signed[Profile], held: Signed[Profile] | None, log: KeyLog, *, now: int, port: Signatures
) -> Signed[Profile] | Refusal:
    """The profile that counts from now on: the new one, the same one again, or a refusal."""
    profile = signed.record
    if held is not None and held.digest == signed.digest:
        return held
    entry = find_signing_entry(log, profile.id, LogPosition(profile.g, profile.s), None)
    if isinstance(entry, Refusal):
        return entry
    if now >= profile.exp:
        return Refusal(Reason.EXPIRED, "expired")
    if held is not None and profile.rank <= held.record.rank:
        return Refusal(Reason.OLD_VERSION, f"{profile.rank} does not follow {held.record.rank}")
    return find_not_signed_by(signed, Family.PROF, entry, port) or signed


def profile_stands(profile: Profile, log: KeyLog, *, now: int) -> bool:
    """Whether a profile that was taken once may still be used.

    It outlives planned rotations, until the owner signs the next one. A rotation for any other
    reason, or a recovery, says that someone else may have signed it.
    """
    since = log.generations[-1].rotations[profile.s :]
    return (
        now < profile.exp
        and profile.g == log.position.g
        and log.find(LogPosition(profile.g, profile.s)) is not None
        and all(isinstance(one.record, Rotation) and one.record.why is RotationReason.PLANNED for one in since)
    )
