"""What a closed step means to the task's code, and what a person is shown of an open one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.effect import CLASSES
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.rest import Diverged, Suspended
from holdfast.core.step import StepState
from holdfast.core.values import copied
from holdfast.errors import (
    DoneWithOtherArguments,
    GateRefused,
    InvariantViolated,
    Refused,
    ResultNotKept,
    StepSkipped,
    ToolFailed,
)
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import Body, StepView
from holdfast.runtime.tool.tool import Tool


def outcome_of(step: StepView) -> object:
    """What `run.call` gives for a closed step, the first time and on every replay."""
    match step.state:
        case StepState.SUCCEEDED:
            if step.unkept:
                raise ResultNotKept(tool=step.tool, ordinal=step.ordinal, why=step.unkept)
            if (found := step.found_at) is not None and found.with_others:
                raise DoneWithOtherArguments(
                    tool=step.tool, ordinal=step.ordinal, args=copied(found.args), result=copied(step.result)
                )
            return copied(step.result)
        case StepState.FAILED:
            failure = step.failure
            if failure.proven:
                raise Refused(failure.proof)
            raise ToolFailed(tool=step.tool, kind=str(failure.kind), text=str(failure.text))
        case StepState.SKIPPED:
            if (said := step.planned.gate) is not None and said.refused:
                raise GateRefused(
                    tool=step.tool, ordinal=step.ordinal, rule=said.rule, why=said.why, retry_after_s=said.retry_after_s
                )
            raise StepSkipped(ordinal=step.ordinal, note=step.note)
        case _:
            raise InvariantViolated("I2", f"step {step.ordinal} is {step.state}, not closed")


def check_same(step: StepView, tool: Tool[..., Any], mark: bytes) -> None:
    """On replay the code must ask for the very call that is recorded at this ordinal."""
    if step.tool != tool.name:
        raise Suspended(Diverged(f"step {step.ordinal} was {step.tool}, now it is {tool.name}"))
    if step.fingerprint != mark:
        raise Suspended(Diverged(f"step {step.ordinal}: {tool.name} has other arguments now"))
    if step.letter != tool.letter and not step.closed:
        was, now = CLASSES[step.letter].name, CLASSES[tool.letter].name
        raise Suspended(Diverged(f"step {step.ordinal}: {tool.name} was {was}, now it is {now}"))


def is_answer(item: InboxItem, step: StepView) -> bool:
    """Whether this is a decision about the question that the step asks now.

    Not about one it asked before, nor one from a copy of the journal: that may have been carried
    out in the timeline that the restore has lost.
    """
    asked = None if step.parked is None else step.parked[0]
    same = item.kind is InboxKind.DECISION and item.ordinal == step.ordinal
    return same and asked is not None and item.body.get("epoch") == asked


def needs_approval(tool: Tool[..., Any], step: StepView) -> bool:
    """Whether a person must say yes before it starts: by the tool, or by the gate of its task."""
    return tool.needs_approval or step.planned.gate is not None


def approval_binding(step: StepView) -> str:
    """What an approval is for: these arguments, under this key, of this version of the tool."""
    key = effect_key_from_bytes(step.effect_key)
    return f"{key}/{step.fingerprint.hex()}/{step.planned.version}"


def evidence_of(step: StepView, found: object, told: Sequence[InboxItem] = ()) -> list[Body]:
    """What a person should see: every attempt, its end, what the lookup and others said."""
    seen: list[Body] = [
        {"attempt": number, "started_ms": one.at_ms, "epoch": one.epoch, "fence": one.fence}
        for number, one in enumerate(step.attempts, start=1)
    ]
    if step.doubt:
        seen.append({"ended": step.doubt, **{k: v for k, v in step.error.items() if v}})
    if found is not None:
        seen.append({"lookup": found})
    seen += [{"told": item.body, "at_ms": item.at_ms} for item in told]
    return seen
