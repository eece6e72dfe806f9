"""`holdfast instance invite` and `join`: a second folder of the agent that its owner has named.

The invitation is a package as `migrate` makes it (move_package.py), without the journal, and without ending anything
here. The key of the new instance is made by the host that invites and travels in the sealed file, so that the roster
names it at once and no second trip is needed: with the opened file one
has the vault, and could sign a roster anyway.

invite, and what a kill between two lines leaves:

    instance/invite.json     name, role and key of the new instance: the same command goes on with it, unless the
                             instance was removed since
    the roster names it      it acts nowhere: nobody has the key but this file
    FILE, by a rename        whole, sealed
    instance/invite.json     destroyed

join: everything is made in a work folder beside the home; a kill leaves that folder, which the next run removes. With
the rename that gives the folder its name the host is an instance. The escrow's list of copies and the name of the
package (`FILE.taken`) follow; the same command finishes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from holdfast.app.instances.roster_change import RosterChange, with_instance
from holdfast.app.instances.standing import read_seen
from holdfast.backup.archive.contained_writer import sync_tree
from holdfast.backup.archive.manifest import ENTRIES_MAX
from holdfast.backup.archive.reader import HEAD_NAME, read_snapshot
from holdfast.backup.backups import alone
from holdfast.backup.places.backup_places import open_places
from holdfast.backup.places.places import read_places
from holdfast.backup.snapshot.staging import Subject, seal_staged, stage
from holdfast.core.decoding import decode_json
from holdfast.core.journal_address import FILE, INSTANCE
from holdfast.errors import BadInput, HoldfastError, LogDamaged, LogMissing, MoveRefused, NotAnAgent
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import (
    check_place,
    destroying,
    ensure_private_folder,
    read_private,
    remove_durably,
    sync_folder,
    write_atomically,
)
from holdfast.host.version import find_version
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.files.roster_file import read_roster
from holdfast.identity.lease.enrolment import find_enrolment, keep_enrolment
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.speaker.open_speaker import home_speaker
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import Enrolled, RosterView
from holdfast.identity.statements.statements import find_fault_in_head
from holdfast.identity.vault.vault import Vault
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.moved import StandbyMark, check_not_moved, write_standby
from holdfast.recovery.move_in import TAKEN, HostPaths, furnish, place_escrow
from holdfast.recovery.move_lease import MoveMeans
from holdfast.recovery.move_package import (
    Cover,
    check_new_package,
    digest_of_file,
    head_of,
    is_invitation,
    key_of,
    open_package,
    part_of,
    write_package,
)

MARK, STAGING = "invite.json", "inviting"
MARK_BYTES_MAX = 16 * 1024
_BESIDE = ("", "-wal", "-shm", "-journal")


class Invited(msgspec.Struct, frozen=True, kw_only=True):
    """What `instance invite` did."""

    package: str
    sha256: str
    id: str
    name: str
    role: str
    key: str
    version: int  # of the roster
    files: int
    bytes: int


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What `instance join` did."""

    home: str
    id: str
    name: str
    role: str
    key: str
    shared: bool  # its journal is one that hosts share


class _Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    role: Role
    host: str
    seed: str
    package: str
    sha256: str = ""  # of the package, once it is written


def archive_of(name: str, key: str) -> str:
    return f"{name}-invite-{key}"


def invite(change: RosterChange, package: Path, *, name: str, role: Role, host: str) -> Invited:
    """Enrol an instance and write its package. Raises BadInput, MovedAway, IsStandby, MoveRefused."""
    home = change.home
    check_new_package(package, home.folder)
    check_not_moved(home.instance)
    if home.state != home.folder:
        raise MoveRefused(
            f"the agent in {home.state} was adopted: a package would not contain the agent's own files",
            hint="only an agent that was made with `holdfast init` can have several instances",
        )
    ensure_private_folder(home.instance)
    with alone(home.instance / "backup"):
        mark = _marked(change, package, name=name, role=role, host=host)
        with KeyPair(SecretBytes(bytes.fromhex(mark.seed))) as key:
            one = Enrolled(name=mark.name, key=key.public, role=mark.role, host=mark.host)
            view = change.apply(lambda listed: with_instance(listed, one))
            done = _packed(change, mark, key)
        return msgspec.structs.replace(done, version=view.rank[2])


def _marked(change: RosterChange, package: Path, *, name: str, role: Role, host: str) -> _Mark:
    """What an earlier run of this command has begun, else a new key. Raises BadInput."""
    path = change.home.instance / MARK
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        mark = decode_json(read_private(path, MARK_BYTES_MAX), _Mark)
        if (mark.name, mark.role, mark.package) == (name, role, str(package)) and not _is_removed(change, mark):
            return mark
    if os.path.lexists(package):
        raise BadInput(f"{package} already exists", hint="choose another name: Holdfast does not overwrite files")
    if change.view().named(name) is not None:
        raise BadInput(
            f"there is an instance named {name!r} already",
            hint=f"choose another name, or run `holdfast instance remove {name}` first",
        )
    with KeyPair.new(change.entropy) as key:
        mark = _Mark(name=name, role=role, host=host, seed=key.seed().hex(), package=str(package))
    with destroying(path):
        write_atomically(path, msgspec.json.encode(mark) + b"\n")
    return mark


def _is_removed(change: RosterChange, mark: _Mark) -> bool:
    """Whether its instance was removed since: the host that has the package, and the key, must not come back."""
    with KeyPair(SecretBytes(bytes.fromhex(mark.seed))) as key:
        public = key.public
    if change.shared is not None and public in read_seen(change.shared).removed:
        return True
    return bool(mark.sha256) and change.view().find(public) is None


def _packed(change: RosterChange, mark: _Mark, key: KeyPair) -> Invited:
    home, package = change.home, Path(mark.package)
    path, folder = home.instance / MARK, home.instance / "backup" / STAGING
    done = Invited(
        package=mark.package,
        sha256=mark.sha256,
        id=change.speaker.id,
        name=mark.name,
        role=mark.role.value,
        key=key.public,
        version=0,
        files=0,
        bytes=0,
    )
    if not (mark.sha256 and os.path.lexists(package) and digest_of_file(package) == mark.sha256):
        remove_tree(folder)
        ensure_private_folder(folder)
        try:
            staged = stage(_subject(change), folder)
            head = seal_staged(change.speaker, staged, archive=archive_of(home.name, key.public), newest=None)
            write_atomically(folder / HEAD_NAME, head.line() + b"\n")
            cover = Cover(head=head.line().decode(), seed=key.seed().hex())
            sha256 = write_package(folder, cover, part_of(package), change.vault.recipients)
        finally:
            remove_tree(folder)
        write_atomically(path, msgspec.json.encode(msgspec.structs.replace(mark, sha256=sha256)) + b"\n")
        os.rename(part_of(package), package)
        sync_folder(package.parent)
        done = msgspec.structs.replace(done, sha256=sha256, files=staged.files, bytes=staged.bytes)
    with destroying(path):
        remove_durably(path)
    return done


def _subject(change: RosterChange) -> Subject:
    """The agent's folder without its journal. Its head is of no chain: it is seen by the host that joins alone."""
    home, rules = change.home, change.home.covering()
    journal = tuple(str(home.folder / f"{FILE}{end}") for end in _BESIDE)
    return Subject(
        folder=home.folder,
        journal=None,
        id=change.speaker.id,
        name=home.name,
        incarnation=1,
        seq=1,
        at=change.clock.wall_ms() // 1000,
        holdfast=find_version(),
        rules=replace(rules, apart=(*rules.apart, *journal), entries_max=ENTRIES_MAX),
    )


@dataclass(frozen=True, slots=True)
class Joining:
    """One package on its way to a folder of this host."""

    package: Path
    target: Path
    means: MoveMeans
    here: HostPaths

    @property
    def work(self) -> Path:
        return self.target.with_name(f".{self.target.name}.joining")

    async def run(self) -> Joined:
        """Raises MoveRefused: no invitation, or of another agent; VaultLocked: sealed for another vault; BadInput."""
        check_place(self.target)
        ensure_private_folder(self.target.parent)
        taken = self.package.with_name(self.package.name + TAKEN)
        if not self.package.is_file():
            if taken.is_file():
                raise BadInput(f"there is no package at {self.package}", hint=f"{taken} was already used to join")
            raise BadInput(f"there is no package at {self.package}", hint="check the path")
        await asyncio.to_thread(remove_tree, self.work)
        ensure_private_folder(self.work)
        try:
            done = await asyncio.to_thread(self._unpacked)
        finally:
            await asyncio.to_thread(remove_tree, self.work)
        with contextlib.suppress(OSError):  # it may lie where nothing can be written
            os.rename(self.package, taken)
        return done

    def _unpacked(self) -> Joined:
        means, tree = self.means, self.work / "tree"
        ensure_private_folder(tree)
        cover, tar = open_package(self.package, means.vault.identity, self.work)
        with tar, key_of(cover) as key:
            head = head_of(cover)
            if not is_invitation(head.record.archive, key.public):
                raise MoveRefused(
                    f"{self.package} is not an invitation",
                    hint="for a package of `migrate export` or `instance yield`: `holdfast migrate import`",
                )
            # Whose head it is can be judged only with the log, which is inside: nothing is used yet.
            state = read_snapshot(tar, head, tree, durable=True).state
            try:
                log = read_own_log(state, means.port)
            except (LogMissing, LogDamaged) as error:
                raise MoveRefused(f"the package has no valid key log: {error.message}") from None
            fault = find_fault_in_head(head, log, port=means.port)
            if fault is not None:
                raise MoveRefused(f"the head of the package is not valid: {fault.message}")
            view = read_roster(state, log, means.port)
            own = view.find(key.public)
            if own is None:
                raise MoveRefused("the roster in the package does not name its instance: it was removed since")
            home_speaker(state, means.vault, means.clock, means.port).answer("A" * 22)  # only its vault can say so
            if not self._is_there(key):
                furnish(state, means.vault, self.here)
                self._enrolled(state, key, log.id, view)
                sync_tree(tree)
                self._put(state)
        place_escrow(means.vault, self.target)
        shared = journal_at(load_home(self.target).journal).hosts
        return Joined(home=str(self.target), id=log.id, name=own.name, role=own.role.value, key=own.key, shared=shared)

    def _is_there(self, key: KeyPair) -> bool:
        """Whether an earlier run has put the folder there. Raises BadInput where something else is there."""
        if not os.path.lexists(self.target):
            return False
        try:
            home = load_home(self.target)
            log = read_own_log(home.folder, self.means.port)
        except (NotAnAgent, LogMissing):
            if any(self.target.iterdir()):
                raise BadInput(f"{self.target} is not empty", hint="give another folder with --home") from None
            return False
        found = find_enrolment(home.instance, id=log.id, clock=self.means.clock)
        if found is not None:
            with found:
                if found.public == key.public:
                    return True
        raise BadInput(
            f"there is an agent in {self.target}",
            hint="give another folder with --home. If it is an instance that was replaced, move it aside first, and "
            "afterwards add the lines that only its memory files have",
        )

    def _enrolled(self, state: Path, key: KeyPair, id: AgentId, view: RosterView) -> None:
        ensure_private_folder(state / INSTANCE)
        keep_enrolment(state / INSTANCE, key, id=id, clock=self.means.clock)
        if not journal_at(load_home(state).journal).hosts:
            acting = [one.name for one in view.enrolled if one.role is Role.PRIMARY and one.key != key.public]
            write_standby(state / INSTANCE, StandbyMark(primary=", ".join(acting)))

    def _put(self, state: Path) -> None:
        if self.target.is_dir():
            self.target.rmdir()  # it is empty
        os.rename(state, self.target)
        sync_folder(self.target.parent)


async def tell_places(home: AgentHome, vault: Vault, *, say: Callable[[str], None]) -> None:
    """Leave the roster at all places now, and not with the next backup: an instance that was removed could take over
    until then."""
    names = [place.name for place in read_places(home.places_file)]
    try:
        failed = await (await open_places(home, vault=vault)).refresh_companions() if names else {}
    except HoldfastError as error:
        failed = dict.fromkeys(names, error)
    for name, why in failed.items():
        say(f"place {name} gets the roster only with the next backup; until then a removed host may take over: {why}")
