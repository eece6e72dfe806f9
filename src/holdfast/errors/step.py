"""Steps: how one was closed as failed, and what a tool says of an attempt that is not settled."""

from __future__ import annotations

from typing import Any

from holdfast.errors.base import EXIT_FAILED, Terminal, Unresolved


class StepFailed(Terminal):
    """Base of the errors that close a step as failed. A task may catch it and continue."""

    code = "step-failed"
    exit_code = EXIT_FAILED


class Refused(StepFailed):
    """The service says that the effect did not happen and will not happen; `proof` holds its answer.
    A tool raises it with the service's proof; `run.call` raises it again on every replay. With `retry_after_s` the tool
    says that the call may be sent again after that time, for example after a rate limit. Holdfast then sends it again
    while the tool's `attempts` last, unless another attempt may have been sent or refusals are stored."""

    code = "refused"

    def __init__(
        self, proof: Any = None, *, retry_after_s: float | None = None
    ) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"the far end refused: {_shown(_words_of(proof))}")
        self.proof = proof
        self.retry_after_s = retry_after_s


class ToolFailed(StepFailed):
    """A Read or Transactional tool raised; nothing outside was changed. The message holds the tool's own error. With
    `retries` the tool tries again by itself."""

    code = "tool-failed"

    def __init__(self, *, tool: str, kind: str, text: str) -> None:
        super().__init__(f"{tool} raised {kind}: {text}")
        self.tool = tool
        self.kind = kind
        self.text = text


class StatementFailed(StepFailed):
    """The database rejected a statement of a Transactional tool; all its statements were undone. The message holds the
    database's reason."""

    code = "statement-failed"


class StepSkipped(StepFailed):
    """A person decided not to do this step, or refused its approval. The task may handle it."""

    code = "step-skipped"

    def __init__(self, *, ordinal: str, note: str = "") -> None:
        super().__init__(f"step {ordinal} was skipped by a person" + (f": {note}" if note else ""))
        self.ordinal = ordinal
        self.note = note


class GateRefused(StepFailed):
    """The task's gate did not let the call through; it was never sent. The refusal is recorded and raised again on
    every replay. Another call, with other arguments or later, is judged on its own. `rule` is allow, arguments, amount,
    calls or rate; `why` says it in words for people and models; `retry_after_s` says when a rate lets the call through.
    """

    code = "gate-refused"
    default_hint = "the refusal is final for this step; the gate may allow another call: see `holdfast explain limits`"

    def __init__(self, *, tool: str, ordinal: str, rule: str, why: str, retry_after_s: float | None = None) -> None:
        later = "" if retry_after_s is None else f"; it may pass in {retry_after_s:g} s"
        super().__init__(f"step {ordinal}: the gate refused {tool}: {why}{later}")
        self.tool = tool
        self.ordinal = ordinal
        self.rule = rule
        self.why = why
        self.retry_after_s = retry_after_s


class ScratchNotKept(StepFailed):
    """The step is closed and will not run again, but its files in the scratch folder are not stored. One of them is
    rejected or over a limit, or the disk was full and the worker died before there was space."""

    code = "scratch-not-kept"
    default_hint = "Holdfast does not run the step again; make the files with another call, or continue without them"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: the files that {tool} left are lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class ResultNotKept(StepFailed):
    """The effect took place, but its result is not a JSON value that can be stored. The step is recorded as succeeded
    and never repeated."""

    code = "result-not-kept"
    default_hint = "the step is recorded as succeeded; make the tool return JSON values"

    def __init__(self, *, tool: str, ordinal: str, why: str) -> None:
        super().__init__(f"step {ordinal}: {tool} took effect, but its result is lost: {why}")
        self.tool = tool
        self.ordinal = ordinal
        self.why = why


class DoneWithOtherArguments(StepFailed):
    """The call was not made: before the journal was restored, this step was done with other arguments.
    It is recorded as succeeded and raised again on every replay. Continue with what was done, or make another call.
    `args_done` is what it was called with (None if the lookup does not say), `result` is what it returned."""

    code = "done-with-other-arguments"
    default_hint = "Holdfast sent nothing. If you also want the new call, make it as another step"

    def __init__(self, *, tool: str, ordinal: str, args: Any, result: Any) -> None:
        before = "arguments that its lookup does not return" if args is None else f"{args!r}"
        super().__init__(
            f"step {ordinal}: before the journal was restored {tool} was called with "
            f"{before[:500]}; Holdfast does not call it again"
        )
        self.tool = tool
        self.ordinal = ordinal
        self.args_done = args
        self.result = result


class NotSent(Unresolved):
    """No byte of the request left this machine. The step runs again by itself, with `retry_after_s` not before that
    time."""

    code = "not-sent"

    def __init__(self, reason: str = "no byte was sent", *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Busy(Unresolved):
    """The service still works on this effect key, or asks for a later try. Holdfast sends the request again."""

    code = "busy"

    def __init__(self, retry_after_s: float = 1.0, *, kind: str = "", text: str = "") -> None:
        super().__init__(f"the far end is busy with this effect key; try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s
        self.kind = kind  # which error of the far end, and its words, for the record
        self.text = text


class KeyReused(Unresolved):
    """The service has seen this effect key with another body, for example from before a restore."""

    code = "key-reused"
    default_hint = "an older run used this key, perhaps before a restore; Holdfast looks the effect up, or parks it"

    def __init__(self, proof: Any = None) -> None:  # Any: whatever JSON the far end answered
        super().__init__(f"the far end has already used this effect key with another body: {_shown(proof)}")
        self.proof = proof


class HttpUnknown(Unresolved):
    """The request was sent and no usable answer came. Holdfast settles it by the tool's effect class."""

    code = "http-unknown"


class AttemptTimedOut(Unresolved):
    """A call gave no outcome in time; that says nothing about the effect. Holdfast settles it by the tool's effect
    class."""

    code = "attempt-timed-out"

    def __init__(self, *, tool: str, timeout_s: float) -> None:
        super().__init__(f"{tool}: no outcome within {timeout_s:g} s")
        self.tool = tool
        self.timeout_s = timeout_s


class ChildDied(Unresolved):
    """The process of a blocking tool died during the call. Holdfast settles it by the tool's effect class."""

    code = "child-died"


class ToolRaised(Unresolved):
    """A blocking tool raised something that says nothing about its effect.
    Holdfast settles it by the tool's effect class. If the tool knows more, let it raise `Refused` or `NotSent`.
    `kind` is the exception's class, `text` its message, `error_code` its code if it was an error of Holdfast."""

    code = "tool-raised"

    def __init__(
        self, *, tool: str, kind: str, text: str, error_code: str = "", trace: tuple[str, str] = ("", "")
    ) -> None:
        super().__init__(f"{tool} raised {kind}: {_shown(text)}")
        self.tool = tool
        self.kind = kind
        self.text = text
        self.error_code = error_code
        self.trace = trace  # where it arose, and the traceback, both of the tool's own process


_SHOWN_CHARS_MAX = 300


def _words_of(proof: Any) -> object:  # Any: whatever JSON the far end answered
    """Of a relay's refusal, which has a code and words for people: the words."""
    match proof:
        case {"reason": str(), "text": str() as words, **more} if not more:
            return words
        case _:
            return proof


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
