"""The places of an agent: places.json in its folder, names and addresses, no secrets.

A place holds one repository of this agent, with a key of its own, and companion files: what a bare
machine needs besides the paper (escrow.age, the heads, the key blocks of the other places).

    folder      ROOT/holdfast-place.json      the sentinel: which place this is
                ROOT/AGENT/repository/        the engine's; a later one is repository-EPOCH
                ROOT/AGENT/place.json         the place's name and key epoch
                ROOT/AGENT/escrow.age, rescue.age, heads.jsonl, keys/PLACE.key
    ssh         ADDRESS                       the engine's; a later one is ADDRESS-EPOCH
                ADDRESS-beside                a second repository for the companion files
    rclone      as a folder, in the agent's instance folder; rclone copies it to REMOTE:PATH

The sentinel is written when a place is added and read before every run. Where it is missing the
disk is not mounted, and what a run would write would land in the empty folder below: so nothing is
written. Where it names another place, another disk is mounted there.

places.json is replaced in one rename. A kill while a place is added leaves a repository that no
line names; adding it again takes it over, because the vault's passphrase opens it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.backup.engine import Repository
from holdfast.backup.places.address import PlaceKind, check_place_name, parse_address
from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BackupFailed,
    BadPlace,
    HoldfastError,
    PlaceFull,
    PlaceMissing,
    PlaceNotFound,
    PlaceRefused,
    RepositoryDamaged,
)
from holdfast.host.private_files import read_plain, read_private, write_atomically
from holdfast.identity.records.secret_bytes import SecretBytes

SENTINEL = "holdfast-place.json"
ABOUT = "place.json"
REPOSITORY = "repository"
CLOUD = "cloud"  # in the instance folder: what rclone copies
KEYS = "keys"
COMPANION_SUFFIX = "-beside"
PLACES_MAX = 16
FILE_BYTES_MAX = 256 * 1024
FORMAT = 1
TEXT_CHARS_MAX = 200
_SUFFIX = re.compile(r"(?:-[0-9]{1,9})?")


def is_suffix(text: str) -> bool:
    """What may follow the name of a repository: nothing, or `-` and its key epoch."""
    return _SUFFIX.fullmatch(text) is not None


def is_repository(name: str) -> bool:
    """Whether a folder of this name holds a repository."""
    return name.startswith(REPOSITORY) and is_suffix(name.removeprefix(REPOSITORY))


class Passphrases(Protocol):
    """What opens repositories: an escrow, or what a rescue key gives."""

    def backup_passphrase(self, place: str, *, epoch: int = 1) -> SecretBytes: ...


class OlderRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repository that the place used before: it keeps its snapshots until a person removes it."""

    epoch: int
    suffix: str


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of places.json."""

    name: str
    kind: PlaceKind
    address: str
    place_id: str  # of the folder; a far host has none, there its repository's id counts
    repository_id: str
    agent: str  # the folder of this agent in a folder place
    added_ms: int
    epoch: int = 1  # of the passphrase: a new repository under an old name gets a new one
    domain: str = ""  # what can fail as one: a machine, a room, a provider
    append_only: bool = False  # the far end does not let this agent remove anything at once
    rsh: str = ""
    remote_program: str = msgspec.field(default="", name="remote_borg")
    companion: str = msgspec.field(default="", name="beside")  # its companion repository, if not ADDRESS-beside
    suffix: str = ""  # of a later repository: what follows the name that the first one had
    older: tuple[OlderRepository, ...] = ()  # those before it that may still be there
    local: str = ""  # of one that rclone copies: its folder here, which follows from the agent's; never stored

    @property
    def root(self) -> Path:
        """The folder of a place that has one on this machine."""
        return Path(self.local or self.address)

    @property
    def own(self) -> Path:
        """The agent's folder in it."""
        return self.root / self.agent

    @property
    def repository(self) -> str:
        return self.repository_of(self.suffix)

    def repository_of(self, suffix: str) -> str:
        return self.address + suffix if self.kind is PlaceKind.SSH else str(self.own / f"{REPOSITORY}{suffix}")


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    places: tuple[Place, ...]


class _Sentinel(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    place_id: str


class PlaceAbout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """ROOT/AGENT/place.json: what a bare machine must know to derive the passphrase."""

    format: int
    place: str
    epoch: int
    repository_id: str
    agent: str = ""  # its name; the folder may have been copied under another one
    suffix: str = ""  # of the repository's name


def read_places(path: Path) -> tuple[Place, ...]:
    """All places of the agent; none where there is no file yet. Raises BadPlace."""
    try:
        raw = read_private(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ()
    if len(raw) > FILE_BYTES_MAX:
        raise BadPlace(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return tuple(with_folder(place, path.parent) for place in parse_places(raw, where=path))


def with_folder(place: Place, home: Path) -> Place:
    """The place with its folder on this machine, if rclone copies it."""
    local = str(home / "instance" / CLOUD / place.name) if place.kind is PlaceKind.RCLONE else ""
    return msgspec.structs.replace(place, local=local)


def parse_places(raw: bytes, *, where: Path) -> tuple[Place, ...]:
    """Raises BadPlace."""
    try:
        found = decode_json(raw, _File)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadPlace(f"{where}: {error}") from None
    if found.format != FORMAT:
        raise BadPlace(f"{where} has format {found.format}; this Holdfast reads only format {FORMAT}")
    _check(found.places, where=where)
    return found.places


def write_places(path: Path, places: Sequence[Place]) -> None:
    _check(places, where=path)
    kept = _File(format=FORMAT, places=tuple(msgspec.structs.replace(place, local="") for place in places))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def get_place(places: Sequence[Place], name: str) -> Place:
    found = next((place for place in places if place.name == name), None)
    if found is None:
        raise PlaceNotFound(f"there is no place {name!r}")
    return found


def repository_of(place: Place, escrow: Passphrases) -> Repository:
    """The place's repository with what opens it. Raises PassphraseRefused where a rescue key does not."""
    return Repository(
        name=place.name,
        address=place.repository,
        rsh=place.rsh,
        remote_program=place.remote_program,
        passphrase=escrow.backup_passphrase(place.name, epoch=place.epoch),
        id=place.repository_id,
    )


def check_there(place: Place) -> None:
    """The place is the one that was added. Raises PlaceMissing.
    A far host shows nothing without a connection: there the engine compares the id. A folder that a person names on a
    bare machine needs no sentinel."""
    if place.kind is PlaceKind.SSH or not place.place_id:
        return
    found = find_place_id(place.root)
    if found is None and place.kind is PlaceKind.RCLONE:
        raise PlaceMissing(
            f"place {place.name}: this machine does not have the folder that rclone copies to {place.address}",
            hint="the next backup fetches it",
        )
    if found is None:
        raise PlaceMissing(
            f"place {place.name}: {place.address} has no {SENTINEL}: is the disk mounted?",
            hint=f"mount the disk at {place.address}; then the next backup runs as usual. "
            f"If you removed the file: `holdfast place check {place.name} --mark`",
        )
    if found != place.place_id:
        raise PlaceMissing(
            f"place {place.name}: another place is mounted at {place.address}",
            hint="mount the disk that was added under this name, or add the mounted one as a new place: "
            f"`holdfast place add NAME {place.address}`",
        )


def find_place_id(root: Path) -> str | None:
    """What the sentinel in this folder says; None where there is none that can be read."""
    try:
        raw = read_plain(root / SENTINEL, FILE_BYTES_MAX)
        return decode_json(raw, _Sentinel).place_id
    except (OSError, HoldfastError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def mark_place(root: Path, place_id: str) -> None:
    text = {
        "format": FORMAT,
        "place_id": place_id,
        "what": "Holdfast knows this place by this file. Leave it: without it the place counts "
        "as not mounted, and no backup is made here.",
    }
    write_atomically(root / SENTINEL, msgspec.json.format(msgspec.json.encode(text)) + b"\n")


def about(place: Place) -> bytes:
    fields = PlaceAbout(
        format=FORMAT,
        place=place.name,
        epoch=place.epoch,
        repository_id=place.repository_id,
        agent=place.agent,
        suffix=place.suffix,
    )
    return msgspec.json.format(msgspec.json.encode(fields)) + b"\n"


def shared_domains(places: Sequence[Place]) -> dict[str, tuple[str, ...]]:
    """Domains that more than one place shares: they count as one when that domain is lost."""
    by_domain: dict[str, list[str]] = {}
    for place in places:
        by_domain.setdefault(place.domain.casefold(), []).append(place.name)
    return {domain: tuple(names) for domain, names in by_domain.items() if len(names) > 1}


def _check(places: Sequence[Place], *, where: Path) -> None:
    if len(places) > PLACES_MAX:
        raise BadPlace(f"{where} lists {len(places)} places; at most {PLACES_MAX} are allowed")
    names = [check_place_name(place.name) for place in places]
    if len(set(names)) != len(names):
        raise BadPlace(f"{where}: two places have the same name")
    for place in places:
        parsed = parse_address(place.address)
        if parsed.kind is not place.kind or parsed.text != place.address:
            raise BadPlace(
                f"{where}: place {place.name}: `address` does not have the form that `kind` {place.kind} needs"
            )
        if place.companion and parse_address(place.companion).kind is not PlaceKind.SSH:
            raise BadPlace(f"{where}: place {place.name}: `beside` must be an ssh address")
        if place.epoch < 1 or "/" in place.agent or place.agent in ("", ".", ".."):
            raise BadPlace(
                f"{where}: place {place.name}: `epoch` must be at least 1, and `agent` must be a folder name"
            )
        if not all(is_suffix(one) for one in (place.suffix, *(old.suffix for old in place.older))):
            raise BadPlace(f"{where}: place {place.name}: `suffix` must be empty, or `-` and a number")
        texts = (place.domain, place.remote_program, place.agent, place.place_id, place.repository_id)
        if not all(len(one) <= TEXT_CHARS_MAX and one.isprintable() for one in texts):
            raise BadPlace(
                f"{where}: place {place.name}: a field has more than {TEXT_CHARS_MAX} characters or is not printable"
            )


def place_error(error: Exception, place: str) -> HoldfastError:
    """The same failure, as every other of this place: it stops no other."""
    if isinstance(error, HoldfastError):
        return error
    if not isinstance(error, OSError):
        return BackupFailed(f"place {place}: {error}")
    named = f"{error.filename}: " if error.filename else ""
    text = f"place {place}: {named}{error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return PlaceFull(text)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return PlaceRefused(text)
        case errno.EIO:
            return RepositoryDamaged(text)
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO | errno.ESTALE | errno.ENOTCONN:
            return PlaceMissing(text)
        case errno.EHOSTDOWN | errno.EHOSTUNREACH | errno.ETIMEDOUT:
            return PlaceMissing(text)
        case _:
            return BackupFailed(text)
