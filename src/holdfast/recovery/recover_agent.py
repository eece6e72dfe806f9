"""`holdfast recover`: from what a person still has to an agent that can run again.

Needed: the words, or enough shares, or a vault that opens; and the address of one place. First
everything is only read (survey.py). Then, in this order, and why:

    restore     the newest whole snapshot becomes the home (restore_home.py); before it takes its
                place its journal is made a proper restore, so there is no moment at which a
                worker could take it for the newest state. It has no keys yet
    identity    the recovery evicts anyone who had the keys; fresh keys in new vaults take over, with
                the journal's own keys out of the escrow (recover_identity.py). Each of its two records is
                published beside every place before this machine counts it as its own (published.py): of two
                machines with one paper the second ends here, before it has keys
    journal     with a url, the restored journal moves into that database (copy_journal.py)
    backup      a first snapshot with the new keys, so that the places know the new log, and no later machine
                restores an older state

A kill in between leaves a home without a vault, which no worker opens. The same command, run again,
sees which snapshot is there and goes on with the identity. That the first backup failed is told, with the
command; the agent is recovered all the same.

With a vault that was not lost no one is evicted: the restored home is pointed to it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.app.binder import KEYS
from holdfast.app.instances.roster_change import RosterChange
from holdfast.backup.backups import open_backups, ring_of
from holdfast.backup.chain.heads import HEADS, HeadFile
from holdfast.backup.chain.sources import newest_first
from holdfast.backup.engine import Progress
from holdfast.backup.places.places import Place, read_places, write_places
from holdfast.backup.places.published import Publisher
from holdfast.backup.report import NowReport
from holdfast.backup.restore.restore_choice import Wish, none_to_restore
from holdfast.backup.restore.restore_home import (
    RestoredMark,
    RestoreReport,
    find_mark,
    finish_swap,
    restore_to,
    write_mark,
)
from holdfast.backup.snapshot.place_snapshots import JOURNAL
from holdfast.backup.snapshot.sealed import put_back
from holdfast.core.clock import Clock, Entropy
from holdfast.core.journal_address import INSTANCE, JournalAddress, file_at
from holdfast.errors import HoldfastError, IsStandby, KeysReplaced, LogMissing, NotNow, VaultLocked
from holdfast.host.private_files import disk_error, remove_durably
from holdfast.identity.acts.make_agent import find_whole, open_by
from holdfast.identity.acts.recover_identity import AGAIN_HINT, recover_identity
from holdfast.identity.acts.recover_identity import RecoveryOrder as IdentityOrder
from holdfast.identity.files.own_log import find_pending
from holdfast.identity.journal_keys.keyfile import read as read_keys
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.journal_keys.vault_keys import point_keys
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.records import Record, Rotation
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import Escrow
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import Vault, check_free, exists, unfinished
from holdfast.identity.witness.observe import records_of
from holdfast.identity.witness.open_witnesses import answering, open_witnesses
from holdfast.identity.witness.witness import copy_of
from holdfast.journal.admin import Restored as Rewound
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, home_in, load_home
from holdfast.layout.journal_location import journal_in
from holdfast.layout.moved import find_standby, remove_standby
from holdfast.layout.rescued import is_rescued
from holdfast.layout.settings import NAME as SETTINGS
from holdfast.layout.settings import write_identity_settings, write_journal_url
from holdfast.layout.witness_address import WitnessAddress, parse_witness_address
from holdfast.recovery.copy_journal import CopiedJournal, copy_journal
from holdfast.recovery.recover_journal import granted_to
from holdfast.recovery.survey import Evidence, Survey

Tell = Callable[[str], None]
TakeOver = Callable[[AgentHome, Publisher], Awaitable[KeyLog]]
HEADS_MARKED = 64
SPARES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTarget:
    """Where the agent shall live."""

    folder: Path
    vault: Path
    second: Path
    keys: Sequence[UnlockKey] = ()
    second_keys: Sequence[UnlockKey] = ()
    spare_witness: WitnessAddress | None = None  # taken where too few of the old ones answer
    new_witnesses: tuple[WitnessAddress, ...] = ()
    arbiter: str = ""  # taken where the one in the restored settings is not here
    journal_url: str = ""  # the database that gets its journal; empty: a file in the folder
    again: bool = False
    accept_older: bool = False

    @property
    def home(self) -> Path:
        """The home in it: of an adopted agent a folder inside."""
        return home_in(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredAgent:
    home: AgentHome
    log: KeyLog
    restored: RestoreReport | None  # None: it was there already
    journal: Rewound | None
    tables_left: tuple[str, ...]  # of Transactional tools, which the database does not have
    tables_in: str  # the file that has them
    journal_was: str  # the url of its journal before the recovery; empty where that was a file
    evicted: bool
    left: tuple[str, ...]  # places that were behind, and are not gone on with
    unsealed: tuple[str, ...]  # secret files of an adopted agent that were sealed in the snapshot
    secrets: tuple[str, ...]  # of tools: anyone who had the old machine may know them
    told: tuple[str, ...]  # places beside which the recovery is published
    untold: dict[str, str]  # places beside which it is not, with the reason
    backup: NowReport | HoldfastError  # the first one
    restore_s: float
    identity_s: float
    backup_s: float


async def recover_agent(
    survey: Survey,
    evidence: Evidence,
    target: RecoveryTarget,
    *,
    clock: Clock,
    entropy: Entropy,
    port: Signatures,
    tell: Tell,
    take_over: TakeOver | None = None,
) -> RecoveredAgent:
    """Restore, recover, take over. See the module for what a kill leaves. With a vault that was not lost, `take_over`
    does what makes the restored folder the one that acts (promote.py)."""
    obstacle = find_obstacle(
        survey,
        vault=target.vault,
        keep_keys=evidence.vault is not None,
        again=target.again,
        accept_older=target.accept_older,
    )
    if obstacle is not None:
        raise obstacle
    assert survey.chosen is not None  # or it is an obstacle
    if evidence.vault is None:
        _check_vaults(target)
    elif take_over is None and find_standby(target.home / INSTANCE) is not None:
        raise IsStandby(
            f"{target.folder} is a standby: the primary has the same keys, so this would not lock it out",
            hint="run `holdfast instance promote`, or recover with the recovery words",
        )
    began = time.monotonic()
    if target.journal_url:
        _check_server(target, survey.chosen)
    restored, rewound, moved, unsealed = None, None, None, ()
    restoring = _Restoring(survey, clock, keep_keys=evidence.vault is not None)
    if _is_there(survey, survey.chosen, target):
        tell("this snapshot is already restored: recovering the identity now")
        finish_swap(target.folder)
    else:
        restored = await restore_to(target.folder, survey.means(port), Wish(at=survey.at), prepare=restoring.prepare)
        rewound, unsealed = restoring.rewound, restoring.unsealed
    restored_at = time.monotonic()
    publish = Publisher(survey.engine, _places_to_tell(target, survey), port)
    if evidence.vault is not None:
        log = survey.log
        _point(target, evidence.vault)
        if take_over is not None:
            log = await take_over(load_home(target.home), publish)
        else:
            place = RosterChange.at(load_home(target.home), evidence.vault, clock=clock, entropy=entropy, port=port)
            place.adopt_here()
    else:
        tell("recovering the identity: fresh keys take over")
        log = await _recover_identity(survey, evidence, target, publish, entropy=entropy, port=port)
    home = load_home(target.home)
    left = _settle_places(home, survey)
    if target.journal_url:
        tell(f"putting the journal into {target.journal_url}")
        rewound, moved = await _put_on_server(target, survey, rewound, clock=clock)
        home = load_home(target.home)
    recovered_at = time.monotonic()
    tell("making the first backup with the new keys")
    backup = await _back_up(home, evidence, target, survey.engine.progress)
    return RecoveredAgent(
        home=home,
        log=log,
        restored=restored,
        journal=rewound,
        tables_left=() if moved is None else moved.tables_left,
        tables_in="" if moved is None else moved.kept,
        journal_was=restoring.journal_was,
        evicted=evidence.vault is None or take_over is not None,
        left=left,
        unsealed=unsealed,
        secrets=_secrets(home, survey.escrow, clock, entropy),
        told=tuple(publish.told),
        untold=publish.failed,
        backup=backup,
        restore_s=restored_at - began,
        identity_s=recovered_at - restored_at,
        backup_s=time.monotonic() - recovered_at,
    )


def _places_to_tell(target: RecoveryTarget, survey: Survey) -> list[Place]:
    """The places that were read, and those that the restored folder knows besides."""
    there = {one.repository for one in survey.places}
    stored = read_places(load_home(target.home).places_file)
    return [*survey.places, *(one for one in stored if one.repository not in there)]


async def _back_up(
    home: AgentHome, evidence: Evidence, target: RecoveryTarget, progress: Progress
) -> NowReport | HoldfastError:
    """Raises KeysReplaced alone: then another recovery came after this one, and this machine is out already."""
    try:
        with ExitStack() as stack:
            vault = evidence.vault or stack.enter_context(open_by(target.vault, target.keys))
            return await (await open_backups(home, vault=vault, progress=progress)).now()
    except KeysReplaced:
        raise
    except HoldfastError as error:
        return error
    except OSError as error:
        return disk_error(error, home.folder)


def find_obstacle(
    survey: Survey, *, vault: Path, keep_keys: bool, again: bool, accept_older: bool
) -> HoldfastError | None:
    """Why nothing would come of a recovery, as far as that can be known before anything is done."""
    if survey.chosen is None:
        return none_to_restore(survey.overview, Wish(at=survey.at))
    if survey.unplaced and not accept_older:
        return LogMissing(
            f"{survey.unplaced[0]}. This key log cannot verify snapshots signed after it",
            hint="give the newer log with --log FILE, --witness or --card FILE; if there is none, "
            "--accept-older restores what this log can verify",
        )
    return None if keep_keys else _find_done(survey.log, vault, again=again)


async def old_witnesses_short(survey: Survey, witnesses: Sequence[WitnessAddress], *, port: Signatures) -> int:
    """How many of the witnesses that must vouch for a recovery are missing."""
    tier = survey.log.generations[-1].tier.witnesses
    reached = (await answering(open_witnesses(witnesses, port=port))).by_key
    return max(tier.needed - sum(key in reached for key in tier.members), 0)


async def _recover_identity(
    survey: Survey,
    evidence: Evidence,
    target: RecoveryTarget,
    publish: Publisher,
    *,
    entropy: Entropy,
    port: Signatures,
) -> KeyLog:
    home = load_home(target.home)
    witnesses = tuple(dict.fromkeys((*evidence.witnesses, *home.witnesses)))
    new = target.new_witnesses
    spare = target.spare_witness
    if not new and spare is not None and await old_witnesses_short(survey, witnesses, port=port):
        new = (await _fresh_spare(spare, survey.log, port=port),)
    arbiter = home.arbiter_for(hosts=bool(target.journal_url), folder=target.arbiter)
    old = home.settings.identity
    changed = msgspec.structs.replace(old, vault=str(target.vault), second=str(target.second), arbiter=arbiter)
    write_identity_settings(home.settings_file, name=home.name, identity=changed)
    order = IdentityOrder(
        folder=target.home,
        vault=target.vault,
        second=target.second,
        keys=target.keys,
        second_keys=target.second_keys,
        copies=(*evidence.copies, copy_of(survey.log)),
        witnesses=witnesses,
        new_witnesses=new,
        escrow=survey.escrow,
        passphrase=evidence.passphrase,
        again=target.again,
        beside_places=publish,
    )
    done = await recover_identity(order, words=evidence.words, shares=evidence.shares, entropy=entropy, port=port)
    return done.log


async def _fresh_spare(spare: WitnessAddress, log: KeyLog, *, port: Signatures) -> WitnessAddress:
    """The witness at this address, or one beside it. One that signed for a recovery which came second stands by that:
    it cannot vouch for anything that follows the other one."""
    for number in range(2, SPARES_MAX):
        for witness in open_witnesses((spare,), port=port).by_key.values():
            held = await witness.fetch(log.id)
            if held is not None and any(_conflicts(one, log) for one in records_of(held)):
                break
        else:
            return spare
        spare = parse_witness_address(f"{str(spare).removesuffix(f'-{number - 1}')}-{number}")
    return spare


def _conflicts(signed: Signed[Record], log: KeyLog) -> bool:
    held = log.find(signed.record.position)
    return held is not None and held.digest != signed.digest


def _point(target: RecoveryTarget, vault: Vault) -> None:
    """The restored home belongs to the vault that is here."""
    home = load_home(target.home)
    old = home.settings.identity
    arbiter = home.arbiter_for(hosts=bool(target.journal_url), folder=target.arbiter)
    changed = msgspec.structs.replace(old, arbiter=arbiter)
    if home.vault != vault.folder:
        changed = msgspec.structs.replace(changed, vault=str(vault.folder), second=str(target.second))
    if changed != old:
        write_identity_settings(home.settings_file, name=home.name, identity=changed)
    point_keys(home.keys_file, vault)


def _find_done(log: KeyLog, vault: Path, *, again: bool) -> NotNow | None:
    """Before anything is moved: a recovery that another machine has finished is told."""
    record = log.head.record
    finished = isinstance(record, Rotation) and record.g > 0 and record.s == 1
    if not finished or again or exists(vault):
        return None
    return NotNow(
        f"{log.id} was already recovered (at {log.position}), but there is no vault with its new keys in {vault}",
        hint=f"use the machine that has the new keys; {AGAIN_HINT}",
    )


def _check_vaults(target: RecoveryTarget) -> None:
    """Before anything is moved: a vault that is in the way opens, or another place is named."""
    if not exists(target.vault) and not exists(unfinished(target.vault)):
        check_free(target.vault)
        check_free(target.second)
    for folder, keys in ((target.vault, target.keys), (target.second, target.second_keys)):
        if not exists(folder):
            continue
        try:
            open_by(folder, keys).wipe()
        except VaultLocked as error:
            raise VaultLocked(
                f"the given keys do not open the vault in {folder}",
                hint="give new folders with --vault and --second: Holdfast makes new keys there",
            ) from error


def _settle_places(home: AgentHome, survey: Survey) -> tuple[str, ...]:
    """places.json says where the places were found; those that were behind are left out.
    A repository that may have been put back to an older day must not be written to again: what it would seal again goes
    out under numbers that were used before. A package that left this agent has a head too, but is in no place."""
    heads = survey.overview.chain.heads
    backups = newest_first(one.record.archive for one in heads)
    newest = max((one.record.rank for one in heads if one.record.archive in backups), default=())
    places = survey.overview.places
    behind = {one.place.name for one in places if one.newest is not None and one.newest.record.rank < newest}
    found = {one.name: one for one in survey.places}
    stored = read_places(home.places_file)
    kept = tuple(_where_found(one, found.get(one.name)) for one in stored if one.name not in behind)
    if kept != stored:
        write_places(home.places_file, kept)
    return tuple(sorted(behind))


def _where_found(place: Place, there: Place | None) -> Place:
    if there is None or (there.kind, there.place_id) != (place.kind, place.place_id):
        return place
    return msgspec.structs.replace(place, address=there.address, agent=there.agent)


@dataclass(slots=True)
class _Restoring:
    """What is done to a restored folder before it takes its place."""

    survey: Survey
    clock: Clock
    keep_keys: bool
    rewound: Rewound | None = None
    unsealed: tuple[str, ...] = ()
    journal_was: str = ""

    async def prepare(self, folder: Path, snapshot_at: int) -> None:
        with self.survey.escrow.secrets_identity() as identity:
            self.unsealed = put_back(folder, identity)
        folder = home_in(folder)
        if not self.keep_keys or _is_rescued(folder / KEYS):
            # Of the folder that was there: the agent is whole again only with its new keys.
            remove_durably(folder / KEYS)
        if not self.keep_keys and (folder / INSTANCE).is_dir():
            remove_standby(folder / INSTANCE)  # its new keys lock out the primary
        journal = folder / JOURNAL
        if journal.is_file():
            self.journal_was = journal_in(folder).url
            write_journal_url(folder / SETTINGS, "")  # what is here is the file
            keys, above = ring_of(self.survey.escrow), max(self.survey.above, granted_to(folder))
            self.rewound = await journal_at(file_at(journal)).restore(
                keys=keys, clock=self.clock, above=above, copied_ms=snapshot_at * 1000
            )
        heads = tuple(one.digest for one in HeadFile(folder / HEADS).read().heads[-HEADS_MARKED:])
        incarnation = None if self.rewound is None else self.rewound.incarnation
        mark = RestoredMark(heads=heads, restored_ms=self.clock.wall_ms(), incarnation=incarnation)
        write_mark(folder / INSTANCE, mark)


def _is_rescued(keys: Path) -> bool:
    return keys.is_file() and is_rescued(read_keys(keys))


def _on_server(target: RecoveryTarget) -> JournalAddress:
    return JournalAddress(folder=target.home, url=target.journal_url)


def _check_server(target: RecoveryTarget, chosen: Signed[Head]) -> None:
    """Before anything is done: the database can be reached, and has no other agent's journal, nor an older state."""
    there, mark = _on_server(target), chosen.record.journal
    admin = journal_at(there)
    if not admin.exists():
        return
    hint = "give another schema (`?schema=NAME`) or database, or rename that schema; Holdfast overwrites no journal"
    if mark is None or admin.peek() != mark.id:
        raise NotNow(f"there is another journal at {there}", hint=hint)
    found = admin.position()
    if (found.incarnation, found.sequence) < (mark.incarnation, mark.sequence):
        raise NotNow(
            f"the journal at {there} is older than the snapshot: it ends at record {found.sequence} of incarnation "
            f"{found.incarnation}, the snapshot at record {mark.sequence} of incarnation {mark.incarnation}",
            hint=hint,
        )


async def _put_on_server(
    target: RecoveryTarget, survey: Survey, rewound: Rewound | None, *, clock: Clock
) -> tuple[Rewound | None, CopiedJournal | None]:
    """The restored journal moves into the database. Where that still has this journal, it is the newer one: it is
    continued, as a restore too, because nobody knows what it has lost."""
    file, there, keys = file_at(target.home / JOURNAL), _on_server(target), ring_of(survey.escrow)
    own, admin = journal_at(file), journal_at(there)
    if not own.exists():
        write_journal_url(target.home / SETTINGS, target.journal_url)
        return rewound, None
    if not admin.exists():
        moved = await copy_journal(file, there, keys=keys, clock=clock)
        if not moved.tables_left:
            remove_durably(Path(moved.kept))  # the snapshot has it
        return None if rewound is None else msgspec.structs.replace(rewound, incarnation=moved.incarnation), moved
    done = await admin.restore(keys=keys, clock=clock, above=own.incarnation())
    write_journal_url(target.home / SETTINGS, target.journal_url)
    remove_durably(file.path)
    return done, None


def _is_there(survey: Survey, chosen: Signed[Head], target: RecoveryTarget) -> bool:
    """Whether an earlier run of this recovery has restored the snapshot and was cut short."""
    mark = find_mark(target.home / INSTANCE)
    if mark is None:
        return False
    standby = find_standby(target.home / INSTANCE)
    if standby is not None and standby.promoting:
        return mark.restored_ms >= standby.since_ms or find_pending(target.home) is not None
    made = (one.digest for one in HeadFile(target.home / HEADS).read().heads)
    if chosen.digest not in (*mark.heads, *made):
        return False
    # With its keys in place and the record that names them unpublished, it is locked out still.
    whole = find_whole(target.home) and find_pending(target.home) is None
    backed_up = chosen.record.position == survey.log.position
    if whole and backed_up and not target.again:
        raise NotNow(
            f"{target.folder} is already recovered: it holds this snapshot and the keys of the agent",
            hint="start the agent; to restore it again, give --again",
        )
    return not (whole and target.again)


def _secrets(home: AgentHome, escrow: Escrow, clock: Clock, entropy: Entropy) -> tuple[str, ...]:
    file = SecretFile(home.folder, keys=ring_of(escrow), clock=clock, entropy=entropy)
    return tuple(sorted(file.list_secrets()))
