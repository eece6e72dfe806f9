"""Rotation: new operational and next keys, by the next key that the log has committed to.

The order, and why: the vaults settle on what the log says; new keys are staged in both of them,
synced, read back and tried out; the record is built from exactly these and kept (`prepare`); only
then is it sent (`finish`, in log_act.py). So nothing that a witness ever sees names a key that
is not safe, and whatever was sent can be sent again.

Where an earlier rotation is pending it is finished first. If that was the one asked for, that is
all; otherwise another one follows.
"""

from __future__ import annotations

from holdfast.core.clock import Entropy
from holdfast.errors import KeysReplaced, NotNow, VaultDamaged
from holdfast.identity.acts.log_act import ActResult, LogSession, settle
from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import KeyLog, LogStanding
from holdfast.identity.records.encodings import key_bytes, key_digest, key_text
from holdfast.identity.records.records import Inception, Keys, Record, Rotation, RotationReason
from holdfast.identity.records.signed import Signed
from holdfast.identity.vault.keyset import KeySet


async def rotate_identity(
    session: LogSession, keys: KeySet, *, why: RotationReason, entropy: Entropy, wit: Keys | None = None
) -> ActResult:
    """Rotate once. Safe to repeat after a kill: a rotation that was begun is finished.

    Raises:
        NotNow: locked, contested or retired.
        KeysReplaced: someone else has rotated; only the paper helps.
        NotFinal: sent, and too few witnesses vouch.
    """
    pending = session.find_pending()
    if pending is not None:
        done = await _go_on(session, keys, pending)
        record = pending.record
        if isinstance(record, Rotation) and record.why is why and wit is None:
            return done
    check_active(session.log)
    settle(keys, session.log)
    if why is not RotationReason.PLANNED:
        keys.abandon()  # anyone who stole the vault has what was staged in it; nothing names it yet
    staged = keys.stage(entropy)
    if wit is not None and wit == session.log.head.witnesses:
        wit = None
    session.prepare(_rotation(session.log, keys, why=why, wit=wit))
    signed = session.find_pending()
    if signed is None or staged != keys.find_pending():
        raise KeysReplaced(f"{session.log.id}: another process changed the staged keys")
    return await session.finish(signed, keys)


def check_active(log: KeyLog) -> None:
    """Refuse where no rotation by a next key is possible."""
    match log.standing:
        case LogStanding.ACTIVE:
            return
        case LogStanding.RETIRED:
            raise NotNow(f"{log.id} is retired", hint="a retired identity never acts again")
        case LogStanding.LOCKED:
            raise NotNow(
                f"{log.id} is locked by the recovery at {log.position}",
                hint="run `holdfast identity evict --paper` or `holdfast identity recover` to unlock it",
            )
        case LogStanding.CONTESTED:
            raise NotNow(
                f"{log.id} is contested: two records at one position, neither of them final",
                hint="`holdfast identity evict --paper` settles it",
            )


async def _go_on(session: LogSession, keys: KeySet, pending: Signed[Record]) -> ActResult:
    session.add(pending)
    if isinstance(pending.record, Rotation):
        with keys.get_op(key_bytes(pending.record.op.members[0])):
            pass  # it names keys that are here: otherwise it is not ours to send
        return await session.finish(pending, keys)
    return await session.finish(pending, None)


def _rotation(log: KeyLog, keys: KeySet, *, why: RotationReason, wit: Keys | None) -> Signed[Record]:
    staged = keys.find_pending()
    head = log.head.record
    if staged is None or not isinstance(head, Inception | Rotation):
        raise VaultDamaged("no staged keys to rotate to")
    following = keys.current().next
    if key_digest(key_text(following)) not in head.nxt.members:
        raise KeysReplaced(f"{log.id}: the log names another next key than the one in the vault")
    with keys.get_next(following) as by, keys.get_op(staged.op) as op:
        return drafts.rotation(
            log, by=(by,), op=(op,), nxt=drafts.committed((key_text(staged.next),)), why=why, wit=wit
        )
