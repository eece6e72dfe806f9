"""Which machine this is, for what it shares with other machines."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from holdfast.host.private_files import create_durably, ensure_private_folder, read_private

_MACHINE_ID = Path("/etc/machine-id")
_HOST_FILE = "host.id"


def machine_id() -> str:
    """The machine's id; its name where it has none."""
    try:
        text = _MACHINE_ID.read_text("ascii").strip() if sys.platform == "linux" else ""
    except (OSError, ValueError):
        text = ""
    return text or os.uname().nodename


def host_id(folder: Path) -> str:
    """Names this machine to others, together with the folder where its processes keep their locks. Two containers on
    one machine are two hosts unless they share the folder, because neither sees the other's locks. So is a folder that
    was copied, here or to another machine: no process holds the locks in a copy, which proves nothing."""
    ensure_private_folder(folder)
    path = folder / _HOST_FILE
    create_durably(path, os.urandom(16).hex().encode())
    made = b"%s\0%d" % (read_private(path, 64), path.stat().st_ino)
    return hashlib.sha256(b"holdfast/journal-host/1\0%s\0%s" % (machine_id().encode(), made)).hexdigest()[:32]
