"""How the worker gets along with the agent's relays: small files of the instance folder, which `holdfast doctor` reads.

Mail that waits and held mail take room at a relay, and where there is none it refuses new mail. A relay may also refuse
the worker, for example because the clock of this machine is wrong: while that lasts, the worker writes it down again
and again, so that what a worker left that has ended counts no longer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically

FILE, TROUBLE_FILE = "mail-room.json", "mail-trouble.json"
FILE_BYTES_MAX = 64 * 1024
TROUBLE_S, TROUBLE_CHARS_MAX = 60.0, 300  # how long it counts, and how much of a relay's words is kept
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


class _Trouble(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    relays: dict[str, str]


def keep_mail_trouble(instance: Path, trouble: Mapping[str, str]) -> None:
    """Write down what is wrong now, by url; called every few seconds."""
    if not trouble:
        (instance / TROUBLE_FILE).unlink(missing_ok=True)
        return
    short = {url: why.removeprefix(f"{url}: ")[:TROUBLE_CHARS_MAX] for url, why in trouble.items()}
    ensure_private_folder(instance)
    write_atomically(instance / TROUBLE_FILE, msgspec.json.encode(_Trouble(at_s=time.time(), relays=short)) + b"\n")


def find_mail_trouble(instance: Path, *, now_s: float | None = None) -> dict[str, str]:
    """Why the worker gets no mail from a relay now, by url; empty where it does, or where no worker runs."""
    try:
        found = decode_json(read_private(instance / TROUBLE_FILE, FILE_BYTES_MAX), _Trouble)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, HoldfastError):
        return {}
    return found.relays if abs((time.time() if now_s is None else now_s) - found.at_s) < TROUBLE_S else {}
