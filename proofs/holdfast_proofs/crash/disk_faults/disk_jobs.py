"""Work of the disk-fault suites, as values for the fork server."""

from __future__ import annotations

import msgspec

from holdfast_proofs.crash.disk_faults.disk_lives import Synchronous
from holdfast_proofs.crash.disk_faults.full_disk import KINDS, Filling
from holdfast_proofs.crash.disk_faults.power import Cut
from holdfast_proofs.crash.disk_faults.sync_error import SYNCS, Fault, Story
from holdfast_proofs.crash.subjects import STEPS, TIMEOUT_S, ClassName
from holdfast_proofs.shim import Mode


class Power(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Cut the power at every call; see power.py."""

    name: ClassName
    steps: int = STEPS
    first_seed: int = 1
    seeds: int = 1  # for each call: undone once, by coin and torn once for each seed
    points: int | None = None
    twice: bool = False
    cuts: tuple[Cut, ...] = ()
    synchronous: Synchronous = "FULL"
    wal_pages: int = 0
    timeout_s: float = TIMEOUT_S
    lanes: int = 4


class SyncError(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let one sync fail; see sync_error.py."""

    name: ClassName
    steps: int = 10
    syncs: int = SYNCS
    stories: tuple[Story, ...] = tuple(Story)
    points: int | None = None
    seed: int = 1
    faults: tuple[Fault, ...] = ()
    timeout_s: float = TIMEOUT_S
    lanes: int = 4


class FullDisk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No room from any call on, then room again; see full_disk.py."""

    name: ClassName
    steps: int = STEPS
    kinds: tuple[Mode, ...] = KINDS
    points: int | None = None
    seed: int = 1
    fillings: tuple[Filling, ...] = ()
    timeout_s: float = TIMEOUT_S
    lanes: int = 12


DiskJob = Power | SyncError | FullDisk
