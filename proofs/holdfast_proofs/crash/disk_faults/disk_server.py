"""The disk-fault suites inside the fork server: run the trials, then judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast_proofs.crash.disk_faults.disk_jobs import DiskJob, FullDisk, Power, SyncError
from holdfast_proofs.crash.disk_faults.full_disk import RESUMED_S_MAX, Filled, FullPlan, fill_disks
from holdfast_proofs.crash.disk_faults.power import PowerCut, PowerPlan, cut_power
from holdfast_proofs.crash.disk_faults.sync_error import SyncFailed, SyncPlan, fail_syncs
from holdfast_proofs.crash.judge import Books, Verdict, judge
from holdfast_proofs.crash.report import Figures
from holdfast_proofs.crash.subjects import Subject


def do_disk(job: DiskJob, subject: Subject, *, url: str, folder: Path, books: Callable[[], Books]) -> Figures:
    match job:
        case Power():
            cuts = list(cut_power(_power_plan(job, subject, url, folder)))
            return add_up_power(subject, cuts, books())
        case SyncError():
            failed = list(fail_syncs(_sync_plan(job, subject, url, folder)))
            return add_up_syncs(subject, failed, books())
        case FullDisk():
            filled = list(fill_disks(_full_plan(job, subject, url, folder)))
            return add_up_full(subject, filled, books())


def _power_plan(job: Power, subject: Subject, url: str, folder: Path) -> PowerPlan:
    return PowerPlan(
        subject=subject,
        url=url,
        folder=folder,
        cuts=job.cuts,
        first_seed=job.first_seed,
        seeds=job.seeds,
        points=job.points,
        twice=job.twice,
        synchronous=job.synchronous,
        wal_pages=job.wal_pages,
        lanes=job.lanes,
    )


def _sync_plan(job: SyncError, subject: Subject, url: str, folder: Path) -> SyncPlan:
    return SyncPlan(
        subject=subject,
        url=url,
        folder=folder,
        faults=job.faults,
        syncs=job.syncs,
        stories=job.stories,
        points=job.points,
        seed=job.seed,
        lanes=job.lanes,
    )


def _full_plan(job: FullDisk, subject: Subject, url: str, folder: Path) -> FullPlan:
    return FullPlan(
        subject=subject,
        url=url,
        folder=folder,
        fillings=job.fillings,
        kinds=job.kinds,
        points=job.points,
        seed=job.seed,
        lanes=job.lanes,
    )


def add_up_power(subject: Subject, outcomes: list[PowerCut], books: Books) -> Figures:
    figures = Figures(name=subject.name)
    distinct: set[object] = set()
    for outcome in outcomes:
        verdict = judge(subject, outcome.found, books)
        if outcome.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
            distinct.add((outcome.point, outcome.cut.then, outcome.fate))
        for step in outcome.unintended:
            verdict.breaches += 1
            verdict.findings.append(f"step {step} was sent and its intent is not on the disk")
        _judge_park(figures, verdict, subject, may_park=outcome.may_park)
        figures.add(verdict, where=str(outcome), again=outcome.again)
    figures.distinct = len(distinct)
    return figures


def add_up_syncs(subject: Subject, outcomes: list[SyncFailed], books: Books) -> Figures:
    figures = Figures(name=subject.name)
    distinct: set[object] = set()
    for outcome in outcomes:
        verdict = judge(subject, outcome.found, books)
        if outcome.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
            distinct.add((outcome.point, outcome.fault.story, outcome.fate))
        if outcome.retried:
            verdict.breaches += 1
            verdict.findings.append(f"{outcome.retried} was synced again after it had failed")
        _judge_park(figures, verdict, subject, may_park=outcome.may_park)
        figures.add(verdict, where=str(outcome), again=outcome.again)
    figures.distinct = len(distinct)
    return figures


def add_up_full(subject: Subject, outcomes: list[Filled], books: Books) -> Figures:
    figures = Figures(name=subject.name)
    for outcome in outcomes:
        verdict = judge(subject, outcome.found, books)
        if outcome.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
        figures.resumed_after_s_max = max(figures.resumed_after_s_max, outcome.resumed_s)
        figures.recorded_when_full += outcome.answers - outcome.unrecorded_answers
        for wrong in _wrong_when_full(outcome):
            verdict.breaches += 1
            verdict.findings.append(wrong)
        _judge_park(figures, verdict, subject, may_park=False)
        figures.add(verdict, where=str(outcome), again=outcome.again)
    figures.distinct = len({(one.filling.kind, one.point) for one in outcomes if one.point})
    return figures


def _wrong_when_full(outcome: Filled) -> Iterator[str]:
    if outcome.unrecorded_sends:
        yield f"{outcome.unrecorded_sends} requests were sent before their start was recorded"
    if outcome.unrecorded_answers:
        yield f"{outcome.unrecorded_answers} answers were not recorded in the reserve's room"
    if outcome.resumed_s > RESUMED_S_MAX:
        yield f"it took {outcome.resumed_s:.1f} s to go on after there was room again"


def _judge_park(figures: Figures, verdict: Verdict, subject: Subject, *, may_park: bool) -> None:
    """After a power cut a person may be asked; not, where no start can have been left open."""
    may_park = may_park and subject.letter == "N"
    figures.in_doubt += may_park
    if verdict.parked and not may_park:
        figures.needless_parks += 1
        verdict.findings.append("parked although nothing was in doubt")
