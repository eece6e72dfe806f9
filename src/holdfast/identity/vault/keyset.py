"""The keys that sign as the agent, the operational key in one vault and the next key in another, and how both are made.

    op.age    current: the operational key; pending: the one a rotation is about to install
    next.age  current: the key whose digest the log has committed to; pending: its successor

The public key log says which keys count; this module only never loses one that may. New keys are made by
`stage`: both are written, synced, read back and tried out, the next key first, before the caller may even
build the rotation that names them. From then on both sets are held, and whichever of them the head of the log
names is found by its public key: after a kill at any instant the set that the log names is here and works.
`settle` is told what the log says and then forgets the keys that it has left behind.

A pending key is kept until the log names it: a rotation that was sent may still arrive.
`abandon` throws it away, for a rotation that certainly never left.

The two vaults have different keys and slots, so that the running agent, which opens the first,
cannot read the second.

The vaults of a new agent are made both or not at all: its own is built whole but not yet in its place, then
the second one is, then the second is moved to its place and at last the first, which is the moment the
agent's keys exist. A set-up that was killed is simply run again: what it left behind is recognised by the id
that both folders share with the one that was never moved, so it was never used, and is removed.

Anyone who needs a record signed by the new keys makes it in `ready`, which is called when both vaults
are built, read back and tried out, and before either is moved: it may write the record where only
this command reads it, and may send it to no one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.clock import Entropy
from holdfast.errors import HoldfastError, VaultDamaged
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.vault.ring import Escrow, JournalKeys, new_keys, store
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import Contents, Vault, building, check_free, clear_unfinished

OP = "op"
NEXT = "next"
_CURRENT, _PENDING = "current", "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedKeys:
    """Public halves of a key set that is safely stored."""

    op: bytes
    next: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """Both vaults, opened by a person who rotates. The running agent has `find_op` alone."""

    ops: Vault
    nexts: Vault

    def get_op(self, public: bytes) -> KeyPair:
        return get_op(self.ops, public)

    def get_next(self, public: bytes) -> KeyPair:
        """The next key with this public half. Raises VaultDamaged where it is not held."""
        return _get(self.nexts, NEXT, public)

    def current(self) -> StagedKeys:
        """The set that was last settled."""
        record = _record(self.ops, OP, _CURRENT)
        if record is None:
            raise VaultDamaged("op.age does not say which operational key is in use")
        return _public(record)

    def find_pending(self) -> StagedKeys | None:
        """The set that a rotation may have named already."""
        record = _record(self.ops, OP, _PENDING)
        return None if record is None else _public(record)

    def stage(self, entropy: Entropy) -> StagedKeys:
        """A new set, durable in both places and tried out; the pending one where there is one. Safe to repeat: after a
        kill the same keys come back, whether or not they were published."""
        with self.ops.turn(), self.nexts.turn():
            pending = self.find_pending() or self._make(entropy)
            self._try_out(pending)
            return pending

    def settle(self, *, op: bytes) -> StagedKeys:
        """Take over what the head of the log says: the set of this operational key is current, old keys are forgotten.
        Safe to repeat, also after a kill half way. Raises VaultDamaged where the log names a key that is not here."""
        with self.ops.turn(), self.nexts.turn():
            pending = self.ops.read(OP).get(_PENDING)
            if pending is not None and bytes.fromhex(pending["public"]) == op:
                self.ops.write(OP, {_CURRENT: pending})
            elif self.current().op != op:
                raise VaultDamaged(
                    f"the key log names the operational key {op.hex()}, which is not in this vault",
                    hint="use the machine that has this key; if it is lost, recover with the recovery sheet",
                )
            settled = self.current()
            waiting = self.nexts.read(NEXT).get(_PENDING)
            if waiting is not None and bytes.fromhex(waiting["public"]) == settled.next:
                self.nexts.write(NEXT, {_CURRENT: waiting})
            self._try_out(settled)
            return settled

    def abandon(self) -> None:
        """Forget the pending set. Only for a rotation that certainly was never published."""
        with self.ops.turn(), self.nexts.turn():
            for vault, name in ((self.ops, OP), (self.nexts, NEXT)):
                contents = vault.read(name)
                if _PENDING in contents:
                    vault.write(name, {_CURRENT: contents[_CURRENT]})

    def _make(self, entropy: Entropy) -> StagedKeys:
        """The next key first: where op.age has a pending key, next.age has its partner."""
        nexts = self.nexts.read(NEXT)
        if _PENDING not in nexts:
            with KeyPair.new(entropy) as key:
                nexts = {**nexts, _PENDING: stored(key)}
            self.nexts.write(NEXT, nexts)
        partner = nexts[_PENDING]["public"]
        with KeyPair.new(entropy) as key:
            pending = {**stored(key), "next": partner}
        self.ops.write(OP, {**self.ops.read(OP), _PENDING: pending})
        return _public(pending)

    def _try_out(self, keys: StagedKeys) -> None:
        with self.get_op(keys.op) as op, self.get_next(keys.next) as following:
            if not op.signs_for(keys.op) or not following.signs_for(keys.next):
                raise VaultDamaged("Holdfast wrote a new key and read it back, but its signatures are not valid")


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
    raise VaultDamaged(f"{name}.age does not have the key {public.hex()}")


def _record(vault: Vault, name: str, which: str) -> dict[str, Any] | None:
    record = vault.read(name).get(which)
    if record is None:
        return None
    try:
        sizes = [len(bytes.fromhex(record[field])) for field in ("public", "seed")]
        sizes += [len(bytes.fromhex(record["next"]))] if name == OP else []
    except (KeyError, TypeError, ValueError):
        raise VaultDamaged(f"{name}.age does not contain valid keys") from None
    if set(sizes) != {32}:
        raise VaultDamaged(f"{name}.age contains a key that is not 32 bytes long")
    return record


def _public(record: dict[str, Any]) -> StagedKeys:
    return StagedKeys(op=bytes.fromhex(record["public"]), next=bytes.fromhex(record["next"]))


VAULT_ID_BYTES = 8


def create_vaults(
    folder: Path,
    second: Path,
    *,
    escrow: str,
    keys: Sequence[UnlockKey],
    second_keys: Sequence[UnlockKey],
    entropy: Entropy,
    ring: JournalKeys | None = None,
    op: KeyPair | None = None,
    places: Sequence[Path] = (),
    kept: Escrow | None = None,
    ready: Callable[[KeySet], None] | None = None,
) -> tuple[Vault, Vault]:
    """The agent's vault and the second one, with a first key set; both open. `escrow` is the paper's age recipient;
    `ring` the keys of a journal that exists already; `op` a key that was imported; `places` folders for further copies
    of escrow.age; `kept` an escrow that a recovery found: its keys, root and other secrets go on. The second folder
    should be on another disk, or belong to another user: the running agent never needs it. Raises VaultExists where
    one of the places is taken; nothing was changed then."""
    clear_unfinished(folder, second)
    check_free(folder)
    check_free(second)
    vault_id = entropy.bytes(VAULT_ID_BYTES).hex()
    first, following = op or KeyPair.new(entropy), KeyPair.new(entropy)
    op_contents, next_contents = first_contents(first, following)
    with (
        building(folder, keys=keys, vault_id=vault_id, escrow=escrow, entropy=entropy) as (vault, move_vault),
        building(second, keys=second_keys, vault_id=vault_id, escrow=escrow, entropy=entropy) as (nexts, move_nexts),
    ):
        vault.write(OP, op_contents)
        nexts.write(NEXT, next_contents)
        escrow_contents = Escrow(
            vault_key=vault.identity.reveal(),
            vault_root=entropy.bytes(32) if kept is None else kept.vault_root,
            keys=ring or (new_keys(entropy) if kept is None else kept.keys),
            places=tuple(str(place) for place in places),
            others={} if kept is None else kept.others,
        )
        store(vault, escrow_contents, also=[nexts.folder])
        made = KeySet(ops=vault, nexts=nexts)
        made.settle(op=first.public_bytes)
        if ready is not None:
            ready(made)
        try:
            move_nexts()
            move_vault()
        except BaseException:  # also an interrupt: nothing half made may stay; it goes on to the caller
            with contextlib.suppress(OSError, HoldfastError):
                clear_unfinished(folder, second)
            raise
    following.wipe()
    return vault, nexts
