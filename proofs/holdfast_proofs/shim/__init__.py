"""The crash shim from Python: built where it is needed, loaded by LD_PRELOAD, armed by number.

    library = build(folder)
    subprocess.run([...], env=os.environ | preloaded(library))

and in that program, or in a child that it forks:

    trace = Trace.shared()
    arm(trace, Mode.KILL_AFTER, at=17, root=folder)

The trace is shared memory: a parent that made it before the fork reads what the killed child had
done, call by call. A program that is started instead of forked is armed by `armed(...)` through
its environment, with a trace in a file. What counts as a call is said in crash_shim.c; with a
`DiskLog` (disk_log.py) the bytes are kept too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.journal.sqlite.host.page_reader import LEFT_AT
from holdfast_proofs.shim.disk_log import DiskLog

SOURCE = Path(__file__).with_name("crash_shim.c")
CALLS_MAX = 2_000  # kept per trace; a three-step task makes a few hundred
_HEAD = struct.Struct("=IIIIq40x")
_PHASE, _PHASE_AT = struct.Struct("=I"), 12
_CALL = struct.Struct("=16s8sqihh88s")
_RANDOM = re.compile(r"[0-9a-f]{8,}")
# A page is linked to its name after it is made, so the kernel knows it by the name it lost.
PAGE = "session page"
SLOT_TAKEN = LEFT_AT + 1  # bytes: tag, flag, left
_PAGES = frozenset(("instance/*/sessions/.*.*.new (deleted)", "instance/*/sessions/*.page"))


class ShimMissing(HoldfastError):
    """The shim cannot be built or is not loaded."""

    code = "shim-missing"


class Mode(IntEnum):
    TRACE = 1
    KILL_BEFORE = 2
    KILL_AFTER = 3
    STOP_BEFORE = 4
    STOP_AFTER = 5
    SYNC_ERROR = 6  # `at` counts syncs
    FULL = 7  # from that call on, files cannot grow
    FULL_ANY = 8  # nor can anything be written in place, as on a disk that copies on write
    CUT_LOST = 9  # these three are for a commit that is sent to a database: it is lost
    CUT_REPLY = 10  # it arrives, its answer does not
    CUT_LATE = 11  # it arrives later


class Phase(IntEnum):
    """Of the disk that a program is armed to find full."""

    WHOLE = 0
    FULL = 1
    ROOM_AGAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One call that the armed process made, or was about to make."""

    name: str
    where: str  # path below the root with ids left out, "socket", or "database"
    head: bytes
    length: int
    done: bool  # the call itself has returned
    failed: bool
    phase: Phase  # of the disk, when the call began

    def is_one_of(self, wanted: frozenset[str]) -> bool:
        """By its name, such as "recv"; or with where it goes, as in "recv socket"."""
        return self.name in wanted or f"{self.name} {self.where}" in wanted

    @property
    def is_logged(self) -> bool:
        """Whether this writes into the journal's write-ahead log."""
        return self.where.endswith("-wal") and self.name == "pwrite"

    @property
    def is_synced_log(self) -> bool:
        """Whether this has made the write-ahead log safe."""
        synced = self.name in ("fsync", "fdatasync") and self.done and not self.failed
        return synced and self.where.endswith("-wal")

    @property
    def is_slot(self) -> bool:
        """Whether this takes a slot of a session page: its tag, and all else clear."""
        return self.where == PAGE and self.name == "pwrite" and self.length == SLOT_TAKEN

    @property
    def is_mark(self) -> bool:
        """Whether this is the mark in a session page that a send has begun."""
        return self.where == PAGE and self.name == "pwrite" and self.length == 1


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A place in a program's life that two runs have in common."""

    name: str
    where: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.name} {self.where} #{self.occurrence}"


class Trace:
    """The calls of one armed process, in memory that outlives it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        capacity = (len(memory) - _HEAD.size) // _CALL.size
        _HEAD.pack_into(memory, 0, capacity, 0, 0, 0, 0)

    @classmethod
    def shared(cls, capacity: int = CALLS_MAX) -> Trace:
        """A trace in anonymous memory, shared with children that are forked later."""
        return cls(mmap.mmap(-1, _HEAD.size + capacity * _CALL.size))

    @classmethod
    def in_file(cls, path: Path, capacity: int = CALLS_MAX) -> Trace:
        """A trace for a program that is started with `armed`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _HEAD.size + capacity * _CALL.size)
            return cls(mmap.mmap(fd, 0))
        finally:
            os.close(fd)

    def close(self) -> None:
        self._memory.close()

    @property
    def count(self) -> int:
        """Calls so far, also those that did not fit."""
        return _HEAD.unpack_from(self._memory)[1]

    @property
    def reached(self) -> bool:
        """Whether the armed call was reached."""
        return self.acted > 0

    @property
    def acted(self) -> int:
        """The number of the call at which something was done; 0 where it was not reached."""
        return _HEAD.unpack_from(self._memory)[2]

    def give_room(self) -> None:
        """The disk is not full any more."""
        _PHASE.pack_into(self._memory, _PHASE_AT, Phase.ROOM_AGAIN)

    def calls(self) -> list[Made]:
        capacity, count, *_ = _HEAD.unpack_from(self._memory)
        return [self._call(index) for index in range(min(count, capacity))]

    def _call(self, index: int) -> Made:
        at = _HEAD.size + index * _CALL.size
        name, head, length, done, failed, phase, where = _CALL.unpack_from(self._memory, at)
        return Made(
            name=_text(name),
            where=_place(_text(where)),
            head=head,
            length=length,
            done=bool(done),
            failed=bool(failed),
            phase=Phase(phase),
        )

    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


def point_at(calls: Sequence[Made], number: int) -> Point:
    """The call with this number, and how often its like had come by then."""
    here = calls[number - 1]
    like = [one for one in calls[:number] if (one.name, one.where) == (here.name, here.where)]
    return Point(here.name, here.where, len(like))


def build(folder: Path) -> Path:
    """Compile the shim into this folder, once for each version of its source.

    Raises:
        ShimMissing: no C compiler, or it fails.
    """
    import hashlib

    if not SOURCE.is_file():
        raise ShimMissing(
            "the source of the crash shim is not installed", hint="run the crash tests from a clone of the project"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sources = sorted(SOURCE.parent.glob("*.c"))
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:16]
    library = folder.absolute() / f"crash_shim-{digest}.so"
    if library.exists():
        return library
    fresh = library.with_suffix(f".{os.getpid()}.o")
    command = [
        "gcc",
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-o",
        str(fresh),
        str(SOURCE),
        "-ldl",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ShimMissing("there is no gcc", hint="run scripts/setup") from error
    if done.returncode:
        raise ShimMissing(f"the crash shim does not compile: {done.stderr}")
    os.replace(fresh, library)
    return library


def preloaded(library: Path) -> dict[str, str]:
    """What the environment of a program needs for the shim to be loaded, unarmed."""
    return {"LD_PRELOAD": str(library)}


def armed(library: Path, trace: Path, mode: Mode, *, at: int, root: Path) -> dict[str, str]:
    """What the environment of a program needs to be armed from its first call on."""
    return preloaded(library) | {
        "HOLDFAST_SHIM_TRACE": str(trace),
        "HOLDFAST_SHIM_MODE": str(int(mode)),
        "HOLDFAST_SHIM_AT": str(at),
        "HOLDFAST_SHIM_ROOT": os.path.realpath(root),
    }


def arm(
    trace: Trace, mode: Mode, *, at: int, root: Path, log: DiskLog | None = None, then: int = 0, kind: str = ""
) -> None:
    """Arm this process. Raises ShimMissing where the shim is not loaded. `at` counts calls of the kind, such as
    "recv socket", or all of them.

    With `then`, a process whose sync has failed is killed at the then-th call, the failed sync
    being the first.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "hf_shim_arm"):
        raise ShimMissing("the crash shim is not loaded into this process")
    below = os.fsencode(os.path.realpath(root))
    library.hf_shim_arm(
        ctypes.c_void_p(trace.address()),
        ctypes.c_void_p(log.address() if log else None),
        ctypes.c_int(mode),
        ctypes.c_uint32(at),
        ctypes.c_uint32(then),
        below,
        kind.encode(),
    )


def disarm() -> None:
    ctypes.CDLL(None).hf_shim_disarm()


def _place(path: str) -> str:
    general = _RANDOM.sub("*", path)
    return PAGE if general in _PAGES else general


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
