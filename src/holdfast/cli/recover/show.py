"""What `holdfast recover` shows: what it found, what it would do, what it skipped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.restore.restore_home import RestoreReport
from holdfast.cli.screen.screen import ago, one_line, talk
from holdfast.core.clock import iso
from holdfast.errors import ArchiveRefused, BackupDamaged, RepositoryDamaged
from holdfast.identity.log.log_state import LogStanding
from holdfast.layout.covering import is_no_loss
from holdfast.recovery.survey import Survey

SHOWN_MAX = 20  # of links and of notes
_DAMAGE = frozenset((RepositoryDamaged.code, BackupDamaged.code, ArchiveRefused.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecovery:
    """What the command would do."""

    folder: Path
    vault: Path
    second: Path
    keep_keys: bool
    files: RestoreReport | None = None  # of single files, or of a whole one that is only unpacked

    def evicts(self, survey: Survey) -> bool:
        return not self.keep_keys and survey.log.standing is not LogStanding.LOCKED


def show_survey(survey: Survey) -> None:
    log = survey.log
    changed = f" ({survey.change}: check the sheet)" if survey.change else ""
    talk(f"agent {log.id}{changed}")
    talk(f"identity: {log.standing.value}, key log at {log.position}")
    newest = survey.overview.chain.newest
    for one in survey.overview.places:
        if one.error is not None:
            talk(f"place {one.place.name}: cannot be read: {one.error.message}")
            talk(f"hint: {one.place.name}: {one.error.hint}")
        elif one.newest is None:
            talk(f"place {one.place.name}: has no snapshot that the agent signed")
        else:
            head = one.newest.record
            lag = (
                "the newest"
                if one.lag is None
                else (
                    f"{one.lag.generations} snapshots behind, {ago(one.lag.seconds * 1000)}"
                    + ("" if one.lag.steps is None else f", {one.lag.steps} records of the journal")
                )
            )
            talk(f"place {one.place.name}: snapshot {head.seq} of {iso(head.at * 1000)}: {lag}")
        for finding in one.findings:
            talk(f"place {one.place.name}: {finding}")
    for finding in survey.overview.findings:
        talk(finding)
    told = {one.place.name for one in survey.overview.places if one.error is not None}
    for place, why in survey.failed.items():
        if place not in told:
            talk(f"{place}: {why}")
    for text in survey.unplaced:
        talk(f"WARNING: {text}")
    if newest is None or survey.chosen is None:
        return
    chosen = survey.chosen.record
    if chosen.seq < newest.record.seq and survey.at is None:
        talk(f"WARNING: snapshot {newest.record.seq} exists, but no place that Holdfast could read has it")
    talk(
        f"to be restored: snapshot {chosen.seq} of {iso(chosen.at * 1000)}, "
        f"{chosen.files:,} files, {chosen.bytes:,} bytes"
    )


def show_plan(survey: Survey, would: PlannedRecovery) -> None:
    """What would be restored, and where."""
    if would.files is not None:
        talk(f"into {would.files.target}: {would.files.files:,} files, {would.files.bytes:,} bytes")
        for path in would.files.paths[:20]:
            talk(f"  {path}")
        if len(would.files.paths) > 20:
            talk(f"  and {len(would.files.paths) - 20} more")
        return
    kept = "; Holdfast keeps the folder that is there now under another name" if os.path.lexists(would.folder) else ""
    talk(f"into {would.folder}{kept}")
    if would.keep_keys:
        talk(f"identity: the keys in {would.vault} do not change")
    else:
        out = ", and holders of the old keys would be locked out" if would.evicts(survey) else ""
        talk(f"identity: the words would recover it: new keys would be in {would.vault}{out}")


def show_loss(report: RestoreReport, *, said: bool) -> None:
    """What was not restored, and why. `said`: skipped snapshots were reported as it happened."""
    for one in () if said else report.passed:
        talk(f"skipped at {one.place}: {one.archive}: {one.message}")
    for name in dict.fromkeys(one.place for one in report.passed if one.error in _DAMAGE):
        talk(f"hint: place {name} returned damaged data: check its disk, or use another disk")
    for one in report.damaged:
        talk(f"DAMAGED, not restored: {one.path}: {one.message}")
    if report.damaged:
        talk("hint: an older snapshot may have good copies: --at TIME; all other files were restored")
    _show_left(report)
    if report.behind is not None:
        lag = report.behind
        steps = "" if lag.steps is None else f", {lag.steps:,} records of the journal"
        talk(
            f"WARNING: restored snapshot {report.seq}, but the newest is {report.newest_known}. Missing: "
            f"{lag.generations} snapshots, {ago(lag.seconds * 1000)}{steps}"
        )


def _show_left(report: RestoreReport) -> None:
    """What is missing although the agent had it: links that are not made, and files that no snapshot
    holds. What Holdfast leaves out for every agent is not reported."""
    for path in report.links_left[:SHOWN_MAX]:
        talk(f"link not restored: {one_line(path)} points outside the agent's folder")
    more = report.links_left_count - min(len(report.links_left), SHOWN_MAX)
    if more > 0:
        talk(f"{more:,} more links were not restored")
    links = frozenset(report.links_left)
    notes = [
        one for one in report.notes if one.path not in links and not is_no_loss(one.text.removeprefix("left out: "))
    ]
    for one in notes[:SHOWN_MAX]:
        where = f"{one_line(one.path)}: " if one.path else ""
        talk(f"note of the snapshot: {where}{one_line(one.text)}")
    if report.notes_count > len(report.notes) or len(notes) > SHOWN_MAX:
        more = report.notes_count - len(report.notes) + max(len(notes) - SHOWN_MAX, 0)
        talk(f"{more:,} more notes of the snapshot; --json lists more of them")
    if any(one.text.startswith("left out") for one in notes):
        talk("hint: files that were left out are in no backup: copy them from another source")


def survey_json(survey: Survey) -> dict[str, object]:
    newest = survey.overview.chain.newest
    return {
        "id": survey.log.id,
        "standing": survey.log.standing.value,
        "key_used": survey.key_used,
        "words_repaired": survey.change,
        "newest": None if newest is None else newest.record.seq,
        "places": [
            {
                "name": one.place.name,
                "error": None if one.error is None else one.error.message,
                "code": None if one.error is None else one.error.code,
                "hint": None if one.error is None else one.error.hint,
                "newest": None if one.newest is None else one.newest.record.seq,
                "behind": None
                if one.lag is None
                else {"snapshots": one.lag.generations, "records": one.lag.steps, "seconds": one.lag.seconds},
                "findings": list(one.findings),
            }
            for one in survey.overview.places
        ],
        "findings": [*survey.overview.findings, *survey.unplaced],
        "unreachable": dict(survey.failed),
    }


def plan_json(survey: Survey, would: PlannedRecovery) -> dict[str, object] | None:
    """None where nothing could be restored."""
    if survey.chosen is None:
        return None
    head = survey.chosen.record
    made: dict[str, object] = {
        "snapshot": {
            "seq": head.seq,
            "archive": head.archive,
            "at": head.at,
            "time": iso(head.at * 1000),
            "incarnation": head.e,
            "files": head.files,
            "bytes": head.bytes,
            "journal_sequence": None if head.journal is None else head.journal.sequence,
            "places": [one.place.name for one in survey.overview.places if survey.chosen in one.held],
        },
        "target": str(would.folder),
        "target_kept": os.path.lexists(would.folder),
        "identity": {
            "act": "keep" if would.keep_keys else "recover",
            "evicts": would.evicts(survey),
            "position": list(survey.log.position),
            "vault": str(would.vault),
            "second": str(would.second),
        },
        "files": None,
    }
    if would.files is not None:
        made |= {"target": would.files.target, "target_kept": False, "identity": None, "files": would.files}
    return made
