"""Default folders of an agent's vault, witness and second place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput
from holdfast.layout.witness_address import WitnessAddress, WitnessFolder, parse_witness_address

SAME_DISK = (
    "risk: the second place is on the same disk as the vault: a thief who takes the disk has both, "
    "and a broken disk loses both. Another disk, or a USB stick in a drawer, is better"
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
    """Where the next key is kept: as given, or as a person answers; warns of the risk."""
    if given is not None:
        place = path_of(given)
    elif sys.stdin.isatty():
        proposed = default_place("second", name)
        talk("Where should Holdfast keep the next key? Best on a USB stick: you need it only after a theft.")
        print(f"second place [{proposed}]: ", end="", file=sys.stderr, flush=True)
        place = path_of(sys.stdin.readline().strip() or str(proposed))
    else:
        raise BadInput("give a folder for the next key", hint="--second DIR: on another disk, or of another user")
    if _disk(place) == _disk(vault):
        talk(SAME_DISK)
    return place


def _disk(path: Path) -> int:
    """The device of the path, or of the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
