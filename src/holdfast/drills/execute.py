"""One drill from beginning to end: the agent is looked at, the drill runs, production is compared, a report is sealed.

The drill's folder is outside the agent's: every write of its shadows lands there, and it is removed at the end. Its
marker is locked while a drill runs. A kill leaves the folder; the next run says so and clears it before it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from holdfast.backup.places.places import Place
from holdfast.core.clock import SystemClock, SystemEntropy, iso
from holdfast.core.version import find_version
from holdfast.drills.catalogue import Drill
from holdfast.drills.production import Production, copy_for_shadow, find_harm, look
from holdfast.drills.run import DrillFailed, DrillKey, DrillRun, Observer
from holdfast.drills.signoff import write_pages
from holdfast.errors import BadInput, HoldfastError, NotNow, NotProven
from holdfast.host.private_files import ensure_private_folder, locked, open_private, write_atomically
from holdfast.identity.lease.lease_holder import InstanceFile, host_digest
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import LIFE_S_MAX, Role
from holdfast.identity.statements.drill_seal import DrillSeal, sign_drill
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces import report as out

MARKER = "holdfast-drill.json"
Tell = Callable[[str], None]
FIRST = (("detect_s", "fault_injected", "detected"), ("declare_s", "detected", "declared"))
REST = (
    ("restore_s", "recovery_started", "state_restored"),
    ("reconcile_s", "state_restored", "journal_reconciled"),
    ("verify_s", "journal_reconciled", "first_verified_step"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOrder:
    """What a person, or a timer, asks for."""

    home: AgentHome
    folder: Path  # the drill's own; its parents exist or are made
    speaker: Speaker  # signs the report's certificate
    key: DrillKey | None = None
    place: str = ""  # restore from this one; empty: the best that a shadow can reach
    seed: int = 0
    lead: str = ""
    rto_s: float | None = None  # in place of the drill's own target
    observe: Observer = lambda _run, _event: None
    tell: Tell = lambda _text: None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDone:
    report: out.DrillReport
    path: Path
    evidence: dict[str, tuple[str, bytes]] = field(repr=False)


def run_drill(drill: Drill, order: DrillOrder) -> DrillDone:
    """Run it and write its report. Raises NotNow while another drill of this agent runs; BadInput for a folder that is
    not a drill's; what the signer raises."""
    with own_folder(order.folder, drill=drill.slug, tell=order.tell) as folder:
        run, harm, reason, verdict = _run(drill, order, folder)
        evidence = {} if run is None else run.evidence
    report = build_report(drill, order, run, harm=harm, reason=reason, verdict=verdict)
    path = write_report(order, report, evidence)
    return DrillDone(report=report, path=path, evidence=evidence)


def _run(drill: Drill, order: DrillOrder, folder: Path) -> tuple[DrillRun | None, list[str], str, out.Verdict | None]:
    """The run, the harm, why, and a verdict where the checks do not give it."""
    run: DrillRun | None = None
    try:
        copies = copy_for_shadow(order.home, folder / "copies")
        production = asyncio.run(look(order.home))
        missing = drill.find_reason(production)
        if missing:
            return None, [], missing, "not applicable"
        place = choose_place(production, order.place)
        run = DrillRun(
            slug=drill.slug,
            production=production,
            folder=folder,
            copies=copies,
            key=order.key,
            place=place,
            seed=order.seed,
            observe=order.observe,
        )
        try:
            drill.run(run)
        finally:
            run.close()
    except NotProven as error:
        return run, _harm(run), f"{error.message} ({error.hint})", "not proven"
    except DrillFailed as error:
        return run, _harm(run), str(error), "fail"
    except (HoldfastError, OSError) as error:
        known = isinstance(error, HoldfastError)
        text = f"{error.code}: {error.message}" if known else str(error)
        return run, _harm(run), text, "not proven"
    return run, _harm(run), "", None


def _harm(run: DrillRun | None) -> list[str]:
    if run is None:
        return []
    harm = asyncio.run(find_harm(run.production))
    run.check(
        "production", not harm, "; ".join(harm) or f"{len(run.production.marks)} files of the agent are as they were"
    )
    return harm


def choose_place(production: Production, name: str) -> Place | None:
    """A place that a shadow can reach; one on another disk than the agent's if there is one."""
    usable = production.folder_places
    if name:
        if name not in [one.name for one in production.places]:
            raise BadInput(f"there is no place {name!r}", hint="`holdfast place list` shows them")
        return next((one for one in usable if one.name == name), None)
    return min(usable, key=lambda one: production.is_beside(one.root), default=None)


@contextlib.contextmanager
def own_folder(folder: Path, *, drill: str, tell: Tell) -> Generator[Path]:
    """The drill's folder, empty, for this run alone."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise BadInput(f"{folder} has files that no drill made", hint="name another folder with --folder")
    ensure_private_folder(folder)
    fd = open_private(folder / MARKER, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"another drill runs in {folder}", hint="wait until it ends, or give --folder DIR") from None
        left = os.pread(fd, 4096, 0)
        if left:
            tell(f"the last drill was killed ({_said(left)}): removing what it left in {folder}")
        clear(folder)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"drill": drill, "pid": os.getpid(), "began": _now()}).encode(), 0)
        try:
            yield folder
        finally:
            clear(folder)
            (folder / MARKER).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
    finally:
        os.close(fd)


def _said(marker: bytes) -> str:
    try:
        found = json.loads(marker)
        return f"{found['drill']}, {found['began']}"
    except (ValueError, KeyError, TypeError):
        return "its marker cannot be read"


def clear(folder: Path) -> None:
    """Remove everything but the marker. The kernel leaves folders without any right in the layers."""

    def unlocked(function: Callable[..., object], path: str, _error: object) -> None:
        for one in (os.path.dirname(path), path):
            with contextlib.suppress(OSError):
                if not os.path.islink(one):
                    os.chmod(one, stat.S_IRWXU)
        function(path)

    for one in folder.iterdir():
        if one.name == MARKER:
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, onerror=unlocked)
            if one.exists():
                shutil.rmtree(one)
        else:
            one.unlink()


def _now() -> str:
    return iso(time.time_ns() // 1_000_000)


# the report


def build_report(
    drill: Drill, order: DrillOrder, run: DrillRun | None, *, harm: list[str], reason: str, verdict: out.Verdict | None
) -> out.DrillReport:
    ended_ms = time.time_ns() // 1_000_000
    if run is not None:
        run.event("cleanup_done", "the drill's folder is removed; no process and no mount is left", actor="drill")
    targets = out.DrillTargets(
        rto_s=drill.rto_s if order.rto_s is None or drill.rto_s is None else order.rto_s,
        rpo_s=order.home.settings.backup.stale_after_h * 3600 if drill.rpo_s is None else drill.rpo_s,
        rpo_items=drill.rpo_items,
        mtd_s=None,
        identity="the same id",
        duplicates=0,
        lost=0,
        parked_max=drill.parked_max,
        source="defaults of Holdfast; data loss: stale_after_h of [backup]",
    )
    rto, rpo = _rto(run, targets), _rpo(run, targets)
    if verdict is None:
        reason, verdict = _judge(run, rto, rpo)
    if harm:
        reason, verdict = f"production was changed: {harm[0]}", "fail"
    previous, _ = out.read_folder(order.home)
    log = order.speaker.log()
    number = len(previous) + 1
    home = order.home
    return out.DrillReport(
        schema=out.SCHEMA,
        id=f"{datetime.now(UTC).date().isoformat()}-{drill.slug}-{number}",
        title=drill.title,
        version=1,
        software=_software(),
        type=drill.type,
        environment="shadow",
        infrastructure="fresh root" if run is not None and run.fresh else "this machine",
        key_used=run.key.kind if run is not None and run.key is not None and drill.words else "none",
        planned_interval_days=drill.interval_days,
        previous_drill=next(
            (one.report.id for one in reversed(previous) if one.report.scenario.drill == drill.slug), ""
        ),
        started=iso(ended_ms if run is None else run.began_ms),
        ended=iso(ended_ms),
        ended_ms=ended_ms,
        seed=order.seed,
        scenario=out.Scenario(
            code=drill.code,
            drill=drill.slug,
            narrative=drill.narrative,
            threat=drill.threat,
            likelihood=drill.likelihood,
            faults=() if run is None else tuple(run.faults),
        ),
        scope=out.Scope(
            agents=(out.AgentInScope(id=log.id, name=home.name, level_before=None, level_after=None),),
            state_surfaces=() if run is None else run.surfaces,
            out_of_scope=("the agent's own tasks: their tools have far ends that a drill must not reach",),
            excluded=(),
            why="",
        ),
        people=out.People(lead=order.lead or _user(), observers=(), approver="", absent_simulated=(), auditor=""),
        runbook=out.RunbookUsed(
            name=f"{drill.slug} of {home.name}",
            digest="" if run is None else run.procedure.digest,
            steps_followed=() if run is None else tuple(run.followed),
            steps_changed=() if run is None else tuple(run.changed),
        ),
        targets=targets,
        timeline=() if run is None else tuple(run.events),
        results=out.Results(
            rto=rto,
            rpo=rpo,
            effects=None if run is None else run.effects,
            identity=None if run is None else run.identity,
            state=None if run is None else run.state,
            backup=None if run is None else run.backup,
            connectivity=None,
            invariants=() if run is None else tuple(run.checks),
        ),
        deviations=() if run is None else tuple(run.deviations),
        findings=() if run is None else tuple(run.findings),
        lessons="",
        evidence=tuple(
            out.EvidenceFile(name=name, sha256=out.sha256_of(raw), size=len(raw), kind=kind)
            for name, (kind, raw) in sorted(({} if run is None else run.evidence).items())
        ),
        safety=out.Safety(
            blast_radius="a shadow: own mounts, processes and network; every write in the drill's folder",
            abort_criteria="Ctrl-C, or any change of production",
            aborted=False,
            production_impact_s=0.0,
            production_unchanged=not harm,
            cleanup_verified=not order.folder.exists(),
        ),
        verdict=verdict,
        reason=reason,
    )


def _rto(run: DrillRun | None, targets: out.DrillTargets) -> out.Rto:
    at = {} if run is None else {one.name: one.at_s for one in reversed(run.events)}  # the first of each name

    def between(first: str, second: str) -> float | None:
        return round(at[second] - at[first], 3) if first in at and second in at else None

    actual = between("fault_injected", "first_verified_step")
    parts = {name: between(first, second) for name, first, second in (*FIRST, *REST)}
    hand_s = run.key.hand_s if run is not None and run.key is not None else 0.0
    return out.Rto(
        target_s=targets.rto_s, actual_s=actual, **parts, hand_s=round(hand_s, 3), verdict=_met(actual, targets.rto_s)
    )


def _rpo(run: DrillRun | None, targets: out.DrillTargets) -> out.Rpo:
    from msgspec.structs import replace

    none = out.Rpo(
        target_s=targets.rpo_s,
        actual_s=None,
        actual_items=None,
        last_acked_commit=None,
        last_recovered_commit=None,
        lost_items={},
        verdict="not measured",
    )
    if run is None or run.rpo is None:
        return none
    items = _met(run.rpo.actual_items, targets.rpo_items)
    verdict = _met(run.rpo.actual_s, targets.rpo_s)
    return replace(run.rpo, target_s=targets.rpo_s, verdict="missed" if "missed" in (items, verdict) else verdict)


def _met(actual: float | None, target: float | None) -> out.Met:
    if actual is None or target is None:
        return "not measured"
    return "met" if actual <= target else "missed"


def _judge(run: DrillRun | None, rto: out.Rto, rpo: out.Rpo) -> tuple[str, out.Verdict]:
    """A failed target or check is never averaged away."""
    assert run is not None
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
    root = Path(__file__).parents[3]
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
    with locked(folder / ".lock"):
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
        write_pages(out.read_report(path))
    return path


def find_evidence_faults(found: out.SealedReport) -> list[str]:
    """What is wrong with the files of evidence beside a report; a copy of the report alone has none."""
    folder = found.path.with_suffix("")
    if not folder.is_dir():
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
