"""The keys that sign as the agent: the operational key in one vault, the next key in another.

    op.age    current: the operational key; pending: the one a rotation is about to install
    next.age  current: the key whose digest the log has committed to; pending: its successor

The public key log says which keys count; this module only never loses one that may. New keys are
made by `stage`: both are written, synced, read back and tried out, the next key first, before the
caller may even build the rotation that names them. From then on both sets are held, and whichever
of them the head of the log names is found by its public key: after a kill at any instant the set
that the log names is here and works. `settle` is told what the log says and then forgets the keys
that it has left behind.

A pending key is kept until the log names it: a rotation that was sent may still arrive.
`abandon` throws it away, for a rotation that certainly never left.

The two vaults have different keys and slots, so that the running agent, which opens the first,
cannot read the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.clock import Entropy
from holdfast.errors import VaultDamaged
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.vault.vault import Contents, Vault

OP = "op"
NEXT = "next"
_CURRENT, _PENDING = "current", "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedKeys:
    """Public halves of a key set that is safely stored."""

    op: bytes
    next: bytes


class KeySet:
    """Both vaults, opened by a person who rotates. The running agent has `find_op` alone."""

    def __init__(self, *, ops: Vault, nexts: Vault) -> None:
        self._ops = ops
        self._nexts = nexts

    def get_op(self, public: bytes) -> KeyPair:
        return get_op(self._ops, public)

    def get_next(self, public: bytes) -> KeyPair:
        """The next key with this public half. Raises VaultDamaged where it is not held."""
        return _get(self._nexts, NEXT, public)

    def current(self) -> StagedKeys:
        """The set that was last settled."""
        record = _record(self._ops, OP, _CURRENT)
        if record is None:
            raise VaultDamaged("op.age holds no current key")
        return _public(record)

    def find_pending(self) -> StagedKeys | None:
        """The set that a rotation may have named already."""
        record = _record(self._ops, OP, _PENDING)
        return None if record is None else _public(record)

    def stage(self, entropy: Entropy) -> StagedKeys:
        """A new set, durable in both places and tried out; the pending one where there is one.

        Safe to repeat: after a kill the same keys come back, whether or not they were published.
        """
        with self._ops.turn(), self._nexts.turn():
            pending = self.find_pending()
            if pending is None:
                pending = self._make(entropy)
            self._try_out(pending)
            return pending

    def settle(self, *, op: bytes) -> StagedKeys:
        """Take over what the head of the log says: the set of this operational key is current.

        Old keys are forgotten. Safe to repeat, also after a kill half way.
        Raises VaultDamaged where the log names a key that is not here.
        """
        with self._ops.turn(), self._nexts.turn():
            ops = self._ops.read(OP)
            pending = ops.get(_PENDING)
            if pending is not None and bytes.fromhex(pending["public"]) == op:
                self._ops.write(OP, {_CURRENT: pending})
            elif self.current().op != op:
                raise VaultDamaged(
                    f"the log names the operational key {op.hex()}, which is not in this vault",
                    hint="rotate or recover on the machine that has the key, or recover with the recovery sheet",
                )
            settled = self.current()
            nexts = self._nexts.read(NEXT)
            waiting = nexts.get(_PENDING)
            if waiting is not None and bytes.fromhex(waiting["public"]) == settled.next:
                self._nexts.write(NEXT, {_CURRENT: waiting})
            self._try_out(settled)
            return settled

    def abandon(self) -> None:
        """Forget the pending set. Only for a rotation that certainly was never published."""
        with self._ops.turn(), self._nexts.turn():
            for vault, name in ((self._ops, OP), (self._nexts, NEXT)):
                contents = vault.read(name)
                if _PENDING in contents:
                    vault.write(name, {_CURRENT: contents[_CURRENT]})

    def _make(self, entropy: Entropy) -> StagedKeys:
        """The next key first: where op.age has a pending key, next.age has its partner."""
        nexts = self._nexts.read(NEXT)
        if _PENDING not in nexts:
            with KeyPair.new(entropy) as key:
                nexts = {**nexts, _PENDING: stored(key)}
            self._nexts.write(NEXT, nexts)
        partner = nexts[_PENDING]["public"]
        with KeyPair.new(entropy) as key:
            pending = {**stored(key), "next": partner}
        self._ops.write(OP, {**self._ops.read(OP), _PENDING: pending})
        return _public(pending)

    def _try_out(self, keys: StagedKeys) -> None:
        with self.get_op(keys.op) as op, self.get_next(keys.next) as following:
            if not op.signs_for(keys.op) or not following.signs_for(keys.next):
                raise VaultDamaged("a key that was read back does not sign")


def get_op(vault: Vault, public: bytes) -> KeyPair:
    """The operational key with this public half. Raises VaultDamaged where it is not held."""
    return _get(vault, OP, public)


def first_contents(op: KeyPair, following: KeyPair) -> tuple[Contents, Contents]:
    """op.age and next.age of a new agent."""
    return {_CURRENT: {**stored(op), "next": following.public_bytes.hex()}}, {_CURRENT: stored(following)}


def stored(key: KeyPair) -> Contents:
    return {"public": key.public_bytes.hex(), "seed": key.seed().hex()}


def _get(vault: Vault, name: str, public: bytes) -> KeyPair:
    for which in (_CURRENT, _PENDING):
        record = _record(vault, name, which)
        if record is not None and record["public"] == public.hex():
            key = KeyPair(SecretBytes(bytes.fromhex(record["seed"])))
            if key.public_bytes == public:
                return key
    raise VaultDamaged(f"{name}.age does not hold the key {public.hex()}")


def _record(vault: Vault, name: str, which: str) -> dict[str, Any] | None:
    record = vault.read(name).get(which)
    if record is None:
        return None
    try:
        sizes = [len(bytes.fromhex(record[field])) for field in ("public", "seed")]
        sizes += [len(bytes.fromhex(record["next"]))] if name == OP else []
    except (KeyError, TypeError, ValueError):
        raise VaultDamaged(f"{name}.age holds something other than keys") from None
    if set(sizes) != {32}:
        raise VaultDamaged(f"{name}.age holds keys of another length")
    return record


def _public(record: dict[str, Any]) -> StagedKeys:
    return StagedKeys(op=bytes.fromhex(record["public"]), next=bytes.fromhex(record["next"]))
