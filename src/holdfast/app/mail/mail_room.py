"""How full the relays are with the agent's mail: a small file of the instance folder, which `holdfast doctor` reads.

Mail that waits and held mail take room at a relay, and where there is none it refuses new mail.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically

FILE = "mail-room.json"
FILE_BYTES_MAX = 64 * 1024
FULL_PERCENT = 50  # of a relay's room for mail: above that a notice says so, and each sender has only its share


def keep_fill(instance: Path, fill: Mapping[str, int]) -> None:
    """Write down how full the relays are, in percent by url, if that has changed."""
    if dict(fill) != find_fill(instance):
        ensure_private_folder(instance)
        write_atomically(instance / FILE, msgspec.json.encode(dict(fill)) + b"\n")


def find_fill(instance: Path) -> dict[str, int]:
    """As the worker has seen it last; empty where none has."""
    try:
        return decode_json(read_private(instance / FILE, FILE_BYTES_MAX), dict[str, int])
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, HoldfastError):
        return {}
