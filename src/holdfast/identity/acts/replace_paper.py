"""New words for an agent: a recovery by the old paper that commits to the new one.

The order, and why:

    the new words are shown and typed back      before anything names them
    every slot of both vaults is tried          before anybody is evicted
    lock       a recovery, signed by the old paper, that commits to the new one: from here on the
               old words recover nothing
    vaults     every slot and every file is sealed for the new paper as well
    unlock     a rotation by the new paper's next key installs fresh keys; the identity acts again.
               The old paper cannot do that: whoever has a copy of it would be quicker
    register   all sheets of the old words are revoked

A kill anywhere leaves a command that is run again with the same old and new words: what is done is
not done twice, and words other than those that the recovery has named are refused.

What this does not undo: the old words still open every copy of escrow.age that was sealed for
them, and so the backups made before. Backups, tokens and journal keys that were readable that way
are exchanged by their own commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Entropy
from holdfast.errors import BadPhrase
from holdfast.identity.acts.log_act import Desk, Done, settle
from holdfast.identity.acts.paper_acts import find_unlocking, lock, unlock
from holdfast.identity.log.log_state import Log, Standing
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.paper_fit import Fit, fitting
from holdfast.identity.records.records import Recovery, Why
from holdfast.identity.vault.keyset import NEXT, OP, KeySet
from holdfast.identity.vault.ring import read_escrow, store
from holdfast.identity.vault.slots import Key
from holdfast.identity.vault.vault import Vault


def is_under_way(desk: Desk, old: PaperKeys) -> bool:
    """Whether an earlier run has named new words: then these must be given again."""
    pending = desk.find_pending()
    named = pending is not None and isinstance(pending.record, Recovery)
    return named or fitting(old, desk.log).fit is Fit.REPLACED


async def replace_paper(
    desk: Desk,
    old: PaperKeys,
    new: PaperKeys,
    vault: Vault,
    second: Vault,
    *,
    ways: Sequence[Key],
    second_ways: Sequence[Key],
    entropy: Entropy,
) -> Done:
    """The agent with the new paper. `ways` are the keys of the vault's slots, each of them.

    Raises:
        BadPhrase: the old words have no power here, or other new words were named before.
        KeysReplaced: the log names keys that are not in this vault.
        VaultLocked: a slot does not open; nothing was changed.
        NotFinal: too few witnesses vouch; run it again.
    """
    vault.check_ways(ways)
    second.check_ways(second_ways)
    if fitting(new, desk.log).fit is not Fit.CURRENT:
        await lock(desk, old, successor=new)
    _check_named(desk.log, new)
    with new.escrow() as identity:
        recipient = identity.recipient
    vault.exchange_escrow(recipient, ways, entropy)
    second.exchange_escrow(recipient, second_ways, entropy)
    vault.write(OP, vault.read(OP))
    second.write(NEXT, second.read(NEXT))
    store(vault, read_escrow(vault), also=[second.folder])
    if desk.log.standing is Standing.LOCKED or find_unlocking(desk) is not None:
        keys = KeySet(ops=vault, nexts=second)
        return await unlock(desk, new, keys, why=Why.RECOVERED, entropy=entropy)
    settle(KeySet(ops=vault, nexts=second), desk.log)  # refuses keys that are not here
    return Done(log=desk.log, receipts=len(desk.log.head.receipts))


def _check_named(log: Log, new: PaperKeys) -> None:
    if fitting(new, log).fit is not Fit.CURRENT:
        raise BadPhrase(
            "the log names other words than these new ones",
            hint="an earlier run has shown and named its own: give those. If the identity is only "
            "locked, end that first: `holdfast identity evict --paper`",
        )
