"""Keeps handoff.md and HEARTBEAT.md as the journal is, while a worker runs.

What is true of handoff.md at all times: it is whole, and it says as of when it holds. Every fact
that was recorded before that moment is in it (or counted, where a section is full), because the
moment is taken before the journal is read. Facts that came later are missing until the next look:

    lag <= pause + time of one look and one write,    pause = LOOK_S, or longer where looking costs

The pause grows with what the last look and write have cost: they take at most 1/50 of a core
from the work of a process, 1/100 if it serves several agents, and writing at most 1/5 of the disk's
time for a pause of 0.3 s at most.
Up to some thousand tasks it stays at LOOK_S, about a hundredth of a core, and what is older than
one second is in the file. A SIGKILL at any instant leaves the old text or the new one, whole;
whoever starts next brings it up to date from the journal.

One process at a time writes: it holds a file lock that falls with it, and reads the tasks of its
neighbours from the journal. The tasks that it runs itself are read from its own memory, which is
folded from the same records.

HEARTBEAT.md is only written where its block changes, and then nothing but the block
(heartbeat.py). It is written first, so that trouble with it is in the very hand-off that follows;
whoever asks beside the process that writes looks for the trouble again, and writes nothing. What
cannot be written is said in the log and in the hand-off itself; work goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.secret_handles import safe
from holdfast.core.waiting import ALONE, Pacing, wait_event
from holdfast.errors import HoldfastError, text_of
from holdfast.host.private_files import ensure_private_folder, open_private, write_atomically
from holdfast.journal.quiet import IDLE_LOOK_S, Quiet
from holdfast.layout.agent_home import PRIVATE, MemoryPlace
from holdfast.memory.exchange import exchange, is_taken, left_asides, put_down, read_quiet
from holdfast.memory.handoff import Handoff, render
from holdfast.memory.handoff_reader import HandoffReader
from holdfast.memory.heartbeat import DamagedMarks, block_of, merged
from holdfast.memory.projection import locked

LOOK_S = 0.2
LOCK_AGAIN_S = 0.5
PAUSE_S_MAX = 5.0
DISK_PAUSE_S_MAX = 0.3
CPU_SHARE, CPU_SHARE_BESIDE = 50, 100
DISK_SHARE = 5
SAVES_MAX = 5  # of others, while we write once
LOCK = "handoff.lock"

Report = Callable[[str, str], None]  # what, why


class HandoffWriter:
    """The background writer. `async with` it: on leaving, the files are as the journal is."""

    def __init__(
        self,
        reader: HandoffReader,
        *,
        handoff: Path,
        heartbeat: Path,
        instance: Path,
        report: Report = lambda _what, _why: None,
        pacing: Pacing = ALONE,
    ) -> None:
        self._look_s = pacing.look_s(LOOK_S)
        self._share = CPU_SHARE if pacing.agents == 1 else CPU_SHARE_BESIDE * pacing.agents
        self._quiet = Quiet(reader.journal, most_s=pacing.idle_s(IDLE_LOOK_S))
        self._reader = reader
        self._handoff = handoff
        self._heartbeat = heartbeat
        self._asides = heartbeat.parent / PRIVATE / "aside"
        self._instance = instance
        self._report = report
        self._lock: int | None = None
        self._written: Handoff | None = None
        self._block: bytes | None = None
        self._told: dict[str, str] = {}
        self._cost = 0.0  # of the last look and write, in seconds of processor time
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HandoffWriter:
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._closing.set()
        if self._task is not None:
            await self._task
        await self.refresh()
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def refresh(self) -> bool:
        """Bring both files up to date; False where another process is doing that."""
        if not self._take_lock():
            return False
        await self._look_and_write()
        return True

    async def gather(self) -> Handoff:
        """What the journal has now, and what is wrong with the files; nothing is written."""
        if self._lock is None:
            why = await asyncio.to_thread(find_heartbeat_trouble, self._heartbeat)
            self._reader.troubles = (why,) if why else ()
        return await self._reader.gather()

    async def _keep(self) -> None:
        pause_s = 0.0
        while not await wait_event(self._closing, pause_s):
            if not self._take_lock():
                pause_s = LOCK_AGAIN_S
                continue
            if not self._reader.holds_tasks() and await self._quiet.lasts():
                pause_s = self._look_s
                continue
            pause_s = await self._look_and_write()

    async def _look_and_write(self) -> float:
        """Look, write what has changed; how long to wait before the next look."""
        cpu, cost, written = time.thread_time(), 0.0, _Cost()
        try:
            handoff = await self._reader.gather()
            block = block_of(self._reader.open_tasks, more=self._reader.more)
            cost = time.thread_time() - cpu  # not of what others do here while the disk writes
            if block != self._block:
                await _timed(lambda: self._write_heartbeat(block), written)
                handoff = self._reader.compose(handoff.at_ms)
            if not handoff.same_as(self._written):
                await _timed(lambda: self._write_handoff(handoff), written)
        except Exception as error:  # noqa: BLE001 - tasks continue, whatever is wrong here
            self._say("hand-off", f"{type(error).__name__}: {text_of(error)}")
        # One expensive look, such as the first, is no reason to look away; two in a row are.
        cost += written.cpu_s
        before, self._cost = self._cost, cost
        for_cpu = min(min(before, cost) * self._share, PAUSE_S_MAX)
        return max(self._look_s, for_cpu, min(written.wall_s * DISK_SHARE, DISK_PAUSE_S_MAX))

    def _write_handoff(self, handoff: Handoff) -> None:
        try:
            write_atomically(self._handoff, safe(render(handoff)).encode(), keep_mode=True)
        except (HoldfastError, OSError) as error:
            self._say("handoff.md", str(error))
            return
        self._told.pop("handoff.md", None)
        self._written = handoff

    def _write_heartbeat(self, block: bytes) -> None:
        try:
            with locked(MemoryPlace(folder=self._heartbeat.parent)):  # a merge with other instances writes it too
                why = write_heartbeat(self._heartbeat, block, asides=self._asides)
        except (HoldfastError, OSError) as error:
            why = _told(error, self._heartbeat)
        if why:
            self._say("HEARTBEAT.md", why)
        else:
            self._told.pop("HEARTBEAT.md", None)
        self._reader.troubles = (why,) if why else ()
        self._block = None if why else block

    def _say(self, what: str, why: str) -> None:
        if self._told.get(what) != why:
            self._told[what] = why
            self._report(what, why)

    def _take_lock(self) -> bool:
        if self._lock is not None:
            return True
        with contextlib.suppress(OSError, HoldfastError):
            ensure_private_folder(self._instance)
            fd = open_private(self._instance / LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
            else:
                self._lock = fd
                self._written = self._block = None
        return self._lock is not None


@dataclass(slots=True)
class _Cost:
    cpu_s: float = 0.0
    wall_s: float = 0.0


async def _timed(act: Callable[[], None], cost: _Cost) -> None:
    """Run it on a thread, and add what it took."""

    def timed() -> None:
        cpu_s = time.thread_time()
        try:
            act()
        finally:
            cost.cpu_s += time.thread_time() - cpu_s

    begun_s = time.monotonic()
    # A cancel must not leave the write behind, running on its own: it is short, wait for it.
    await asyncio.shield(asyncio.to_thread(timed))
    cost.wall_s += time.monotonic() - begun_s


def find_heartbeat_trouble(path: Path) -> str:
    """Why the block could not be put into the file; empty where it could, as far as can be seen."""
    try:
        after = merged(read_quiet(path), b"")
    except (HoldfastError, OSError) as error:
        return _told(error, path)
    return after.why if isinstance(after, DamagedMarks) else ""


def _told(error: HoldfastError | OSError, path: Path) -> str:
    said = str(error)
    return said if path.name in said else f"{path.name}: {said}"


def write_heartbeat(path: Path, block: bytes, *, asides: Path) -> str:
    """Put the block into the file; what a person must know, where it could not be done.
    What is saved while we write is not lost: the files change names, and where another version than the one we read
    comes out, that one gets the block and takes the place (exchange.py)."""
    block = safe(block.decode()).encode()
    expected = read_quiet(path)
    after = merged(expected, block)
    if isinstance(after, DamagedMarks):
        return after.why
    if after == expected:
        return _left_aside(path, asides)
    ensure_private_folder(asides)
    saved: list[tuple[Path, bytes]] = []
    for _ in range(SAVES_MAX):
        displaced = exchange(path, after, asides=asides)
        found = None if displaced is None else read_quiet(displaced)
        if displaced is None or found is None:
            break
        if found == expected:
            put_down(displaced, found)
            break
        # An editor's save came out: it goes back in, with the block, and ours comes out next. Until
        # then it stays aside under a name that says that its words are not taken.
        theirs = merged(found, block)
        expected, after = after, found if isinstance(theirs, DamagedMarks) else theirs
        saved.append((displaced, found))
    else:
        return f"{path.name} is being saved again and again; Holdfast tries later"
    for displaced, found in saved:
        put_down(displaced, found)
    return _left_aside(path, asides)


def _left_aside(path: Path, asides: Path) -> str:
    """Whether a version was put aside that an editor kept writing to."""
    for aside in left_asides(path, asides):
        content = read_quiet(aside)
        if content is not None and not is_taken(aside, content):
            return f"{path.name}: {aside} holds text that an editor saved; copy what you need and remove it"
        aside.unlink(missing_ok=True)
    return ""
