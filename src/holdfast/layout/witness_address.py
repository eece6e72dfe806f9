"""Where a witness is: a folder, or a relay by its address and its key.

`str(address)` is the stored form: holdfast.toml keeps it, and screens show it. A relay is written
`https://relay.example#z6Mk...`: the key after `#` is the relay's own, and every answer is checked against it, so a
stolen certificate or a false DNS answer is not enough to pretend to be the relay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import BadInput
from holdfast.layout.relay_url import FORM_HINT, parse_relay_url

_RELAY = re.compile(r"https?://", re.IGNORECASE)
_KEY = re.compile(r"z6Mk[1-9A-HJ-NP-Za-km-z]{44}")


@dataclass(frozen=True, slots=True)
class WitnessFolder:
    """A witness that keeps its logs in a folder, on this machine or mounted from another."""

    folder: Path  # absolute

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True, slots=True)
class WitnessRelay:
    """A relay: its address without a path, and the key that signs its answers."""

    url: str  # https://host[:port]
    key: str  # a multikey
    invite: str = field(default="", compare=False, repr=False)  # for the first registration; stored nowhere
    public_only: bool = field(default=False, compare=False, repr=False)  # a stranger named it

    def __str__(self) -> str:
        return f"{self.url}#{self.key}"

    @property
    def host(self) -> str:
        try:
            return urlsplit(self.url).hostname or ""
        except ValueError:  # another agent's profile may name it
            return ""


WitnessAddress = WitnessFolder | WitnessRelay


def parse_witness_address(text: str, *, base: Path | None = None) -> WitnessAddress:
    """The address as settings and `--witness` write it; a folder's path is relative to `base`. Raises BadInput."""
    if _RELAY.match(text):
        return parse_relay_address(text)
    return WitnessFolder(Path(os.path.abspath((base or Path.cwd()) / Path(text).expanduser())))


def parse_relay_address(text: str) -> WitnessRelay:
    """Raises BadInput."""
    url, _, key = text.partition("#")
    if not _KEY.fullmatch(key):
        raise BadInput(f"the address {text!r} does not end in # and the relay's key", hint=FORM_HINT)
    return WitnessRelay(parse_relay_url(url), key)


def folders_of(addresses: Iterable[WitnessAddress]) -> tuple[Path, ...]:
    """The folders among these addresses: each must be kept out of backups and of other folders."""
    return tuple(one.folder for one in addresses if isinstance(one, WitnessFolder))


def relays_of(addresses: Iterable[WitnessAddress]) -> tuple[WitnessRelay, ...]:
    return tuple(one for one in addresses if isinstance(one, WitnessRelay))
