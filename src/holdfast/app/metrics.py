"""What a worker says about itself: its health, and its figures in Prometheus' text form.

Every name is explained in docs/reference/metrics.md. Figures of the whole journal are read when
they are asked for; figures of this process are counted since its start and fall to zero with it.
"""

from __future__ import annotations

import contextlib
import platform

from holdfast.app.health import Health
from holdfast.core.step import StepState
from holdfast.core.version import find_version
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Journal
from holdfast.journal.records import TaskState
from holdfast.runtime.engine.engine import Engine

NOTICES_COUNTED_MAX = 1_000
PREFIX = "holdfast_"

# name: (kind, help)
METRICS: dict[str, tuple[str, str]] = {
    "build_info": ("gauge", "1, with the version of Holdfast and of Python"),
    "up": ("gauge", "1 if /healthz answers 200"),
    "tasks": ("gauge", "tasks of the journal by state"),
    "tasks_running_here": ("gauge", "tasks that this process runs now"),
    "steps_in_doubt": ("gauge", "open steps, among tasks that run here, whose outcome is unknown"),
    "notices_untold": ("gauge", "notices that are not sent yet; counted up to 1000"),
    "lease_left_seconds": ("gauge", "until the lease ends, if it is not renewed; 0 without one"),
    "journal_full": ("gauge", "1 while space is short and no new step starts"),
    "journal_broken": ("gauge", "1 after the disk reported a failed write"),
    "clock_behind_seconds": ("gauge", "how far the wall clock is behind the newest record"),
    "claims_total": ("counter", "tasks claimed by this process"),
    "runs_total": ("counter", "runs started by this process"),
    "runs_finished_total": ("counter", "runs that ended with a record: finished or rested"),
    "runs_fenced_total": ("counter", "runs that ended without one: fenced or aborted"),
    "commits_total": ("counter", "synced commits of this process"),
}


class Gauges:
    """Reads the figures of one engine and its journal."""

    def __init__(self, *, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self._version = find_version()

    def health(self) -> Health:
        lease = self._engine.lease
        reasons: list[str] = []
        if lease is None or lease.lost or lease.left_ms() <= 0:
            reasons.append("this worker holds no lease")
        if self._journal.broken:
            reasons.append(f"the journal is not writable: {self._journal.broken}")
        if self._journal.full:
            reasons.append("no space is left for the journal: no new step starts")
        facts: dict[str, object] = {
            "session": "" if lease is None else lease.session.session_id,
            "lease_left_s": self._lease_left_s(),
            "running": self._engine.active,
            "version": self._version,
        }
        return Health(reasons, facts)

    async def metrics(self) -> str:
        figures: dict[str, list[tuple[str, float]]] = {}
        self._own(figures)
        # If the journal cannot be read, only its figures are missing.
        with contextlib.suppress(HoldfastError):
            await self._read(figures)
        return render(figures)

    def _own(self, figures: dict[str, list[tuple[str, float]]]) -> None:
        counts = self._engine.counts
        label = _labels(version=self._version, python=platform.python_version())
        own: dict[str, float] = {
            "up": not self.health().reasons,
            "tasks_running_here": self._engine.active,
            "steps_in_doubt": self._steps_in_doubt(),
            "lease_left_seconds": self._lease_left_s(),
            "journal_full": self._journal.full,
            "journal_broken": bool(self._journal.broken),
            "clock_behind_seconds": self._journal.clock_behind_ms / 1000,
            "claims_total": counts["claims"],
            "runs_total": counts["runs"],
            "runs_finished_total": counts["finished"],
            "runs_fenced_total": counts["fenced"],
            "commits_total": self._journal.commits,
        }
        figures["build_info"] = [(label, 1)]
        for name, value in own.items():
            figures[name] = [("", float(value))]

    async def _read(self, figures: dict[str, list[tuple[str, float]]]) -> None:
        counts = await self._journal.count_tasks()
        figures["tasks"] = [(_labels(state=state.value), float(counts.get(state, 0))) for state in TaskState]
        untold = await self._journal.pending_notices(limit=NOTICES_COUNTED_MAX)
        figures["notices_untold"] = [("", float(len(untold)))]

    def _steps_in_doubt(self) -> int:
        return sum(
            1
            for view in self._engine.views()
            for step in view.steps.values()
            if step.step is not None
            and (step.state is StepState.UNKNOWN or (step.state is StepState.STARTED and step.step.epoch < view.epoch))
        )

    def _lease_left_s(self) -> float:
        lease = self._engine.lease
        return 0.0 if lease is None else max(0, lease.left_ms()) / 1000


def render(figures: dict[str, list[tuple[str, float]]]) -> str:
    """Prometheus' text form, in the order of METRICS."""
    lines: list[str] = []
    for name, (kind, text) in METRICS.items():
        if name not in figures:
            continue
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        lines += [f"{PREFIX}{name}{labels} {value:.15g}" for labels, value in figures[name]]
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
