"""A folder's contents through descriptors: what is there, and whether it can be kept.

Nothing here, nor in tree_io.py, follows a symbolic link: each name is opened relative to the
descriptor of the folder that holds it, with O_NOFOLLOW, so that a folder which is swapped for a
link on the way leads nowhere. `scan` tells what is there and judges nothing but how much; `check`
judges, and touches no file.

Whether a file is the one that was read before is told by its mark (device, inode, size, time of
change and of status). A time of change is as coarse as a tick of the kernel: a file that changed
in the tick in which it was read may have changed after it, with the same mark. So a mark counts
only where its times lie a grain before the reading (`is_settled`). What no mark shows is a write
through a memory map into a page that was written and mapped before; the how-to says so.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.errors import ScratchRefused, ScratchTooLarge
from holdfast.host.manifest import NAME_BYTES_MAX, PATH_BYTES_MAX, find_bad_name, find_twin

GRAIN_NS = 20_000_000  # two ticks of the slowest usual kernel
COARSE_GRAIN_NS = 2_000_000_000  # of file systems that keep whole seconds
DEPTH_FOLLOWED = 200  # without limits; each level keeps a descriptor open
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    PIPE = "named pipe"
    SOCKET = "socket"
    DEVICE = "device"


class FileMark(NamedTuple):
    device: int
    inode: int
    size: int
    changed_ns: int
    status_ns: int


class FoundFile(NamedTuple):
    path: str
    kind: FileKind
    mark: FileMark
    executable: bool
    links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a folder may hold."""

    files: int = 10_000  # and folders
    bytes: int = 4 << 30
    file_bytes: int = 2 << 30
    depth: int = 32
    name_bytes: int = NAME_BYTES_MAX


class Gone(Exception):
    """It is not there any more, or is something else now: look again."""


def open_folder(name: str, *, at: int | None = None) -> int:
    return os.open(name, _FOLDER, dir_fd=at)


def device_of(folder: int) -> int:
    return os.fstat(folder).st_dev


def scan(root: int, *, limits: Limits | None) -> list[FoundFile]:
    """Everything below the folder, each before what it holds. Raises ScratchTooLarge, Gone.

    Without limits as deep as they are; what lies deeper than this can follow is one folder.
    """
    found: list[FoundFile] = []
    for one in _walk(root, "", 1, limits):
        found.append(one)
        if limits is not None and len(found) > limits.files:
            raise ScratchTooLarge(f"the scratch folder holds more than {limits.files:,} files and folders")
    return found


def _walk(folder: int, above: str, depth: int, limits: Limits | None) -> Iterator[FoundFile]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in sorted(names):
        path = f"{above}{name}"
        try:
            one = seen(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            continue  # gone since: it is not part of what is there
        yield one
        if one.kind is not FileKind.FOLDER or (limits is None and depth >= DEPTH_FOLLOWED):
            continue
        if limits is not None and depth > limits.depth:
            raise ScratchTooLarge(f"scratch folder {path[:200]!r}: deeper than {limits.depth} folders")
        try:
            inner = open_folder(name, at=folder)
        except PermissionError:
            raise ScratchRefused(f"scratch folder {path!r} cannot be read by its owner") from None
        except OSError as error:
            raise Gone(path) from error
        try:
            yield from _walk(inner, f"{path}/", depth + 1, limits)
        finally:
            os.close(inner)


def check(found: Sequence[FoundFile], limits: Limits, *, device: int) -> None:
    """Refuse what cannot be restored exactly elsewhere. Raises ScratchRefused, ScratchTooLarge."""
    total = 0
    names: dict[tuple[int, int], int] = {}
    for one in found:
        _check_name(one.path, limits)
        if one.kind not in (FileKind.FILE, FileKind.FOLDER):
            raise ScratchRefused(f"scratch file {one.path!r} is a {one.kind}")
        if one.mark.device != device:
            raise ScratchRefused(f"scratch {one.kind} {one.path!r} is on another file system")
        if one.kind is FileKind.FILE:
            total += one.mark.size
            if one.mark.size > limits.file_bytes:
                raise ScratchTooLarge(
                    f"scratch file {one.path!r} has {one.mark.size:,} bytes; one file has at most {limits.file_bytes:,}"
                )
            inode = (one.mark.device, one.mark.inode)
            names[inode] = names.get(inode, 0) + 1
    if total > limits.bytes:
        raise ScratchTooLarge(f"the scratch folder holds {total:,} bytes; the limit is {limits.bytes:,}")
    for one in found:
        inode = (one.mark.device, one.mark.inode)
        if one.kind is FileKind.FILE and one.links > names[inode]:
            raise ScratchRefused(f"scratch file {one.path!r} is a hard link to a file outside")
    twin = find_twin(one.path for one in found)
    if twin is not None:
        raise ScratchRefused(f"scratch files {twin[0]!r} and {twin[1]!r} have the same name on some file systems")


def _check_name(path: str, limits: Limits) -> None:
    why = find_bad_name(path.rpartition("/")[2], bytes_max=limits.name_bytes)
    if why:
        raise ScratchRefused(f"scratch file {path!r}: {why}")
    if len(path.encode()) > PATH_BYTES_MAX:
        raise ScratchTooLarge(f"scratch file {path[:200]!r}...: a path has at most {PATH_BYTES_MAX:,} bytes")


def is_settled(mark: FileMark, *, read_ns: int) -> bool:
    """Whether a file with this mark cannot have changed since it was read at `read_ns`."""
    newest = max(mark.changed_ns, mark.status_ns)
    coarse = mark.status_ns % 1_000_000_000 == 0
    return newest + (COARSE_GRAIN_NS if coarse else GRAIN_NS) < read_ns


def may_hide_a_change(mark: FileMark, *, began_ns: int, ended_ns: int) -> bool:
    """Whether a write between these two moments can have left this mark as it was.

    A write sets the time of status to that of the clock, and nothing else can set it: only a mark
    with a time of status about then hides one. A time of change that somebody has set, or times
    from before a clock was set back, hide nothing, also where they lie in the future.
    """
    grain_ns = COARSE_GRAIN_NS if mark.status_ns % 1_000_000_000 == 0 else GRAIN_NS
    first, last = min(began_ns, ended_ns), max(began_ns, ended_ns)
    return first - grain_ns <= mark.status_ns <= last + grain_ns


def seen(path: str, status: os.stat_result) -> FoundFile:
    kind = next((kind for test, kind in _KINDS if test(status.st_mode)), FileKind.DEVICE)
    mark = FileMark(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return FoundFile(path, kind, mark, bool(status.st_mode & stat.S_IXUSR), status.st_nlink)


_KINDS = (
    (stat.S_ISREG, FileKind.FILE),
    (stat.S_ISDIR, FileKind.FOLDER),
    (stat.S_ISLNK, FileKind.LINK),
    (stat.S_ISFIFO, FileKind.PIPE),
    (stat.S_ISSOCK, FileKind.SOCKET),
)
