"""Many seeds, one report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast_proofs.simulate.coverage import missing
from holdfast_proofs.simulate.run import Mode, Verdict, simulate

LIVENESS_EVERY = 4  # one world in so many is run in liveness mode


def mode_of(seed: int) -> Mode:
    return "liveness" if seed % LIVENESS_EVERY == LIVENESS_EVERY - 1 else "safety"


@dataclass(slots=True)
class Report:
    """What many worlds had in common. `to_json` is the schema of build/simulate.json."""

    runs: int = 0
    seconds: float = 0.0
    virtual_s: float = 0.0
    effects: int = 0
    crashes: int = 0
    pauses: int = 0
    states: dict[str, int] = field(default_factory=dict[str, int])
    pairs: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    bad: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def add(self, verdict: Verdict) -> None:
        self.runs += 1
        self.virtual_s += verdict.virtual_s
        self.effects += verdict.effects
        self.crashes += verdict.crashes
        self.pauses += verdict.pauses
        self.pairs |= verdict.pairs
        for state, count in verdict.states.items():
            self.states[state] = self.states.get(state, 0) + count
        if verdict.breaches:
            self.bad[verdict.seed] = verdict.breaches

    def count(self, *names: str) -> int:
        """Breaches whose invariant is one of these."""
        found = (breach.partition(":")[0] for breaches in self.bad.values() for breach in breaches)
        return sum(name in names for name in found)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "runs_per_s": round(self.runs / self.seconds, 1) if self.seconds else 0.0,
            "virtual_s": round(self.virtual_s, 1),
            "speed_up": round(self.virtual_s / self.seconds) if self.seconds else 0,
            "effects": self.effects,
            "crashes": self.crashes,
            "pauses": self.pauses,
            "tasks": dict(sorted(self.states.items())),
            "duplicates": self.count("I1"),
            "lost": self.count("I2", "L1"),
            "silent": self.count("I10"),
            "needless_parks": self.count("needless"),
            "breaches": {str(seed): breaches for seed, breaches in sorted(self.bad.items())},
            "pairs": sorted(f"{event} {letter}" for event, letter in self.pairs),
            "pairs_missing": [f"{event} {letter}" for event, letter in missing(self.pairs)],
        }


def run_seeds(
    seeds: Iterable[int], *, mode: Mode | None = None, each: Callable[[Verdict], None] | None = None
) -> Report:
    """Run these worlds one after another."""
    report = Report()
    began = time.perf_counter()
    for seed in seeds:
        verdict = simulate(seed, mode or mode_of(seed))
        report.add(verdict)
        report.seconds = time.perf_counter() - began
        if each is not None:
            each(verdict)
    return report
