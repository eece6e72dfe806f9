"""Runs a target once and says what is wrong with that: the same for every engine."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast_proofs.fuzz.targets import Target

EXECUTION_S_MAX = 1.0
INPUT_BYTES_SHOWN = 4_096
FINDINGS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way in which a target failed, with the first input that showed it."""

    target: str
    kind: str  # error, law, slow, died, memory
    what: str
    where: str
    input_hex: str

    @property
    def command(self) -> str:
        return f"python -m holdfast_proofs.fuzz --target {self.target} --input {self.input_hex}"


@dataclass(slots=True)
class Watch:
    target: Target
    executions: int = 0
    accepted: int = 0  # inputs that the border took
    slowest_s: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict[str, Finding])

    def run(self, raw: bytes) -> str:
        """One execution; returns a short name of how it ended."""
        began = time.perf_counter()
        ending = self._run(raw)
        took = time.perf_counter() - began
        self.executions += 1
        if took > self.slowest_s:
            self.slowest_s = took
            if took > EXECUTION_S_MAX:
                self._note("slow", f"one execution took {took:.1f} s", "", raw)
        return ending

    def _run(self, raw: bytes) -> str:
        try:
            self.target.run(raw)
        except HoldfastError as error:
            return type(error).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is: that is what is looked for
            where = _place(error)
            kind = "law" if isinstance(error, AssertionError) else "error"
            self._note(kind, f"{type(error).__name__}: {error}"[:300], where, raw)
            return f"{type(error).__name__} {where}"
        self.accepted += 1
        return "accepted"

    def _note(self, kind: str, what: str, where: str, raw: bytes) -> None:
        name = f"{kind} {what.partition(':')[0]} {where}"
        if name in self.findings or len(self.findings) >= FINDINGS_MAX:
            return
        self.findings[name] = Finding(
            target=self.target.name, kind=kind, what=what, where=where, input_hex=raw[:INPUT_BYTES_SHOWN].hex()
        )


def _place(error: BaseException) -> str:
    """The deepest line of our own code: findings with the same one are the same finding."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "holdfast" in one.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
