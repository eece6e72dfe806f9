"""Mail keys: the private halves of the keys that others seal mail for, in the escrow, a new one every week.

A key is made in the escrow, which writes its copies before the vault itself (ring.py). Those copies are in folders that
this machine reaches: the home, and places that are folders. Other places get the escrow with the next backup. Mail that
is sealed for a key is lost with the machine if no place has the key. So a profile names a new key only once the escrow
at every place has it, and goes on naming the one before, as long as that is valid for SETTLE_S more. Then, and where
there is no key before it, the new one is named at once: an agent whose backups do not work is reached all the same, and
mail that comes before the next backup can be read on this machine alone.

A profile names the newest keys until `exp`; the private half stays until the last mail that was sealed for it has
expired at every relay, and is then forgotten. An old snapshot's escrow still opens what was sealed for its keys: that
is the limit of forward secrecy here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.clock import Entropy
from holdfast.core.decoding import decode_json
from holdfast.core.mail import TTL_S_MAX
from holdfast.errors import BadRecord, VaultDamaged
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.statements.statements import EncryptionKey
from holdfast.identity.vault.ring import KEY_BYTES, Escrow, change, key_of_hex, read_escrow
from holdfast.identity.vault.vault import Vault

NAME = "mail-key/"  # in the escrow's `others`: mail-key/KID
RENEW_S = 7 * 86_400
USE_S = 21 * 86_400  # how long senders may use a key: a vault that cannot be written for two weeks stops no mail
SETTLE_S = 10 * 86_400  # a key that has less left is followed by the next one, whichever places have that
KEEP_S = TTL_S_MAX + 2 * 86_400  # after that
KID_CHARS = 16
PUBLISHED_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MailKey:
    kid: str
    private: bytes = field(repr=False)
    exp: int  # senders use it until then
    copied: bool = True  # the escrow at every place has it

    def public(self) -> EncryptionKey:
        return EncryptionKey(kid=self.kid, key=public_half(self.private).hex(), exp=self.exp)


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    exp: int


def joined(escrows: Sequence[Escrow]) -> Escrow:
    """Of copies of one agent's escrow the newest, with every journal key and mail key that it lacks and another one of
    the same vault has. Old keys leave the escrow when new ones come, so the one with the most entries may be old.
    Nothing else is taken from an older one: it may name a rescue key that was revoked since."""
    newest = max(escrows, key=_rank)
    root = newest.vault_root, newest.keys.k_effect
    same = [one for one in escrows if (one.vault_root, one.keys.k_effect) == root]
    journal_keys, others = dict[int, bytes](), dict[str, str]()
    for one in sorted(same, key=_rank):
        journal_keys |= one.keys.journal_keys
        others |= {name: text for name, text in one.others.items() if name.startswith(NAME)}
    return replace(newest, keys=replace(newest.keys, journal_keys=journal_keys), others={**others, **newest.others})


def newest_exp(escrow: Escrow) -> int:
    """The end of its newest mail key; 0 where it has none."""
    try:
        return max((one.exp for one in mail_keys_in(escrow)), default=0)
    except VaultDamaged:
        return 0


def _rank(escrow: Escrow) -> tuple[int, int, int]:
    return max(escrow.keys.journal_keys), newest_exp(escrow), len(escrow.others)


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mail_keys_in(escrow: Escrow) -> tuple[MailKey, ...]:
    """The newest first. Raises VaultDamaged."""
    found = [_parsed(name, text) for name, text in escrow.others.items() if name.startswith(NAME)]
    return tuple(sorted(found, key=lambda one: one.exp, reverse=True))


def published(keys: Iterable[MailKey], *, now: int) -> tuple[EncryptionKey, ...]:
    """The keys that a profile names now; `keys`: the newest first."""
    valid = [one for one in keys if one.exp > now]
    while len(valid) > 1 and not valid[0].copied and valid[1].exp - now > SETTLE_S:
        del valid[0]
    return tuple(one.public() for one in valid)[:PUBLISHED_MAX]


def are_due(enc: Sequence[EncryptionKey], *, now: int, copied: int | None) -> bool:
    """Whether a profile that names these keys should name others. `copied`: the end of the newest key that every place
    has; None for an agent without a place."""
    newest = max((one.exp for one in enc), default=0)
    return are_stale(enc, now=now) if copied is None else newest < copied or newest - now < SETTLE_S


def are_stale(keys: Iterable[EncryptionKey | MailKey], *, now: int) -> bool:
    """Whether the newest key has been in use for a week, or there is none."""
    return max((one.exp for one in keys), default=0) < now + USE_S - RENEW_S


def renewed_mail_keys(vault: Vault, entropy: Entropy, *, now: int) -> tuple[MailKey, ...]:
    """All mail keys, after a new one was made if the week is over. One copy of the escrow is enough: a place may be
    away for longer than a key is valid, and without a valid key no one can write to the agent. Raises what
    `ring.change` raises if none can be written: then there is no new key."""
    held = mail_keys_in(read_escrow(vault))
    if not are_stale(held, now=now):
        return held
    return mail_keys_in(change(vault, lambda escrow: _with_key(escrow, entropy, now=now), least=1))


def _with_key(escrow: Escrow, entropy: Entropy, *, now: int) -> Escrow:
    held = mail_keys_in(escrow)
    if not are_stale(held, now=now):
        return escrow  # another process was quicker
    private = entropy.bytes(KEY_BYTES)
    kid = digest_of(public_half(private))[:KID_CHARS]
    gone = {NAME + one.kid for one in held if one.exp + KEEP_S < now}
    others = {name: text for name, text in escrow.others.items() if name not in gone}
    others[NAME + kid] = msgspec.json.encode(_Kept(key=private.hex(), exp=now + USE_S)).decode()
    return replace(escrow, others=others)


def _parsed(name: str, text: str) -> MailKey:
    try:
        kept = decode_json(text, _Kept)
        key = MailKey(kid=name.removeprefix(NAME), private=key_of_hex(kept.key), exp=kept.exp)
        if key.kid != digest_of(public_half(key.private))[:KID_CHARS]:
            raise ValueError
    except (msgspec.DecodeError, ValueError, BadRecord):
        raise VaultDamaged(f"escrow.age: the entry {name} is no mail key") from None
    return key


def mail_key_json(key: MailKey) -> dict[str, object]:
    """For the answer of a signer."""
    return {"kid": key.kid, "key": key.private.hex(), "exp": key.exp}


def mail_key_of(value: dict[str, object]) -> MailKey:
    """Raises KeyError, TypeError, ValueError."""
    kid, exp = value["kid"], value["exp"]
    if not isinstance(kid, str) or not isinstance(exp, int):
        raise TypeError("a mail key has a name and an end")
    return MailKey(kid=kid, private=key_of_hex(value["key"]), exp=exp)
