"""A board that a process leaves behind when it is killed: a few facts in shared memory.

Made before the fork and read by the parent after the child's end. A fact is its length and then
its bytes, and the length is written last: a child killed in between has said nothing.
"""

from __future__ import annotations

import mmap
import struct

import msgspec

from holdfast_proofs.crash.found import Found

FACT_BYTES_MAX = 256 * 1024
_LENGTH = struct.Struct("=I")
_ACCEPTED_AT, _CLAIMS_AT, _FOUND_AT = 0, 48, 64


class Board:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FOUND_AT + FACT_BYTES_MAX)

    @classmethod
    def like(cls, other: Board) -> Board:
        """A board of its own that knows what was accepted."""
        board = cls()
        board.accepted = other.accepted
        return board

    def forget(self) -> None:
        """Forget what was found, not what was accepted."""
        _LENGTH.pack_into(self._memory, _FOUND_AT, 0)

    @property
    def accepted(self) -> str:
        """The id of the task whose submission has returned, or empty."""
        return self._get(_ACCEPTED_AT).decode()

    @accepted.setter
    def accepted(self, task_id: str) -> None:
        self._put(_ACCEPTED_AT, task_id.encode())

    @property
    def claims(self) -> int:
        """How many claims the process has won."""
        return _LENGTH.unpack_from(self._memory, _CLAIMS_AT)[0]

    @claims.setter
    def claims(self, count: int) -> None:
        _LENGTH.pack_into(self._memory, _CLAIMS_AT, count)

    @property
    def found(self) -> Found | None:
        """What the journal said in the end; None where the process did not come so far."""
        raw = self._get(_FOUND_AT)
        return msgspec.json.decode(raw, type=Found) if raw else None

    @found.setter
    def found(self, found: Found) -> None:
        self._put(_FOUND_AT, msgspec.json.encode(found))

    def _get(self, place: int) -> bytes:
        (length,) = _LENGTH.unpack_from(self._memory, place)
        begin = place + _LENGTH.size
        return self._memory[begin : begin + length]

    def _put(self, place: int, raw: bytes) -> None:
        begin = place + _LENGTH.size
        self._memory[begin : begin + len(raw)] = raw
        _LENGTH.pack_into(self._memory, place, len(raw))
