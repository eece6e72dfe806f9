"""Work of the disk-fault suites, as values for the fork server."""

from __future__ import annotations

import msgspec

from holdfast.testing.crash.disk_lives import Synchronous
from holdfast.testing.crash.power import Cut
from holdfast.testing.crash.subjects import STEPS, TIMEOUT_S, ClassName


class Power(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Cut the power at every call; see power.py."""

    name: ClassName
    steps: int = STEPS
    seeds: int = 1  # for each call: undone once, by coin and torn once for each seed
    points: int | None = None
    cuts: tuple[Cut, ...] = ()
    synchronous: Synchronous = "FULL"
    timeout_s: float = TIMEOUT_S
    lanes: int = 4


DiskJob = Power
