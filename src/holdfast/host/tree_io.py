"""Files below a folder's descriptor: read in chunks, written anew, removed.

A file is written by taking its name away and making a new one, never through what lies there: a
hard link, an open descriptor or a pipe of somebody else is not written to. Nothing is synced: a
folder that a crash leaves behind is not used again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.errors import ScratchRefused
from holdfast.host.manifest import CHUNK_BYTES
from holdfast.host.private_files import FILE_MODE, FOLDER_MODE, write_all
from holdfast.host.tree import FileKind, FoundFile, open_folder, seen

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
            raise ScratchRefused(f"scratch file {file.path!r} cannot be read by its owner") from None
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
