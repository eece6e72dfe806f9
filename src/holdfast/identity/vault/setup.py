"""Make the vaults of a new agent: both or none, as far as anybody can see.

The agent's own vault is built whole but not yet in its place, then the second one is, then the
second is moved to its place and at last the first, which is the moment the agent's keys exist.
A set-up that was killed is simply run again: what it left behind is recognised by the id that
both folders share with the one that was never moved, so it was never used, and is removed.

Anyone who needs a record signed by the new keys makes it in `ready`, which is called when both vaults
are built, read back and tried out, and before either is moved: it may write the record where only
this command reads it, and may send it to no one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.core.clock import Entropy
from holdfast.errors import HoldfastError, VaultExists
from holdfast.host.private_files import check_private_folder
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.vault.keyset import NEXT, OP, KeySet, first_contents
from holdfast.identity.vault.ring import Escrow, JournalKeys, new_keys, store
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import (
    Vault,
    building,
    check_free,
    exists,
    read_vault_id,
    remove_unfinished,
    unfinished,
)

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
    """The agent's vault and the second one, with a first key set; both open.

    `escrow` is the paper's age recipient; `ring` the keys of a journal that exists already; `op`
    a key that was imported; `places` folders for further copies of escrow.age; `kept` an escrow
    that a recovery found: its keys, root and other secrets go on. The second folder should lie on
    another disk, or belong to another user: the running agent never needs it.

    Raises:
        VaultExists: one of the places is taken; nothing was changed.
    """
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
        except BaseException:
            with contextlib.suppress(OSError, HoldfastError):
                clear_unfinished(folder, second)
            raise
    following.wipe()
    return vault, nexts


def clear_unfinished(folder: Path, second: Path) -> None:
    """Remove what a killed set-up left: never anything that was in use."""
    if not exists(unfinished(folder)) or exists(folder):
        return
    try:
        same = read_vault_id(unfinished(folder)) == read_vault_id(second)
    except HoldfastError:
        return
    if same:
        check_private_folder(second)
        if _strangers(second):
            raise VaultExists(f"{second} holds files that an unfinished set-up does not leave")
        # By one rename, so that a kill in the middle of the removal leaves nothing half there.
        remove_unfinished(second)
        os.rename(second, unfinished(second))
        remove_unfinished(second)


def _strangers(second: Path) -> set[str]:
    known = {"slots.json", "next.age", "escrow.age", "lock"}
    return {name for name in os.listdir(second) if not name.endswith(".new")} - known
