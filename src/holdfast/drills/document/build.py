"""The document of a drill: what was measured beside the targets, a verdict, a seal, and files in the agent's folder."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.clock import SystemClock, SystemEntropy, iso
from holdfast.core.surfaces import Verdict, day_of
from holdfast.drills.catalogue import RECOVERY_S, RESTART_S, Drill
from holdfast.drills.document.signoff import write_pages
from holdfast.drills.run import DrillOrder, DrillRun
from holdfast.host.private_files import ensure_private_folder, locked, write_atomically
from holdfast.host.version import find_version
from holdfast.identity.lease.lease_holder import InstanceFile, host_digest
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.statements.certificate import LIFE_S_MAX, Role
from holdfast.identity.statements.drill_seal import DrillSeal, sign_drill
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces import report as out
from holdfast.surfaces.level import judge_level
from holdfast.surfaces.register import Register, drill_facts
from holdfast.surfaces.report_marks import MarkedReport, note_report

RADIUS = {
    False: "a shadow: own mounts, processes and network; every write in the drill's folder",
    True: "one worker process of production, which its supervising parent starts again",
}
LOCK = ".lock"
UNCOVERED = Verdict.UNCOVERED
CLOCK_S = 0.002  # two clocks, each in whole milliseconds
PHASES = (
    *("baseline_taken", "fault_injected", "detected", "recovery_started"),
    *("state_restored", "journal_reconciled", "first_verified_step", "cleanup_done"),
)
FIRST = (("detect_s", "fault_injected", "detected"), ("declare_s", "detected", "declared"))
REST = (
    ("restore_s", "recovery_started", "state_restored"),
    ("reconcile_s", "state_restored", "journal_reconciled"),
    ("verify_s", "journal_reconciled", "first_verified_step"),
)


def build_report(
    drill: Drill,
    order: DrillOrder,
    run: DrillRun,
    register: Register,
    *,
    harm: list[str],
    reason: str,
    verdict: out.Verdict | None,
) -> out.DrillReport:
    ended_ms = time.time_ns() // 1_000_000
    home, targets = order.home, _targets(drill, order, register)
    rto, rpo = _rto(run, targets), _rpo(run, targets)
    if verdict is None:
        if run.state is not None and run.identity is not None:
            _find_uncovered(run, register)
        reason, verdict = _judge(run, rto, rpo)
    if verdict in ("pass", "pass with findings") and (fault := find_disorder(run.events)):
        reason, verdict = fault, "not proven"
    if harm:
        reason, verdict = f"production was changed: {harm[0]}", "fail"
    previous, _ = out.read_folder(home)
    agent = out.AgentInScope(
        id=order.speaker.log().id, name=home.name, level_before=register.level.level, level_after=None
    )
    covered = [one.id for one in register.surfaces if one.verdict != UNCOVERED]
    recovered = covered if run.state is not None else []
    report = out.DrillReport(
        schema=out.SCHEMA,
        id=f"{datetime.now(UTC).date().isoformat()}-{drill.slug}-{_next_number(home)}",
        title=drill.title,
        version=1,
        software=_software(),
        type=drill.type,
        environment="production" if order.production else "shadow",
        infrastructure=run.on or "fresh root" if run.fresh else "this machine",
        key_used="none" if run.key is None else run.key.kind,
        planned_interval_days=drill.interval_days,
        previous_drill=next(
            (one.report.id for one in reversed(previous) if one.report.scenario.drill == drill.slug), ""
        ),
        started=iso(run.began_ms),
        ended=iso(ended_ms),
        ended_ms=ended_ms,
        seed=order.seed,
        scenario=out.Scenario(
            code=drill.code,
            drill=drill.slug,
            narrative=drill.narrative,
            threat=drill.threat,
            likelihood=drill.likelihood,
            faults=tuple(run.faults),
        ),
        scope=out.Scope(
            agents=(agent,),
            state_surfaces=tuple(recovered),
            out_of_scope=tuple(one.id for one in register.surfaces if one.id not in recovered),
            excluded=("the agent's own tasks: their tools have far ends that a drill must not reach",),
            why="",
        ),
        people=out.People(lead=order.lead or _user(), observers=(), approver="", absent_simulated=(), auditor=""),
        runbook=out.RunbookUsed(
            name=f"{drill.slug} of {home.name}",
            digest=run.procedure.digest,
            steps_followed=tuple(run.followed),
            steps_changed=tuple(run.changed),
        ),
        targets=targets,
        timeline=tuple(run.events),
        results=out.Results(
            rto=rto,
            rpo=rpo,
            effects=run.effects,
            identity=run.identity,
            state=run.state,
            backup=run.backup,
            connectivity=run.connectivity,
            invariants=tuple(run.checks),
            files=None if run.files is None else tuple(run.files),
        ),
        deviations=tuple(run.deviations),
        findings=tuple(run.findings),
        lessons="",
        evidence=tuple(
            out.EvidenceFile(name=name, sha256=out.sha256_of(raw), size=len(raw), kind=kind)
            for name, (kind, raw) in sorted(run.evidence.items())
        ),
        safety=out.Safety(
            blast_radius=RADIUS[order.production],
            abort_criteria="Ctrl-C, or any change of production",
            aborted=False,
            production_impact_s=(rto.actual_s or 0.0) if order.production else 0.0,
            production_unchanged=not harm,
            cleanup_verified=not order.folder.exists(),
        ),
        verdict=verdict,
        reason=reason,
    )
    facts = drill_facts([out.summarize(report, path="this drill", digest="")])
    after = judge_level((*register.facts, *facts), now_ms=ended_ms, targets=register.targets).level
    return replace(report, scope=replace(report.scope, agents=(replace(agent, level_after=after),)))


def _targets(drill: Drill, order: DrillOrder, register: Register) -> out.DrillTargets:
    """The owner's own where a whole recovery is measured; else those of the drill."""
    owner, own = register.targets, drill.promise
    owners = {RECOVERY_S: float(owner.rto_s), RESTART_S: float(owner.restart_s or RESTART_S)}
    rto_s = owners.get(own.rto_s or 0.0, own.rto_s)
    return out.DrillTargets(
        rto_s=rto_s if order.rto_s is None or rto_s is None else order.rto_s,
        rpo_s=float(owner.rpo_s) if own.rpo_s is None else own.rpo_s,
        rpo_items=own.rpo_items,
        mtd_s=None if owner.mtd_s is None else float(owner.mtd_s),
        identity="the same id",
        duplicates=0,
        lost=0,
        parked_max=own.parked_max,
        source=f"{owner.by}, {day_of(owner.at_ms)}" if owner.by else "defaults of Holdfast",
    )


def _find_uncovered(run: DrillRun, register: Register) -> None:
    """What a restore would not have brought back, because nothing protects it."""
    for one in register.surfaces:
        if one.verdict == UNCOVERED:
            run.find("major", f"{one.id} is uncovered: {one.why}")


def _next_number(home: AgentHome) -> int:
    """Above every report that is there, also one that does not count: no file is ever written over."""
    found = [one.stem.rpartition("-")[2] for one in (home.folder / out.FOLDER).glob("*.json")]
    return 1 + max((int(one) for one in found if one.isdigit()), default=0)


def find_disorder(events: Sequence[out.Event]) -> str:
    """Why figures of this timeline would be wrong: each event is at the time of the one before or later, and a phase
    does not come before the one that it follows. Empty where all is well."""
    for one, other in pairwise(events):
        if other.at_s < one.at_s - CLOCK_S:
            return f"the timeline is not in order: {other.name} at {other.at_s:g} s, {one.name} at {one.at_s:g} s"
    first = {one.name: number for number, one in reversed(list(enumerate(events)))}
    for one, other in pairwise(name for name in PHASES if name in first):
        if first[other] < first[one]:
            return f"the timeline is not in order: {other} before {one}"
    return ""


def _rto(run: DrillRun, targets: out.DrillTargets) -> out.Rto:
    at = {one.name: one.at_s for one in reversed(run.events)}  # the first of each name

    def between(first: str, second: str) -> float | None:
        return round(at[second] - at[first], 3) if first in at and second in at else None

    actual = between("fault_injected", "first_verified_step")
    parts = {name: between(first, second) for name, first, second in (*FIRST, *REST)}
    hand_s = 0.0 if run.key is None else run.key.hand_s
    return out.Rto(
        target_s=targets.rto_s, actual_s=actual, **parts, hand_s=round(hand_s, 3), verdict=_met(actual, targets.rto_s)
    )


def _rpo(run: DrillRun, targets: out.DrillTargets) -> out.Rpo:
    found = run.rpo or out.NOT_MEASURED
    items = _met(found.actual_items, targets.rpo_items)
    verdict = _met(found.actual_s, targets.rpo_s)
    return replace(found, target_s=targets.rpo_s, verdict="missed" if "missed" in (items, verdict) else verdict)


def _met(actual: float | None, target: float | None) -> out.Met:
    if actual is None or target is None:
        return "not measured"
    return "met" if actual <= target else "missed"


def _judge(run: DrillRun, rto: out.Rto, rpo: out.Rpo) -> tuple[str, out.Verdict]:
    """A failed target or check is never averaged away."""
    failed = [f"{one.code}: {one.evidence}" for one in run.checks if not one.passed]
    if rto.verdict == "missed":
        failed.append(f"recovery took {rto.actual_s:g} s; the target is {rto.target_s:g} s")
    if rto.target_s is not None and rto.actual_s is None:
        failed.append("no step was verified after the recovery")
    if rpo.verdict == "missed":
        failed.append(f"{rpo.actual_s:g} s and {rpo.actual_items} items were lost; that is more than the target")
    if failed:
        return "; ".join(failed), "fail"
    if run.findings:
        return "; ".join(one.description for one in run.findings), "pass with findings"
    return "", "pass"


def _software() -> out.Software:
    listed = sorted(f"{one.metadata['Name']}=={one.version}" for one in distributions())
    return out.Software(
        version=find_version(), commit=_commit(), packages_digest=hashlib.sha256("\n".join(listed).encode()).hexdigest()
    )


def _commit() -> str:
    """Of Holdfast's own source, where it runs from a checkout."""
    root = Path(__file__).parents[4]
    if not (root / "src" / "holdfast").is_dir():
        return ""
    try:
        words = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return f"user {os.geteuid()}"


def write_report(order: DrillOrder, report: out.DrillReport, evidence: dict[str, tuple[str, bytes]]) -> Path:
    """Seal the report and put it, with its evidence, into the agent's folder. Its path."""
    home, clock = order.home, SystemClock()
    folder = home.folder / out.FOLDER
    ensure_private_folder(folder)
    with locked(folder / LOCK):
        previous, _ = out.read_folder(home)
        log = order.speaker.log()
        instance = InstanceFile(home.instance, id=log.id, clock=clock, entropy=SystemEntropy())
        instance.open(log.position)
        certificate = order.speaker.certify(
            inst=instance.signer.public,
            role=Role.SHADOW,
            incarnation=0 if instance.instance is None else instance.instance.e,
            host=host_digest(clock),
            life_s=LIFE_S_MAX,
        )
        before = previous[-1].seal if previous else None
        seal = sign_drill(
            DrillSeal(
                id=log.id,
                g=certificate.record.g,
                s=certificate.record.s,
                n=1 if before is None else before.record.n + 1,
                at=clock.wall_ms() // 1000,
                drill=report.scenario.drill,
                report=digest_of(out.report_bytes(report)),
                crt=certificate.digest,
                prev=None if before is None else before.digest,
            ),
            instance.signer,
        )
        instance.wipe()
        for name, (_, raw) in evidence.items():
            ensure_private_folder(folder / report.id)
            write_atomically(folder / report.id / name, raw)
        file = out.ReportFile(certificate=json.loads(certificate.line()), report=report, seal=json.loads(seal.line()))
        path = folder / f"{report.id}.json"
        write_atomically(path, out.file_bytes(file))
        made = out.read_report(path)
        write_pages(made)
        mark = MarkedReport(
            id=report.id,
            n=seal.record.n,
            digest=seal.digest,
            drill=report.scenario.drill,
            verdict=report.verdict,
            ended_ms=report.ended_ms,
        )
        note_report(home, mark, there=(one.seal.digest for one in previous))
    return path


def find_evidence_faults(found: out.SealedReport, *, copied: bool) -> list[str]:
    """What is wrong with the files of evidence beside a report; a copy of the report alone may have none."""
    folder = found.path.with_suffix("")
    if copied and not folder.is_dir():
        return []
    faults: list[str] = []
    for one in found.report.evidence:
        try:
            raw = (folder / one.name).read_bytes()
        except OSError as error:
            faults.append(f"{folder / one.name}: {error.strerror}")
            continue
        if (len(raw), out.sha256_of(raw)) != (one.size, one.sha256):
            faults.append(f"{folder / one.name} is not the file that the report names")
    return faults
