"""`holdfast identity recover`: from the words on paper to an agent that acts again.

What is needed: the words, or enough shares; the log, from any witness, from a backup, or from the
code on the public card; and a place for new vaults. What is not: anything of the old machine.

    read        the log, from every source that was named; the words, repaired against it
    ask         every witness that can be reached
    lock        the recovery: evicts anyone who holds the old keys; the same bytes on every machine
    make        new vaults, with an escrow that was found; the rotation is kept in the home
    the vault moves into its place: from here on the keys are safe
    take over   the rotation is sent; log, identity.json

Killed anywhere it is run again, with the same words, and goes on: a recovery that stands is not made again, a
rotation that is pending is sent again if its keys are in the vault, and forgotten if the vault never came to
its place, because then no one has seen it. On two machines at once both make the same recovery; of the two
rotations the witnesses take one, and the other machine is told that it came second (KeysReplaced).

A log that shows a finished recovery is not recovered again without `again`: it may be another
machine that was quicker, and the next generation would evict it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput, BadPhrase, BadShare, HoldfastError, LogMissing, NotNow, VaultDamaged
from holdfast.host.private_files import check_place, ensure_private_folder
from holdfast.identity.acts.log_act import ActResult, LogSession, Publish, act_lock, nowhere, refresh
from holdfast.identity.acts.make_agent import check_name, open_by
from holdfast.identity.acts.paper_acts import (
    can_vouch,
    check_paper,
    choose_log,
    find_agents_by_paper,
    find_phrase,
    find_unlocking,
    lock,
    unlock,
    unlocking,
)
from holdfast.identity.files.own_log import PENDING, FoundLog, clear_pending, find_own_log, read_logs, rewrite_own_log
from holdfast.identity.journal_keys.keyfile import is_pointer, read
from holdfast.identity.journal_keys.vault_keys import point_keys, read_keys
from holdfast.identity.log.log_state import KeyLog, LogStanding
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, key_bytes
from holdfast.identity.records.records import Rotation, RotationReason
from holdfast.identity.vault.keyset import KeySet, create_vaults
from holdfast.identity.vault.ring import Escrow, open_escrow
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import exists
from holdfast.identity.witness.observe import find_rivals
from holdfast.identity.witness.open_witnesses import (
    OpenWitnesses,
    answering,
    check_new_relays,
    find_other_relays,
    open_witnesses,
)
from holdfast.identity.witness.witness import LogCopy, copy_of
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.settings import IdentitySettings, write_identity_settings
from holdfast.layout.witness_address import WitnessAddress

LOST = (
    "the effect keys: a task that was running cannot recognise what it already did",
    "the journal's keys: no journal of the old machine can be read",
    "the root of the backup passphrases: old backups cannot be opened",
    "secrets of tools, mail keys and logins that were in the vault",
    "its names at relays, if it had any: `holdfast relay add ADDRESS --handle NAME` takes them back",
)
AGAIN_HINT = "if it is lost or not yours, run the same command with --again: it locks that machine out"
ESCROW_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOrder:
    """What a person has, and where the agent shall live. Paths are absolute."""

    folder: Path
    vault: Path
    second: Path
    keys: Sequence[UnlockKey]
    second_keys: Sequence[UnlockKey]
    name: str = ""  # empty: as identity.json in the folder says, else the folder's name
    id: str = ""  # of the agent, where the words alone do not say it
    copies: tuple[LogCopy, ...] = ()  # of the log: card, backup
    witnesses: tuple[WitnessAddress, ...] = ()  # to ask
    new_witnesses: tuple[WitnessAddress, ...] = ()
    escrow: bytes | Escrow | None = field(default=None, repr=False)
    passphrase: str = ""  # of the sheet
    again: bool = False
    beside_places: Publish = nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredIdentity:
    home: AgentHome
    log: KeyLog
    change: str  # what was wrong with the words, if anything was
    kept: bool  # the escrow was found: journal, effect and backup keys go on
    lost: tuple[str, ...]
    refused: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPreview:
    """What will happen, for the person who is asked."""

    log: KeyLog
    change: str
    answered: int
    gone: dict[str, str]
    escrow: bool


async def recover_identity(
    order: RecoveryOrder,
    *,
    words: str = "",
    shares: Sequence[str] = (),
    entropy: Entropy,
    port: Signatures,
    confirm: Callable[[RecoveryPreview], None] | None = None,
) -> RecoveredIdentity:
    """Bring the agent of these words back, here. See the module for what a kill leaves. `confirm` is shown what will
    happen before anything is written, and raises to stop.

    Raises BadShare (the words are not the ones behind the log), LogMissing (no source holds a log), NotNow (retired; or
    recovered already, and `again` was not given), NotFinal (too few witnesses vouch; run it again, or name new ones),
    KeysReplaced (another machine with the same words was quicker), VaultExists, VaultLocked, BadInput."""
    _check_paths(order)
    await check_new_relays(order.new_witnesses, port=port)
    reached = await answering(open_witnesses(_addresses(order), port=port))
    own = _own(order.folder, port)
    copies = order.copies if own is None else (*order.copies, copy_of(own))
    found = await _found_logs(copies, reached, order, words=words, shares=shares, port=port)
    if not found:
        raise _no_log(reached)
    phrase, change = find_phrase([one.log for one in found], words=words, shares=shares, passphrase=order.passphrase)
    with phrase, PaperKeys(phrase, order.passphrase) as paper:
        log = choose_log(found, paper, id=order.id).completed(paper, port=port)
        more = await find_other_relays(log, reached, port=port)
        order = replace(order, witnesses=(*order.witnesses, *more))
        if more:
            reached = await answering(open_witnesses(_addresses(order), port=port))
        escrow = _escrow(order, paper)
        home = _planned_home(order)
        session = LogSession(home=home, port=port, reached=reached, log=log, beside_places=order.beside_places)
        silent = await refresh(session)
        check_paper(session.log, paper)
        # Recovered twice at once: only the next generation says which keys count.
        here = _keys_here(order, session.log) and not find_rivals(session.log, session.log)
        _check_not_done(order, session, here)
        _check_witnesses(order, session)
        _check_journal(order, escrow)
        if confirm is not None:
            answered = len(reached.by_key) - sum(key in silent for key in reached.addresses)
            kept = escrow is not None
            confirm(RecoveryPreview(log=session.log, change=change, answered=answered, gone=silent, escrow=kept))
        ensure_private_folder(order.folder)
        with act_lock(order.folder):
            session = await _settle_in(order, session)
            done = await _recovered(order, session, paper, escrow, here=here, entropy=entropy)
    kept, lost = escrow is not None, LOST if escrow is None else ()
    return RecoveredIdentity(
        home=session.home, log=done.log, change=change, kept=kept, lost=lost, refused=done.refused or {}
    )


def _no_log(reached: OpenWitnesses) -> LogMissing:
    text = "Holdfast found no key log in the given files, folders and witnesses"
    if not reached.unreachable:
        hint = "give --card FILE, --log kel.jsonl, or --witness with a folder or the address of a relay"
        return LogMissing(text, hint=hint)
    silent = "; ".join(f"{name}: {why}" for name, why in reached.unreachable.items())
    return LogMissing(
        f"{text}; some of them could not be asked: {silent}",
        hint="run it again when they can be reached, or give another --witness, --card FILE or --log kel.jsonl",
    )


async def _found_logs(
    copies: Sequence[LogCopy],
    reached: OpenWitnesses,
    order: RecoveryOrder,
    *,
    words: str,
    shares: Sequence[str],
    port: Signatures,
) -> list[FoundLog]:
    """All logs at hand; those at relays are found by the words. A mistake in the words matters only where nothing else
    is at hand that could show it."""
    mistake: HoldfastError | None = None
    ids: tuple[AgentId, ...] = ()
    try:
        ids = await find_agents_by_paper(reached, words=words, shares=shares, passphrase=order.passphrase)
    except (BadPhrase, BadShare) as error:
        mistake = error
    found = await read_logs(copies, reached, port=port, ids=ids)
    if not found and mistake is not None:
        raise mistake
    return found


async def _recovered(
    order: RecoveryOrder, session: LogSession, paper: PaperKeys, escrow: Escrow | None, *, here: bool, entropy: Entropy
) -> ActResult:
    if not (here and session.log.standing is LogStanding.ACTIVE):
        new = order.new_witnesses
        wit = open_witnesses(new, port=session.port, make=True).keys() if new else None
        if find_unlocking(session) is None or not exists(order.vault):
            await lock(session, paper, wit=wit)
    if exists(order.vault):
        with open_by(order.vault, order.keys) as vault:
            with open_by(order.second, order.second_keys) as second:
                keys = KeySet(ops=vault, nexts=second)
                if here and session.log.standing is LogStanding.ACTIVE:
                    # Also where too few witnesses had it when an earlier run was cut short.
                    done = await session.finish(session.log.head.signed, keys)
                else:
                    done = await unlock(session, paper, keys, why=RotationReason.RECOVERED, entropy=entropy)
            point_keys(session.home.keys_file, vault)
        return done
    clear_pending(session.folder)  # a rotation to keys that never came to their place: unseen

    def ready(made: KeySet) -> None:
        session.prepare(unlocking(session.log, paper, made, made.current(), why=RotationReason.RECOVERED))

    keys_file = session.home.keys_file
    plain = os.path.lexists(keys_file) and not is_pointer(read(keys_file))
    vault, second = create_vaults(
        order.vault,
        order.second,
        escrow=paper.recipient,
        keys=order.keys,
        second_keys=order.second_keys,
        entropy=entropy,
        kept=escrow,
        ring=read_keys(keys_file) if plain and escrow is None else None,
        places=[session.folder],
        ready=ready,
    )
    with vault, second:
        point_keys(keys_file, vault)
        signed = session.find_pending()
        if signed is None:
            raise VaultDamaged(f"the vault has new keys, but the record that names them ({PENDING}) is missing")
        return await session.finish(signed, KeySet(ops=vault, nexts=second))


async def _settle_in(order: RecoveryOrder, session: LogSession) -> LogSession:
    """The home, with its settings and the log, and the new witnesses: everything but keys."""
    if order.new_witnesses:
        open_witnesses(order.new_witnesses, port=session.port, make=True)
    reached = open_witnesses(_addresses(order), port=session.port)
    old = session.home.settings.identity
    witnesses = tuple(map(str, reached.addresses.values())) or old.witnesses
    vault, second = str(order.vault), str(order.second)
    settings = IdentitySettings(vault=vault, second=second, witnesses=witnesses, arbiter=old.arbiter, signer=old.signer)
    write_identity_settings(session.home.settings_file, name=session.home.name, identity=settings)
    home = load_home(order.folder)
    if _own(order.folder, session.port) != session.log:
        rewrite_own_log(order.folder, session.log)
    return replace(session, home=home, reached=reached)


def _own(folder: Path, port: Signatures) -> KeyLog | None:
    """The home's own copy, if it is there and whole; a damaged one is rewritten later."""
    try:
        return find_own_log(folder, port)
    except (HoldfastError, OSError):
        return None


def _addresses(order: RecoveryOrder) -> list[WitnessAddress]:
    """Witnesses: named by the person, and by the settings that a backup brought."""
    home = _find_home(order)
    return list(dict.fromkeys((*order.witnesses, *order.new_witnesses, *(home.witnesses if home else ()))))


def _find_home(order: RecoveryOrder) -> AgentHome | None:
    return load_home(order.folder) if os.path.lexists(order.folder / "holdfast.toml") else None


def _planned_home(order: RecoveryOrder) -> AgentHome:
    home = _find_home(order)
    if home is not None:
        return home if not order.name else replace(home, name=order.name)
    return AgentHome(folder=order.folder, name=check_name(order.name or order.folder.name.lower()))


def _keys_here(order: RecoveryOrder, log: KeyLog) -> bool:
    """Whether the vault at this place holds the keys that the log names."""
    if not exists(order.vault) or log.operational is None:
        return False
    with open_by(order.vault, order.keys) as vault, open_by(order.second, order.second_keys) as second:
        try:
            KeySet(ops=vault, nexts=second).get_op(key_bytes(log.operational.members[0])).wipe()
        except VaultDamaged:
            return False
    return True


def _check_paths(order: RecoveryOrder) -> None:
    for path in (order.folder, order.vault, order.second):
        check_place(path)
    home = _find_home(order)
    named = home and home.vault
    if named is not None and named != order.vault and exists(named):
        raise BadInput(
            f"the agent in {order.folder} already has a vault, in {named}",
            hint=f"give --vault {named}, or another folder with --home",
        )


def _check_not_done(order: RecoveryOrder, session: LogSession, here: bool) -> None:
    """Refuse to beat a recovery that another machine has finished, or is at: the next generation would evict it."""
    log = session.log
    record = log.head.record
    finished = isinstance(record, Rotation) and record.g > 0 and record.s == 1 and log.standing is LogStanding.ACTIVE
    begun = log.standing is LogStanding.LOCKED and log.head.final and bool(order.new_witnesses)
    begun = begun and not can_vouch(session)  # a log from the public card alone has no receipts: nothing is known
    if here or order.again or not (finished or begun):
        return
    pending = session.find_pending() if order.folder.is_dir() else None
    if pending is not None and pending.digest == log.head.digest:
        return
    if begun:
        raise NotNow(
            f"another machine began to recover {log.id} (its key log is at {log.position}), with witnesses that "
            "Holdfast cannot reach here",
            hint=f"finish it on that machine; {AGAIN_HINT}",
        )
    raise NotNow(
        f"{log.id} was already recovered (at {log.position}), but its keys are not in this vault",
        hint=f"use the machine that has the new keys; {AGAIN_HINT}",
    )


def _check_witnesses(order: RecoveryOrder, session: LogSession) -> None:
    """Before anything is written: whether enough witnesses can vouch for what will be sent."""
    if order.new_witnesses:
        return
    tier = session.log.generations[-1].tier.witnesses
    reached = [key for key in tier.members if key in session.reached.by_key]
    if len(reached) < tier.needed:
        raise NotNow(
            f"Holdfast can reach only {len(reached)} of the {tier.needed} required witnesses",
            hint="give their folders or addresses with --witness; if they are lost for good, name new ones with "
            "--new-witness",
        )


def _check_journal(order: RecoveryOrder, escrow: Escrow | None) -> None:
    if escrow is None and os.path.lexists(order.folder / "journal.db"):
        keys = order.folder / "keys.json"
        if not os.path.lexists(keys) or is_pointer(read(keys)):
            raise BadInput(
                f"{order.folder} has a journal, but the escrow file with its keys was not given",
                hint="give --escrow FILE (there is an escrow.age next to every backup); "
                "to start without the journal, move journal.db to another folder",
            )


def _escrow(order: RecoveryOrder, paper: PaperKeys) -> Escrow | None:
    raw, beside = order.escrow, order.folder / "escrow.age"
    if isinstance(raw, Escrow):
        return raw
    if raw is None and beside.is_file():
        raw = beside.read_bytes()[:ESCROW_BYTES_MAX]
    if raw is None:
        return None
    with paper.escrow() as identity:
        return open_escrow(raw, identity)
