"""A report for people: Markdown, and one HTML page without scripts that prints on paper. Both say the same."""

from __future__ import annotations

import contextlib
from html import escape

from holdfast.errors import HoldfastError
from holdfast.surfaces import page
from holdfast.surfaces.report import DrillReport, SealedReport, read_report

WIDTH, LEFT, ROW = 720, 190, 22
MEANING = (
    "Recovery time: from fault_injected to first_verified_step. Data lost: from the newest recovered commit to the "
    "newest acknowledged one."
)


def number(value: float | int | None, unit: str = "") -> str:
    return "not measured" if value is None else f"{value:g}{unit}"


def target(value: float | int | None, unit: str = "") -> str:
    return "none" if value is None else f"{value:g}{unit}"


def figures(report: DrillReport) -> list[tuple[str, str, str, str]]:
    """What was measured, beside its target."""
    rto, rpo, effects = report.results.rto, report.results.rpo, report.results.effects
    identity = report.results.identity
    lost = ", ".join(f"{count} {name}" for name, count in rpo.lost_items.items())
    rows = [
        ("recovery time", target(rto.target_s, " s"), number(rto.actual_s, " s"), rto.verdict),
        ("typed by hand before it", "", number(rto.hand_s, " s"), ""),
        ("data lost", target(rpo.target_s, " s"), number(rpo.actual_s, " s"), rpo.verdict),
        ("items lost", target(report.targets.rpo_items), f"{number(rpo.actual_items)} ({lost or 'none counted'})", ""),
    ]
    if effects is not None:
        rows.append(("effects made twice", "0", str(effects.duplicates), "met" if not effects.duplicates else "missed"))
    if identity is not None:
        rows.append(("identity", "the same id", identity.agent_id_after, "met" if identity.same else "missed"))
    return rows


def _beside_previous(found: SealedReport) -> list[tuple[str, ...]]:
    """The figures, and those of the report before it of the same drill, if that file is beside it."""
    before: dict[str, str] = {}
    if found.report.previous_drill:
        with contextlib.suppress(HoldfastError):
            previous = read_report(found.path.with_name(f"{found.report.previous_drill}.json")).report
            before = {what: actual for what, _, actual, _ in figures(previous) if what != "identity"}
    rows = figures(found.report)
    return [(what, target, actual, before.get(what, ""), verdict) for what, target, actual, verdict in rows]


def _tables(found: SealedReport) -> dict[str, page.Table]:
    """Everything that a reader must see, by title, in order."""
    report, seal = found.report, found.seal.record
    state, backup, mail = report.results.state, report.results.backup, report.results.connectivity
    otherwise = (*report.runbook.steps_changed, *report.deviations)
    timeline = [(f"{one.at_s:.3f}", one.name, one.actor, one.evidence) for one in report.timeline]
    checks = [(one.code, "yes" if one.passed else "NO", one.evidence) for one in report.results.invariants]
    files = [(one.tool, one.ran, one.ended, ", ".join(one.files) or "none") for one in report.results.files or ()]
    findings = [(one.severity, one.description, one.retest) for one in report.findings]
    facts: list[tuple[str, str]] = []
    if state is not None:
        facts.append(("files compared", f"{state.files_compared}; differing: {', '.join(state.differing) or 'none'}"))
    if backup is not None:
        facts.append(("backup", f"{backup.archive}, opened with: {backup.key_used}"))
    if mail is not None:
        said = f"{mail.received} of {mail.sent} messages that were sent after the fault arrived; {mail.lost} lost"
        facts.append(("mail", f"{said}; the first one after {number(mail.failover_s, ' s')}"))
    software = f"Holdfast {report.software.version} {report.software.commit[:12]}".strip()
    facts += [
        ("environment", f"{report.environment}, {report.infrastructure}; seed {report.seed}"),
        ("production", "unchanged" if report.safety.production_unchanged else "CHANGED"),
        ("people", f"lead {report.people.lead}; approver {report.people.approver or 'not named'}"),
        ("software", software),
        ("previous drill", report.previous_drill or "none"),
    ]
    evidence = [(one.name, one.kind, str(one.size), one.sha256) for one in report.evidence]
    signed = [("the agent", seal.id, report.ended, f"seal {seal.n}: {found.seal.digest}")]
    signed += [(one.role, one.name, one.time, one.key_id) for one in found.file.signoff]
    return {
        "Figures": page.Table(("what", "target", "actual", "previous run", "verdict"), _beside_previous(found)),
        "Events": page.Table(("second", "event", "who", "evidence"), timeline),
        "Checks": page.Table(("check", "passed", "evidence"), checks),
        "Files that tools leave": page.Table(("tool", "ran", "ended", "files that no backup has"), files),
        "Findings": page.Table(("severity", "finding", "retest"), findings),
        "What was done": page.Table(("step",), [(one,) for one in report.runbook.steps_followed]),
        "What was done otherwise": page.Table(("step",), [(one,) for one in otherwise]),
        "Facts": page.Table(("what", "value"), facts),
        "Evidence": page.Table(("file", "kind", "bytes", "sha256"), evidence),
        "Signatures": page.Table(("role", "name", "time", "key"), signed),
    }


def markdown(found: SealedReport) -> str:
    return page.markdown(_blocks(found))


def html(found: SealedReport) -> str:
    report = found.report
    return page.html(f"{report.scenario.code} {report.title}: {report.verdict}", _blocks(found))


def _blocks(found: SealedReport) -> list[page.Block]:
    report = found.report
    title = f"{report.scenario.code} {report.title}"
    blocks: list[page.Block] = [page.Heading(title, 1), page.Text(report.verdict, strong=True)]
    blocks += [page.Text(one) for one in _paragraphs(report)]
    if report.timeline:
        blocks.append(page.Picture(timeline_svg(report)))
    for name, table in _tables(found).items():
        if table.rows:
            blocks += [page.Heading(name), table]
    return blocks


def _paragraphs(report: DrillReport) -> list[str]:
    why = [f"Why: {report.reason}"] if report.reason else []
    return [f"{report.id}, {report.started} to {report.ended}", report.scenario.narrative, *why, MEANING]


def timeline_svg(report: DrillReport) -> str:
    """One row an event: its name, a line to its moment, its second. Nothing depends on a colour."""
    events = report.timeline
    first, last = events[0].at_s, max(one.at_s for one in events)
    scale = (WIDTH - LEFT - 80) / max(last - first, 0.001)
    rows: list[str] = []
    for index, one in enumerate(events):
        y, x = ROW * index + ROW // 2, LEFT + (one.at_s - first) * scale
        rows.append(
            f'<text x="0" y="{y + 4}" font-size="13">{escape(one.name)}</text>'
            f'<line x1="{LEFT}" y1="{y}" x2="{x:.1f}" y2="{y}" stroke="#111"/>'
            f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="#111"/>'
            f'<text x="{x + 8:.1f}" y="{y + 4}" font-size="12">{one.at_s:.1f} s</text>'
        )
    height = ROW * len(events)
    label = escape(f"Timeline of {report.id} in seconds")
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(rows)}</svg>'
