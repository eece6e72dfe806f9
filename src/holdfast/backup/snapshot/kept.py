"""The staging folder of the last snapshot, kept: an unchanged file is neither copied nor hashed again.

`staged.index` beside the staging folder says which copy was made of which file: the mark of the file when
it was copied (device, inode, size, times) and the mark of the copy, with the digest of both. A copy is used
again only where both marks are what they were; then neither file is opened. A write to a file sets its time
of status, which no program can set back; a mark that could hide a write (`may_hide_a_change`) is not listed.

The index is removed before anything in the folder changes and written after the last change, so a kill
leaves a folder without an index, which is made again. Copies are not synced, so an index counts only until
the machine starts again; and only for the very folders that it was made of.

Databases are always copied by SQLite, and a file that did not rest is copied again. A folder in which
anything is that the index does not list, or a folder is missing, is made again: the manifest would not name
what is there, and a restore refuses such an archive. The copies are private (0700), on
the disk of the agent's folder, and in no backup. Where that disk has no room for them they are removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.backup.archive.manifest import NAME
from holdfast.backup.archive.reader import HEAD_NAME, STATE
from holdfast.core.decoding import msgpack_decoder
from holdfast.errors import HoldfastError
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import ensure_private_folder, read_private, remove_durably, write_atomically
from holdfast.host.tree import FileKind, FileMark, Gone, open_folder, scan

INDEX = "staged.index"
INDEX_BYTES_MAX = 512 << 20
FORMAT = 1  # a new one also where `judge_head` changes: an unchanged file is not judged again


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    source: FileMark
    copy: FileMark
    mode: int  # of the source, all bits
    sha256: str


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    boot: str
    roots: tuple[tuple[int, int], tuple[int, int]]  # device and inode of the agent's folder and of the staging folder
    files: dict[str, KeptFile]
    folders: list[str]
    others: list[str]  # there, but not to be used again


@dataclass(slots=True)
class KeptStaging:
    """What may be used again, and what this run leaves for the next one."""

    files: dict[str, KeptFile] = field(default_factory=dict[str, KeptFile])
    folders: list[str] = field(default_factory=list[str])
    others: list[str] = field(default_factory=list[str])

    def has(self, path: str, mark: FileMark) -> bool:
        """Whether there is a copy of the file with this mark."""
        kept = self.files.get(path)
        return kept is not None and kept.source == mark


def take_kept(staging: Path, folder: Path, *, boot: str) -> KeptStaging:
    """The kept folder, ready to be changed; an empty one where nothing can be used again."""
    path = staging.with_name(INDEX)
    found = _read(path, _roots(staging, folder), boot)
    good = None if found is None else _good_copies(found, staging)
    remove_durably(path)
    if found is None or good is None:
        remove_tree(staging)
        ensure_private_folder(staging)
        return KeptStaging()
    state = staging / STATE
    bad = found.files.keys() - good.keys()
    for one in (staging / NAME, staging / HEAD_NAME, *(state / path for path in (*found.others, *bad))):
        one.unlink(missing_ok=True)
    return KeptStaging(files=good, folders=found.folders)


def _good_copies(found: _Index, staging: Path) -> dict[str, KeptFile] | None:
    """The copies that are as they were left; None where the folder is not the one that was left."""
    if not {STATE} <= set(os.listdir(staging)) <= {STATE, NAME, HEAD_NAME}:
        return None
    fd = -1
    try:
        fd = open_folder(str(staging / STATE))
        there = scan(fd, limits=None)
    except (OSError, Gone, HoldfastError):
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    marks = {one.path: one.mark for one in there if one.kind is FileKind.FILE}
    folders = {one.path for one in there if one.kind is FileKind.FOLDER}
    listed = found.files.keys() | set(found.others)
    if len(marks) + len(folders) != len(there) or folders != set(found.folders) or not marks.keys() <= listed:
        return None
    return {path: kept for path, kept in found.files.items() if marks.get(path) == kept.copy}


def trim(kept: KeptStaging, state: Path, *, files: Collection[str], folders: Collection[str]) -> list[str]:
    """Remove what is not there any more, or is of another kind now. The folders that were removed."""
    for path in kept.files.keys() - files:
        (state / path).unlink(missing_ok=True)
        del kept.files[path]
    gone = sorted(set(kept.folders).difference(folders), reverse=True)
    for path in gone:
        (state / path).rmdir()
    return gone


def mark_of(status: os.stat_result) -> FileMark:
    return FileMark(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def keep(kept: KeptStaging, staging: Path, folder: Path, *, boot: str) -> None:
    """From now on the folder may be used again."""
    roots = _roots(staging, folder)
    if roots is None:
        return
    index = _Index(format=FORMAT, boot=boot, roots=roots, files=kept.files, folders=kept.folders, others=kept.others)
    write_atomically(staging.with_name(INDEX), msgspec.msgpack.encode(index))


def clear(staging: Path, *, room_bytes: int = 0) -> None:
    """Remove a folder that cannot be used again, or that leaves less room than this on its disk."""
    index = staging.with_name(INDEX)
    if not index.exists() or (room_bytes and shutil.disk_usage(index).free < room_bytes):
        remove_durably(index)
        remove_tree(staging)


def _read(path: Path, roots: tuple[tuple[int, int], tuple[int, int]] | None, boot: str) -> _Index | None:
    try:
        found = msgpack_decoder(_Index).decode(read_private(path, INDEX_BYTES_MAX))
    except (OSError, HoldfastError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if (found.format, found.boot, found.roots) == (FORMAT, boot, roots) and boot else None


def _roots(staging: Path, folder: Path) -> tuple[tuple[int, int], tuple[int, int]] | None:
    try:
        source, copies = os.stat(folder), os.lstat(staging)
    except FileNotFoundError:
        return None
    return (source.st_dev, source.st_ino), (copies.st_dev, copies.st_ino)
