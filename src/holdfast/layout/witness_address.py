"""Where a witness is. Today always a folder; a relay will be one more class and one more case here.

`str(address)` is the stored form: holdfast.toml keeps it, and screens show it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WitnessFolder:
    """A witness that keeps its logs in a folder, on this machine or mounted from another."""

    folder: Path  # absolute

    def __str__(self) -> str:
        return str(self.folder)


WitnessAddress = WitnessFolder  # with relays: WitnessFolder | WitnessRelay


def parse_witness_address(text: str, *, base: Path | None = None) -> WitnessAddress:
    """The address as settings and `--witness` write it; a folder's path is relative to `base`."""
    return WitnessFolder(Path(os.path.abspath((base or Path.cwd()) / Path(text).expanduser())))


def folders_of(addresses: Iterable[WitnessAddress]) -> tuple[Path, ...]:
    """The folders among these addresses: each must be kept out of backups and of other folders."""
    return tuple(one.folder for one in addresses)
