"""Adding, moving, checking and removing the places of an agent's backups.

The order in `add`: sentinel, repository, key block into the vault (copies of escrow.age first, the
new place among them), places.json, companion files. Until places.json names the place nothing is
backed up to it, so a kill anywhere before leaves an unused place; adding it again finds the
repository, opens it with the same passphrase and continues.

Removing a place removes nothing in it: its snapshots stay and can be restored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from holdfast.backup.engine import SILENT, BackupEngine, Listing, Progress, Repository
from holdfast.backup.open_engine import BASE, open_engine
from holdfast.backup.places.address import Address, PlaceKind, check_place_name, parse_address
from holdfast.backup.places.cloud_copy import bring, copy_of
from holdfast.backup.places.companion_files import digest, log_in_companions, put_companions, read_companions
from holdfast.backup.places.place_states import PlaceStates
from holdfast.backup.places.places import (
    ABOUT,
    FILE_BYTES_MAX,
    KEYS,
    PLACES_MAX,
    Place,
    PlaceAbout,
    about,
    check_there,
    find_place_id,
    get_place,
    is_suffix,
    mark_place,
    read_places,
    repository_of,
    with_folder,
    write_places,
)
from holdfast.backup.places.published import check_not_replaced, old_claims
from holdfast.backup.places.rescue_file import kept_rescue
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BadPlace,
    PassphraseRefused,
    PlaceMissing,
    PlaceTaken,
    RepositoryDamaged,
    RepositoryKeyMissing,
    SymlinkRefused,
    VaultMissing,
    WrongKind,
)
from holdfast.host.private_files import (
    check_place,
    ensure_private_folder,
    find_network_fs,
    read_plain,
    write_atomically,
)
from holdfast.identity.files.own_log import LOG, RECEIPTS, find_own_log, find_pending
from holdfast.identity.files.roster_file import ROSTER, roster_lines
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.roster import join_rosters
from holdfast.identity.vault.mail_keys import newest_exp
from holdfast.identity.vault.rescue import RESCUE
from holdfast.identity.vault.ring import ESCROW, Escrow, read_escrow, store, with_place
from holdfast.identity.vault.vault import Vault, open_vault, terminal_prompt
from holdfast.identity.witness.witness import copy_of as lines_of
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.moved import check_not_moved
from holdfast.layout.rescued import check_not_rescued
from holdfast.layout.witness_address import folders_of

THIS_MACHINE = "this machine"
HEADS = "heads.jsonl"
_KEY = "borg-key"  # stored in the vault: borg-key/PLACE/EPOCH
PLACE_ID_BYTES = 16
EMPTY_BYTES_MAX = 1_024  # a new repository has about half of it; the smallest snapshot needs more


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """What a person asks for when adding a place."""

    name: str
    address: str
    domain: str = ""
    append_only: bool = False
    rsh: str = ""
    remote_program: str = ""
    companion: str = ""


class BackupPlaces:
    """The places of one agent, with its vault open and the backup engine at hand."""

    def __init__(
        self,
        home: AgentHome,
        *,
        vault: Vault,
        engine: BackupEngine,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.home = home
        self.vault = vault
        self.engine = engine
        self.states = states_of(home)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()

    def read(self) -> tuple[Place, ...]:
        return read_places(self.home.places_file)

    def get(self, name: str) -> Place:
        return get_place(self.read(), name)

    def repository(self, place: Place) -> Repository:
        return repository_of(place, read_escrow(self.vault))

    async def add(self, request: PlaceRequest) -> Place:
        """A new place with a repository of its own.
        Raises BadPlace, PlaceTaken, PlaceMissing, MovedAway and what the place raises."""
        check_not_moved(self.home.instance)
        places = self.read()
        check_place_name(request.name)
        address = parse_address(request.address)
        if any(one.name == request.name for one in places):
            raise BadPlace(f"a place named {request.name} already exists")
        if len(places) >= PLACES_MAX:
            raise BadPlace(f"this agent already has {PLACES_MAX} places, which is the limit")
        place = self._drafted(request, address)
        if place.kind is PlaceKind.RCLONE:
            place = await self._brought(place)
        if any(one.repository == place.repository for one in places):
            raise BadPlace(f"{request.address} is already a place of this agent")
        place = await self.begin_repository(place)
        write_places(self.home.places_file, [*places, place])
        await self.refresh_companions()
        return place

    async def _brought(self, place: Place) -> Place:
        """What an earlier life left in the cloud, as the place here; an empty one where there is nothing."""
        try:
            await copy_of(place).fetch()
        except PlaceMissing:
            return place
        place_id = find_place_id(place.root) or place.place_id
        return self._with_epoch(msgspec.structs.replace(place, place_id=place_id))

    def remove(self, name: str) -> Place:
        """Forget the place. Its files stay, and so does its key in the vault."""
        check_not_moved(self.home.instance)
        places = self.read()
        place = get_place(places, name)
        write_places(self.home.places_file, [one for one in places if one.name != name])
        self.change_escrow(lambda escrow: _without_place(escrow, str(place.own)))
        self.states.forget(name)
        return place

    async def move(self, name: str, address: str) -> Place:
        """The same repository at another address. Raises RepositoryReplaced if it is another one."""
        check_not_moved(self.home.instance)
        places = self.read()
        old = get_place(places, name)
        parsed = parse_address(address)
        if PlaceKind.RCLONE in (old.kind, parsed.kind):
            raise BadPlace(
                f"Holdfast cannot move place {name} to {address}: rclone keeps one of the two",
                hint=f"`holdfast place remove {name}`, then `holdfast place add NAME {address}`",
            )
        new = msgspec.structs.replace(old, address=parsed.text, kind=parsed.kind, companion="")
        if new.kind is PlaceKind.FOLDER:
            self._check_apart(_folder(parsed))
            new = msgspec.structs.replace(new, place_id=find_place_id(_folder(parsed)) or self._new_id())
        repository = self.repository(new)
        listing = await self.engine.list_archives(repository, rescue=True)
        repository.check_id(listing.repository_id)
        if new.kind is PlaceKind.FOLDER and find_place_id(Path(new.address)) is None:
            mark_place(Path(new.address), new.place_id)
        self.change_escrow(lambda escrow: _with_own(_without_place(escrow, str(old.own)), new))
        write_places(self.home.places_file, [new if one == old else one for one in places])
        await self.refresh_companions()
        return new

    async def check(self, name: str, *, deep: bool = False) -> Listing:
        """The place is there, opens, and is the repository that was added.
        With `deep` every chunk is read. Raises what is wrong."""
        place = self.get(name)
        await bring(place)
        await asyncio.to_thread(check_there, place)
        repository = self.repository(place)
        listing = await self.engine.list_archives(repository)
        if deep:
            await self.engine.check(repository)
        return listing

    def mark(self, name: str) -> None:
        """Write the sentinel again: a person says that this is the place."""
        place = self.get(name)
        if place.kind is PlaceKind.SSH or not Path(place.repository).is_dir():
            raise PlaceMissing(f"place {name}: Holdfast found no repository of this agent there")
        mark_place(place.root, place.place_id)

    async def mend_key(self, name: str) -> None:
        """Put the kept key block back into the repository."""
        check_not_moved(self.home.instance)
        place = self.get(name)
        kept = read_escrow(self.vault).others.get(key_name(place))
        if kept is None:
            raise RepositoryKeyMissing(
                f"the vault has no copy of the key block of place {name}",
                hint=f"find AGENT/{KEYS}/{name}.key at another place; then `{self.engine.key_command} REPOSITORY FILE`",
            )
        await self.engine.import_key(self.repository(place), kept)

    async def break_lock(self, name: str) -> None:
        await self.engine.break_lock(self.repository(self.get(name)))

    async def refresh_companions(self, names: tuple[str, ...] = ()) -> dict[str, Exception]:
        """Write companion files that are missing or old, for all places or these.
        A place that is not there keeps what it has until a later run. Returns what places raised."""
        places = self.read()
        escrow = read_escrow(self.vault)
        wanted = [place for place in places if not names or place.name in names]
        done = await asyncio.gather(
            *(self._refresh(place, self._files(place, places, escrow), newest_exp(escrow)) for place in wanted),
            return_exceptions=True,
        )
        return {place.name: error for place, error in zip(wanted, done, strict=True) if isinstance(error, Exception)}

    async def _refresh(self, place: Place, files: dict[str, bytes], exp: int) -> None:
        whole = digest({**files, ROSTER: _lines(roster_lines(self.home.folder))})
        if place.kind is not PlaceKind.FOLDER and self.states.of(place.name).companions == whole:
            return
        await asyncio.to_thread(check_there, place)
        there = await self._companions_at(place)
        if heads := _joined(there.get(HEADS, b""), files.get(HEADS, b"")):
            files[HEADS] = heads
        log = self._check_log(place, there)
        if log is not None:  # also what others left there: it may be the only proof
            copy = lines_of(log)
            files |= {LOG: _lines(copy.records), RECEIPTS: _lines(copy.receipts)}
            heard = (*roster_lines(self.home.folder), *there.get(ROSTER, b"").splitlines())
            if roster := join_rosters(heard, log, port=Sodium()):
                files[ROSTER] = _lines(roster.lines())
        await put_companions(self.engine, place, files)
        if log is not None and place.kind is PlaceKind.FOLDER:
            for name in old_claims(there, log):
                (place.own / name).unlink(missing_ok=True)
        self.states.change(place.name, lambda one: msgspec.structs.replace(one, companions=whole, mail_key_exp=exp))

    async def check_keys_current(self, place: Place) -> dict[str, bytes]:
        """The companion files. Raises KeysReplaced if another final record is in their log.
        A recovered agent leaves its log there: a machine that comes back later must not overwrite what the living one
        wrote, nor make snapshots that look newest."""
        files = await self._companions_at(place)
        self._check_log(place, files)
        return files

    async def _companions_at(self, place: Place) -> dict[str, bytes]:
        try:
            return await read_companions(self.engine, place)
        except PlaceMissing:
            return {}

    def _check_log(self, place: Place, files: dict[str, bytes]) -> KeyLog | None:
        port, pending = Sodium(), find_pending(self.home.folder)
        own = find_own_log(self.home.folder, port)
        if own is None:
            return None
        mine = () if pending is None else (pending.digest,)
        copy = log_in_companions(files)
        return check_not_replaced(own, copy, where=f"place {place.name}", port=port, pending=mine, home=self.home)

    def companions_of(self, place: Place) -> dict[str, bytes]:
        """What the companion files of this place should be now."""
        return self._files(place, self.read(), read_escrow(self.vault))

    def _files(self, place: Place, places: tuple[Place, ...], escrow: Escrow) -> dict[str, bytes]:
        found = {ABOUT: about(place)}
        for name, path in (
            ("escrow.age", self.vault.folder / f"{ESCROW}.age"),
            ("heads.jsonl", self.home.heads_file),
            ("kel.jsonl", self.home.log_file),
            ("receipts.jsonl", self.home.receipts_file),
        ):
            if path.is_file():
                found[name] = path.read_bytes()
        rescue = kept_rescue(self.home, self.vault, escrow, places)
        if rescue is not None:
            found[RESCUE] = rescue
        for other in places:
            key = escrow.others.get(key_name(other))
            if other.name != place.name and key is not None:
                found[f"{KEYS}/{other.name}.key"] = key.encode()
        return found

    def _drafted(self, request: PlaceRequest, address: Address) -> Place:
        if request.companion and parse_address(request.companion).kind is not PlaceKind.SSH:
            raise BadPlace("--beside must be an ssh address: it names a second repository on another host")
        place_id, domain = "", request.domain or address.host
        if address.kind is PlaceKind.FOLDER:
            root = _folder(address)
            self._check_apart(root)
            place_id = find_place_id(root) or self._new_id()
            domain = request.domain or (f"network folder {root}" if find_network_fs(root) else THIS_MACHINE)
        elif address.kind is PlaceKind.RCLONE:
            place_id = self._new_id()
        draft = Place(
            name=request.name,
            kind=address.kind,
            address=address.text,
            place_id=place_id,
            repository_id="",
            agent=_folder_name(self.home.name),
            added_ms=self._clock.wall_ms(),
            domain=domain,
            append_only=request.append_only,
            rsh=request.rsh,
            remote_program=request.remote_program,
            companion=request.companion,
        )
        return self._with_epoch(with_folder(draft, self.home.folder))

    def _check_apart(self, root: Path) -> None:
        """A place in the agent's folder would be in its own backups; beside keys it would be lost with them.
        Raises BadPlace."""
        home, real = self.home, Path(os.path.realpath(root))
        folders = [("the agent's folder", home.state), ("the vault", home.vault), ("the second place", home.second)]
        for what, path in (*folders, *(("the witness", one) for one in folders_of(home.witnesses))):
            other = Path(os.path.realpath(path or home.state))
            if real == other or other in real.parents or real in other.parents:
                where = "contains" if real in other.parents else "is" if real == other else "is inside"
                raise BadPlace(
                    f"{root} {where} {what} {path}: a place must be a folder of its own",
                    hint="give a folder on another disk, or on another machine",
                )

    def _with_epoch(self, draft: Place) -> Place:
        """With one above all epochs that were used under this name, unless the repository says its own."""
        if draft.kind is not PlaceKind.SSH:
            try:
                raw = read_plain(draft.own / ABOUT, FILE_BYTES_MAX)
                found = decode_json(raw, PlaceAbout)
                if found.place == draft.name and found.epoch >= 1 and is_suffix(found.suffix):
                    return msgspec.structs.replace(draft, epoch=found.epoch, suffix=found.suffix)
            except (OSError, SymlinkRefused, WrongKind, msgspec.DecodeError, UnicodeError, RecursionError):
                pass
        return msgspec.structs.replace(draft, epoch=last_epoch(read_escrow(self.vault), draft.name) + 1)

    async def begin_repository(self, draft: Place) -> Place:
        """The repository that this place is to have next, with its key in the vault. Nothing uses it yet. Safe to
        repeat: what a run that was killed has made is found again."""
        listing = await self._opened_or_made(draft)
        draft = msgspec.structs.replace(draft, repository_id=listing.repository_id)
        key = await self.engine.export_key(self.repository(draft))
        self.change_escrow(
            lambda escrow: _with_own(replace(escrow, others={**escrow.others, key_name(draft): key}), draft),
            despite_away=bool(draft.older),
        )
        return draft

    async def _opened_or_made(self, place: Place) -> Listing:
        if place.kind is not PlaceKind.SSH:
            try:
                if place.kind is PlaceKind.RCLONE:
                    ensure_private_folder(place.root)
                if find_place_id(place.root) is None:
                    mark_place(place.root, place.place_id)
                ensure_private_folder(place.own)
            except FileNotFoundError as error:  # a folder of the kernel's, such as /proc, takes no new file
                raise BadPlace(f"cannot make files in {place.root}", hint="give a folder on a disk") from error
        repository = self.repository(place)
        try:
            await self.engine.init(repository)
        except PlaceTaken:
            try:
                return await self.engine.list_archives(repository)
            except PassphraseRefused as error:
                raise PlaceTaken(
                    f"this agent has no key or passphrase for the repository {place.repository}"
                ) from error
            except RepositoryDamaged:
                if not _is_unfinished(place):
                    raise
                shutil.rmtree(place.repository)
                await self.engine.init(repository)
        if place.kind is not PlaceKind.SSH and not place.older:  # a later repository is named once it holds a snapshot
            write_atomically(place.own / ABOUT, about(place))
        return await self.engine.list_archives(repository)

    def change_escrow(self, decide: Callable[[Escrow], Escrow], *, despite_away: bool = False) -> None:
        """As ring.change, with a copy in the vault's second place where it holds one. `despite_away`: places that are
        not mounted get their copy later; a stolen key must be revoked also while a disk is in a drawer."""
        second = self.home.second
        also = [second] if second is not None and (second / f"{ESCROW}.age").is_file() else []
        with self.vault.turn():
            try:
                changed = decide(read_escrow(self.vault))
                away = [one for one in changed.places if despite_away and not os.path.isdir(one)]
                store(self.vault, changed, also=also, but=away)
            except FileNotFoundError as error:
                raise PlaceMissing(
                    f"{error.filename} is missing. Holdfast changes the vault's keys only if it can also "
                    "write every copy of them",
                    hint="mount the disk of this file. If the disk is lost, remove its place first",
                ) from error

    def _new_id(self) -> str:
        return self._entropy.bytes(PLACE_ID_BYTES).hex()


async def open_places(
    home: AgentHome, *, ask: Callable[[], str] | None = None, vault: Vault | None = None, progress: Progress = SILENT
) -> BackupPlaces:
    """The agent's places, for changing and running them.
    Raises EngineMissing, EngineTooOld, VaultMissing, VaultLocked, RescuedCopy."""
    check_not_rescued(home.folder)
    if vault is None:
        if home.vault is None:
            raise VaultMissing(
                f"agent {home.name} has no vault; Holdfast needs one to keep the passphrases of places",
                hint="create a vault and an identity with `holdfast init NAME`",
            )
        vault = open_vault(home.vault, ask=ask or terminal_prompt())
    engine = await open_engine(home.settings.backup, base=home.instance / BASE, progress=progress)
    return BackupPlaces(home, vault=vault, engine=engine)


def states_of(home: AgentHome) -> PlaceStates:
    return PlaceStates(home.instance / "backup", lambda: journal_at(home.journal).find_shared())


def key_name(place: Place) -> str:
    return f"{_KEY}/{place.name}/{place.epoch}"


def last_epoch(escrow: Escrow, place: str) -> int:
    """The highest key epoch that was used under this name; 0 where none was."""
    start = f"{_KEY}/{place}/"
    used = (name.removeprefix(start) for name in escrow.others if name.startswith(start))
    return max((int(one) for one in used if one.isdecimal()), default=0)


def _joined(there: bytes, ours: bytes) -> bytes:
    """The lines of both, theirs first: we forget nothing that a place knows."""
    whole = there[: there.rfind(b"\n") + 1] + ours[: ours.rfind(b"\n") + 1]  # torn ends say nothing
    lines = dict.fromkeys(line for line in whole.split(b"\n") if line)
    return b"".join(line + b"\n" for line in lines)


def _lines(lines: tuple[bytes, ...]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _folder(address: Address) -> Path:
    root = Path(address.text)
    if os.path.lexists(root) and not root.is_dir():
        raise BadPlace(f"{root} is not a folder", hint="give a folder: on another disk, or on a mounted network share")
    if not root.is_dir():
        raise PlaceMissing(
            f"there is no folder {root}", hint=f"mount the disk first, or `mkdir {root}` if you want a plain folder"
        )
    check_place(root, allow_network_fs=True)
    return root


def _is_unfinished(place: Place) -> bool:
    """Whether a kill ended the making of this repository: nothing was ever stored in it."""
    if place.kind is PlaceKind.SSH or ((place.own / ABOUT).exists() and not place.older):
        return False
    files = (Path(place.repository) / "data").rglob("*")
    return sum(one.lstat().st_size for one in files if not one.is_dir()) <= EMPTY_BYTES_MAX


def _folder_name(agent: str) -> str:
    """The agent's name where a folder can have it; never a path."""
    safe = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in agent)
    return safe.lstrip(".-") or "agent"


def _with_own(escrow: Escrow, place: Place) -> Escrow:
    return with_place(escrow, place.own) if place.kind is PlaceKind.FOLDER else escrow


def _without_place(escrow: Escrow, folder: str) -> Escrow:
    return replace(escrow, places=tuple(one for one in escrow.places if one != folder))
