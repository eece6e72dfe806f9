"""The memory of the agent in whose folder a journal is: bound to the runtime, kept in its files, searched.

`open_memory` finds the agent and starts the projector. It writes remarks into the files at the start, and whenever this
or another process has made one; it is awaited and closed with the journal. What it cannot write stays in the journal
and is tried again; a person is notified once a day.

A line is durable in the journal before it is in its file, and may wait there if the file cannot be written. So a search
reads both, and an entry that is in both counts once, by its id. What could not be read is reported: "no match" must not
be said of a file that was not read. A search writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import structs

from holdfast.app.binder import open_journal, open_secrets
from holdfast.app.instances.shared_roster import check_no_copy
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.notices import memory_not_written_notice
from holdfast.core.ports import Recalled, Recollection, Unread
from holdfast.core.waiting import ALONE, Pacing, wait_event
from holdfast.errors import BadInput, HoldfastError
from holdfast.host.log import Log
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal, Remark, RemarkTo
from holdfast.journal.quiet import IDLE_LOOK_S, Quiet
from holdfast.journal.rules import check_remark, remark_to
from holdfast.layout.agent_home import DAYS, MEMORY_FILE, AgentHome, MemoryPlace
from holdfast.layout.covering import WORKSPACE
from holdfast.layout.moved import has_handed_over
from holdfast.memory import sidecar
from holdfast.memory.journal_position import find_position
from holdfast.memory.lines import day_of, entry_id, one_line
from holdfast.memory.projection import project_now, signature, write_straight
from holdfast.memory.search import recall, unread_of
from holdfast.memory.start_text import start_text
from holdfast.runtime.secrets import NO_SECRETS, Secrets

LOOK_S = 0.5  # how often remarks of other processes, and of tasks, are looked for
AGAIN_S = 2.0  # after a file could not be written, then ever longer
AGAIN_MAX_S = 60.0
STOPS_S_MAX = 30.0  # a worker that was removed looks every 5 s, and its calls have 20 s
WAITING_MAX = 500  # lines of the journal that a search looks at before they are in their files


class HomeMemory:
    """`core.ports.Memory` over an agent's folder and its journal."""

    def __init__(self, journal: Journal, place: MemoryPlace, *, tokens: int, secrets: Secrets = NO_SECRETS) -> None:
        self.place = place
        self._journal = journal
        self._tokens = tokens
        self._secrets = secrets
        self.added = asyncio.Event()

    async def remember(self, *, remark_id: str, to: str, text: str, origin: str) -> None:
        remark = Remark(remark_id=remark_id, to=remark_to(to), text=self._secrets.text(text), origin=origin)
        await self._journal.add_remarks([remark])
        self.added.set()

    async def recall(self, words: str, *, limit: int, since: str = "") -> Recollection:
        return await recall_with(self._journal, self.place, words, limit=limit, since=since)

    async def tell(self) -> str:
        now_ms = self._journal.now_ms()
        return await asyncio.to_thread(start_text, self.place, tokens=self._tokens, now_ms=now_ms)

    async def project_now(self) -> None:
        """Write what is due; see memory/projection.py."""
        await project_now(self._journal, self.place)


class Projector:
    """Writes remarks into the files for as long as the journal is open here."""

    def __init__(self, memory: HomeMemory, journal: Journal, log: Log, pacing: Pacing) -> None:
        self._memory = memory
        self._journal = journal
        self._log = log
        self._look_s = pacing.look_s(LOOK_S)
        self._quiet = Quiet(journal, most_s=pacing.idle_s(IDLE_LOOK_S))
        self._closing = False
        self._seen: tuple[object, ...] = ()
        self._trouble = ""  # why the last pass failed
        self._task = asyncio.create_task(self._run(), name="holdfast memory")

    async def close(self) -> None:
        """Write what is left, and end."""
        self._closing = True
        self._memory.added.set()
        await self._task

    async def _run(self) -> None:
        try:
            await self._keep()
        except Exception as error:  # whatever ends it, the log says so
            self._log.event("memory-stopped", error=f"{type(error).__name__}: {error}")
            raise

    async def _keep(self) -> None:
        pause_s = AGAIN_S
        while True:
            closing = self._closing  # before the pass, which then writes everything
            well, again = await self._pass()
            if closing:
                return
            if well:
                pause_s = AGAIN_S
                await self._wait(LOOK_S if again else None)
            else:
                await self._wait(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MAX_S)

    async def _wait(self, at_most_s: float | None) -> None:
        """Until there is something to write, or for so long."""
        added = self._memory.added
        while not await wait_event(added, self._look_s if at_most_s is None else at_most_s):
            if at_most_s is not None or await self._has_new():
                return
        added.clear()

    async def _has_new(self) -> bool:
        try:
            if signature(self._memory.place, self._journal.now_ms()) != self._seen:
                return True
            if await self._quiet.lasts():
                return False
            position = await find_position(self._journal, self._memory.place)
            return bool(await self._journal.remarks_after(position, limit=1))
        except (HoldfastError, OSError):
            return True  # the pass meets it again and reports it

    async def _pass(self) -> tuple[bool, bool]:
        """Whether all went well, and whether something was left for the next pass."""
        try:
            told = await project_now(self._journal, self._memory.place)
            self._seen = signature(self._memory.place, self._journal.now_ms())
        except (HoldfastError, OSError) as error:
            await self._tell(error)
            return False, True
        self._trouble = ""
        for one in told:
            if one.worth_telling:
                self._log.event(
                    "memory-merged",
                    file=one.file,
                    put_back=one.put_back,
                    removed=one.removed,
                    near=len(one.near),
                    joined=one.joined,
                    was_gone=one.was_gone,
                    torn=one.torn,
                )
        return True, any(one.left for one in told)

    async def _tell(self, error: HoldfastError | OSError) -> None:
        said = error.message if isinstance(error, HoldfastError) else str(error)
        code = error.code if isinstance(error, HoldfastError) else "os-error"
        if said == self._trouble:
            return  # reported already; still tried again
        self._trouble = said
        self._log.event("memory-not-written", code=code, error=said)
        now_ms = self._journal.now_ms()
        notice = memory_not_written_notice(code, said, day=day_of(now_ms), now_ms=now_ms)
        with contextlib.suppress(HoldfastError):
            await self._journal.add_notice(notice)


@asynccontextmanager
async def open_memory(
    home: AgentHome, journal: Journal, *, secrets: Secrets, log: Log | None = None, pacing: Pacing = ALONE
) -> AsyncGenerator[HomeMemory]:
    """The agent's memory over its open journal; its files are kept until the block is left."""
    memory = memory_of(home, journal, secrets=secrets)
    projector = Projector(memory, journal, log or Log(), pacing)
    try:
        yield memory
    finally:
        await projector.close()


def memory_of(home: AgentHome, journal: Journal, *, secrets: Secrets = NO_SECRETS) -> HomeMemory:
    tokens = home.settings.memory.tokens
    return HomeMemory(journal, MemoryPlace(folder=home.folder), tokens=tokens, secrets=secrets)


class AddedLine(msgspec.Struct, frozen=True, kw_only=True):
    """The result of adding a line."""

    id: str
    file: str
    journal: bool  # it went through the journal
    written: bool  # it is in its file; else the next pass writes it
    why: str = ""  # it is not in its file yet
    hint: str = ""


async def add_line(home: AgentHome, *, text: str, to: str, origin: str) -> AddedLine:
    """Add a line to the memory of the agent in this folder, beside its worker or without one.
    It goes through the journal where there is one, else straight into the file."""
    place = MemoryPlace(folder=home.folder)
    remark = Remark(remark_id=SystemEntropy().bytes(16).hex(), to=remark_to(to), text=text, origin=origin)
    check_remark(remark)
    now_ms = SystemClock().wall_ms()
    added = AddedLine(id=entry_id(remark.remark_id), file=file_of(remark, now_ms), journal=False, written=True)
    await asyncio.to_thread(check_no_copy, home.journal, clock=SystemClock())
    if not journal_at(home.journal).exists() or has_handed_over(home.instance):  # a standby: its file is merged
        await asyncio.to_thread(write_straight, place, remark, now_ms=now_ms)
        return added
    journal, keys = await open_journal(home.journal, create=False)
    try:
        secrets = open_secrets(home.journal, keys=keys, clock=SystemClock(), entropy=SystemEntropy())
        secrets.refresh()
        added = structs.replace(added, journal=True, file=file_of(remark, journal.now_ms()))
        await journal.add_remarks([structs.replace(remark, text=secrets.text(text))])
        try:
            await project_now(journal, place)
        except (HoldfastError, OSError) as error:
            met = unread_of("", error)
            return structs.replace(added, written=False, why=met.why, hint=met.hint)
        return added
    finally:
        await journal.close()


async def recall_with(journal: Journal, place: MemoryPlace, words: str, *, limit: int, since: str = "") -> Recollection:
    """What the files say, and what the journal keeps that is not in them yet."""
    waiting, unread = await _waiting(journal, place)
    found = await asyncio.to_thread(recall, place, words, limit=limit, since=since, waiting=waiting)
    return structs.replace(found, unread=(*found.unread, *unread))


async def search(home: AgentHome, words: str, *, limit: int, since: str = "") -> Recollection:
    """The same for a person, with or without a worker; without a journal, only the files. Of an adopted agent its own
    memory files are searched too."""
    found = await _search(home, words, limit=limit, since=since)
    for inner in () if home.state == home.folder else ("", WORKSPACE):
        place = MemoryPlace(folder=home.state / inner)
        more = await asyncio.to_thread(recall, place, words, limit=limit, since=since)
        lines = [*found.lines, *(structs.replace(one, file=inner + one.file) for one in more.lines)]
        lines.sort(key=lambda one: one.score, reverse=True)
        found = structs.replace(found, lines=tuple(lines[:limit]), unread=(*found.unread, *more.unread))
    return found


async def _search(home: AgentHome, words: str, *, limit: int, since: str) -> Recollection:
    place = MemoryPlace(folder=home.folder)
    if not journal_at(home.journal).exists():
        return await asyncio.to_thread(recall, place, words, limit=limit, since=since)
    try:
        journal, _ = await open_journal(home.journal, create=False)
    except (HoldfastError, OSError) as error:
        found = await asyncio.to_thread(recall, place, words, limit=limit, since=since)
        return structs.replace(found, unread=(*found.unread, unread_of(home.journal.name, error)))
    try:
        return await recall_with(journal, place, words, limit=limit, since=since)
    finally:
        await journal.close()


async def _waiting(journal: Journal, place: MemoryPlace) -> tuple[list[Recalled], tuple[Unread, ...]]:
    try:
        position = await find_position(journal, place)
        kept = await journal.remarks_after(position, limit=WAITING_MAX + 1)
    except HoldfastError as error:
        return [], (unread_of("the journal", error),)
    more = Unread(
        file="the journal",
        why=f"more than {WAITING_MAX} lines wait in the journal; Holdfast searched only the first {WAITING_MAX}",
        hint="start a worker, or run `holdfast memory add`: both write the lines to the files, or say why they cannot",
    )
    lines = [
        Recalled(
            file=file_of(one.remark, one.at_ms),
            line=0,
            text=one_line(one.remark.text),
            origin=one.remark.origin,
            day=day_of(one.at_ms),
            id=entry_id(one.remark.remark_id),
        )
        for one in kept[:WAITING_MAX]
    ]
    return lines, (more,) if len(kept) > WAITING_MAX else ()


class FolderMark(msgspec.Struct, frozen=True, kw_only=True):
    """A folder into which the agent's memory is written."""

    id: str
    where: str
    waiting: int  # lines that are not in its files yet, at most WAITING_MAX
    at_ms: int


class Folders(msgspec.Struct, frozen=True, kw_only=True):
    folders: tuple[FolderMark, ...]
    forgotten: str = ""  # where it was


async def list_folders(home: AgentHome, *, forget: str = "") -> Folders:
    """The folders that the journal knows; with `forget`, without the one whose id begins so. Raises BadInput."""
    if forget:
        await asyncio.to_thread(check_no_copy, home.journal, clock=SystemClock())
    journal, _ = await open_journal(home.journal, create=False)
    try:
        forgotten = await _forget_folder(journal, forget) if forget else ""
        folders = [
            FolderMark(
                id=one.folder,
                where=one.name or "unknown",
                waiting=len(await journal.remarks_after(one.number, limit=WAITING_MAX)),
                at_ms=one.at_ms,
            )
            for one in await journal.remark_marks()
        ]
        return Folders(folders=tuple(folders), forgotten=forgotten)
    finally:
        await journal.close()


async def _forget_folder(journal: Journal, start: str) -> str:
    fitting = [one for one in await journal.remark_marks() if one.folder.startswith(start)]
    if len(fitting) != 1:
        count = "no folder has" if not fitting else f"{len(fitting)} folders have"
        raise BadInput(f"{count} an id that starts with {start!r}", hint="`holdfast memory folders` lists the ids")
    await journal.forget_folder(fitting[0].folder)
    return fitting[0].name or fitting[0].folder


async def forget_folder(home: AgentHome, folder: str, *, say: Callable[[str], None]) -> None:
    """Of a host that is no instance any more: remarks are kept for its memory files no longer. What its worker writes
    until it has stopped would put its mark back, so that is waited for."""
    journal, _ = await open_journal(home.journal, create=False)
    try:
        until = time.monotonic() + STOPS_S_MAX
        if await _is_served(journal, folder):
            say(f"waiting until its worker has stopped, for {STOPS_S_MAX:g} s at most")
        while await _is_served(journal, folder) and time.monotonic() < until:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.5)
        if await _is_served(journal, folder):
            say("its worker still runs, and may put itself back into the list of folders. Stop it, then look with")
            say("`holdfast memory folders` and end what is left with `holdfast memory folders --forget ID`")
        await journal.forget_folder(folder)
    finally:
        await journal.close()


async def _is_served(journal: Journal, folder: str) -> bool:
    return any(one.alive and one.host_id == folder for one in await journal.list_sessions())


class MissingFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a memory file that is missing."""

    known: int = 0  # lines that it had after our last write: they are written again
    waiting: int = 0  # lines in the journal that are still to be written into it
    lost: int = 0  # lines in the journal that were in it, and are not written again
    why: str = ""  # the journal could not be read


async def look_for_missing(home: AgentHome, name: str) -> MissingFile:
    """Whether a missing file is new or lost. `name`: as in `Recalled.file`."""
    place = MemoryPlace(folder=home.folder)
    base = sidecar.load_state(place.sidecar(home.folder / name)).base
    known = 0 if base is None else len(base.splitlines())
    if not journal_at(home.journal).exists():
        return MissingFile(known=known)
    try:
        journal, _ = await open_journal(home.journal, create=False)
        try:
            position = await find_position(journal, place)
            kept = await journal.remarks_after(0, limit=WAITING_MAX)
        finally:
            await journal.close()
    except (HoldfastError, OSError) as error:
        return MissingFile(known=known, why=unread_of("", error).why)
    ours = [one.number for one in kept if file_of(one.remark, one.at_ms) == name]
    waiting = sum(number > position for number in ours)
    return MissingFile(known=known, waiting=waiting, lost=0 if known else len(ours) - waiting)


def file_of(remark: Remark, at_ms: int) -> str:
    return MEMORY_FILE if remark.to is RemarkTo.MEMORY else f"{DAYS}/{day_of(at_ms)}.md"
