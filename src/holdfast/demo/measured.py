"""The drill report of the demo's own lost machine, and the level of the agent that came back.

The demo loses a machine for real, so nothing is rehearsed a second time: what it sees becomes the timeline, the checks
and the figures of a report of `host-loss`, built, judged and sealed as `holdfast drill run` does it. The report says
what is different: the demo's machines are folders, no namespaces are needed, and the steps are called, not typed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict as fields_of
from msgspec.structs import replace

from holdfast.core.clock import SystemClock, iso
from holdfast.drills.catalogue import get_drill
from holdfast.drills.document.build import build_report, write_report
from holdfast.drills.document.export import figures
from holdfast.drills.host_loss import compare_state, measure_loss
from holdfast.drills.production import Covered, hashes_in, list_covered
from holdfast.drills.production import look as look_at_agent
from holdfast.drills.run import DrillKey, DrillOrder, DrillRun
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.layout.agent_home import AgentHome
from holdfast.recovery.recover_agent import RecoveredAgent
from holdfast.surfaces import report as out
from holdfast.surfaces.register import Register, look_now

DRILL = "host-loss"
SHOWN = ("recovery time", "data lost", "items lost", "effects made twice")
OTHERWISE = (
    "the machines are folders of one machine, and the lost one is deleted",
    "the demo calls the code of `holdfast recover`; the drill `host-loss` runs the command on a fresh root",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What was asked of the agent that came back, and whether its answer is that of the lost one."""

    challenge: str
    answer: str
    same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMachine:
    """The report, for people, and its figures."""

    title: str
    figures: tuple[tuple[str, str, str, str], ...]  # what, target, actual, verdict
    verdict: str
    reason: str
    signed: str  # who sealed it
    path: str
    rto_s: float | None
    rpo_items: int | None
    level: int
    level_lines: tuple[str, ...]  # as `holdfast level show` begins


@dataclass(slots=True)
class Recorder:
    """What is noted while the machine is lost and the agent returns."""

    run: DrillRun
    register: Register  # before the loss
    covered: Covered

    def event(self, name: str, evidence: str, *, at_ms: int | None = None) -> None:
        self.run.event(name, evidence, actor="demo", at_ms=at_ms)


async def start_recorder(home: AgentHome, register: Register, *, place: Path, began: float, began_ms: int) -> Recorder:
    """Look at the agent for the last time: its worker is dead, and its folder is still there."""
    production = await look_at_agent(home)
    run = DrillRun(
        slug=DRILL,
        production=production,
        folder=home.folder.parent / "drill",
        copies=(),
        key=DrillKey(kind="words"),
        place=next(one for one in production.places if one.root == place),
        seed=0,
        began=began,
        began_ms=began_ms,
    )
    run.deviations += OTHERWISE
    if production.is_beside(place):
        run.find("major", f"place {place.name} is on the disk of the agent's folder: a real loss takes both")
    return Recorder(run, register, list_covered(home))


def note_loss(recorder: Recorder, *, lost_ms: int, baseline: str) -> None:
    run = recorder.run
    recorder.event("baseline_taken", baseline, at_ms=lost_ms)
    how = "the worker is killed inside a payment; folder, vault, witness and one place are deleted"
    run.faults.append(out.Fault(at=iso(lost_ms), what="server death", how=how, target="the machine of the demo"))
    recorder.event("fault_injected", "server death", at_ms=lost_ms)
    recorder.event("detected", "the worker's process is gone")
    recorder.event("declared", "host lost")
    recorder.event("recovery_started", "with 24 words and one place")


def note_restored(recorder: Recorder, back: RecoveredAgent, asked: Challenge, *, seconds: float) -> None:
    """The files are there and nothing runs yet: they are compared now."""
    run, restored = recorder.run, back.restored
    assert restored is not None  # the folder was deleted
    before = run.production.journal
    at = iso(restored.at * 1000)
    recorder.event("identity_unlocked", f"words; id {back.log.id}")
    recorder.event("state_restored", f"snapshot {restored.seq} of {at} from {restored.place}: {restored.files} files")
    suspect = 0 if back.journal is None else back.journal.open_tasks
    recorder.event("journal_reconciled", f"{suspect} open tasks in doubt")
    run.check("identity", asked.same, "an answer under the same id" if asked.same else "another id answers")
    run.identity = out.IdentityResult(
        agent_id_before=run.production.log.id,
        agent_id_after=back.log.id,
        challenge=asked.challenge,
        answer=asked.answer,
        verifier="the demo, which has the key log of before the loss",
        witnesses_confirming=len(back.home.witnesses),
        incarnation_before=None if before is None else before.incarnation,
        incarnation_after=None if back.journal is None else back.journal.incarnation,
        old_instance_refused=None,
        same=asked.same,
    )
    run.state = compare_state(run, hashes_in(back.home.state), snapshot_s=restored.at, covered=recorder.covered)
    run.backup = out.BackupResult(
        places=tuple(one.name for one in run.production.places),
        archive=restored.archive,
        age_s=round(max(0.0, run.began_ms / 1000 - restored.at), 3),
        check_rc=0,
        files_restored=restored.files,
        bytes=restored.bytes,
        seconds=round(seconds, 3),
        key_used="words",
    )


async def finish(recorder: Recorder, back: RecoveredAgent, *, tasks: set[str]) -> LostMachine:
    """Count what was lost, judge and seal the report, and look at the level of the agent that came back."""
    run, home = recorder.run, back.home
    assert back.restored is not None
    measure_loss(run, fields_of(back.restored), tasks=tasks)
    found = await asyncio.to_thread(_write, recorder, home)
    report, level = found.report, (await look_now(home)).level
    following = level.next
    next_lines = () if following is None else (f"next: {following.fix}", f"      because {following.why}")
    return LostMachine(
        title=f"{report.scenario.code} {report.title}",
        figures=tuple(row for row in figures(report) if row[0] in SHOWN),
        verdict=report.verdict,
        reason=report.reason,
        signed=f"{found.seal.record.id}, seal {found.seal.record.n}",
        path=str(found.path),
        rto_s=report.results.rto.actual_s,
        rpo_items=report.results.rpo.actual_items,
        level=level.level,
        level_lines=(level.text, f"{level.name}: {level.meaning}", *next_lines),
    )


def _write(recorder: Recorder, home: AgentHome) -> out.SealedReport:
    run = recorder.run
    speaker = open_speaker(home, SystemClock())
    order = DrillOrder(home=home, folder=run.folder, speaker=speaker, key=run.key, lead="holdfast demo")
    report = build_report(get_drill(DRILL), order, run, recorder.register, harm=[], reason="", verdict=None)
    safety = replace(report.safety, blast_radius="the folder of the demo", abort_criteria="Ctrl-C")
    report = replace(report, environment="isolated", safety=safety)
    write_report(order, report, run.evidence)
    good, faults = out.read_folder(home)
    if faults or not good:
        raise AssertionError(f"the report that was just sealed does not count: {faults}")
    return good[-1]
