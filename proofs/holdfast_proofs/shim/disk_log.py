"""The disk log of the shim, read back: every act of armed programs on files and names, in order.

Made before the fork, in shared memory, and kept by whoever made it; a second program that is
armed with the same log writes on at its end. The layout is that of disk_log.c.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from holdfast.errors import HoldfastError

LOG_BYTES = 32 * 1024 * 1024  # a life of ten steps writes about two
_HEAD = struct.Struct("=QQ48x")
_ENTRY = struct.Struct("=IIQqqQ")


class LogFull(HoldfastError):
    """The disk log has no room for what a program wrote."""

    code = "disk-log-full"


class Act(IntEnum):
    LIFE = 1
    CREATE = 2
    WRITE = 3
    SIZE = 4
    SYNC = 5
    SYNC_FAILED = 6
    LINK = 7
    UNLINK = 8
    RENAME = 9
    FOLDER = 10
    FOLDER_SYNC = 11
    FOLDER_SYNC_FAILED = 12


_NAMING = frozenset((Act.CREATE, Act.LINK, Act.UNLINK, Act.RENAME, Act.FOLDER, Act.FOLDER_SYNC, Act.FOLDER_SYNC_FAILED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One act. What it does not need is zero or empty."""

    act: Act
    place: int  # in the log; later is higher
    file: int = 0  # inode number
    at: int = 0
    length: int = 0
    began: int = 0  # of a sync: entries from this place on came while it ran
    paths: tuple[str, ...] = ()  # below the root
    data: bytes = b""


class DiskLog:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LOG_BYTES)
        _HEAD.pack_into(self._memory, 0, LOG_BYTES - _HEAD.size, 0)

    def close(self) -> None:
        self._memory.close()

    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def entries(self) -> Iterator[Entry]:
        """All acts that had returned. Raises LogFull."""
        capacity, used = _HEAD.unpack_from(self._memory)
        if used > capacity:
            raise LogFull(f"{used} bytes were logged, {capacity} fit")
        place = 0
        while place < used:
            size, kind, file, at, length, began = _ENTRY.unpack_from(self._memory, _HEAD.size + place)
            if not size:
                return  # killed while it logged: the act counts as not done
            if kind:
                begin = _HEAD.size + place + _ENTRY.size
                rest = self._memory[begin : begin + size - _ENTRY.size]
                yield _entry(Act(kind), rest, place, file, at, length, began)
            place += size


def _entry(act: Act, rest: bytes, place: int, file: int, at: int, length: int, began: int) -> Entry:
    if act in _NAMING:
        count = 2 if act is Act.RENAME else 1
        paths = tuple(one.decode() for one in rest.split(b"\0")[:count])
        return Entry(act=act, place=place, file=file, began=began, paths=paths)
    data = rest[:length] if act is Act.WRITE else b""
    return Entry(act=act, place=place, file=file, at=at, length=length, began=began, data=data)
