"""What a trial left, beside what the undisturbed run left. The far ends' books count effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from holdfast.downstream.ledger import Page
from holdfast.journal.records import TaskState
from holdfast_proofs.agent_kills.life import Found

FINDINGS_MAX = 20


class Figures(msgspec.Struct, kw_only=True):
    """What the trials of one example came to."""

    example: str
    calls: int = 0  # of the undisturbed run
    points: int = 0  # kills
    distinct: int = 0
    unreached: int = 0
    duplicates: int = 0
    lost: int = 0
    parked: int = 0
    other_answers: int = 0
    other_files: int = 0
    torn_prompts: int = 0
    resumed: int = 0  # trials in which the second program took the task over
    seconds: float = 0.0
    findings: list[str] = []

    @property
    def green(self) -> bool:
        wrong = self.duplicates + self.lost + self.parked + self.other_answers
        return wrong + self.other_files + self.torn_prompts == 0 and self.points > 0


Books = Mapping[str, Counter[str]]  # by task: effects by far end


def count_effects(pages: Mapping[str, Page]) -> dict[str, Counter[str]]:
    """How often each far end did something for a task, by what it was asked for."""
    found: dict[str, Counter[str]] = {}
    for name, page in pages.items():
        for effect in page.effects:
            found.setdefault(effect.task or "", Counter())[f"{name} {effect.body}"] += 1
    return found


def judge(figures: Figures, where: str, found: Found, whole: Found, books: Books) -> None:
    """Count what differs."""
    done, wanted = books.get(found.task_id, Counter()), books.get(whole.task_id, Counter())
    twice = sum((done - wanted).values())
    missing = sum((wanted - done).values())
    if twice:
        figures.duplicates += twice
        _note(figures, f"{where}: done too often: {dict(done - wanted)}")
    if missing:
        figures.lost += missing
        _note(figures, f"{where}: not done: {dict(wanted - done)}")
    if found.state == TaskState.PARKED:
        figures.parked += 1
        _note(figures, f"{where}: parked: {found.question}")
    elif found.state != whole.state:
        figures.lost += 1
        _note(figures, f"{where}: the task is {found.state}, not {whole.state}")
    elif found.answer != whole.answer:
        figures.other_answers += 1
        _note(figures, f"{where}: the answer is {found.answer!r}, not {whole.answer!r}")
    if found.files != whole.files:
        figures.other_files += 1
        _note(figures, f"{where}: files {sorted(found.files)}, not {sorted(whole.files)}")
    if found.torn:
        figures.torn_prompts += len(found.torn)
        _note(figures, f"{where}: prompts of steps {found.torn} are not what was recorded")
    figures.resumed += found.claims > whole.claims


def _note(figures: Figures, finding: str) -> None:
    if len(figures.findings) < FINDINGS_MAX:
        figures.findings.append(finding)
