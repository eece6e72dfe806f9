"""One bit that is wrong, somewhere in what a backup is made of."""

from __future__ import annotations

import random
from pathlib import Path


def flip(path: Path, chance: random.Random) -> int:
    """Flip one bit of the file; where."""
    raw = bytearray(path.read_bytes())
    at = chance.randrange(len(raw))
    raw[at] ^= 1 << chance.randrange(8)
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(raw)
    path.chmod(mode)
    return at


def segment_of(repository: Path) -> Path:
    """The largest file of data in a Borg repository."""
    files = [path for path in (repository / "data").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
