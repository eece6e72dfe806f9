"""A report for people: Markdown, and one HTML page without scripts that prints on paper. Both say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from holdfast.surfaces.report import DrillReport, SealedReport

Rows = Sequence[Sequence[str]]
WIDTH, LEFT, ROW = 720, 190, 22
MEANING = (
    "Recovery time: from fault_injected to first_verified_step. Data lost: from the newest recovered commit to the "
    "newest acknowledged one."
)
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 760px; margin: 2em auto; padding: 0 1em; color: #111; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 1.8em; border-bottom: 1px solid #999; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; }
td, th { text-align: left; vertical-align: top; padding: 3px 10px 3px 0; border-bottom: 1px solid #ddd; }
td { overflow-wrap: anywhere; }
.verdict { font-size: 1.3em; font-weight: 700; border: 2px solid #111; display: inline-block; padding: 4px 12px; }
svg { max-width: 100%; height: auto; } @media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    head: Sequence[str]
    rows: Rows


def number(value: float | int | None, unit: str = "") -> str:
    return "not measured" if value is None else f"{value:g}{unit}"


def target(value: float | int | None, unit: str = "") -> str:
    return "none" if value is None else f"{value:g}{unit}"


def sections(found: SealedReport) -> list[Section]:
    """Everything that a reader must see, in order."""
    report = found.report
    rto, rpo, effects = report.results.rto, report.results.rpo, report.results.effects
    identity, state, backup = report.results.identity, report.results.state, report.results.backup
    lost = ", ".join(f"{count} {name}" for name, count in rpo.lost_items.items())
    figures = [
        ("recovery time", target(rto.target_s, " s"), number(rto.actual_s, " s"), rto.verdict),
        ("typed by hand before it", "", number(rto.hand_s, " s"), ""),
        ("data lost", target(rpo.target_s, " s"), number(rpo.actual_s, " s"), rpo.verdict),
        ("items lost", target(report.targets.rpo_items), f"{number(rpo.actual_items)} ({lost or 'none counted'})", ""),
    ]
    if effects is not None:
        figures.append(
            ("effects made twice", "0", str(effects.duplicates), "met" if not effects.duplicates else "missed")
        )
    if identity is not None:
        figures.append(("identity", "the same id", identity.agent_id_after, "met" if identity.same else "missed"))
    otherwise = (*report.runbook.steps_changed, *report.deviations)
    timeline = [(f"{one.at_s:.3f}", one.name, one.actor, one.evidence) for one in report.timeline]
    parts = [
        Section("Figures", ("what", "target", "actual", "verdict"), figures),
        Section("Events", ("second", "event", "who", "evidence"), timeline),
        Section(
            "Checks",
            ("check", "passed", "evidence"),
            [(one.code, "yes" if one.passed else "NO", one.evidence) for one in report.results.invariants],
        ),
        Section(
            "Files that tools leave",
            ("tool", "ran", "ended", "files that no backup has"),
            [(one.tool, one.ran, one.ended, ", ".join(one.files) or "none") for one in report.results.files or ()],
        ),
        Section(
            "Findings",
            ("severity", "finding", "retest"),
            [(one.severity, one.description, one.retest) for one in report.findings],
        ),
        Section("What was done", ("step",), [(one,) for one in report.runbook.steps_followed]),
        Section("What was done otherwise", ("step",), [(one,) for one in otherwise]),
    ]
    facts: list[tuple[str, str]] = []
    if state is not None:
        facts.append(("files compared", f"{state.files_compared}; differing: {', '.join(state.differing) or 'none'}"))
    if backup is not None:
        facts.append(("backup", f"{backup.archive}, opened with: {backup.key_used}"))
    software = f"Holdfast {report.software.version} {report.software.commit[:12]}".strip()
    facts += [
        ("environment", f"{report.environment}, {report.infrastructure}; seed {report.seed}"),
        ("production", "unchanged" if report.safety.production_unchanged else "CHANGED"),
        ("people", f"lead {report.people.lead}; approver {report.people.approver or 'not named'}"),
        ("software", software),
        ("previous drill", report.previous_drill or "none"),
    ]
    parts.append(Section("Facts", ("what", "value"), facts))
    evidence = [(one.name, one.kind, str(one.size), one.sha256) for one in report.evidence]
    parts.append(Section("Evidence", ("file", "kind", "bytes", "sha256"), evidence))
    seal = found.seal.record
    signed = [(one.role, one.name, one.time, one.key_id) for one in found.file.signoff]
    signed.insert(0, ("the agent", seal.id, report.ended, f"seal {seal.n}: {found.seal.digest}"))
    parts.append(Section("Signatures", ("role", "name", "time", "key"), signed))
    return [one for one in parts if one.rows]


def headline(report: DrillReport) -> str:
    return f"{report.scenario.code} {report.title}: {report.verdict}"


def markdown(found: SealedReport) -> str:
    report = found.report
    lines = [f"# {headline(report)}", "", *_paragraphs(report)]
    for part in sections(found):
        lines += ["", f"## {part.title}", "", f"| {' | '.join(part.head)} |", f"|{'---|' * len(part.head)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in part.rows]
    return "\n".join(lines) + "\n"


def _paragraphs(report: DrillReport) -> list[str]:
    why = [f"Why: {report.reason}", ""] if report.reason else []
    return [f"{report.id}, {report.started} to {report.ended}", "", report.scenario.narrative, "", *why, MEANING]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def html(found: SealedReport) -> str:
    report = found.report
    body = [f"<h1>{escape(report.scenario.code)} {escape(report.title)}</h1>"]
    body.append(f'<p class="verdict">{escape(report.verdict)}</p>')
    body += [f"<p>{escape(one)}</p>" for one in _paragraphs(report) if one]
    if report.timeline:
        body += ["<h2>Timeline</h2>", timeline_svg(report)]
    for part in sections(found):
        head = "".join(f"<th>{escape(one)}</th>" for one in part.head)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in part.rows)
        body.append(f"<h2>{escape(part.title)}</h2><table><tr>{head}</tr>{rows}</table>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(headline(report))}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"{''.join(body)}</body></html>\n"
    )


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
