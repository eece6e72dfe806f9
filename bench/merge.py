"""Merging memory files of several instances: time, bytes on the wire, size beside the file.

    python bench/merge.py [--lines 10000] [--edits 10000]

Two instances share a memory of about 1 MB. Each changes half of the lines, at once; then one takes the other's changes
and merges its file. Prints one JSON object; exit code 1 where a figure is above its aim.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from holdfast.instances.shared_files import SharedFile
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory.projection import locked

NOW = 1_800_000_000_000
WORDS = 40_000
MERGE_S, WIRE_BYTES, SIDECAR_SHARE = 2.0, 10 * 1024, 3.0


class Host:
    """An instance with its file."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(mode=0o700)
        self.name = name
        self.place = MemoryPlace(folder=folder)
        self.shared = SharedFile(self.place, self.place.memory_file, instance=name)

    def lines(self) -> list[str]:
        return self.place.memory_file.read_text().splitlines()

    def save(self, lines: list[str]) -> None:
        self.place.memory_file.write_text("".join(f"{line}\n" for line in lines))

    def merge(self) -> None:
        with locked(self.place):
            self.shared.merge(now_ms=NOW)

    def tell(self, other: Host) -> int:
        """How many bytes."""
        document = self.shared.document
        update = document.update_since(document.floor([other.name]), whole=document.is_asked([other.name]))
        with locked(other.place):
            other.shared.receive(update, now_ms=NOW)
        return len(update.data)


def line_of(words: random.Random) -> str:
    """About 100 bytes that compress as badly as names and numbers do."""
    return "- " + " ".join(f"w{words.randrange(WORDS):x}" for _ in range(18))


def measure(folder: Path, *, lines: int, edits: int) -> dict[str, float]:
    chance = random.Random(1)
    one, other = Host(folder / "one", "a"), Host(folder / "other", "b")
    one.save([line_of(chance) for _ in range(lines)])
    with locked(one.place):
        one.shared.found()
    one.merge()
    other.tell(one)  # it has no document yet, and asks for one
    one.tell(other)
    other.merge()
    other.tell(one)

    for host, first in ((one, 0), (other, 1)):
        text = host.lines()
        for at in range(first, min(edits, lines), 2):
            text[at] = line_of(chance)
        host.save(text)
    one.merge()
    began = time.perf_counter()
    other.merge()  # takes in the edits of its own file
    took_edits_s = time.perf_counter() - began
    began = time.perf_counter()
    wire = one.tell(other)
    other.merge()
    merge_s = time.perf_counter() - began
    other.tell(one)
    one.merge()
    same = one.lines() == other.lines()
    one.tell(other)
    other.tell(one)

    one.save([*one.lines(), line_of(chance)])
    one.merge()
    wire_one = one.tell(other)
    other.merge()
    other.tell(one)
    with locked(one.place):
        one.shared.document.compact(("a", "b"))
        stored = len(one.shared.document.stored())
    text_bytes = one.place.memory_file.stat().st_size
    beside = stored + one.place.sidecar(one.place.memory_file).stat().st_size
    return {
        "text_bytes": text_bytes,
        "edits": min(edits, lines),
        "same": same,
        "own_edits_s": round(took_edits_s, 3),
        "merge_s": round(merge_s, 3),
        "wire_all_bytes": wire,
        "wire_one_line_bytes": wire_one,
        "document_share": round(stored / text_bytes, 2),
        "beside_share": round(beside / text_bytes, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--edits", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-merge-") as name:
        found = measure(Path(name), lines=given.lines, edits=given.edits)
    print(json.dumps(found))
    well = (
        found["same"]
        and found["merge_s"] <= MERGE_S
        and found["wire_one_line_bytes"] <= WIRE_BYTES
        and found["beside_share"] <= SIDECAR_SHARE
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
