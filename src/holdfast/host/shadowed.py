"""Whether this process runs in a shadow of a drill, and where its requests are recorded there.

A shadow has a file at its root that only the code which makes shadows writes; a variable alone makes no process one. So
no setting of a production machine can lead a tool's effects elsewhere. Loads little: every tool passes here.
"""

from __future__ import annotations

import os

MARK = "/.holdfast-shadow"  # also in shadow_init.py, which imports nothing of ours
RECORDER = "HOLDFAST_SHADOW_RECORDER"  # the port, on the shadow's loopback, of a far end that records


def in_shadow() -> bool:
    return os.path.exists(MARK)


def find_recorder() -> int | None:
    """The port of the recording far end; None outside of a shadow."""
    port = os.environ.get(RECORDER, "")
    return int(port) if port.isdecimal() and in_shadow() else None
