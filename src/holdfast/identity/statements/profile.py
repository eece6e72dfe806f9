"""The profile: where the agent is to be reached, signed by its operational keys.

It is the registration at a relay as well. The newest (g, s, ver) wins, so whoever evicts a thief
also outranks the profile that the thief signed, whatever number he gave it.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.fields import Fields
from holdfast.identity.records.records import GENERATION_MAX, LogPosition, Reason, Refusal, Rotation, RotationReason
from holdfast.identity.records.signed import VERSION, Family, Signed, read_line
from holdfast.identity.statements.certificate import find_not_signed_by, find_signing_entry

HANDLE_FORM = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?@[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?"
URL_FORM = r"(?:https?|wss?)://[\x21-\x7e]+"
POLICY_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    url: str
    wit: PublicKey
    prio: int
    domain: str  # who runs it: relays of one operator fall together


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionKey:
    kid: str
    key: str
    exp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    id: AgentId
    g: int
    s: int
    ver: int
    relays: tuple[Relay, ...]
    handles: tuple[str, ...]
    enc: tuple[EncryptionKey, ...]
    policy: tuple[tuple[str, str | int | bool], ...]  # read by relays; sorted by name
    exp: int
    left: tuple[str, ...] = ()  # relays it has left, for those who still ask there

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.g, self.s, self.ver)

    def to_json(self) -> Json:
        left: dict[str, Json] = {"left": list(self.left)} if self.left else {}
        return {
            "v": VERSION,
            "t": "prf",
            "id": self.id,
            "g": self.g,
            "s": self.s,
            "ver": self.ver,
            "relays": [{"url": one.url, "wit": one.wit, "prio": one.prio, "domain": one.domain} for one in self.relays],
            "handles": list(self.handles),
            "enc": [{"kid": one.kid, "key": one.key, "exp": one.exp} for one in self.enc],
            "policy": dict(self.policy),
            "exp": self.exp,
            **left,
        }


def parse_profile(raw: bytes) -> Signed[Profile]:
    return read_line(raw, "prf", "a profile", _read_profile)


def _read_profile(fields: Fields) -> Profile:
    return Profile(
        id=fields.id(),
        g=fields.whole("g", most=GENERATION_MAX),
        s=fields.whole("s"),
        ver=fields.whole("ver"),
        relays=tuple(read_relay(item) for item in fields.members("relays", least=0)),
        handles=read_texts(fields, "handles", HANDLE_FORM),
        enc=tuple(read_encryption_key(item) for item in fields.members("enc", least=0)),
        policy=read_policy(fields),
        exp=fields.whole("exp"),
        left=read_texts(fields, "left", URL_FORM) if "left" in fields else (),
    )


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
    reason, or a recovery, says that somebody else may have signed it.
    """
    since = log.generations[-1].rotations[profile.s :]
    return (
        now < profile.exp
        and profile.g == log.position.g
        and log.find(LogPosition(profile.g, profile.s)) is not None
        and all(isinstance(one.record, Rotation) and one.record.why is RotationReason.PLANNED for one in since)
    )


def read_relay(item: Json) -> Relay:
    fields = Fields(item, "prf: relays")
    found = Relay(
        url=fields.text("url", form=URL_FORM),
        wit=fields.key("wit"),
        prio=fields.whole("prio", most=1000),
        domain=fields.text("domain"),
    )
    fields.end()
    return found


def read_encryption_key(item: Json) -> EncryptionKey:
    fields = Fields(item, "prf: enc")
    found = EncryptionKey(kid=fields.text("kid", chars_max=64), key=fields.text("key"), exp=fields.whole("exp"))
    fields.end()
    return found


def read_texts(fields: Fields, name: str, form: str) -> tuple[str, ...]:
    found = tuple(Fields({name: item}, fields.what).text(name, form=form) for item in fields.members(name, least=0))
    if len(set(found)) != len(found):
        raise fields.bad(name, "one member stands there twice")
    return found


def read_policy(fields: Fields) -> tuple[tuple[str, str | int | bool], ...]:
    value = fields.any("policy")
    if not isinstance(value, dict):
        raise fields.bad("policy", "not an object")
    found: list[tuple[str, str | int | bool]] = []
    for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, str | int | bool):
            raise fields.bad("policy", "a value that is not text, a whole number or a truth")
        found.append((str(name), item))  # pyright: ignore[reportUnknownArgumentType]
    if len(found) > POLICY_MAX:
        raise fields.bad("policy", f"more than {POLICY_MAX} entries")
    return tuple(sorted(found, key=lambda pair: pair[0]))
