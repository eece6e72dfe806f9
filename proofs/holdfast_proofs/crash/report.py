"""Figures of a crash suite, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast_proofs.crash.judge import Verdict

FINDINGS_MAX = 20


class Figures(msgspec.Struct, kw_only=True):
    """What a sweep of one class came to."""

    name: str
    shape: str = ""  # outliving: what the code that outlives its attempt is
    steps: int = 3
    points: int = 0  # kills
    distinct: int = 0  # different calls, by name, place, occurrence and side
    product: int = 0  # pairs: how many second points the first ones had in all
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: int = 0
    poisoned: int = 0  # parked because programs lost their lease too often
    may_poison: bool = False  # whether it may: many programs, short leases, a busy machine
    in_doubt: int = 0  # kills after a send had begun and before its result was recorded
    needless_parks: int = 0
    unreached: int = 0  # lives that passed to their end
    decided: int = 0  # outliving: trials in which a person was asked
    killed: int = 0  # zombies that the dead-man timer killed
    dead_after_s_max: float = 0.0
    racers: int = 0  # programs that raced
    resumed_after_s_max: float = 0.0  # full disks: from the room's return to the end
    recorded_when_full: int = 0  # answers that the reserve had room for
    seconds: float = 0.0
    cpu_s: float = 0.0  # of all programs but the far end
    found: int = 0  # flips that were found
    harmless: int = 0  # flips that changed no answer
    kinds: dict[str, int] = {}  # flips by kind of byte
    letters: dict[str, int] = {}  # broken invariants, as docs/formats/effect-protocol.md
    findings: list[str] = []
    again: list[str] = []  # options that run a trial with findings alone

    @property
    def green(self) -> bool:
        wrong = self.duplicates + self.lost + self.silent + self.breaches + self.needless_parks
        wrong += 0 if self.may_poison else self.poisoned
        return wrong == 0 and (self.parked == 0 or self.name == "unrepeatable")

    @property
    def label(self) -> str:
        return f"{self.name}, {self.shape}" if self.shape else self.name

    @property
    def per_core(self) -> float:
        """Kills per second of processor time."""
        return self.points / self.cpu_s if self.cpu_s else 0.0

    def add(self, verdict: Verdict, *, where: str, again: str = "") -> None:
        """Count the verdict; `again` is what the command line needs to run this trial alone."""
        self.duplicates += verdict.duplicates
        self.lost += verdict.lost
        self.silent += verdict.silent
        self.breaches += verdict.breaches
        self.parked += verdict.parked
        self.poisoned += verdict.poisoned
        if verdict.poisoned and not self.may_poison:
            self.note(f"{where}: the task is parked as poison", again=again)
        for letter, count in verdict.letters.items():
            self.letters[letter] = self.letters.get(letter, 0) + count
        for finding in verdict.findings:
            self.note(f"{where}: {finding}", again=again)

    def note(self, finding: str, *, again: str = "") -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
            if again and again not in self.again:
                self.again.append(again)


class SuiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One suite's sums and what they are made of."""

    green: bool
    points: int
    distinct: int
    product: int
    duplicates: int
    lost: int
    silent: int
    breaches: int
    parked: int
    poisoned: int
    needless_parks: int
    unreached: int
    seconds: float
    figures: list[Figures]

    @classmethod
    def over(cls, figures: list[Figures]) -> SuiteReport:
        sums = {name: sum(getattr(one, name) for one in figures) for name in _SUMMED}
        return cls(
            green=all(one.green for one in figures),
            figures=figures,
            seconds=round(sum(one.seconds for one in figures), 1),
            **sums,
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What build/crash.json holds; proofs/README.md says what each field means."""

    format: int = 1
    green: bool
    points: int
    distinct: int
    duplicates: int
    lost: int
    silent: int
    breaches: int
    parked: int
    poisoned: int
    needless_parks: int
    seconds: float
    suites: dict[str, SuiteReport]

    @classmethod
    def over(cls, suites: dict[str, SuiteReport], *, seconds: float) -> Report:
        fields = [name for name in _SUMMED if name not in ("product", "unreached")]
        sums = {name: sum(getattr(one, name) for one in suites.values()) for name in fields}
        return cls(green=all(one.green for one in suites.values()), suites=suites, seconds=round(seconds, 1), **sums)


_SUMMED = (
    "points",
    "distinct",
    "product",
    "duplicates",
    "lost",
    "silent",
    "breaches",
    "parked",
    "poisoned",
    "needless_parks",
    "unreached",
)

COLUMNS = (
    ("class", "label"),
    ("steps", "steps"),
    ("points", "points"),
    ("distinct", "distinct"),
    ("duplicates", "duplicates"),
    ("lost", "lost"),
    ("silent", "silent"),
    ("breaches", "breaches"),
    ("parked", "parked"),
    ("needless", "needless_parks"),
    ("poisoned", "poisoned"),
)


def table(figures: Iterable[Figures]) -> str:
    """Columns of figures, one line per class."""
    lines = [[title for title, _ in COLUMNS] + ["seconds", "verdict"]]
    for one in figures:
        cells = [_shown(getattr(one, field)) for _, field in COLUMNS]
        lines.append([*cells, f"{one.seconds:.1f}", "green" if one.green else "RED"])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _shown(value: Any) -> str:  # Any: a field of Figures
    return f"{value:,}" if isinstance(value, int) else str(value)
