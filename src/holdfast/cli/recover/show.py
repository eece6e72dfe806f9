"""What `holdfast recover` shows: what was found, what would be done, what was passed over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.backup.archive.manifest import Note
from holdfast.backup.restore.restore_home import RestoreReport
from holdfast.cli.screen.screen import ago, talk
from holdfast.cli.screen.text import one_line
from holdfast.core.clock import iso
from holdfast.errors import ArchiveRefused, BackupDamaged, RepositoryDamaged
from holdfast.identity.log.log_state import LogStanding
from holdfast.layout.covering import is_no_loss
from holdfast.recovery.survey import Survey

SHOWN_MAX = 20  # of links and of notes
_DAMAGE = frozenset((RepositoryDamaged.code, BackupDamaged.code, ArchiveRefused.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Would:
    """What the command is about to do."""

    folder: Path
    vault: Path
    second: Path | None  # None where it would be asked for
    keep_keys: bool
    files: RestoreReport | None = None  # of single files, or of a whole one that is only unpacked

    def evicts(self, survey: Survey) -> bool:
        return not self.keep_keys and survey.log.standing is not LogStanding.LOCKED


def show_view(survey: Survey) -> None:
    log = survey.log
    changed = f" ({survey.change}: look at the sheet)" if survey.change else ""
    talk(f"agent {log.id}{changed}")
    talk(f"its log stands at {tuple(log.position)}, {log.standing.value}")
    newest = survey.overview.chain.newest
    for one in survey.overview.places:
        if one.error is not None:
            talk(f"place {one.place.name}: cannot be read: {one.error.message}")
            talk(f"hint: {one.place.name}: {one.error.hint}")
        elif one.newest is None:
            talk(f"place {one.place.name}: holds no snapshot that the agent signed")
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
        talk(f"WARNING: snapshot {newest.record.seq} is known of, and no place that answers holds it")
    talk(
        f"to be restored: snapshot {chosen.seq} of {iso(chosen.at * 1000)}, "
        f"{chosen.files:,} files, {chosen.bytes:,} bytes"
    )


def show_would(survey: Survey, would: Would) -> None:
    """The rest of a look, in words."""
    if would.files is not None:
        talk(f"into {would.files.target}: {would.files.files:,} files, {would.files.bytes:,} bytes")
        for path in would.files.paths[:20]:
            talk(f"  {path}")
        if len(would.files.paths) > 20:
            talk(f"  and {len(would.files.paths) - 20} more")
        return
    talk(f"into {would.folder}" + _kept(would.folder))
    if would.keep_keys:
        talk(f"identity: the keys in {would.vault} stay; nobody is evicted")
    else:
        out = "; whoever holds the old keys is evicted" if would.evicts(survey) else ""
        talk(f"identity: recovered by the paper; new keys in {would.vault}{out}")


def show_loss(report: RestoreReport, *, said: bool) -> None:
    """What was not restored, and why: never in silence. `said`: what was passed over was told as
    it happened."""
    for one in () if said else report.passed:
        talk(f"passed over at {one.place}: {one.archive}: {one.message}")
    for name in dict.fromkeys(one.place for one in report.passed if one.error in _DAMAGE):
        talk(f"hint: place {name} gave damaged data: look at its disk; a new one is better than going on with it")
    for one in report.damaged:
        talk(f"DAMAGED, not restored: {one.path}: {one.message}")
    if report.damaged:
        talk("hint: an older snapshot may have them whole: --at TIME; the others were restored")
    _show_left(report)
    if report.behind is not None:
        lag = report.behind
        steps = "" if lag.steps is None else f", {lag.steps:,} records of the journal"
        talk(
            f"WARNING: snapshot {report.seq} was taken, and {report.newest_known} is known of: "
            f"{lag.generations} snapshots, {ago(lag.seconds * 1000)}{steps} are not in it"
        )


def _show_left(report: RestoreReport) -> None:
    """What is not there although the agent had it: links that are not made, and what no snapshot
    holds. Holdfast's own left-outs are the same of every agent, and are no news."""
    for path in report.links_left[:SHOWN_MAX]:
        talk(f"not made: {one_line(path)}: a link that leads outside of the agent's folder")
    _count("links", report.links_left_count, min(len(report.links_left), SHOWN_MAX))
    links = frozenset(report.links_left)
    notes = [one for one in report.notes if one.path not in links and not _is_no_news(one)]
    for one in notes[:SHOWN_MAX]:
        where = f"{one_line(one.path)}: " if one.path else ""
        talk(f"of the snapshot: {where}{one_line(one.text)}")
    if report.notes_count > len(report.notes) or len(notes) > SHOWN_MAX:
        more = report.notes_count - len(report.notes) + max(len(notes) - SHOWN_MAX, 0)
        talk(f"of the snapshot: {more:,} notes more: --json has them, or the first of many")
    if any(one.text.startswith("left out") for one in notes):
        talk("hint: what was left out is in no backup: bring it from where you keep such things")


def _is_no_news(one: Note) -> bool:
    return is_no_loss(one.text.removeprefix("left out: "))


def _count(what: str, every: int, shown: int) -> None:
    if every > shown:
        talk(f"not made: {every - shown:,} {what} more")


def view_json(survey: Survey) -> dict[str, object]:
    newest = survey.overview.chain.newest
    return {
        "id": survey.log.id,
        "standing": survey.log.standing.value,
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


def would_json(survey: Survey, would: Would) -> dict[str, object] | None:
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
            "second": None if would.second is None else str(would.second),
        },
        "files": None,
    }
    if would.files is not None:
        made |= {
            "target": would.files.target,
            "target_kept": False,
            "identity": None,
            "files": msgspec.to_builtins(would.files),
        }
    return made


def _kept(folder: Path) -> str:
    return "; what is there now is kept beside it" if os.path.lexists(folder) else ""
