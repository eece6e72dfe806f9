"""The suites by name: what each runs in full, and what of it in a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast_proofs.crash.disk_faults.disk_suites import full_jobs, power_jobs, sync_jobs
from holdfast_proofs.crash.jobs import Children, Flips, Job, Outliving, Pairs, Races, Sweep, Zombies
from holdfast_proofs.crash.outliving.tools import SHAPES
from holdfast_proofs.crash.subjects import STEPS, ClassName
from holdfast_proofs.crash.sweep import CUTS, MODES
from holdfast_proofs.shim import Mode

MATRIX = (1, 3, 10)  # steps of a task
ZOMBIES = 8  # stopped programs by class
RACES = 15
SECONDS = 3  # second kills for each first one
FLIPS = 2_000
BLOCKING: tuple[ClassName, ...] = ("queryable", "unrepeatable")  # whose tools run in children
INSTANTS = 100  # at which children are killed, for each of them
OUTLIVING = 500  # workers killed for each class and shape
SAMPLE = 2  # of what takes long, in a sample

Kills = tuple[tuple[Mode, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    classes: Sequence[ClassName]
    steps: Sequence[int] = MATRIX
    points: int | None = None  # a sample of about this many kills per class
    seconds: int = SECONDS
    seed: int = 1
    at: Kills = ()  # one trial alone
    flip: str = ""  # one flip alone, of
    origin: str = ""  # this kept journal
    fault: str = ""  # one fault of the disk alone
    shared: bool = False  # the journals are on a server: every second resumer is another host, which waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    title: str
    jobs: Callable[[Options], list[Job]]


def _sweeps(options: Options) -> list[Job]:
    modes, at = _only(options, MODES)
    share = None if options.points is None else max(1, options.points // len(options.steps))
    lanes = 8 if options.shared else 4
    return [
        Sweep(name=name, steps=steps, points=share, modes=modes, at=at, lanes=lanes)
        for steps in sorted(options.steps, reverse=True)  # the longest first: two run at a time
        for name in options.classes
    ]


def _cuts(options: Options) -> list[Job]:
    """Nobody dies; a commit is lost, or its answer is, or it arrives when it is long given up."""
    modes, at = _only(options, CUTS)
    return [Sweep(name=name, points=options.points, modes=modes, at=at) for name in options.classes]


def _only(options: Options, modes: tuple[Mode, ...]) -> tuple[tuple[Mode, ...], tuple[int, ...]]:
    if not options.at:
        return modes, ()
    ((mode, index),) = options.at
    return (mode,), (index,)


def _pairs(options: Options) -> list[Job]:
    only = None
    if options.at:
        first, second = options.at
        only = (first, second)
    firsts = None if options.points is None else max(1, options.points // (4 * options.seconds))
    return [
        Pairs(name=name, firsts=firsts, seconds=options.seconds, seed=options.seed, only=only)
        for name in options.classes
    ]


def _zombies(options: Options) -> list[Job]:
    """Timers divided by 20, over a network by 4; three more at the default timers in a full run."""
    count = ZOMBIES if options.points is None else SAMPLE
    divide = 4.0 if options.shared else 20.0
    jobs: list[Job] = [
        Zombies(name=name, guarded=guarded, count=count, divide=divide)
        for name in options.classes
        for guarded in (True, False)
    ]
    if options.points is None:
        last = options.classes[-1]
        jobs.append(Zombies(name=last, guarded=True, count=3, divide=1))
        jobs.append(Zombies(name=last, guarded=False, count=3, divide=1))
    return jobs


def _races(options: Options) -> list[Job]:
    count = RACES if options.points is None else SAMPLE
    divide = 4.0 if options.shared else 20.0
    jobs: list[Job] = [Races(name=name, count=count, divide=divide) for name in options.classes]
    if options.points is None:
        jobs.append(Races(name=options.classes[-1], count=4, divide=1, lanes=4))
    return jobs


def _children(options: Options) -> list[Job]:
    """Only the two classes whose blocking tools run in children."""
    only = options.at[0] if options.at else None
    names: list[ClassName] = [name for name in BLOCKING if name in options.classes]
    points, instants = options.points, INSTANTS if options.points is None else options.points // 2
    jobs: list[Job] = [
        Children(name=name, points=points, instants=instants, seed=options.seed, only=only) for name in names
    ]
    return jobs


def _outliving(options: Options) -> list[Job]:
    """The classes whose code must not outlive its attempt, in each way in which it might."""
    count = OUTLIVING if options.points is None else options.points
    names: list[ClassName] = [name for name in BLOCKING if name in options.classes]
    return [Outliving(name=name, shape=shape, count=count, seed=options.seed) for shape in SHAPES for name in names]


def _flips(options: Options) -> list[Job]:
    count = FLIPS if options.points is None else max(50, options.points)
    halves = 1 if options.flip else 2  # one for each core
    return [
        Flips(
            count=count // halves,
            seed=seed,
            logged=bool(seed % 2),
            only=options.flip,
            origin=options.origin,
            keep=f"build/flips/{seed}",
        )
        for seed in range(halves * options.seed, halves * (options.seed + 1))
    ]


def _one(options: Options, default: int) -> int:
    """The steps of a suite that has one size: another where just one is given."""
    return options.steps[0] if len(options.steps) == 1 else default


def _power(options: Options) -> list[Job]:
    return [
        *power_jobs(
            options.classes, points=options.points, seed=options.seed, fault=options.fault, steps=_one(options, STEPS)
        )
    ]


def _syncs(options: Options) -> list[Job]:
    return [
        *sync_jobs(
            options.classes, points=options.points, seed=options.seed, fault=options.fault, steps=_one(options, 0)
        )
    ]


def _full(options: Options) -> list[Job]:
    return [
        *full_jobs(
            options.classes, points=options.points, seed=options.seed, fault=options.fault, steps=_one(options, STEPS)
        )
    ]


SUITES: dict[str, Suite] = {
    "matrix": Suite(title="Killed before and after every call, then resumed", jobs=_sweeps),
    "pairs": Suite(title=f"Killed at every call, resumed and killed again, resumed ({STEPS} steps)", jobs=_pairs),
    "zombies": Suite(title="Stopped, overtaken, woken (with and without the dead-man timer)", jobs=_zombies),
    "races": Suite(title="Two to sixteen resumers of one orphan", jobs=_races),
    "children": Suite(title="The children of blocking tools killed, their worker lives on", jobs=_children),
    "outliving": Suite(title="Killed while a process or thread of a tool has yet to send", jobs=_outliving),
    "flips": Suite(title="One bit of the journal's folder turned over", jobs=_flips),
    "power": Suite(title="Power lost after every call: undone, by coin, torn", jobs=_power),
    "syncs": Suite(title="One sync fails, then the power goes", jobs=_syncs),
    "full": Suite(title="No room from any call on, then room again", jobs=_full),
}
# Over a journal in PostgreSQL. What has to do with the files of an embedded one is not there to be tried.
SHARED: dict[str, Suite] = {
    **{name: SUITES[name] for name in ("matrix", "zombies", "races")},
    "cuts": Suite(title="Cut off at every commit: it is lost, its answer is lost, it comes late", jobs=_cuts),
}
SHARED_STEPS = (STEPS,)
