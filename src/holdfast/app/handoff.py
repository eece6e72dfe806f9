"""Keeps the hand-off of the agent in a journal's folder, and reads it back if there is no journal.

Only folders whose holdfast.toml names an agent get the files: a journal elsewhere is just a queue,
and gets no files. A folder that cannot be an agent's (its mode is too wide, say) gets none either,
and the log says why; the work itself continues.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import JournalAddress
from holdfast.core.secret_handles import safe
from holdfast.core.waiting import ALONE, Pacing
from holdfast.errors import BadInput, HoldfastError, NoHandoff, NotAnAgent
from holdfast.host.log import Log
from holdfast.host.private_files import write_atomically
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.journal.records import TaskView
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.settings import NAME
from holdfast.memory.handoff import TEXT_CHARS_MAX, Handoff, parse, render
from holdfast.memory.handoff_reader import HandoffReader, Views, foreign_handoff
from holdfast.memory.handoff_writer import HandoffWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The hand-off, and its source.
    `journal`; `file`: there is no journal, handoff.md was read; `files`: those of an adopted agent."""

    handoff: Handoff
    source: str


@asynccontextmanager
async def kept_handoff(
    address: JournalAddress,
    journal: Journal,
    *,
    held: Views,
    ended_here: deque[TaskView],
    log: Log,
    pacing: Pacing = ALONE,
) -> AsyncGenerator[None, None]:
    """Keep the files of the agent in whose folder this journal is; do nothing elsewhere."""
    home = _find_home(address, log)
    if home is None:
        yield
        return
    async with handoff_writer_of(home, journal, held=held, ended_here=ended_here, log=log, pacing=pacing):
        yield


async def refresh_handoff(address: JournalAddress, journal: Journal, *, log: Log) -> None:
    """Update the files once, in an agent's folder."""
    home = _find_home(address, log)
    if home is None:
        return
    upkeep = handoff_writer_of(home, journal, log=log)
    try:
        await upkeep.refresh()
    finally:
        upkeep.close()


def handoff_writer_of(
    home: AgentHome,
    journal: Journal,
    *,
    held: Views = lambda: (),
    ended_here: deque[TaskView] | None = None,
    log: Log,
    pacing: Pacing = ALONE,
) -> HandoffWriter:
    return HandoffWriter(
        gatherer_of(home, journal, held=held, ended_here=ended_here),
        handoff=home.handoff_file,
        heartbeat=home.heartbeat_file,
        instance=home.instance,
        report=lambda what, why: log.event("handoff-trouble", file=what, error=why),
        pacing=pacing,
    )


def gatherer_of(
    home: AgentHome, journal: Journal, *, held: Views = lambda: (), ended_here: deque[TaskView] | None = None
) -> HandoffReader:
    agent_id = _IdReader(home.identity_file)
    return HandoffReader(journal, agent=home.name, agent_id=agent_id, held=held, ended_here=ended_here)


async def read_answer(home: AgentHome) -> Answer:
    """The hand-off from the journal; without a journal, from the file.
    Updates the file too. Raises NoHandoff if neither exists."""
    if not journal_at(home.journal).exists():
        if home.state != home.folder:
            return Answer(handoff=write_foreign(home), source="files")
        return Answer(handoff=read_handoff(home.handoff_file), source="file")
    from holdfast.app.open import open as open_holdfast
    from holdfast.layout.settings import find_settings

    settings = find_settings(home.journal)
    async with open_holdfast(home.journal, settings=settings, serve=False, create=False) as hf:
        upkeep = handoff_writer_of(home, hf.journal, log=Log())
        try:
            await upkeep.refresh()
            return Answer(handoff=await upkeep.gather(), source="journal")
        finally:
            upkeep.close()


def write_foreign(home: AgentHome) -> Handoff:
    """The hand-off of an adopted agent without a journal, from its own files; handoff.md too."""
    id_, now_ms = _IdReader(home.identity_file)(), SystemClock().wall_ms()
    handoff = foreign_handoff(home.state, home.covering(), agent=home.name, agent_id=id_, at_ms=now_ms)
    write_atomically(home.handoff_file, safe(render(handoff)).encode(), keep_mode=True)
    return handoff


def read_handoff(path: Path) -> Handoff:
    """What the file says. Raises NoHandoff, BadInput."""
    try:
        with open(path, "rb", opener=_opener) as file:
            raw = file.read(4 * TEXT_CHARS_MAX)
    except FileNotFoundError:
        raise NoHandoff(f"there is no journal and no {path.name} in {path.parent}") from None
    except OSError as error:
        raise NoHandoff(f"{path} cannot be read: {error.strerror}") from error
    try:
        return parse(raw.decode())
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text") from None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _find_home(address: JournalAddress, log: Log) -> AgentHome | None:
    folder = address.folder
    if not os.path.lexists(folder / NAME):
        return None
    try:
        home = load_home(folder)
    except NotAnAgent:
        return None
    except HoldfastError as error:
        log.event("handoff-off", code=error.code, error=error.message)
        return None
    return home if home.journal == address else None


class _IdReader:
    """The agent's id from identity.json, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._id = ""

    def __call__(self) -> str:
        try:
            found = os.lstat(self._path)
            mark = (found.st_ino, found.st_mtime_ns)
            if mark != self._mark:
                from holdfast.identity.files.public_file import read_identity

                self._id = read_identity(self._path).id
                self._mark = mark
        except (OSError, HoldfastError):
            pass  # none yet, or damaged: `holdfast identity show` says so; keep the last one
        return self._id
