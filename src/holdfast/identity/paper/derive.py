"""Keys from the phrase: SLIP-0010 with hardened steps only, so that no key tells of another.

    BIP-39 seed -> ed25519     m/7233'/0'/g'   recovery key of generation g
                   ed25519     m/7233'/1'/g'   the next key that takes over after recovery g
                   curve25519  m/7233'/2'/0'   escrow key: an ordinary age identity

The recovery document prints these lines: any program that knows BIP-39 and SLIP-0010 finds the
same keys without Holdfast. Paths and meaning never change.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import BadInput
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.encodings import key_digest
from holdfast.identity.records.records import Inception, Recovery
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes, Wiped
from holdfast.identity.vault.age import AgeIdentity

ED25519 = b"ed25519 seed"
CURVE25519 = b"curve25519 seed"
PURPOSE = 7_233
RECOVERY, NEXT, ESCROW = 0, 1, 2
HARDENED = 1 << 31


class PaperKeys(Wiped):
    """What one recovery sheet can do. Wipe it, or use it in a `with` block."""

    __slots__ = ("_seed",)

    def __init__(self, phrase: Phrase, passphrase: str = "") -> None:
        self._seed = phrase.seed(passphrase)

    def recovery(self, generation: int) -> KeyPair:
        """Signs the recovery record of this generation (the first is 1), and nothing else."""
        return KeyPair(self._key(ED25519, RECOVERY, _checked(generation)))

    def next(self, generation: int) -> KeyPair:
        """Signs the rotation that follows the recovery of this generation."""
        return KeyPair(self._key(ED25519, NEXT, _checked(generation)))

    def escrow(self) -> AgeIdentity:
        """Opens escrow.age, op.age and next.age."""
        return AgeIdentity.from_secret(self._key(CURVE25519, ESCROW, 0))

    @property
    def recipient(self) -> str:
        """What escrow.age, op.age and next.age are sealed for."""
        with self.escrow() as identity:
            return identity.recipient

    def wipe(self) -> None:
        self._seed.wipe()

    def __repr__(self) -> str:
        return "PaperKeys(...)"

    def _key(self, curve: bytes, branch: int, number: int) -> SecretBytes:
        key, _ = derive(curve, self._seed.reveal(), (PURPOSE, branch, number))
        return SecretBytes(key)


def derive(curve: bytes, seed: bytes, path: Sequence[int]) -> tuple[bytes, bytes]:
    """Key and chain code at a path of hardened steps, given without their mark."""
    both = hmac.digest(curve, seed, hashlib.sha512)
    for step in path:
        if not 0 <= step < HARDENED:
            raise BadInput(f"each number of a derivation path must be below {HARDENED:,}, not {step}")
        data = b"\0" + both[:32] + (step | HARDENED).to_bytes(4, "big")
        both = hmac.digest(both[32:], data, hashlib.sha512)
    return both[:32], both[32:]


def _checked(generation: int) -> int:
    if not 1 <= generation < HARDENED:
        raise BadInput(f"a generation must be 1 or higher, not {generation}")
    return generation


class PaperState(StrEnum):
    CURRENT = "current"  # it can recover the agent
    REPLACED = "replaced"  # it could, before a recovery named other words
    RETIRED = "retired"  # the identity was ended; no paper has a say any more
    OTHER = "other"  # never named by this log


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFit:
    fit: PaperState
    generation: int = 0  # the one it recovers to; of a replaced one: whose record replaced it


def paper_fit(keys: PaperKeys, log: KeyLog) -> PaperFit:
    """What these keys are to this agent."""
    named = [_names(keys, log, g) for g in range(len(log.generations))]
    if True not in named:
        return PaperFit(fit=PaperState.OTHER)
    if log.recovery is None:
        return PaperFit(fit=PaperState.RETIRED, generation=len(log.generations) - 1)
    if named[-1]:
        return PaperFit(fit=PaperState.CURRENT, generation=len(log.generations))
    last = max(g for g, one in enumerate(named) if one)
    return PaperFit(fit=PaperState.REPLACED, generation=last + 1)


def _names(keys: PaperKeys, log: KeyLog, g: int) -> bool:
    record = log.generations[g].tier.record
    if not isinstance(record, Inception | Recovery):
        return False
    return key_digest(keys.recovery(g + 1).public) in record.rec.members
