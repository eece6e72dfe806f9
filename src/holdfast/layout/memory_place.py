"""Where an agent's memory lies in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MEMORY_FILE = "MEMORY.md"
DAYS = "memory"
PRIVATE = ".holdfast"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlace:
    """Paths alone; nothing here opens or makes a file."""

    folder: Path

    @property
    def memory_file(self) -> Path:
        return self.folder / MEMORY_FILE

    @property
    def days(self) -> Path:
        return self.folder / DAYS

    def day_file(self, day: str) -> Path:
        return self.days / f"{day}.md"

    @property
    def private(self) -> Path:
        """What Holdfast keeps beside the files: losing it costs history, never a line."""
        return self.folder / PRIVATE

    @property
    def asides(self) -> Path:
        return self.private / "aside"

    @property
    def lock(self) -> Path:
        return self.private / "memory.lock"

    @property
    def position(self) -> Path:
        return self.private / "memory.json"

    @property
    def report(self) -> Path:
        return self.private / "merges.jsonl"

    def sidecar(self, path: Path) -> Path:
        return self.private / f"{path.name}.json"
