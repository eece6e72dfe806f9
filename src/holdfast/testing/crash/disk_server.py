"""The disk-fault suites inside the fork server: run the trials, then judge them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.testing.crash.disk_jobs import DiskJob
from holdfast.testing.crash.judge import Books, judge
from holdfast.testing.crash.power import PowerCut, PowerPlan, cut_power
from holdfast.testing.crash.report import Figures
from holdfast.testing.crash.subjects import Subject


def do_disk(
    job: DiskJob, subject: Subject, *, url: str, folder: Path, books: Callable[[], Books]
) -> Figures:
    plan = PowerPlan(
        subject=subject, url=url, folder=folder, cuts=job.cuts, seeds=job.seeds,
        points=job.points, synchronous=job.synchronous, lanes=job.lanes,
    )  # fmt: skip
    outcomes = list(cut_power(plan))
    return add_up_power(subject, outcomes, books())


def add_up_power(subject: Subject, outcomes: list[PowerCut], books: Books) -> Figures:
    figures = Figures(name=subject.name)
    distinct: set[object] = set()
    for outcome in outcomes:
        verdict = judge(subject, outcome.found, books)
        if outcome.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
            distinct.add((outcome.point, outcome.fate))
        for step in outcome.unintended:
            verdict.breaches += 1
            verdict.findings.append(f"step {step} was sent and its intent is not on the disk")
        figures.in_doubt += subject.letter == "N" and outcome.may_park
        if verdict.parked and not (subject.letter == "N" and outcome.may_park):
            figures.needless_parks += 1
            verdict.findings.append("parked although nothing was in doubt")
        figures.add(verdict, where=str(outcome), again=outcome.again)
    figures.distinct = len(distinct)
    return figures
