"""One bit that is wrong, somewhere in what a backup is made of."""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path

_MAGIC = b"BORG_SEG"
_ENTRY = struct.Struct("<IIB")  # checksum, size, tag
_PUT, _KEY_BYTES = 0, 32


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


def damage(repository: Path, chance: random.Random) -> None:
    """Flip one bit of a chunk that is the content of a file, and so in every snapshot.

    Files of one size have chunks of about one size: the most of a size are theirs. What Borg
    needs to add a snapshot is left whole.
    """
    path = segment_of(repository)
    raw = bytearray(path.read_bytes())
    chunks = _chunks(raw)
    (bucket, _), *_ = Counter(size // 128 for _, size in chunks if size > 1_500).most_common(1)
    at, size = chance.choice([one for one in chunks if one[1] // 128 == bucket])
    raw[at + size // 2] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def damage_newest(repository: Path, *, at_least: int) -> int:
    """Flip a bit in every chunk of that size that the newest segments hold; how many."""
    done = 0
    files = [path for path in (repository / "data").rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda one: int(one.name), reverse=True):
        raw = bytearray(path.read_bytes())
        chunks = [one for one in _chunks(raw) if one[1] >= at_least]
        for at, size in chunks:
            raw[at + size // 2] ^= 1
        path.write_bytes(raw)
        done += len(chunks)
        if done:
            return done
    return done


def _chunks(raw: bytes | bytearray) -> list[tuple[int, int]]:
    """Where the data of each PUT of a Borg segment begins, and how long it is."""
    found: list[tuple[int, int]] = []
    at = len(_MAGIC)
    while at + _ENTRY.size <= len(raw):
        _, size, tag = _ENTRY.unpack_from(raw, at)
        if tag == _PUT:
            begin = at + _ENTRY.size + _KEY_BYTES
            found.append((begin, at + size - begin))
        at += size
    return found


def segment_of(repository: Path) -> Path:
    """The largest file of data in a Borg repository."""
    files = [path for path in (repository / "data").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
