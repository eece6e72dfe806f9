"""A folder that was restored with a rescue key: its keys.json has a format of its own, and nothing acts from it.

keys.json is the mark because no copy of the folder can be read without it, and a recovery with the words, which makes
the folder an agent's again, replaces it in any case.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from holdfast.core.reading_ring import refuse
from holdfast.host.private_files import read_private

KEYS = "keys.json"
RESCUED = 4
FILE_BYTES_MAX = 1 << 20


def check_not_rescued(folder: Path) -> None:
    """Raises RescuedCopy where the folder was restored with a rescue key: then nothing is signed or sent from it, nor
    changed at its places."""
    if os.path.lexists(folder / KEYS) and is_rescued(read_private(folder / KEYS, FILE_BYTES_MAX)):
        refuse()


def is_rescued(raw: bytes) -> bool:
    """Whether this keys.json is a rescued copy's."""
    return format_of_keys(raw) == RESCUED


def format_of_keys(raw: bytes) -> object:
    """The format of a keys.json; None where it is none."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", fields).get("format") if isinstance(fields, dict) else None
