"""Who brought each line of a memory file in: person, model, tool or task, when, and on which instance.

An entry says who and when in its mark. Which task it was is in the journal as long as that keeps the remark, and, like
the instance, in the document that several instances share, where there is one. Nothing is written.
"""

from __future__ import annotations

import msgspec

from holdfast.app.binder import open_journal
from holdfast.core.clock import iso
from holdfast.errors import BadUpdate, HoldfastError
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, MemoryPlace
from holdfast.memory.exchange import read_quiet
from holdfast.memory.lines import FILE_ORIGIN, entry_id, mark_time, read, split

REMARKS_MAX = 100_000


class BlamedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line and where it came from; what is not known is empty."""

    line: int
    text: str
    origin: str
    at: str = ""
    task: str = ""
    instance: str = ""


async def blame(home: AgentHome, name: str) -> list[BlamedLine]:
    """Every line of this memory file (as in `Recalled.file`) that says something. Raises as reading the file does."""
    place = MemoryPlace(folder=home.folder)
    path = home.folder / name
    raw = read_quiet(path) or b""
    tasks = await _tasks(home)
    shared = _shared(place, name)
    found: list[BlamedLine] = []
    for number, text in enumerate(split(raw.decode(errors="surrogateescape"))[0], start=1):
        if not text.strip():
            continue
        one = read(text)
        known = shared.get(text, [])
        instance, at_ms, task = known.pop(0) if known else ("", 0, "")
        at = mark_time(text) or (iso(at_ms) if at_ms else "")
        found.append(
            BlamedLine(
                line=number,
                text=one.text,
                origin=one.origin if one.id else FILE_ORIGIN,
                at=at,
                task=tasks.get(one.id, "") or task,
                instance=instance,
            )
        )
    return found


async def _tasks(home: AgentHome) -> dict[str, str]:
    """Which task said an entry, by its id."""
    if not journal_at(home.journal).exists():
        return {}
    try:
        journal, _ = await open_journal(home.journal, create=False)
    except (HoldfastError, OSError):
        return {}
    try:
        remarks = await journal.remarks_after(0, limit=REMARKS_MAX)
    finally:
        await journal.close()
    ids = [one.remark.remark_id for one in remarks]
    return {entry_id(one): one.rpartition("/")[0] for one in ids if "/" in one}


def _shared(place: MemoryPlace, name: str) -> dict[str, list[tuple[str, int, str]]]:
    """Of each line: instance, time and task, as the shared document has them."""
    stored = place.document(place.folder / name)
    if not stored.exists():
        return {}
    try:
        from holdfast.instances.shared import SharedDocument

        document = SharedDocument.load(stored.read_bytes(), instance="", file=name)
    except (ImportError, BadUpdate, OSError):
        return {}
    found: dict[str, list[tuple[str, int, str]]] = {}
    for one in document.shown():
        found.setdefault(one.text, []).append((one.instance, one.at_ms, one.task))
    return found
