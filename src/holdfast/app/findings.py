"""One finding of `holdfast doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to mend
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    mend: str = ""
