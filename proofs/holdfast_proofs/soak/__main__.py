"""The command line of the soak: the load calm, then with faults, judged and compared."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from holdfast.errors import BadInput
from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.soak.judge import Verdict, judge
from holdfast_proofs.soak.load import Plan, Ran, run_load
from holdfast_proofs.soak.site import FILE, POSTGRES, Site, sites

RATIO_WANTED = 0.7
TELL_EVERY_S = 10.0


def _prove(given: argparse.Namespace) -> Result:
    plan = _plan(given)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-", dir=given.folder))
    calm: dict[str, object] | None = None
    findings: list[str] = []
    with sites(given.journal) as builder:
        if given.calm_tasks:
            quiet = replace(plan, tasks=given.calm_tasks, kill_every_s=0.0, lost_replies=0.0)
            calm = _run("calm", quiet, builder.make(folder / "calm"), findings)
        report = _run("with faults", plan, builder.make(folder / "faults"), findings)
    report["calm"] = calm
    report["ratio"] = _ratio(report, calm)
    if findings or given.keep:
        print(f"journal, books and worker logs are kept in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return Result(green=not findings, figures=report, findings=findings, again=_again(given), summary=_summary(report))


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--journal", choices=(FILE, POSTGRES), default=FILE, help="in a file, or on a server with two hosts (file)")
    add("--tasks", type=at_least_one, default=10_000, help="how many tasks (10000)")
    add("--steps", type=int, default=10, help="effects in each (10)")
    add("--workers", type=int, default=4, help="worker processes on the one journal (4)")
    add("--concurrency", type=int, default=16, help="tasks that each runs at a time (16)")
    add("--kill-every", type=float, default=1.0, metavar="S", help="seconds between kills (1)")
    add("--kills", type=int, metavar="N", help="at most so many kills (no limit)")
    add("--lost", type=float, default=0.05, metavar="P", help="share of lost replies (0.05)")
    add("--calm-tasks", type=int, metavar="N", help="tasks of the calm run (--tasks); 0: none")
    add("--seed", type=int, default=0, help="of the lost replies and the choice of victims")
    add("--folder", type=Path, help="make the journals in this folder (a temporary one)")
    add("--keep", action="store_true", help="keep the folder also where all is well")


def _plan(options: argparse.Namespace) -> Plan:
    if options.calm_tasks is None:
        options.calm_tasks = options.tasks
    if options.workers < 2:
        raise BadInput("two workers or more: one must be left to resume")
    return Plan(
        tasks=options.tasks,
        steps=options.steps,
        workers=options.workers,
        concurrency=options.concurrency,
        backlog=2 * options.workers * options.concurrency,
        kill_every_s=options.kill_every,
        lost_replies=options.lost,
        kills_max=options.kills,
        seed=options.seed,
    )


def _run(name: str, plan: Plan, site: Site, findings: list[str]) -> dict[str, object]:
    last = 0.0

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > TELL_EVERY_S:
            last = time.monotonic()
            print(f"{name}: {line}", file=sys.stderr)

    ran = asyncio.run(run_load(plan, site, tell))
    verdict = asyncio.run(judge(plan, ran, site))
    findings += [f"{name}: {finding}" for finding in verdict.findings]
    if not verdict.green and not verdict.findings:
        findings.append(f"{name}: red")
    return _shown(plan, ran, verdict)


def _shown(plan: Plan, ran: Ran, verdict: Verdict) -> dict[str, object]:
    return {
        "tasks": plan.tasks,
        "steps": plan.steps,
        "workers": plan.workers,
        "concurrency": plan.concurrency,
        "seed": plan.seed,
        "seconds": round(ran.seconds, 1),
        "effects": verdict.effects,
        "effects_per_s": round(verdict.effects / ran.seconds, 1),
        "kills": ran.kills,
        "parents_killed": ran.parents_killed,
        "lost_replies": ran.dropped,
        "duplicates": verdict.duplicates,
        "lost": verdict.lost,
        "silent": verdict.silent,
        "breaches": verdict.breaches,
        "parked": verdict.parked,
        "needless_parks": verdict.needless_parks,
        "settled": ran.settled,
        "poisoned": ran.retried,
        **verdict.fairness.to_json(),
        "findings": verdict.findings,
    }


def _ratio(report: dict[str, object], calm: dict[str, object] | None) -> float | None:
    if calm is None:
        return None
    return round(float(str(report["effects_per_s"])) / float(str(calm["effects_per_s"])), 3)


def _summary(report: dict[str, object]) -> str:
    ratio = "" if report["ratio"] is None else f", throughput {report['ratio']} of the calm run (wanted {RATIO_WANTED})"
    return (
        f"{report['effects']} effects in {report['seconds']} s ({report['effects_per_s']} per "
        f"second), {report['kills']} workers killed, {report['lost_replies']} replies lost; "
        f"duplicates {report['duplicates']}, lost {report['lost']}, silent {report['silent']}, "
        f"breaches {report['breaches']}, parked {report['parked']} (needless "
        f"{report['needless_parks']}), poisoned {report['poisoned']}; first step after ms: "
        f"{report['first_step_ms']}; longest stall ms: {report['stall_ms']}{ratio}"
    )


def _again(options: argparse.Namespace) -> str:
    kills = "" if options.kills is None else f" --kills {options.kills}"
    return (
        f"--journal {options.journal} --tasks {options.tasks} --steps {options.steps} --workers {options.workers} "
        f"--concurrency {options.concurrency} --kill-every {options.kill_every} "
        f"--lost {options.lost} --calm-tasks {options.calm_tasks} --seed {options.seed}{kills}"
    )


PROOF = Proof(
    name="soak",
    purpose="Many tasks on real workers and far ends, while workers are killed and replies are lost; then count.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
