"""Where things of an agent lie unless a person says otherwise, and what is said about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.layout.witness_address import WitnessAddress, WitnessFolder, parse_witness_address

SAME_DISK = (
    "risk: the second place lies on the same disk as the vault: whoever takes the disk has both, "
    "and a broken disk takes both; another disk, or a stick in a drawer, is better"
)


def default_place(kind: str, name: str) -> Path:
    """~/.config/holdfast/KIND/NAME."""
    return Path.home() / ".config" / "holdfast" / kind / name


def path_of(given: str) -> Path:
    return Path(os.path.abspath(Path(given).expanduser()))


def paths_of(given: Sequence[str]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(map(path_of, given)))


def witnesses_of(given: Sequence[str]) -> tuple[WitnessAddress, ...]:
    """The addresses that `--witness` or `--new-witness` named, each once."""
    return tuple(dict.fromkeys(map(parse_witness_address, given)))


def default_witness(name: str) -> WitnessAddress:
    return WitnessFolder(default_place("witness", name))


def second_place(given: str | None, vault: Path, name: str) -> Path:
    """The place of the next key: named, or proposed to a person, with its risk."""
    from holdfast.cli.screen.screen import talk

    if given is not None:
        place = path_of(given)
    elif sys.stdin.isatty():
        proposed = default_place("second", name)
        talk("The next key lies in a second place, which the running agent never opens.")
        print(f"second place [{proposed}]: ", end="", file=sys.stderr, flush=True)
        place = path_of(sys.stdin.readline().strip() or str(proposed))
    else:
        raise BadInput("no place for the next key", hint="give --second DIR: on another disk, or of another user")
    if _disk(place) == _disk(vault):
        talk(SAME_DISK)
    return place


def _disk(path: Path) -> int:
    """The device that holds the path, or what exists above it."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
