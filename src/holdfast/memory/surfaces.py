"""The memory files and the hand-off, as rows for the register."""

from __future__ import annotations

from holdfast.core.notices import counted
from holdfast.core.surfaces import Cover, Fact, Found, Surface, in_backups
from holdfast.layout.agent_home import AgentHome


def found_memory(home: AgentHome, cover: Cover, *, now_ms: int) -> Found:
    """What of them is there; and that an agent which has them has something to resume from."""
    rows, facts = list[Surface](), list[Fact]()
    days = len(list(home.days.glob("*.md"))) if home.days.is_dir() else 0
    if home.memory_file.is_file() or days:
        holds = f"MEMORY.md and {counted(days, 'day', 'days')}" if home.memory_file.is_file() else f"{days} days"
        rows.append(in_backups("memory", "memory files", cover, holds=holds, where=str(home.memory_file.parent)))
        facts.append(Fact(name="state.resumes", value=True, at_ms=now_ms, source=f"memory files in {home.folder}"))
    files = [one for one in (home.handoff_file, home.heartbeat_file) if one.is_file()]
    if files:
        holds = "what is done, pending, decided and changed"
        where = ", ".join(str(one) for one in files)
        rows.append(in_backups("hand-off", "hand-off", cover, holds=holds, where=where, protection="journal, backup"))
    return Found(surfaces=tuple(rows), facts=tuple(facts))
