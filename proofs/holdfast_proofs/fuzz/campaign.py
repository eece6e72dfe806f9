"""A campaign: every target in its own process, one after the other, and what came of it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast_proofs.fuzz.targets import TARGETS, Target
from holdfast_proofs.fuzz.watch import Finding

Engine = Literal["atheris", "mutations"]
MEMORY_MIB_MAX = 256
START_S_MAX = 60.0
EXECUTIONS_PER_S_MIN = 50.0  # slower than this over the whole is a hang
SAID_CHARS_SHOWN = 300


@dataclass(slots=True)
class Report:
    engine: Engine
    seed: int
    seconds: float = 0.0
    targets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # Any: JSON
    findings: list[Finding] = field(default_factory=list[Finding])

    def to_json(self) -> dict[str, object]:
        executions = sum(one["executions"] for one in self.targets)
        return {
            "engine": self.engine,
            "seed": self.seed,
            "executions": executions,
            "seconds": round(self.seconds, 1),
            "executions_per_s": round(executions / self.seconds) if self.seconds else 0,
            "slowest_ms": max((one["slowest_ms"] for one in self.targets), default=0.0),
            "memory_mib": max((one["memory_mib"] for one in self.targets), default=0),
            "targets": self.targets,
            "findings": [
                {"target": one.target, "kind": one.kind, "what": one.what, "where": one.where, "command": one.command}
                for one in self.findings
            ],
        }


def find_engine() -> Engine:
    return "atheris" if importlib.util.find_spec("atheris") else "mutations"


def run_campaign(
    names: Iterable[str],
    *,
    runs: int,
    seed: int,
    engine: Engine,
    each: Callable[[dict[str, Any]], None] = lambda _one: None,
) -> Report:
    """Share the executions among the targets."""
    chosen = [TARGETS[name] for name in names]
    whole = sum(target.share for target in chosen)
    report = Report(engine, seed)
    began = time.monotonic()
    for target in chosen:
        found = run_target(
            target, runs=math.ceil(runs * target.share / whole), seed=seed, engine=engine, findings=report.findings
        )
        report.targets.append(found)
        each(found)
    report.seconds = time.monotonic() - began
    return report


def run_target(target: Target, *, runs: int, seed: int, engine: Engine, findings: list[Finding]) -> dict[str, Any]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-", dir=memory))
    result = folder / "result.json"
    command = [
        sys.executable,
        "-m",
        "holdfast_proofs.fuzz.child",
        target.name,
        str(runs),
        str(seed),
        str(result),
        engine,
    ]
    try:
        died = _run(command, folder, START_S_MAX + runs / EXECUTIONS_PER_S_MIN)
        found = _read(result, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    findings += [Finding(**one) for one in found.pop("findings")]
    if died or found["executions"] < runs:
        findings.append(_finding(target, "died", died or "it ended before its time"))
    if found["memory_mib"] > MEMORY_MIB_MAX:
        findings.append(_finding(target, "memory", f"{found['memory_mib']} MiB were used"))
    return found


def _run(command: list[str], folder: Path, seconds_max: float) -> str:
    """How the process died, or nothing. Its files go with the folder, however it ends."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds_max,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {seconds_max:.0f} s"
    if done.returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip()
    return f"exit code {done.returncode}: {said[-SAID_CHARS_SHOWN:]}"


def _read(result: Path, target: Target) -> dict[str, Any]:
    if result.exists():
        return json.loads(result.read_text())
    return {
        "target": target.name,
        "executions": 0,
        "accepted": 0,
        "seconds": 0.0,
        "slowest_ms": 0.0,
        "memory_mib": 0,
        "findings": [],
    }


def _finding(target: Target, kind: str, what: str) -> Finding:
    return Finding(target=target.name, kind=kind, what=what, where="", input_hex="")
