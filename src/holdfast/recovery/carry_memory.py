"""What a standby wrote into its memory files goes along when another folder takes their place."""

from __future__ import annotations

from pathlib import Path

from holdfast.host.private_files import write_atomically
from holdfast.layout.agent_home import HEARTBEAT_FILE, MEMORY_FILE, MemoryPlace
from holdfast.memory.heartbeat import free_lines
from holdfast.memory.lines import removal_mark
from holdfast.memory.sidecar import load_state


def carry_memory(old: Path, new: Path) -> None:
    """Lines of a standby's memory files that those which came do not have are added at the end: no line is lost. Not
    those that were removed there in the last day; one that was removed earlier may come back. Safe to repeat."""
    place = MemoryPlace(folder=new)
    files = [old / MEMORY_FILE, old / HEARTBEAT_FILE, *sorted(MemoryPlace(folder=old).days.glob("*.md"))]
    for path in (one for one in files if one.is_file() and not one.is_symlink()):
        target = new / path.relative_to(old)
        have = target.read_bytes() if target.is_file() else b""
        known, gone = set(have.split(b"\n")), {one.entry for one in load_state(place.sidecar(target)).gone}
        missing = [line for line in free_lines(path.read_bytes()) if line.strip() and line not in known]
        missing = [line for line in missing if removal_mark(line.decode(errors="surrogateescape")) not in gone]
        if missing:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(target, have.rstrip(b"\n") + b"\n" * bool(have) + b"\n".join(missing) + b"\n")
