"""What only the paper can do: lock, take over, retire.

A recovery is made from the paper and the generation alone, so it is the same bytes wherever and
however often it is made. Only two options change it: new witnesses, and the successor of the
paper. That is why the witnesses are asked first, and a recovery that one of them holds already is
published again instead of making another.

After the recovery no one can act. The rotation that ends the lock is signed by the paper too, and
installs keys that are safe in the vaults before it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput, BadPhrase, NotNow
from holdfast.identity.acts.log_act import ActResult, LogSession, settle
from holdfast.identity.files.own_log import FoundLog, recovery_of
from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import KeyLog, LogStanding
from holdfast.identity.paper.derive import PaperKeys, PaperState, paper_fit
from holdfast.identity.paper.phrase import Phrase, read_phrase, repair
from holdfast.identity.paper.shares import combine
from holdfast.identity.records.encodings import AgentId, Digest, key_digest, key_text
from holdfast.identity.records.records import Keys, Record, Recovery, Retirement, Rotation, RotationReason
from holdfast.identity.records.signed import Signed
from holdfast.identity.vault.keyset import NEXT, OP, KeySet, StagedKeys
from holdfast.identity.vault.ring import read_escrow, store
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import Vault
from holdfast.identity.witness.open_witnesses import OpenWitnesses, find_by_recovery_keys, is_settled, publish
from holdfast.layout.witness_address import relays_of


def matches(log: KeyLog, paper: PaperKeys) -> bool:
    """Whether this paper is, or once was, the one behind the log."""
    return paper_fit(paper, log).fit is not PaperState.OTHER


def check_paper(log: KeyLog, paper: PaperKeys) -> None:
    """Refuse a paper that cannot act for this log now, and say why."""
    if log.standing is LogStanding.RETIRED:
        raise NotNow(f"{log.id} is retired", hint="nothing can recover a retired identity")
    found = paper_fit(paper, log)
    if found.fit is PaperState.OTHER:
        raise BadPhrase(f"these words do not belong to {log.id}", hint="use the sheet of this agent")
    if found.fit is PaperState.REPLACED:
        raise BadPhrase(
            f"the recovery of generation {found.generation} replaced these words", hint="use the newer sheet"
        )


async def lock(
    session: LogSession, paper: PaperKeys, *, wit: Keys | None = None, successor: PaperKeys | None = None
) -> ActResult:
    """Evict everyone: after this no one can act. Resumes a recovery that is under way."""
    pending = session.find_pending()
    if pending is not None and isinstance(pending.record, Recovery):
        session.add(pending)
        return await session.finish(pending, None)
    head = session.log.head
    if session.log.standing is LogStanding.LOCKED and (wit is None or can_vouch(session)):
        if not is_settled(session.log, head.signed):
            return await session.finish(head.signed, None)
        return ActResult(log=session.log, receipts=len(head.receipts))
    check_paper(session.log, paper)
    await _bring_head(session, pending)
    signed = recovery_of(session.log, paper, wit=wit, successor=successor)
    session.prepare(signed)
    return await session.finish(signed, None)


def unlocking(log: KeyLog, paper: PaperKeys, keys: KeySet, to: StagedKeys, *, why: RotationReason) -> Signed[Record]:
    """The rotation (g, 1) from the paper to these keys of the key set."""
    with paper.next(log.position.g) as by, keys.get_op(to.op) as op:
        return drafts.rotation(log, by=(by,), op=(op,), nxt=drafts.committed((key_text(to.next),)), why=why)


async def unlock(
    session: LogSession, paper: PaperKeys, keys: KeySet, *, why: RotationReason, entropy: Entropy
) -> ActResult:
    """Take over with fresh keys in vaults that are here."""
    pending = find_unlocking(session)
    if pending is not None:
        session.add(pending)
        return await session.finish(pending, keys)
    keys.abandon()
    signed = unlocking(session.log, paper, keys, keys.stage(entropy), why=why)
    session.prepare(signed)
    return await session.finish(signed, keys)


def find_unlocking(session: LogSession) -> Signed[Record] | None:
    """The rotation that ends the lock at hand, if an earlier run has made it."""
    pending = session.find_pending()
    if pending is None or not isinstance(pending.record, Rotation):
        return None
    tier = session.log.generations[-1].tier
    here = isinstance(tier.record, Recovery) and pending.record.position == (tier.position.g, 1)
    return pending if here else None


def find_phrase(
    logs: Sequence[KeyLog], *, words: str = "", shares: Sequence[str] = (), passphrase: str = ""
) -> tuple[Phrase, str]:
    """The phrase that was meant, confirmed by a log, and what was wrong with it. Raises BadPhrase, BadShare."""

    def fits(phrase: Phrase) -> bool:
        with PaperKeys(phrase, passphrase) as paper:
            return any(matches(log, paper) for log in logs)

    if shares:
        phrase = combine(shares)
        if not fits(phrase):
            raise BadPhrase("these shares belong to another agent, or their sheets have a passphrase")
        return phrase, ""
    repaired = repair(words, fits)
    return repaired.phrase, repaired.change


RECOVERY_KEYS_ASKED = 16  # generations whose key a relay is asked for: a paper is rarely used twice


async def find_agents_by_paper(
    reached: OpenWitnesses, *, words: str = "", shares: Sequence[str] = (), passphrase: str = ""
) -> tuple[AgentId, ...]:
    """The agents whose logs these relays found by the recovery keys of the paper. Raises BadPhrase, BadShare: a wrong
    word can only be found with a log at hand."""
    if not relays_of(reached.addresses.values()):
        return ()
    with combine(shares) if shares else read_phrase(words) as phrase, PaperKeys(phrase, passphrase) as paper:
        digests: list[Digest] = []
        for generation in range(1, RECOVERY_KEYS_ASKED + 1):
            with paper.recovery(generation) as key:
                digests.append(key_digest(key.public))
    found, _ = await find_by_recovery_keys(digests, reached)
    return tuple(dict.fromkeys(id_ for ids in found.values() for id_ in ids))


def choose_log(found: Sequence[FoundLog], paper: PaperKeys, *, id: str = "") -> FoundLog:
    """The log that belongs to this paper. A log can copy the commitment of another agent's inception, so where several
    fit, one that this paper itself has recovered comes first, and else a person says which. Raises BadInput."""
    fitting = [one for one in found if matches(one.log, paper) and id in ("", one.log.id)]
    proven = [one for one in fitting if _recovered_by(one.log, paper)] or fitting
    if len(proven) == 1:
        return proven[0]
    if not proven:
        raise BadInput(f"the key log of {id} was not found, or does not belong to these words", hint="check --id")
    raise BadInput(
        f"several agents name the recovery key of these words: {', '.join(one.log.id for one in proven)}",
        hint="one of them is a copy that someone else made; give the id on your sheet or card with --id",
    )


def _recovered_by(log: KeyLog, paper: PaperKeys) -> bool:
    for one in log.generations[1:]:
        record = one.tier.record
        if isinstance(record, Recovery | Retirement):
            with paper.recovery(record.g) as key:
                if key.public in record.by:
                    return True
    return False


async def retire(session: LogSession, paper: PaperKeys, *, heir: AgentId | None = None) -> ActResult:
    """The end of the identity."""
    pending = session.find_pending()
    if pending is not None and isinstance(pending.record, Retirement):
        session.add(pending)
        return await session.finish(pending, None)
    check_paper(session.log, paper)
    await _bring_head(session, pending)
    g, rp = len(session.log.generations), session.log.generations[-1].tier.digest
    with paper.recovery(g) as by:
        signed = drafts.retirement(id=session.log.id, g=g, rp=rp, by=(by,), heir=heir)
    session.prepare(signed)
    return await session.finish(signed, None)


async def _bring_head(session: LogSession, pending: Signed[Record] | None) -> None:
    """Every witness gets the rotation that only some of them hold, if it is ours or final. One that met it only after
    the recovery would keep it as evidence, as if a thief had made it."""
    head = session.log.head.signed
    if is_settled(session.log, head) or (pending is not None and pending.digest == head.digest):
        session.log = (await publish(session.log, head, session.reached.by_key, port=session.port)).log


def can_vouch(session: LogSession) -> bool:
    """Whether the witnesses of the head can be reached: without them nothing can follow it."""
    named = session.log.head.witnesses
    return sum(key in session.reached.by_key for key in named.members) >= named.needed


def is_under_way(session: LogSession, old: PaperKeys) -> bool:
    """Whether an earlier run has named new words: then these must be given again."""
    pending = session.find_pending()
    named = pending is not None and isinstance(pending.record, Recovery)
    return named or paper_fit(old, session.log).fit is PaperState.REPLACED


async def replace_paper(
    session: LogSession,
    old: PaperKeys,
    new: PaperKeys,
    vault: Vault,
    second: Vault,
    *,
    ways: Sequence[UnlockKey],
    second_ways: Sequence[UnlockKey],
    entropy: Entropy,
) -> ActResult:
    """The agent with the new paper. `ways` are the keys of the vault's slots, each of them. Raises BadPhrase (the old
    words have no power here, or other new words were named before), KeysReplaced (the log names keys that are not in
    this vault), VaultLocked (a slot does not open; nothing was changed), NotFinal (too few witnesses vouch; repeat)."""
    vault.check_ways(ways)
    second.check_ways(second_ways)
    if paper_fit(new, session.log).fit is not PaperState.CURRENT:
        await lock(session, old, successor=new)
    if paper_fit(new, session.log).fit is not PaperState.CURRENT:
        raise BadPhrase(
            "the key log already has a new recovery key, and it was made from other words than these",
            hint="if an earlier run of this command showed new words, give those. If none did, the identity is "
            "locked: unlock it first with `holdfast identity evict --paper`",
        )
    vault.exchange_escrow(new.recipient, ways, entropy)
    second.exchange_escrow(new.recipient, second_ways, entropy)
    vault.write(OP, vault.read(OP))
    second.write(NEXT, second.read(NEXT))
    store(vault, read_escrow(vault), also=[second.folder])
    if session.log.standing is LogStanding.LOCKED or find_unlocking(session) is not None:
        keys = KeySet(ops=vault, nexts=second)
        return await unlock(session, new, keys, why=RotationReason.RECOVERED, entropy=entropy)
    settle(KeySet(ops=vault, nexts=second), session.log)  # refuses keys that are not here
    return ActResult(log=session.log, receipts=len(session.log.head.receipts))
