"""One sync fails: the disk reports an error once, calls the pages clean, and forgets them.

The n-th sync of a program's life returns EIO. What was in doubt then stays so: no later sync
makes it safe, and it is lost when the power goes. The story goes on in one of these ways:

* AT_ONCE, LATER: the power goes at that moment, or some calls after it;
* ENDED: the program goes on until it stops by itself, and then the power goes;
* REPAIRED: a second program finds the stop sign, repairs, finishes; then the power goes;
* REPAIRING: as before, but the power goes in the middle of the repair;
* SUBMITTED: the sync fails in a program that only hands the task in; a second one does the work.

In the end a program brings the task to its end on what is left and reads the whole journal. From
the log of the disk it is also seen whether the program that got the error synced that file again,
as if nothing had happened.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

import holdfast
from holdfast.errors import HoldfastError
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.disk_faults.disk import Loss, after_power_loss
from holdfast_proofs.crash.disk_faults.disk_lives import boot_anew, put_image, sample, work_and_check
from holdfast_proofs.crash.disk_faults.power import may_be_open
from holdfast_proofs.crash.forks import Child, Trial, fork, run_trials
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.lives import REQUEST, Life, work
from holdfast_proofs.crash.places import JOURNAL
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.crash.sweep import SETTINGS
from holdfast_proofs.shim import Mode, Point, Trace, arm, point_at
from holdfast_proofs.shim.disk_log import Act, DiskLog, Entry

SYNCS = 60
_LOSSES = tuple(Loss)
_LATER_MAX = 30  # calls
_REPAIR_MAX = 80
_SUBMITTING_MAX = 32  # a program that only submits makes fewer syncs


class Story(StrEnum):
    AT_ONCE = "at-once"
    LATER = "later"
    ENDED = "ended"
    REPAIRED = "repaired"
    REPAIRING = "repairing"
    SUBMITTED = "submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    sync: int  # which one fails
    story: Story
    seed: int = 1

    def __str__(self) -> str:
        return f"{self.story}:{self.sync}:{self.seed}"

    @property
    def loss(self) -> Loss:
        return _LOSSES[(self.sync + self.seed) % len(_LOSSES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    subject: Subject
    url: str
    folder: Path
    faults: Sequence[Fault] = ()
    syncs: int = SYNCS
    stories: Sequence[Story] = tuple(Story)
    points: int | None = None  # a sample of so many trials
    seed: int = 1
    lanes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFailed:
    """One trial."""

    fault: Fault
    point: Point | None  # None: the program made fewer syncs
    fate: str
    may_park: bool
    retried: str  # the file whose failed sync was tried again
    found: Found

    def __str__(self) -> str:
        return f"sync {self.fault.sync} fails ({self.point or 'never reached'}), {self.fault.story}"

    @property
    def again(self) -> str:
        return f"--fault {self.fault}"


def fail_syncs(plan: SyncPlan) -> Iterator[SyncFailed]:
    every = [
        Fault(sync=sync, story=story, seed=plan.seed)
        for sync in range(1, plan.syncs + 1)
        for story in plan.stories
        if story is not Story.SUBMITTED or sync <= _SUBMITTING_MAX
    ]
    faults = plan.faults or sample(every, plan.points, seed=plan.seed)
    return run_trials((_trial(plan, fault) for fault in faults), lanes=plan.lanes)


def _trial(plan: SyncPlan, fault: Fault) -> Trial[SyncFailed]:
    folder = plan.folder / f"sync-{fault}"
    folder.mkdir(mode=0o700)
    trace, log, board = Trace.shared(), DiskLog(), Board()
    life = Life(subject=plan.subject, folder=folder, url=plan.url, settings=SETTINGS)
    first = fork(
        lambda: _endure(life, board, submits=fault.story is Story.SUBMITTED),
        before=lambda: arm(trace, Mode.SYNC_ERROR, at=fault.sync, root=folder, log=log, then=_then(fault)),
    )
    yield first.ended
    calls, wrong = trace.calls(), _wrong("the program whose sync failed", first)
    may_park = may_be_open(calls)
    if fault.story in (Story.REPAIRED, Story.REPAIRING, Story.SUBMITTED):
        again, at = Trace.shared(), _at(fault)
        second = fork(
            lambda: work(life, board),
            before=lambda: arm(again, Mode.KILL_AFTER if at else Mode.TRACE, at=at, root=folder, log=log),
        )
        yield second.ended
        may_park = may_park or may_be_open(again.calls())
        wrong = wrong or _wrong("the repairer", second)
    entries = list(log.entries())
    image = after_power_loss(entries, fault.loss, fault.seed)
    put_image(image, folder)
    board.forget()
    last = fork(lambda: work_and_check(life, board), before=boot_anew)
    yield last.ended
    wrong = wrong or _wrong("the last program", last)
    shutil.rmtree(folder)
    found = Found(error=wrong) if wrong else board.found or Found(error="nothing was found")
    return SyncFailed(
        fault=fault,
        point=point_at(calls, trace.acted) if trace.reached else None,
        fate=image.fate,
        may_park=may_park,
        found=found,
        retried=retried(entries),
    )


def retried(entries: Iterable[Entry]) -> str:
    """Which file was synced again over writes whose sync had failed, by whomever; or empty.

    Not where those bytes were written anew before: SQLite does so when it rolls back. Nor a file
    with a temporary name that was thrown away afterwards: nothing rests on it.
    """
    names: dict[str, int] = {}
    doubtful: dict[int, list[Entry]] = {}
    adrift: dict[int, list[Entry]] = {}
    temporary: set[int] = set()  # synced again under such a name
    for entry in entries:
        match entry.act:
            case Act.CREATE:
                names[entry.paths[0]] = entry.file
                temporary.discard(entry.file)  # another file under a number that was free
                doubtful[entry.file], adrift[entry.file] = [], []
            case Act.LINK:
                names[entry.paths[0]] = entry.file
            case Act.RENAME:
                names[entry.paths[1]] = names.pop(entry.paths[0])
            case Act.UNLINK:
                names.pop(entry.paths[0], None)
            case Act.WRITE:
                doubtful.setdefault(entry.file, []).append(entry)
                left = [one for one in adrift.get(entry.file, ()) if not _covers(entry, one)]
                adrift[entry.file] = left
            case Act.SYNC_FAILED:
                adrift[entry.file] = doubtful.pop(entry.file, [])
            case Act.SYNC:
                doubtful.pop(entry.file, None)
                if adrift.get(entry.file):
                    known = [path for path, file in names.items() if file == entry.file]
                    if all(PurePosixPath(path).name.startswith(".") for path in known):
                        temporary.add(entry.file)
                    else:
                        return known[0]
            case _:
                pass
    return next((path for path, file in names.items() if file in temporary), "")


def _covers(new: Entry, old: Entry) -> bool:
    return new.at <= old.at and old.at + old.length <= new.at + new.length


async def _endure(life: Life, board: Board, *, submits: bool) -> None:
    """A user's program: hands the task in and waits for it, until the journal says it stops."""
    path, task = life.folder / JOURNAL, life.subject.task
    try:
        async with holdfast.open(path, tasks=[task], serve=not submits, settings=life.settings) as hf:
            handle = await hf.submit(task, request_id=REQUEST, url=life.url)
            board.accepted = handle.id
            if not submits:
                await handle.result()
    except (HoldfastError, OSError):
        return  # told; what hangs is killed and counts as lost, and any other error is a finding


def _then(fault: Fault) -> int:
    """After how many calls the power goes; 0: not while the program lives."""
    match fault.story:
        case Story.AT_ONCE:
            return 1
        case Story.LATER:
            return 2 + (7 * fault.sync + 11 * fault.seed) % _LATER_MAX
        case _:
            return 0


def _at(fault: Fault) -> int:
    """After which call of the repair the power goes; 0: not in the repair."""
    if fault.story is not Story.REPAIRING:
        return 0
    return 1 + (13 * fault.sync + 17 * fault.seed) % _REPAIR_MAX


def _wrong(who: str, child: Child) -> str:
    if child.overdue:
        return f"{who} hung"
    return "" if child.code in (0, -signal.SIGKILL) else f"{who} ended with {child.code}"
