"""The members of a tar stream, by a reader that knows almost nothing.

The engine writes the old GNU form with three kinds of member: regular files, folders, and long
names. That is all this reader takes. Links of both kinds, devices, pipes, sparse files, extended
headers (pax), continued archives, labels and everything newer or odder are rejected, not skipped:
what a reader does not understand it cannot have checked.

Each header must carry its checksum; numbers are plain digits within their field, or the binary
form for sizes beyond eight gigabytes; what pads a member is zero; the stream ends with two empty
blocks and zeros only. A name is text in UTF-8, relative, without empty, `.` or `..` parts.
Nothing is written here, and no more than one block of a file is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.errors import ArchiveRefused, BackupDamaged
from holdfast.host.manifest import PATH_BYTES_MAX, find_bad_name

BLOCK = 512
PIECE_BYTES = 1 << 20
_GNU_MAGIC = b"ustar  \0"
_FILE, _OLD_FILE, _FOLDER, _LONG_NAME = b"0", b"\0", b"5", b"L"
_NAMES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"7": "a contiguous file",
    b"K": "a long link",
    b"S": "a sparse file",
    b"M": "a continued file",
    b"V": "a label",
    b"x": "an extended header",
    b"g": "a global extended header",
    b"D": "a dump of a folder",
    b"N": "an old long name",
}
_ZEROS = bytes(BLOCK)
T = TypeVar("T")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none only at the end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    path: str  # empty for the root itself
    is_folder: bool
    mode: int
    size: int


class TarStream:
    """Members one after another; of each the content must be read before the next."""

    def __init__(self, file: Readable, *, bytes_max: int, entries_max: int, depth_max: int) -> None:
        self._file = file
        self._left = bytes_max
        self._entries_left = entries_max
        self._depth_max = depth_max
        self._unread = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Raises ArchiveRefused for what no archive of ours holds, BackupDamaged where it ends too early."""
        while True:
            if self._unread:
                raise AssertionError("the caller must read the content of the previous member first")
            header = self._read(BLOCK)
            if header == _ZEROS:
                self._finish()
                return
            member = self._member(header)
            self._entries_left -= 1
            if self._entries_left < 0:
                raise ArchiveRefused("the archive has more members than Holdfast accepts for this snapshot")
            self._begin(member.size)
            yield member

    def content(self) -> Iterator[bytes]:
        """The content of the newest member, in pieces."""
        while self._unread:
            piece = self._read(min(self._unread, PIECE_BYTES))
            self._unread -= len(piece)
            if not self._unread:
                self._pad()
            yield piece

    def _begin(self, size: int) -> None:
        if size > self._left:
            raise ArchiveRefused("the archive has more bytes than Holdfast accepts for this snapshot")
        self._left -= size
        self._unread = size
        self._padding = -size % BLOCK

    def _pad(self) -> None:
        if self._padding and self._read(self._padding).strip(b"\0"):
            raise ArchiveRefused("unexpected bytes between two members of the archive")

    def _member(self, header: bytes) -> Member:
        name: bytes | None = None
        kind = _kind(header)
        if kind == _LONG_NAME:
            name = self._long_name(header)
            header = self._read(BLOCK)
            kind = _kind(header)
        if kind not in (_FILE, _OLD_FILE, _FOLDER):
            what = _NAMES.get(kind, f"a member of kind {kind!r}")
            raise ArchiveRefused(f"the archive contains {what}: {_shown(header[:100])}")
        if header[157:257].strip(b"\0") or header[345:512].strip(b"\0"):
            raise ArchiveRefused(f"the archive has a header with unexpected fields: {_shown(header[:100])}")
        raw = header[:100].partition(b"\0")[0] if name is None else name
        if name is not None and not name.startswith(header[:99].partition(b"\0")[0]):
            raise ArchiveRefused("the archive has a long name that does not begin with the short name of its member")
        size, mode = _number(header[124:136], "size"), _number(header[100:108], "mode")
        is_folder = kind == _FOLDER
        if is_folder and size:
            raise ArchiveRefused("the archive has a folder whose size is not 0")
        if mode & ~0o777:
            raise ArchiveRefused(f"{_shown(raw)} has mode {mode:o} in the archive; at most 777 is allowed")
        path = self._path(raw, is_folder=is_folder)
        if not path and not is_folder:
            raise ArchiveRefused("the archive has a file where its root folder must be")
        return Member(path=path, is_folder=is_folder, mode=mode, size=size)

    def _long_name(self, header: bytes) -> bytes:
        size = _number(header[124:136], "size")
        if header[:100].partition(b"\0")[0] != b"././@LongLink" or not 1 < size <= PATH_BYTES_MAX:
            raise ArchiveRefused("the archive has a long-name entry with a wrong header or size")
        raw = self._read(size)
        self._padding = -size % BLOCK
        self._pad()
        if raw[-1:] != b"\0" or b"\0" in raw[:-1]:
            raise ArchiveRefused("the archive has a long name with a NUL byte inside, or without one at the end")
        return raw[:-1]

    def _path(self, raw: bytes, *, is_folder: bool) -> str:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise ArchiveRefused(f"the archive has a name that is not UTF-8: {_shown(raw)}") from None
        if is_folder and (text := text.removesuffix("/")) == ".":
            return ""
        names = text.split("/")
        if len(names) > self._depth_max:
            raise ArchiveRefused(f"the archive has a path deeper than {self._depth_max} folders: {_shown(raw)}")
        for name in names:
            if why := find_bad_name(name):
                raise ArchiveRefused(f"{_shown(raw)}: {why}")
        return text

    def _finish(self) -> None:
        """Two empty blocks, then nothing but zeros."""
        if self._read(BLOCK) != _ZEROS:
            raise ArchiveRefused("data follows the end of the archive")
        left = 1 << 20  # archives are padded to 10 KiB, never to a megabyte
        while piece := self._file.read(BLOCK):
            left -= len(piece)
            if piece.strip(b"\0") or left < 0:
                raise ArchiveRefused("data follows the end of the archive")

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._file.read(size)
            if not part:
                raise BackupDamaged("the archive is cut short")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _kind(header: bytes) -> bytes:
    """The kind of a member, once its header is known to be whole and of the GNU form."""
    stated = _number(header[148:156], "checksum")
    if sum(header) - sum(header[148:156]) + 8 * 0x20 != stated:
        raise ArchiveRefused("the archive has a header with a wrong checksum")
    if header[257:265] != _GNU_MAGIC:
        raise ArchiveRefused("the archive has a header that is not in the GNU format")
    return header[156:157]


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:  # the binary form, positive
        return int.from_bytes(field[1:], "big")
    digits = field.rstrip(b"\0 ")
    if not digits or digits.strip(b"01234567") or len(digits) >= len(field):
        raise ArchiveRefused(f"the archive has a header whose {what} is not a number")
    return int(digits, 8)


def _shown(raw: bytes) -> str:
    return ascii(raw.rstrip(b"\0")[:120].decode(errors="replace"))


async def read_through(pieces: AsyncIterator[bytes], work: Callable[[Readable], T]) -> T:
    """Do the work in a thread, reading from the pieces. What the stream raises, the work gets.
    Each piece is fetched when the thread asks for it, so no more than one is ever held."""
    return await asyncio.to_thread(work, _Pieces(pieces, asyncio.get_running_loop()))


@dataclass(slots=True)
class _Pieces:
    _pieces: AsyncIterator[bytes]
    _loop: asyncio.AbstractEventLoop
    _piece: bytes = b""
    _at: int = 0

    def read(self, size: int, /) -> bytes:
        while self._at >= len(self._piece):
            fetched = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            if fetched is None:
                return b""
            self._piece, self._at = fetched, 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        return found

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)
