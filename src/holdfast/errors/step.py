"""Steps: how one was closed as failed, and what a tool says of an attempt that is not settled."""

from __future__ import annotations

from typing import Any

from holdfast.errors.base import EXIT_FAILED, Terminal, Unresolved


class StepFailed(Terminal):
    code = "step-failed"
    exit_code = EXIT_FAILED


class Refused(StepFailed):
    """The far end says that it did not happen and will not happen.

    Raised by a tool with the far end's proof; raised again by `run.call` where the step is
    closed as failed. With `retry_after_s` the tool says more: it did not happen now and may be
    asked again after that time, as where a far end limits its rate. It is then sent again, as long
    as the tool's `attempts` last, unless another attempt may have been sent or refusals are stored.
    """

    code = "refused"

    def __init__(
        self, proof: Any = None, *, retry_after_s: float | None = None
    ) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"refused by the far end: {_shown(proof)}")
        self.proof = proof
        self.retry_after_s = retry_after_s


class ToolFailed(StepFailed):
    """A Read or Transactional tool raised: nothing outside was changed."""

    code = "tool-failed"

    def __init__(self, *, tool: str, kind: str, text: str) -> None:
        super().__init__(f"{tool} raised {kind}: {text}")
        self.tool = tool
        self.kind = kind
        self.text = text


class StatementFailed(StepFailed):
    """A Transactional tool's statement was refused by the database; all were undone."""

    code = "statement-failed"


class StepSkipped(StepFailed):
    code = "step-skipped"

    def __init__(self, *, ordinal: str, note: str = "") -> None:
        super().__init__(f"step {ordinal} was skipped by a person" + (f": {note}" if note else ""))
        self.ordinal = ordinal
        self.note = note


class GateRefused(StepFailed):
    """The gate of the task did not let the call through: it was never sent.

    `rule` is allow, arguments, amount, calls or rate; `why` is for people and for models;
    `retry_after_s` says after which time a rate lets the same call through.
    """

    code = "gate-refused"
    default_hint = "the refusal is recorded and stays; another call may pass: docs/how-to/limits.md"

    def __init__(self, *, tool: str, ordinal: str, rule: str, why: str, retry_after_s: float | None = None) -> None:
        later = "" if retry_after_s is None else f"; again in {retry_after_s:g} s"
        super().__init__(f"step {ordinal}: {tool} is refused by the gate: {why}{later}")
        self.tool = tool
        self.ordinal = ordinal
        self.rule = rule
        self.why = why
        self.retry_after_s = retry_after_s


class ScratchNotKept(StepFailed):
    """The step is closed, but the files it left in the scratch folder are not stored."""

    code = "scratch-not-kept"
    default_hint = "the step is not run again; make what it left anew by another call, or go on without it"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: the files that {tool} left are lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class ResultNotKept(StepFailed):
    """The effect took place, but its result is not a JSON value that can be kept."""

    code = "result-not-kept"
    default_hint = "the step is recorded as succeeded; let the tool return JSON values"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: {tool} took effect, but its result is lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class DoneWithOtherArguments(StepFailed):
    """The call was not made: before a restore the tool was called in its place, and otherwise.

    `args` is what it was called with (None where the lookup does not say), `result` what came of
    it. Recorded as succeeded: raised again on every replay.
    """

    code = "done-with-other-arguments"
    default_hint = "nothing was sent; make another call if it is wanted beside what was done"

    def __init__(self, *, tool: str, ordinal: str, args: Any, result: Any) -> None:
        told = "arguments that its lookup does not say" if args is None else f"{args!r}"
        super().__init__(
            f"step {ordinal}: before the journal was restored {tool} was called with "
            f"{told[:500]}; it is not called again"
        )
        self.tool = tool
        self.ordinal = ordinal
        self.args_done = args
        self.result = result


class NotSent(Unresolved):
    """No byte of the request left this machine: the step may simply run again."""

    code = "not-sent"

    def __init__(self, reason: str = "no byte was sent") -> None:
        super().__init__(reason)


class Busy(Unresolved):
    """The far end is still working on this effect key, or asks to come back later."""

    code = "busy"

    def __init__(self, retry_after_s: float = 1.0, *, kind: str = "", text: str = "") -> None:
        super().__init__(f"the far end is busy with this effect key; again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s
        self.kind = kind  # which error of the far end, and its words, for the record
        self.text = text


class KeyReused(Unresolved):
    """The far end has seen this effect key with another body."""

    code = "key-reused"
    default_hint = "something was done under this key in another timeline; it is looked up or parked"

    def __init__(self, proof: Any = None) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"the far end knows this effect key with another body: {_shown(proof)}")
        self.proof = proof


class HttpUnknown(Unresolved):
    code = "http-unknown"


class AttemptTimedOut(Unresolved):
    code = "attempt-timed-out"

    def __init__(self, *, tool: str, timeout_s: float) -> None:
        super().__init__(f"{tool}: no outcome within {timeout_s:g} s")
        self.tool = tool
        self.timeout_s = timeout_s


class ChildDied(Unresolved):
    code = "child-died"


class ToolRaised(Unresolved):
    """A blocking tool raised something that says nothing about its effect.

    Stands for the exception, which stays in the child: `kind` is its class, `text` its message,
    `error_code` its code where it was an error of ours.
    """

    code = "tool-raised"

    def __init__(self, *, tool: str, kind: str, text: str, error_code: str = "") -> None:
        super().__init__(f"{tool} raised {kind}: {_shown(text)}")
        self.tool = tool
        self.kind = kind
        self.text = text
        self.error_code = error_code


_SHOWN_CHARS_MAX = 300


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
