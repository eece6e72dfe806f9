"""`holdfast identity recover`: from the words on paper to an agent that acts again.

What is needed: the words, or enough shares; the log, from any witness, from a backup, or from the
code on the public card; and a place for new vaults. What is not: anything of the old machine.

    read        the log, from every source that was named; the words, repaired against it
    ask         every witness that can be reached
    lock        the recovery: evicts whoever holds the old keys; the same bytes on every machine
    make        new vaults, with an escrow that was found; the rotation is kept in the home
    the vault moves into its place: from here on the keys are safe
    take over   the rotation is sent; log, identity.json

Killed anywhere it is run again, with the same words, and goes on: a recovery that stands is not
made again, a rotation that is pending is sent again if its keys are in the vault, and forgotten
if the vault never came to its place, because then nobody has seen it. On two machines at once both
make the same recovery; of the two rotations the witnesses take one, and the other machine is told
that it came second (KeysReplaced).

A log that shows a finished recovery is not recovered again without `again`: it may be another
machine that was quicker, and the next generation would evict it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput, HoldfastError, LogMissing, NotNow, VaultDamaged
from holdfast.host.private_files import check_place, ensure_private_folder
from holdfast.identity.acts.log_act import Desk, Done, acting, refresh
from holdfast.identity.acts.make_agent import check_name, open_by
from holdfast.identity.acts.paper_acts import check_paper, find_phrase, find_unlocking, lock, matches, unlock, unlocking
from holdfast.identity.files.found_log import read_logs
from holdfast.identity.files.own_log import find_own_log, mend_own_log
from holdfast.identity.files.pending import clear_pending
from holdfast.identity.journal_keys.keyfile import is_pointer, read
from holdfast.identity.journal_keys.vault_keys import point_keys, read_keys
from holdfast.identity.log.log_state import Log, Standing
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import key_bytes
from holdfast.identity.records.records import Keys, Rotation, Why
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.vault.ring import Escrow, open_escrow
from holdfast.identity.vault.setup import create_vaults
from holdfast.identity.vault.slots import Key
from holdfast.identity.vault.vault import exists
from holdfast.identity.witness.witness import Copy, copy_of
from holdfast.identity.witness.witness_places import Reached, reach
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.agent_settings import IdentitySettings
from holdfast.layout.settings import read_agent_settings
from holdfast.layout.settings_edit import write_identity_settings

LOST = (
    "the effect keys: a task that was under way cannot recognise what it did before",
    "the journal's keys: no journal of the old machine can be read",
    "the root of the backup passphrases: old backups cannot be opened",
    "secrets of tools, mail keys and logins that were in the vault",
)
ESCROW_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a person has, and where the agent shall live. Paths are absolute."""

    folder: Path
    vault: Path
    second: Path
    keys: Sequence[Key]
    second_keys: Sequence[Key]
    name: str = ""  # empty: as identity.json in the folder says, else the folder's name
    copies: tuple[Copy, ...] = ()  # of the log: card, backup
    witnesses: tuple[Path, ...] = ()  # folders of witnesses to ask
    new_witnesses: tuple[Path, ...] = ()
    escrow: bytes | None = None
    passphrase: str = ""  # of the sheet
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    home: AgentHome
    log: Log
    change: str  # what was wrong with the words, if anything was
    kept: bool  # the escrow was found: journal, effect and backup keys go on
    lost: tuple[str, ...]
    refused: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What will happen, for the person who is asked."""

    log: Log
    change: str
    answered: int
    gone: dict[str, str]
    escrow: bool


async def recover_identity(
    order: Order,
    *,
    words: str = "",
    shares: Sequence[str] = (),
    entropy: Entropy,
    port: Signatures,
    confirm: Callable[[Look], None] | None = None,
) -> Recovered:
    """Bring the agent of these words back, here. See the module for what a kill leaves.

    `confirm` is shown what will happen before anything is written, and raises to stop.

    Raises:
        BadShare: the words are not the ones behind the log.
        LogMissing: no source holds a log.
        NotNow: retired; or recovered already, and `again` was not given.
        NotFinal: too few witnesses vouch; run it again, or name new ones.
        KeysReplaced: another machine with the same words was quicker.
        VaultExists, VaultLocked, BadInput
    """
    _check_paths(order)
    reached = reach(_places(order), port=port)
    found = await read_logs(_copies(order, port), reached, port=port)
    if not found:
        raise LogMissing(
            "none of the sources holds the log of an agent", hint="give --card FILE, --log kel.jsonl, or --witness DIR"
        )
    phrase, change = find_phrase([one.log for one in found], words=words, shares=shares, passphrase=order.passphrase)
    with phrase, PaperKeys(phrase, order.passphrase) as paper:
        log = next(one for one in found if matches(one.log, paper)).completed(paper, port=port)
        escrow = _escrow(order, paper)
        home = _planned_home(order, log)
        desk = Desk(home=home, port=port, reached=reached, log=log)
        silent = await refresh(desk)
        check_paper(desk.log, paper)
        here = _keys_here(order, desk.log)
        _check_not_done(order, desk, here)
        _check_witnesses(order, desk)
        _check_journal(order, escrow)
        if confirm is not None:
            answered = len(desk.reached.by_key) - sum(key in silent for key in desk.reached.places)
            confirm(Look(log=desk.log, change=change, answered=answered, gone=silent, escrow=escrow is not None))
        ensure_private_folder(order.folder)
        with acting(order.folder):
            desk = await _settle_in(order, desk)
            done = await _recovered(order, desk, paper, escrow, here=here, entropy=entropy)
    return Recovered(
        home=desk.home,
        log=done.log,
        change=change,
        kept=escrow is not None,
        lost=() if escrow is not None else LOST,
        refused=done.refused or {},
    )


async def _recovered(
    order: Order, desk: Desk, paper: PaperKeys, escrow: Escrow | None, *, here: bool, entropy: Entropy
) -> Done:
    if not (here and desk.log.standing is Standing.ACTIVE):
        wit = _new_witnesses(order, desk)
        if find_unlocking(desk) is None or not exists(order.vault):
            await lock(desk, paper, wit=wit)
    if exists(order.vault):
        with open_by(order.vault, order.keys) as vault:
            with open_by(order.second, order.second_keys) as second:
                keys = KeySet(ops=vault, nexts=second)
                if here and desk.log.standing is Standing.ACTIVE:
                    # Also where too few witnesses had it when an earlier run was cut short.
                    done = await desk.finish(desk.log.head.signed, keys)
                else:
                    done = await unlock(desk, paper, keys, why=Why.RECOVERED, entropy=entropy)
            point_keys(desk.home.keys_file, vault)
        return done
    clear_pending(desk.folder)  # a rotation to keys that never came to their place: unseen

    def ready(made: KeySet) -> None:
        current = made.current()
        desk.prepare(unlocking(desk.log, paper, made, op=current.op, following=current.next, why=Why.RECOVERED))

    keys_file = desk.home.keys_file
    plain = os.path.lexists(keys_file) and not is_pointer(read(keys_file))
    with paper.escrow() as identity:
        recipient = identity.recipient
    vault, second = create_vaults(
        order.vault,
        order.second,
        escrow=recipient,
        keys=order.keys,
        second_keys=order.second_keys,
        entropy=entropy,
        kept=escrow,
        ring=read_keys(keys_file) if plain and escrow is None else None,
        places=[desk.folder],
        ready=ready,
    )
    with vault, second:
        point_keys(keys_file, vault)
        signed = desk.find_pending()
        if signed is None:
            raise VaultDamaged("the rotation to the new keys was not kept")
        return await desk.finish(signed, KeySet(ops=vault, nexts=second))


def _new_witnesses(order: Order, desk: Desk) -> Keys | None:
    """The set that the recovery names, if a person named new ones."""
    if not order.new_witnesses:
        return None
    fresh = reach(order.new_witnesses, port=desk.port, make=True)
    return fresh.keys()


async def _settle_in(order: Order, desk: Desk) -> Desk:
    """The home, with its settings and the log, and the new witnesses: everything but keys."""
    if order.new_witnesses:
        reach(order.new_witnesses, port=desk.port, make=True)
    reached = reach(_places(order), port=desk.port)
    write_identity_settings(desk.home.settings_file, name=desk.home.name, identity=_settings(order, desk, reached))
    home = load_home(order.folder)
    if _own(order.folder, desk.port) != desk.log:
        mend_own_log(order.folder, desk.log)
    return Desk(home=home, port=desk.port, reached=reached, log=desk.log)


def _settings(order: Order, desk: Desk, reached: Reached) -> IdentitySettings:
    old = desk.home.settings.identity
    return IdentitySettings(
        vault=str(order.vault),
        second=str(order.second),
        witnesses=tuple(reached.places.values()) or old.witnesses,
        arbiter=old.arbiter,
        signer=old.signer,
    )


def _copies(order: Order, port: Signatures) -> tuple[Copy, ...]:
    own = _own(order.folder, port)
    return order.copies if own is None else (*order.copies, copy_of(own))


def _own(folder: Path, port: Signatures) -> Log | None:
    """The home's own copy, if it is there and whole; a damaged one is written anew later."""
    try:
        return find_own_log(folder, port)
    except (HoldfastError, OSError):
        return None


def _places(order: Order) -> list[Path]:
    """Folders of witnesses: named by the person, and by the settings that a backup brought."""
    places = [*order.witnesses, *order.new_witnesses]
    path = order.folder / "holdfast.toml"
    if os.path.lexists(path):
        places += load_home(order.folder).witnesses
    return list(dict.fromkeys(places))


def _planned_home(order: Order, log: Log) -> AgentHome:
    path = order.folder / "holdfast.toml"
    if os.path.lexists(path):
        home = load_home(order.folder)
        return home if not order.name else replace(home, name=order.name)
    return AgentHome(folder=order.folder, name=check_name(order.name or order.folder.name.lower()))


def _keys_here(order: Order, log: Log) -> bool:
    """Whether the vault at this place holds the keys that the log names."""
    if not exists(order.vault):
        return False
    if log.operational is None:
        return False
    with open_by(order.vault, order.keys) as vault, open_by(order.second, order.second_keys) as second:
        try:
            KeySet(ops=vault, nexts=second).get_op(key_bytes(log.operational.members[0])).wipe()
        except VaultDamaged:
            return False
    return True


def _check_paths(order: Order) -> None:
    for path in (order.folder, order.vault, order.second):
        check_place(path)
    path = order.folder / "holdfast.toml"
    if os.path.lexists(path):
        named = load_home(order.folder).vault
        if named is not None and named != order.vault and exists(named):
            raise BadInput(
                f"{order.folder} has its vault in {named}", hint=f"give --vault {named}, or --home another folder"
            )
    read_agent_settings(path) if os.path.lexists(path) else None


def _check_not_done(order: Order, desk: Desk, here: bool) -> None:
    record = desk.log.head.record
    done = isinstance(record, Rotation) and record.g > 0 and record.s == 1
    if done and not here and not order.again and desk.log.standing is Standing.ACTIVE:
        pending = desk.find_pending() if order.folder.is_dir() else None
        if pending is not None and pending.digest == desk.log.head.digest:
            return
        raise NotNow(
            f"{desk.log.id} was recovered already, at {tuple(desk.log.position)}, to keys that are not here",
            hint="use the machine that has them; if that one is lost or not yours, --again evicts it",
        )


def _check_witnesses(order: Order, desk: Desk) -> None:
    """Before anything is written: whether enough witnesses can vouch for what will be sent."""
    if order.new_witnesses:
        return
    tier = desk.log.generations[-1].tier.witnesses
    reached = [key for key in tier.members if key in desk.reached.by_key]
    if len(reached) < tier.needed:
        raise NotNow(
            f"{len(reached)} of the {tier.needed} witnesses that must vouch can be reached",
            hint="name their folders with --witness; if they are gone for good, name new ones with --new-witness DIR",
        )


def _check_journal(order: Order, escrow: Escrow | None) -> None:
    if escrow is None and os.path.lexists(order.folder / "journal.db"):
        keys = order.folder / "keys.json"
        if not os.path.lexists(keys) or is_pointer(read(keys)):
            raise BadInput(
                f"{order.folder} has a journal, and its keys are in an escrow that was not given",
                hint="give --escrow FILE; it lies beside every backup. To begin without the journal, move it away",
            )


def _escrow(order: Order, paper: PaperKeys) -> Escrow | None:
    raw = order.escrow
    beside = order.folder / "escrow.age"
    if raw is None and beside.is_file():
        raw = beside.read_bytes()[:ESCROW_BYTES_MAX]
    if raw is None:
        return None
    with paper.escrow() as identity:
        return open_escrow(raw, identity)
