"""An editor: loads the file, adds a line, saves. `python -m ... PATH HOW COUNT SEED [HOST]`"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

PAUSE_S = 0.004


def by_rename(path: Path, text: bytes, _line: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.swp")
    new.write_bytes(text)
    new.rename(path)


def in_place(path: Path, text: bytes, _line: bytes) -> None:
    with path.open("r+b") as file:
        file.write(text)
        file.truncate()


def by_cutting(path: Path, text: bytes, _line: bytes) -> None:
    with path.open("wb") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        time.sleep(random.random() * PAUSE_S)
        file.write(text[len(text) // 2 :])


def by_appending(path: Path, _text: bytes, line: bytes) -> None:
    with path.open("ab") as file:
        time.sleep(random.random() * PAUSE_S)
        file.write(line)


WAYS: dict[str, Callable[[Path, bytes, bytes], None]] = {
    "rename": by_rename,
    "in-place": in_place,
    "cut": by_cutting,
    "append": by_appending,
}


def line_of(how: str, number: int, host: str = "") -> str:
    return f"- the editor ({how}) says {number:05}" + (f" on {host}" if host else "")


def main(path: Path, how: str, count: int, seed: int, host: str = "") -> None:
    random.seed(seed)
    for number in range(count):
        line = line_of(how, number, host).encode() + b"\n"
        text = path.read_bytes()
        time.sleep(random.random() * PAUSE_S)
        WAYS[how](path, text + line, line)
        time.sleep(random.random() * PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
