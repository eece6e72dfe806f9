"""What the far ends have written down, read while they write: one JSON line per effect."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.downstream.ledger import Done

_decode = msgspec.json.Decoder(Done).decode


class Log:
    """The effects of one far end, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.effects: list[Done] = []
        self.by_step: dict[tuple[str, str], list[Done]] = {}

    def read(self) -> None:
        """Take in what was added since; a line is written in one piece."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw.rfind(b"\n") + 1
        self._offset += whole
        for line in raw[:whole].splitlines():
            effect = _decode(line)
            self.effects.append(effect)
            self.by_step.setdefault((effect.task or "", effect.base or ""), []).append(effect)

    def find(self, task_id: str, ordinal: str) -> list[Done]:
        return self.by_step.get((task_id, ordinal), [])


class Books:
    """All far ends together, by the name of their class."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.logs = {name: Log(log_path(folder, name)) for name in names}

    def read(self) -> None:
        for log in self.logs.values():
            log.read()


def log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"
