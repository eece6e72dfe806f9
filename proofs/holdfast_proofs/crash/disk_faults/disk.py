"""What a disk may hold after the power was cut, decided from the disk log; no file is touched.

A write is safe once a sync of its file, begun after it, has succeeded; a name that was made,
changed or removed once a sync of its *folder* has. That is all that POSIX promises, and less than
ext4 or XFS keep: names may be lost, or kept without their neighbours, in any mixture. Everything
else is in doubt, and a loss says what becomes of it:

* UNDONE: nothing that is in doubt has reached the disk;
* COIN: each write, size and name by itself, by a coin that the seed has weighted;
* TORN: as COIN, but a write is decided sector by sector of 512 bytes.

A file that a lost write had made longer keeps its old length or is filled with zeros, by a coin.
After a *failed* sync of a file what was in doubt stays so for ever: the kernel calls those pages
clean, so later syncs pass them by. Names stay in doubt until their folder is synced again: file
systems keep a log of them, and stop where it cannot be written, but do not forget. Shared memory
(`-shm`) is gone in any case.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any

from holdfast.errors import InvariantViolated
from holdfast_proofs.shim.disk_log import Act, Entry

SECTOR = 512
SHARED_MEMORY = "-shm"
_WEIGHTS = (0.1, 0.5, 0.9)  # the chance of what is in doubt to have reached the disk


class Loss(StrEnum):
    UNDONE = "undone"
    COIN = "coin"
    TORN = "torn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A disk as the next program finds it."""

    folders: tuple[str, ...]  # parents first
    files: dict[str, bytes]
    doubtful: int  # acts that were in doubt
    fate: str  # what became of each of them: equal fates of one moment are one disk


def as_entries(image: Image, inodes: Mapping[str, int]) -> list[Entry]:
    """The disk as it was found, told as acts that are all safe: what a second loss begins with."""
    acts: list[Entry] = []

    def act(kind: Act, **fields: Any) -> None:  # Any: fields of Entry
        acts.append(Entry(act=kind, place=len(acts), began=len(acts), **fields))

    for path in image.folders:
        act(Act.FOLDER, paths=(path,))
    for path, data in image.files.items():
        act(Act.CREATE, paths=(path,), file=inodes[path])
        act(Act.WRITE, file=inodes[path], length=len(data), data=data)
        act(Act.SYNC, file=inodes[path])
    for folder in (".", *image.folders):
        act(Act.FOLDER_SYNC, paths=(folder,))
    return [replace(one, place=one.place - len(acts), began=one.began - len(acts)) for one in acts]


class _Safety(Enum):
    IN_DOUBT = 0
    SAFE = 1
    ADRIFT = 2  # passed by every later sync


@dataclass(slots=True)
class _Change:
    """Of a file's contents, or of a folder's names."""

    entry: Entry
    name: str = ""
    means: _File | bool | None = None  # a name's file; True: a folder; None: nothing any more
    safety: _Safety = _Safety.IN_DOUBT


@dataclass(slots=True)
class _File:
    changes: list[_Change] = field(default_factory=list[_Change])


@dataclass(slots=True)
class _Disk:
    """Everything that was done, with what is known to be safe."""

    files: dict[int, _File] = field(default_factory=dict[int, _File])  # by inode, as it is now
    names: dict[str, _File | bool] = field(default_factory=dict[str, "_File | bool"])
    folders: dict[str, list[_Change]] = field(default_factory=dict[str, "list[_Change]"])
    order: list[_Change] = field(default_factory=list[_Change])

    def note(self, entry: Entry) -> None:
        match entry.act:
            case Act.LIFE | Act.FOLDER_SYNC_FAILED:
                pass
            case Act.CREATE:
                self.files[entry.file] = _File()
                self._set(entry, entry.paths[0], self.files[entry.file])
            case Act.LINK:
                self._set(entry, entry.paths[0], self.files[entry.file])
            case Act.FOLDER:
                self._set(entry, entry.paths[0], True)
            case Act.UNLINK:
                self._set(entry, entry.paths[0], None)
            case Act.RENAME:
                self._rename(entry)
            case Act.WRITE | Act.SIZE:
                self._add(self.files[entry.file].changes, _Change(entry))
            case Act.SYNC:
                _settle(self.files[entry.file].changes, entry, _Safety.SAFE)
            case Act.SYNC_FAILED:
                _settle(self.files[entry.file].changes, entry, _Safety.ADRIFT)
            case Act.FOLDER_SYNC:
                _settle(self.folders.get(entry.paths[0], ()), entry, _Safety.SAFE)

    def _rename(self, entry: Entry) -> None:
        """One change where both names lie in one folder: a rename is never half done."""
        old, new = entry.paths
        if _folder(old) != _folder(new):
            raise InvariantViolated("disk", f"{old} is moved to another folder, {new}")
        self._set(entry, new, self.names[old])
        self.names.pop(old)

    def _set(self, entry: Entry, path: str, means: _File | bool | None) -> None:
        if means is None:
            self.names.pop(path, None)
        else:
            self.names[path] = means
        changes = self.folders.setdefault(_folder(path), [])
        self._add(changes, _Change(entry, path, means))

    def _add(self, changes: list[_Change], change: _Change) -> None:
        changes.append(change)
        self.order.append(change)


def after_power_loss(entries: Iterable[Entry], loss: Loss, seed: int) -> Image:
    """The disk that this loss leaves of what was done."""
    disk = _Disk()
    for entry in entries:
        disk.note(entry)
    chance = random.Random(f"{loss} {seed}")
    weight = 0.0 if loss is Loss.UNDONE else chance.choice(_WEIGHTS)
    digest = hashlib.sha256()
    fates: dict[int, _Fate] = {}
    doubtful = 0
    for change in disk.order:
        if change.safety is _Safety.SAFE:
            continue
        doubtful += 1
        fate = fates[id(change)] = _decide(change.entry, loss, chance, weight)
        digest.update(repr((fate.kept, fate.grows)).encode())
    folders, named = _named(disk, fates)
    return Image(
        folders=tuple(folders),
        doubtful=doubtful,
        fate=digest.hexdigest()[:16],
        files={path: _contents(file, fates) for path, file in named.items()},
    )


@dataclass(frozen=True, slots=True)
class _Fate:
    kept: tuple[bool, ...]  # a write's sectors; of anything else the whole
    grows: bool = False  # the file is as long as if the write had been kept


def _decide(entry: Entry, loss: Loss, chance: random.Random, weight: float) -> _Fate:
    def coin() -> bool:
        return chance.random() < weight

    if entry.act is not Act.WRITE:
        return _Fate((coin(),))
    count = (entry.at + entry.length - 1) // SECTOR - entry.at // SECTOR + 1
    kept = tuple(coin() for _ in range(count)) if loss is Loss.TORN else (coin(),) * count
    return _Fate(kept, loss is not Loss.UNDONE and chance.random() < 0.5)


def _named(disk: _Disk, fates: dict[int, _Fate]) -> tuple[list[str], dict[str, _File]]:
    """The folders and files that have a name, from the root down."""
    folders: list[str] = []
    files: dict[str, _File] = {}
    waiting = ["."]
    while waiting:
        names: dict[str, _File | bool] = {}
        for change in disk.folders.get(waiting.pop(), ()):
            fate = fates.get(id(change))
            if fate is not None and not fate.kept[0]:
                continue
            if change.entry.act is Act.RENAME:
                names.pop(change.entry.paths[0], None)
            if change.means is None:
                names.pop(change.name, None)
            else:
                names[change.name] = change.means
        for path, means in names.items():
            if isinstance(means, _File):
                files[path] = means
            else:
                folders.append(path)
                waiting.append(path)
    return folders, {path: one for path, one in files.items() if not path.endswith(SHARED_MEMORY)}


def _contents(file: _File, fates: dict[int, _Fate]) -> bytes:
    data = bytearray()
    for change in file.changes:
        entry, fate = change.entry, fates.get(id(change))
        if entry.act is Act.SIZE:
            if fate is None or fate.kept[0]:
                _resize(data, entry.length)
        elif fate is None:
            _put(data, entry.at, entry.data)
        else:
            _put_sectors(data, entry, fate)
    return bytes(data)


def _put_sectors(data: bytearray, entry: Entry, fate: _Fate) -> None:
    first = entry.at // SECTOR
    for number, kept in enumerate(fate.kept):
        begin = max(entry.at, (first + number) * SECTOR)
        end = min(entry.at + entry.length, (first + number + 1) * SECTOR)
        if kept:
            _put(data, begin, entry.data[begin - entry.at : end - entry.at])
    if fate.grows and len(data) < entry.at + entry.length:
        _resize(data, entry.at + entry.length)


def _put(data: bytearray, at: int, part: bytes) -> None:
    if len(data) < at:
        _resize(data, at)
    data[at : at + len(part)] = part


def _resize(data: bytearray, length: int) -> None:
    if length < len(data):
        del data[length:]
    else:
        data.extend(bytes(length - len(data)))


def _settle(changes: Iterable[_Change], sync: Entry, safety: _Safety) -> None:
    for change in changes:
        if change.safety is _Safety.IN_DOUBT and change.entry.place < sync.began:
            change.safety = safety


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)
