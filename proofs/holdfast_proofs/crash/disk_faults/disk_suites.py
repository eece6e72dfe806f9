"""The disk-fault suites: what each runs in full, in a sample, and for one trial alone."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast_proofs.crash.disk_faults.disk import Loss
from holdfast_proofs.crash.disk_faults.disk_jobs import FullDisk, Power, SyncError
from holdfast_proofs.crash.disk_faults.full_disk import Filling
from holdfast_proofs.crash.disk_faults.power import Cut
from holdfast_proofs.crash.disk_faults.sync_error import Fault, Story
from holdfast_proofs.crash.subjects import STEPS, ClassName
from holdfast_proofs.shim import Mode

SOME = 300  # cuts by class, drawn by the seed
WAL_PAGES = 4  # moves the log into the file several times in a short life
# Steps that make some sixty syncs: one for each where results wait for the next start's commit.
LONG: dict[ClassName, int] = {"read": 36, "keyed": 36}
LONG_STEPS = 18


class BadFault(HoldfastError):
    """What names one trial cannot be understood."""

    code = "bad-fault"


def power_jobs(
    classes: Sequence[ClassName], *, points: int | None, seed: int, fault: str, steps: int = STEPS
) -> list[Power]:
    """Each class in three ways: every cut with the log as it is in production; and a sample of them
    with a log that is moved into the file often, and with a resumer that loses its power too.
    """
    if fault:
        loss, index, own, then, wal_pages = _parts(fault, 5, {loss.value for loss in Loss})
        only = Cut(index=int(index), loss=Loss(loss), seed=int(own), then=int(then))
        return [Power(name=name, steps=steps, cuts=(only,), wal_pages=int(wal_pages)) for name in classes]
    every, some = (None, SOME) if points is None else (max(1, points // 3),) * 2
    ways = ((every, 0, False), (some, WAL_PAGES, False), (some, 0, True))
    return [
        Power(name=name, steps=steps, first_seed=seed, points=count, wal_pages=pages, twice=twice)
        for count, pages, twice in ways
        for name in classes
    ]


def sync_jobs(
    classes: Sequence[ClassName], *, points: int | None, seed: int, fault: str, steps: int = 0
) -> list[SyncError]:
    faults: tuple[Fault, ...] = ()
    if fault:
        story, sync, own = _parts(fault, 3, {story.value for story in Story})
        faults = (Fault(sync=int(sync), story=Story(story), seed=int(own)),)
    return [
        SyncError(name=name, steps=steps or LONG.get(name, LONG_STEPS), seed=seed, faults=faults, points=points)
        for name in classes
    ]


def full_jobs(
    classes: Sequence[ClassName], *, points: int | None, seed: int, fault: str, steps: int = STEPS
) -> list[FullDisk]:
    fillings: tuple[Filling, ...] = ()
    if fault:
        kind, index = _parts(fault, 2, {"any", "growth"})
        mode = Mode.FULL_ANY if kind == "any" else Mode.FULL
        fillings = (Filling(index=int(index), kind=mode),)
    return [FullDisk(name=name, steps=steps, points=points, seed=seed, fillings=fillings) for name in classes]


def _parts(fault: str, count: int, words: set[str]) -> list[str]:
    parts = fault.split(":")
    if len(parts) != count or parts[0] not in words or not all(part.isdecimal() for part in parts[1:]):
        raise BadFault(f"{fault!r} names no trial", hint="copy it from the line of a finding")
    return parts
