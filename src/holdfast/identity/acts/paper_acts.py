"""What only the paper can do: lock, take over, retire.

A recovery is made from the paper and the generation alone, so it is the same bytes wherever and
however often it is made. Only two options change it: new witnesses, and the successor of the
paper. That is why the witnesses are asked first, and a recovery that one of them holds already is
published again instead of making another.

After the recovery nobody can act. The rotation that ends the lock is signed by the paper too, and
installs keys that are safe in the vaults before it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Entropy
from holdfast.errors import BadPhrase, NotNow
from holdfast.identity.acts.log_act import Desk, Done
from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import Log, Standing
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.paper.repair import repair
from holdfast.identity.paper.shares import combine
from holdfast.identity.records.encodings import AgentId, key_digest, key_text
from holdfast.identity.records.records import Inception, Keys, Position, Record, Recovery, Retirement, Rotation, Why
from holdfast.identity.records.signed import Signed
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.witness.publishing import stands


def matches(log: Log, paper: PaperKeys) -> bool:
    """Whether this paper is, or once was, the one behind the log."""
    return find_generation(log, paper) is not None


def find_generation(log: Log, paper: PaperKeys) -> int | None:
    """The newest generation whose recovery this paper signs; None where it is another's paper."""
    for g in range(len(log.generations), 0, -1):
        tier = log.generations[g - 1].tier.record
        if isinstance(tier, Inception | Recovery):
            with paper.recovery(g) as key:
                if key_digest(key.public) in tier.rec.members:
                    return g
    return None


def check_paper(log: Log, paper: PaperKeys) -> None:
    """Refuse a paper that cannot act for this log now, and say why."""
    if log.standing is Standing.RETIRED:
        raise NotNow(f"{log.id} is retired", hint="a retired identity never comes back")
    newest = find_generation(log, paper)
    if newest is None:
        raise BadPhrase(f"these are not the words of {log.id}", hint="is it the sheet of another agent?")
    if newest < len(log.generations):
        raise BadPhrase(f"these words were replaced by the recovery of generation {newest}", hint="use the newer sheet")


def recovery_of(
    log: Log, paper: PaperKeys, *, wit: Keys | None = None, successor: PaperKeys | None = None
) -> Signed[Record]:
    """The recovery that follows the log's last generation.

    With a successor everything that comes after it is the successor's: the end of the lock too,
    or whoever has the old paper could be quicker at that.
    """
    g = len(log.generations)
    heir = successor or paper
    with paper.recovery(g) as by, heir.next(g) as following, heir.recovery(g + 1) as later:
        return drafts.recovery(
            id=log.id,
            g=g,
            rp=log.generations[g - 1].tier.digest,
            by=(by,),
            nxt=drafts.committed((following.public,)),
            rec=drafts.committed((later.public,)),
            wit=wit,
        )


async def lock(desk: Desk, paper: PaperKeys, *, wit: Keys | None = None, successor: PaperKeys | None = None) -> Done:
    """Evict everybody: after this nobody can act. Goes on with a recovery that is under way."""
    pending = desk.find_pending()
    if pending is not None and isinstance(pending.record, Recovery):
        desk.add(pending)
        return await desk.finish(pending, None)
    head = desk.log.head
    if desk.log.standing is Standing.LOCKED and (wit is None or _can_vouch(desk)):
        if not stands(desk.log, head.signed):
            return await desk.finish(head.signed, None)
        return Done(log=desk.log, receipts=len(head.receipts))
    check_paper(desk.log, paper)
    signed = recovery_of(desk.log, paper, wit=wit, successor=successor)
    desk.prepare(signed)
    return await desk.finish(signed, None)


def unlocking(log: Log, paper: PaperKeys, keys: KeySet, *, op: bytes, following: bytes, why: Why) -> Signed[Record]:
    """The rotation (g, 1) from the paper to these keys of the key set."""
    g = log.position.g
    with paper.next(g) as by, keys.get_op(op) as installed:
        return drafts.rotation(log, by=(by,), op=(installed,), nxt=drafts.committed((key_text(following),)), why=why)


async def unlock(desk: Desk, paper: PaperKeys, keys: KeySet, *, why: Why, entropy: Entropy) -> Done:
    """Take over with fresh keys in vaults that are here."""
    pending = find_unlocking(desk)
    if pending is not None:
        desk.add(pending)
        return await desk.finish(pending, keys)
    keys.abandon()
    staged = keys.stage(entropy)
    signed = unlocking(desk.log, paper, keys, op=staged.op, following=staged.next, why=why)
    desk.prepare(signed)
    return await desk.finish(signed, keys)


def find_unlocking(desk: Desk) -> Signed[Record] | None:
    """The rotation that ends the lock at hand, if an earlier run has made it."""
    pending = desk.find_pending()
    if pending is None or not isinstance(pending.record, Rotation):
        return None
    here = Position(desk.log.generations[-1].tier.position.g, 1)
    tier = isinstance(desk.log.generations[-1].tier.record, Recovery)
    return pending if tier and pending.record.position == here else None


def find_phrase(
    logs: Sequence[Log], *, words: str = "", shares: Sequence[str] = (), passphrase: str = ""
) -> tuple[Phrase, str]:
    """The phrase that was meant, confirmed by one of the logs, and what was wrong with it.

    Raises BadPhrase, BadShare.
    """

    def fits(phrase: Phrase) -> bool:
        with PaperKeys(phrase, passphrase) as paper:
            return any(matches(log, paper) for log in logs)

    if shares:
        phrase = combine(shares)
        if not fits(phrase):
            raise BadPhrase("these shares are of another agent, or the sheet has a passphrase")
        return phrase, ""
    repaired = repair(words, fits)
    return repaired.phrase, repaired.change


async def retire(desk: Desk, paper: PaperKeys, *, heir: AgentId | None = None) -> Done:
    """The end of the identity."""
    pending = desk.find_pending()
    if pending is not None and isinstance(pending.record, Retirement):
        desk.add(pending)
        return await desk.finish(pending, None)
    check_paper(desk.log, paper)
    g = len(desk.log.generations)
    with paper.recovery(g) as by:
        signed = drafts.retirement(id=desk.log.id, g=g, rp=desk.log.generations[g - 1].tier.digest, by=(by,), heir=heir)
    desk.prepare(signed)
    return await desk.finish(signed, None)


def _can_vouch(desk: Desk) -> bool:
    """Whether the witnesses of the head can be reached: without them nothing can follow it."""
    named = desk.log.head.witnesses
    return sum(key in desk.reached.by_key for key in named.members) >= named.needed
