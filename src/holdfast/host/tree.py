"""A folder's contents through descriptors: what is there, and whether it can be kept.

Nothing here follows a symbolic link: each name is opened relative to the descriptor of the folder that holds it, with
O_NOFOLLOW, so that a folder which is swapped for a link on the way leads nowhere. `scan` tells what is there and judges
nothing but how much; `check` judges, and touches no file.

Whether a file is the one that was read before is told by its mark (device, inode, size, time of
change and of status). A time of change is as coarse as a tick of the kernel: a file that changed
in the tick in which it was read may have changed after it, with the same mark. So a mark counts
only where its times lie a grain before the reading (`is_settled`). What no mark shows is a write
through a memory map into a page that was written and mapped before; the how-to says so.

A file is written by taking its name away and making a new one, never through what lies there: a
hard link, an open descriptor or a pipe of somebody else is not written to. Nothing is synced: a
folder that a crash leaves behind is not used again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from holdfast.errors import ScratchRefused, ScratchTooLarge
from holdfast.host.manifest import CHUNK_BYTES, NAME_BYTES_MAX, PATH_BYTES_MAX, find_bad_name, find_twin
from holdfast.host.private_files import FILE_MODE, FOLDER_MODE, write_all

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
    Without limits as deep as they are; what lies deeper than this can follow is one folder."""
    found: list[FoundFile] = []
    for one in _walk(root, "", 1, limits):
        found.append(one)
        if limits is not None and len(found) > limits.files:
            raise ScratchTooLarge(f"the scratch folder has more than {limits.files:,} files and folders")
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
            raise ScratchTooLarge(f"scratch folder {path[:200]!r} is nested deeper than {limits.depth} folders")
        try:
            inner = open_folder(name, at=folder)
        except PermissionError:
            raise ScratchRefused(f"Holdfast has no permission to read the scratch folder {path!r}") from None
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
            raise ScratchRefused(f"scratch file {one.path!r} is a {one.kind}; only files and folders are allowed")
        if one.mark.device != device:
            raise ScratchRefused(f"scratch {one.kind} {one.path!r} is on another file system than the scratch folder")
        if one.kind is FileKind.FILE:
            total += one.mark.size
            if one.mark.size > limits.file_bytes:
                raise ScratchTooLarge(
                    f"scratch file {one.path!r} has {one.mark.size:,} bytes; at most {limits.file_bytes:,} are allowed"
                )
            inode = (one.mark.device, one.mark.inode)
            names[inode] = names.get(inode, 0) + 1
    if total > limits.bytes:
        raise ScratchTooLarge(f"the scratch folder has {total:,} bytes; the limit is {limits.bytes:,}")
    for one in found:
        inode = (one.mark.device, one.mark.inode)
        if one.kind is FileKind.FILE and one.links > names[inode]:
            raise ScratchRefused(f"scratch file {one.path!r} is a hard link to a file outside the scratch folder")
    twin = find_twin(one.path for one in found)
    if twin is not None:
        raise ScratchRefused(
            f"scratch files {twin[0]!r} and {twin[1]!r} would be one file on a system that ignores upper and lower "
            "case or Unicode forms; rename one of them"
        )


def _check_name(path: str, limits: Limits) -> None:
    why = find_bad_name(path.rpartition("/")[2], bytes_max=limits.name_bytes)
    if why:
        raise ScratchRefused(f"scratch file {path!r}: {why}")
    if len(path.encode()) > PATH_BYTES_MAX:
        raise ScratchTooLarge(f"the path of scratch file {path[:200]!r}... has more than {PATH_BYTES_MAX:,} bytes")


def is_settled(mark: FileMark, *, read_ns: int) -> bool:
    """Whether a file with this mark cannot have changed since it was read at `read_ns`."""
    newest = max(mark.changed_ns, mark.status_ns)
    coarse = mark.status_ns % 1_000_000_000 == 0
    return newest + (COARSE_GRAIN_NS if coarse else GRAIN_NS) < read_ns


def may_hide_a_change(mark: FileMark, *, began_ns: int, ended_ns: int) -> bool:
    """Whether a write between these two moments can have left this mark as it was.
    A write sets the time of status to that of the clock, and nothing else can set it: only a mark
    with a time of status about then hides one. A time of change that somebody has set, or times
    from before a clock was set back, hide nothing, also where they lie in the future."""
    grain_ns = COARSE_GRAIN_NS if mark.status_ns % 1_000_000_000 == 0 else GRAIN_NS
    first, last = min(began_ns, ended_ns), max(began_ns, ended_ns)
    return first - grain_ns <= mark.status_ns <= last + grain_ns


def seen(path: str, status: os.stat_result) -> FoundFile:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), FileKind.DEVICE)
    mark = FileMark(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return FoundFile(path, kind, mark, bool(status.st_mode & stat.S_IXUSR), status.st_nlink)


_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.FOLDER,
    stat.S_IFLNK: FileKind.LINK,
    stat.S_IFIFO: FileKind.PIPE,
    stat.S_IFSOCK: FileKind.SOCKET,
}


T = TypeVar("T")

BATCH_BYTES = 4 * CHUNK_BYTES  # read, sealed and committed together
BATCH_PIECES = 512  # a folder of many small files takes few commits
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXECUTABLE_MODE = 0o700


class Piece(NamedTuple):
    """One chunk of a file, or its end: `torn` where it changed, or went, while it was read."""

    number: int  # of the file
    content: bytes = b""
    ends: bool = False
    torn: bool = False


class Reader:
    """Reads files one after another, a batch of chunks at a time, so that none is ever whole in
    memory. One thread at a time may use it."""

    def __init__(self, root: int, files: Sequence[FoundFile]) -> None:
        self._pieces = _pieces(root, files)

    def batch(self) -> list[Piece]:
        """The next pieces; none where all is read."""
        found: list[Piece] = []
        size = 0
        for piece in self._pieces:
            found.append(piece)
            size += len(piece.content)
            if size >= BATCH_BYTES or len(found) >= BATCH_PIECES:
                break
        return found

    def close(self) -> None:
        self._pieces.close()


def _pieces(root: int, files: Sequence[FoundFile]) -> Generator[Piece, None, None]:
    for number, file in enumerate(files):
        try:
            with _opened(root, file.path, _READ) as fd:
                yield from _pieces_of(number, file, fd)
        except PermissionError:
            raise ScratchRefused(f"Holdfast has no permission to read the scratch file {file.path!r}") from None
        except OSError:
            yield Piece(number, ends=True, torn=True)


def _pieces_of(number: int, file: FoundFile, fd: int) -> Generator[Piece, None, None]:
    """At most as much as it had when it was found: a file that grows would never end."""
    left = file.mark.size
    if seen(file.path, os.fstat(fd)).kind is not FileKind.FILE:
        left = 0
    while left > 0 and (content := _read(fd, min(left, CHUNK_BYTES))):
        left -= len(content)
        yield Piece(number, content)
    yield Piece(number, ends=True, torn=seen(file.path, os.fstat(fd)).mark != file.mark)


def _read(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class NewFile:
    """A file that is being written; `done` says what it has become."""

    def __init__(self, root: int, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _at(root, path, lambda folder, name: os.unlink(name, dir_fd=folder))
        self._path = path
        self._fd = _at(root, path, lambda at, name: os.open(name, _WRITE, FILE_MODE, dir_fd=at))

    def write(self, content: bytes) -> None:
        write_all(self._fd, content)

    def done(self, *, executable: bool) -> FoundFile:
        if executable:
            os.fchmod(self._fd, _EXECUTABLE_MODE)
        return seen(self._path, os.fstat(self._fd))

    def close(self) -> None:
        os.close(self._fd)


def set_executable(root: int, path: str, *, executable: bool) -> FoundFile:
    with _opened(root, path, _READ) as fd:
        os.fchmod(fd, _EXECUTABLE_MODE if executable else FILE_MODE)
        return seen(path, os.fstat(fd))


def find_at(root: int, path: str) -> FoundFile | None:
    """What lies at this path; None where nothing does."""
    try:
        return seen(path, _at(root, path, lambda at, name: os.stat(name, dir_fd=at, follow_symlinks=False)))
    except OSError:
        return None


def make_folder(root: int, path: str) -> None:
    _at(root, path, lambda folder, name: os.mkdir(name, FOLDER_MODE, dir_fd=folder))


def remove(root: int, paths: Iterable[FoundFile]) -> None:
    """Remove these, folders with all they hold; what is gone already is no matter."""
    for one in paths:
        with contextlib.suppress(FileNotFoundError):
            _at(root, one.path, _remove_folder if one.kind is FileKind.FOLDER else _remove_file)


def empty(root: int) -> None:
    """Remove all that the folder holds; what cannot be removed stays. Never raises OSError."""
    with contextlib.suppress(OSError):
        for name, is_folder in _names(root):
            with contextlib.suppress(OSError, RecursionError):
                (_remove_folder if is_folder else _remove_file)(root, name)


def _remove_file(folder: int, name: str) -> None:
    os.unlink(name, dir_fd=folder)


def _remove_folder(folder: int, name: str) -> None:
    inner = open_folder(name, at=folder)
    try:
        os.fchmod(inner, FOLDER_MODE)  # some tools leave folders that nothing can be taken out of
        for one, is_folder in _names(inner):
            (_remove_folder if is_folder else _remove_file)(inner, one)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _names(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _at(root: int, path: str, act: Callable[[int, str], T]) -> T:
    """Do something to the last name of the path, in the folder that holds it."""
    *above, name = path.split("/")
    with contextlib.ExitStack() as stack:
        folder = root
        for one in above:
            folder = open_folder(one, at=folder)
            stack.callback(os.close, folder)
        return act(folder, name)


@contextlib.contextmanager
def _opened(root: int, path: str, flags: int) -> Generator[int, None, None]:
    fd = _at(root, path, lambda folder, name: os.open(name, flags, dir_fd=folder))
    try:
        yield fd
    finally:
        os.close(fd)
