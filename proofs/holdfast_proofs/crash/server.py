"""The fork server: a program with the shim in it that forks a child for each job, which prints its figures."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast.downstream.ledger import Page
from holdfast.downstream.process import FarEnd
from holdfast.journal.sqlite.host import disk_trouble
from holdfast.layout.engine_settings import Settings
from holdfast_proofs.crash.bit_flips.flips import Flip, FlipPlan, run_flips
from holdfast_proofs.crash.board import Board
from holdfast_proofs.crash.child_tools import make_blocking_subject
from holdfast_proofs.crash.children import ChildPlan, Killed, run_children
from holdfast_proofs.crash.disk_faults.disk_jobs import DiskJob, FullDisk, Power, SyncError
from holdfast_proofs.crash.disk_faults.disk_server import do_disk
from holdfast_proofs.crash.jobs import (
    SIZE_BYTES,
    Children,
    Flips,
    Job,
    Order,
    Outliving,
    Pairs,
    Place,
    Races,
    Sweep,
    Zombies,
    divided,
)
from holdfast_proofs.crash.judge import Books, Verdict, judge
from holdfast_proofs.crash.lives import Life, work
from holdfast_proofs.crash.outliving.tools import Shape, make_outliving_subject
from holdfast_proofs.crash.outliving.trials import Outlived, OutlivingPlan, run_outliving
from holdfast_proofs.crash.pairs import Kill, Nest, PairPlan, run_pairs
from holdfast_proofs.crash.places import own_journal, remove_journal
from holdfast_proofs.crash.races import Race, RacePlan, owners, run_races
from holdfast_proofs.crash.report import Figures
from holdfast_proofs.crash.subjects import STEPS, Subject, make_subject
from holdfast_proofs.crash.sweep import SETTINGS, SHARED, Outcome, Plan, sweep
from holdfast_proofs.crash.zombies import Zombie, ZombiePlan, raise_zombies


def main() -> None:
    # Only the size of the reserve is less than a user's: sixteen megabytes of zeros per program
    # cost more than the rest of its life.
    disk_trouble.RESERVE_BYTES = disk_trouble.RESERVE_BYTES_MIN
    while size := int.from_bytes(sys.stdin.buffer.read(SIZE_BYTES)):
        order = msgspec.json.decode(sys.stdin.buffer.read(size), type=Order)
        child = os.fork()
        if child == 0:
            _do_and_end(order)
        _, status = os.waitpid(child, 0)
        if status:
            _tell(b"")


def _do_and_end(order: Order) -> None:
    code = 1
    try:
        _tell(msgspec.json.encode(do(order)))
        code = 0
    except Exception:  # noqa: BLE001 - whatever it is, this is a child
        traceback.print_exc()
    finally:
        os._exit(code)


def _tell(figures: bytes) -> None:
    sys.stdout.buffer.write(len(figures).to_bytes(SIZE_BYTES) + figures)
    sys.stdout.buffer.flush()


def do(order: Order) -> Figures:
    began = time.monotonic()
    figures = _do(order.job, order.place)
    figures.seconds = round(time.monotonic() - began, 3)
    figures.cpu_s = round(_cpu_s(), 3)
    return figures


def _do(job: Job, place: Place) -> Figures:
    if isinstance(job, Flips):
        return run_flips(_flip_plan(job, place))
    if isinstance(job, Children):
        return _do_children(job, place)
    if isinstance(job, Outliving):
        return _do_outliving(job, place)
    subject = make_subject(job.name, steps=_steps(job), timeout_s=job.timeout_s)
    warm_up(subject, place)
    match job:
        case Sweep():
            outcomes = list(sweep(_plan(job, place, subject)))
            figures = add_up(subject, outcomes, Books(read_books(subject, place)))
        case Pairs():
            nests = list(run_pairs(_pair_plan(job, place, subject)))
            figures = add_up_pairs(subject, nests, Books(read_books(subject, place)))
        case Zombies():
            zombies = list(raise_zombies(_zombie_plan(job, place, subject)))
            figures = add_up_zombies(subject, zombies, Books(read_books(subject, place)))
        case Races():
            races = list(run_races(_race_plan(job, place, subject)))
            figures = add_up_races(subject, races, Books(read_books(subject, place)))
        case Power() | SyncError() | FullDisk():
            figures = do_disk(
                job,
                subject,
                url=url_of(place),
                folder=Path(place.folder),
                books=lambda: Books(read_books(subject, place)),
            )
        case _:
            assert_never(job)
    figures.steps = subject.steps
    return figures


def _do_children(job: Children, place: Place) -> Figures:
    subject = make_blocking_subject(job.name, steps=job.steps)
    plan = ChildPlan(
        subject=subject,
        url=url_of(place),
        folder=Path(place.folder),
        points=job.points,
        instants=job.instants,
        seed=job.seed,
        only=job.only,
        lanes=job.lanes,
    )
    killed = list(run_children(plan))
    figures = add_up_children(subject, killed, Books(read_books(subject, place)))
    figures.steps = subject.steps
    return figures


def _do_outliving(job: Outliving, place: Place) -> Figures:
    subject = make_outliving_subject(job.shape, job.name)
    plan = OutlivingPlan(
        subject=subject,
        shape=job.shape,
        far_end=FarEnd(kind=subject.far_end or "queryable", port=place.port, pid=place.pid),
        folder=Path(place.folder),
        count=job.count,
        seed=job.seed,
        weakness=job.weakness,
        lanes=job.lanes,
    )
    outlived = list(run_outliving(plan))
    figures = add_up_outliving(subject, job.shape, outlived, Books(read_books(subject, place)))
    figures.steps = subject.steps
    return figures


def _steps(job: Job) -> int:
    return job.steps if isinstance(job, Sweep | Pairs | DiskJob) else STEPS


def _cpu_s() -> float:
    """Processor time of this process and of all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def warm_up(subject: Subject, place: Place) -> None:
    """One life in this process, so that its children need not import and learn what it did."""
    folder = Path(place.folder) / "warm"
    folder.mkdir(mode=0o700)
    life = Life(
        subject=subject,
        folder=folder,
        url=url_of(place),
        settings=_timers(place),
        journal=own_journal(place.server, folder.name),
    )
    asyncio.run(work(life, Board()))
    remove_journal(life.journal)


def add_up(subject: Subject, outcomes: list[Outcome], books: Books) -> Figures:
    """Judge every trial."""
    figures = Figures(name=subject.name)
    distinct: set[object] = set()
    for outcome in outcomes:
        verdict = judge(subject, outcome.found, books)
        if outcome.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
            distinct.add((outcome.mode, outcome.point))
        _judge_park(figures, verdict, in_doubt=subject.letter == "N" and outcome.doubt)
        figures.add(verdict, where=str(outcome), again=outcome.again)
    figures.distinct = len(distinct)
    return figures


def add_up_zombies(subject: Subject, zombies: list[Zombie], books: Books) -> Figures:
    figures = Figures(name=subject.name, may_poison=True)
    for zombie in zombies:
        verdict = judge(subject, zombie.found, books)
        figures.add(verdict, where=str(zombie))
        if zombie.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
        if zombie.dead_after_s is not None:
            figures.killed += 1
            figures.dead_after_s_max = max(figures.dead_after_s_max, zombie.dead_after_s)
    figures.distinct = len({(zombie.mode, zombie.point) for zombie in zombies if zombie.point})
    return figures


def add_up_pairs(subject: Subject, nests: list[Nest], books: Books) -> Figures:
    """Judge every pair, and also the resumers that were let pass."""
    figures = Figures(name=subject.name)
    distinct: set[object] = set()
    for nest in nests:
        figures.product += nest.product
        for pair in (*nest.pairs, *((nest.passed,) if nest.passed else ())):
            verdict = judge(subject, pair.found, books)
            lives = (pair.first, pair.second)
            doubt = subject.letter == "N" and any(one.doubt for one in lives)
            _judge_park(figures, verdict, in_doubt=doubt)
            figures.add(verdict, where=str(pair), again=pair.again)
            if pair.first.point is None or pair.second.point is None:
                figures.unreached += 1
            else:
                figures.points += 1
                distinct.add(tuple((one.kill.mode, one.point) for one in lives))
    figures.distinct = len(distinct)
    return figures


def _judge_park(figures: Figures, verdict: Verdict, *, in_doubt: bool) -> None:
    """A person is asked exactly where a send had begun and no result was recorded."""
    figures.in_doubt += in_doubt
    if verdict.parked and not in_doubt:
        figures.needless_parks += 1
        verdict.findings.append("parked although nothing was in doubt")
    if in_doubt and not verdict.parked:
        verdict.breaches += 1
        verdict.findings.append("not parked although a send had begun without a result")


def add_up_children(subject: Subject, killed: list[Killed], books: Books) -> Figures:
    """A child that dies in a call leaves doubt: an Unrepeatable step is then parked, no other."""
    figures = Figures(name=subject.name)
    for one in killed:
        verdict = judge(subject, one.found, books)
        doubt = subject.letter == "N" and one.hit and (one.point is not None or verdict.parked)
        _judge_park(figures, verdict, in_doubt=doubt)
        figures.add(verdict, where=str(one), again=one.again)
        figures.points += one.hit
        figures.unreached += not one.hit
    figures.distinct = len({one.point for one in killed if one.point})
    figures.distinct += sum(one.hit and one.point is None for one in killed)
    return figures


def add_up_outliving(subject: Subject, shape: Shape, trials: list[Outlived], books: Books) -> Figures:
    """Parks are for a person, who has decided by the end; only those are needless that nothing asked for."""
    figures = Figures(name=subject.name, shape=shape)
    for one in trials:
        verdict = judge(subject, one.found, books)
        if one.parked and subject.letter != "N" and not one.may_park:
            figures.needless_parks += 1
            verdict.findings.append("parked although everything was known to have ended")
        figures.add(verdict, where=str(one), again=one.again)
        figures.decided += one.parked
        figures.points += one.hit
        figures.unreached += not one.hit
    figures.distinct = figures.points
    return figures


def add_up_races(subject: Subject, races: list[Race], books: Books) -> Figures:
    figures = Figures(name=subject.name, may_poison=True)
    for race in races:
        verdict = judge(subject, race.found, books)
        for wrong in owners(race):
            verdict.breaches += 1
            verdict.findings.append(wrong)
        figures.add(verdict, where=str(race))
        figures.points += 1
        figures.racers += race.racers
    figures.distinct = len({(race.mode, race.index) for race in races})
    return figures


def read_books(subject: Subject, place: Place) -> Page | None:
    """The far end's books, once nothing is on its way any more."""
    if subject.far_end is None:
        return None
    far_end = FarEnd(kind=subject.far_end, port=place.port, pid=place.pid)

    async def read() -> Page:
        await far_end.wait_idle()
        return await far_end.ledger()

    return asyncio.run(read())


def url_of(place: Place) -> str:
    return f"http://127.0.0.1:{place.port}"


def _timers(place: Place) -> Settings:
    return SHARED if place.server else SETTINGS


def _plan(job: Sweep, place: Place, subject: Subject) -> Plan:
    return Plan(
        subject=subject,
        url=url_of(place),
        folder=Path(place.folder),
        modes=job.modes,
        points=job.points,
        at=job.at,
        only=job.only,
        making=job.making,
        server=place.server,
        settings=_timers(place),
        weakness=job.weakness,
        lanes=job.lanes,
    )


def _pair_plan(job: Pairs, place: Place, subject: Subject) -> PairPlan:
    only = None
    if job.only is not None:
        (mode, index), (then, there) = job.only
        only = (Kill(mode=mode, index=index), Kill(mode=then, index=there))
    return PairPlan(
        subject=subject,
        url=url_of(place),
        folder=Path(place.folder),
        firsts=job.firsts,
        seconds=job.seconds,
        seed=job.seed,
        only=only,
        weakness=job.weakness,
        lanes=job.lanes,
    )


def _flip_plan(job: Flips, place: Place) -> FlipPlan:
    only = Flip.parse(job.only) if job.only else None
    return FlipPlan(
        folder=Path(place.folder),
        count=job.count,
        seed=job.seed,
        logged=job.logged,
        only=only,
        lanes=job.lanes,
        origin=Path(job.origin) if job.origin else None,
        keep=Path(job.keep) if job.keep else None,
    )


def _zombie_plan(job: Zombies, place: Place, subject: Subject) -> ZombiePlan:
    return ZombiePlan(
        subject=subject,
        url=url_of(place),
        folder=Path(place.folder),
        settings=divided(job.divide),
        guarded=job.guarded,
        count=job.count,
        only=job.only,
        brink=job.brink,
        server=place.server,
        weakness=job.weakness,
        lanes=job.lanes,
    )


def _race_plan(job: Races, place: Place, subject: Subject) -> RacePlan:
    return RacePlan(
        subject=subject,
        url=url_of(place),
        folder=Path(place.folder),
        settings=divided(job.divide),
        count=job.count,
        server=place.server,
        lanes=job.lanes,
    )


if __name__ == "__main__":
    main()
