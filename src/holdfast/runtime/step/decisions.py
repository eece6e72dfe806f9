"""One decision per question: whether a task takes this approval or this settlement now. Pure.

A question is asked by a parked step (known by the epoch of the park), by a call that needs a yes (known by the binding
to its arguments, key and code), or by `run.approve` in the task's code. Its first answer counts; every later one is
refused, the same answer too, so nobody believes that an answer of theirs counts which does not.

Each check is made twice: for the person, before they confirm; and in the commit that keeps the answer
(`Journal.drop` with `check`), where no other answer and no worker can come between. So of many who answer at once one
is told "recorded", and the others are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from holdfast.core.clock import Clock
from holdfast.core.rest import WaitsForApproval, read_rest
from holdfast.core.step import StepState
from holdfast.errors import ApprovalNotFound, NotNow, NotSettleable, StepNotFound
from holdfast.journal.bodies import ApprovalGiven, DecisionGiven, EvidenceGiven
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import StepView, TaskView
from holdfast.runtime.step.facts import approval_binding, decidable_in_ms, is_answer

Inbox = Sequence[InboxItem]
Binding = str | UnsetType  # UNSET: a question of the task's code
DECIDED_HINT = "the first decision counts; `holdfast effect show` names it, and `holdfast worker APP` applies it"


def asked_approval(view: TaskView, inbox: Inbox, ordinal: str) -> Binding:
    """What an approval of this step is bound to. Raises ApprovalNotFound where none is wanted."""
    place = f"task {view.task_id} step {ordinal}"
    note, step = view.notes.get(ordinal), view.steps.get(ordinal)
    if note is not None and note.what == "approve" and note.answer is None:
        binding: Binding = UNSET
    elif step is not None and view.finished is None and waits_for_yes(view, step):
        binding = approval_binding(step)
    else:
        raise ApprovalNotFound(f"{place} does not wait for an approval")
    given = find_approval(inbox, ordinal, binding)
    if given is not None:
        word = "granted" if given.granted else "refused"
        raise ApprovalNotFound(f"{place} is already answered: {word}{_by(given.by)}; the first answer counts")
    return binding


def find_approval(inbox: Inbox, ordinal: str, binding: Binding) -> ApprovalGiven | None:
    """The answer that waits to be applied; one for other arguments or older code does not count."""
    for item in inbox:
        if item.kind is InboxKind.APPROVAL and item.ordinal == ordinal and not item.applied:
            given = ApprovalGiven.read(item.body)
            if (given.binding or UNSET) == binding:
                return given
    return None


def waits_for_yes(view: TaskView, step: StepView) -> bool:
    """Whether a call was planned and not started because a person must say yes. A new call that needs no yes is planned
    and started by one record; one that was started or parked before is planned to be sent again by itself, unless the
    task rests for a yes."""
    tried = bool(step.attempts) or step.parked is not None
    rests = bool(view.rested) and isinstance(read_rest(view.rest.why), WaitsForApproval)
    return step.state is StepState.PLANNED and (rests or not tried)


def asked_decision(view: TaskView, inbox: Inbox, ordinal: str, clock: Clock, *, now_ms: int) -> StepView:
    """The parked step, where it may be decided now. Raises StepNotFound, NotSettleable, NotNow."""
    place, step = f"task {view.task_id} step {ordinal}", view.steps.get(ordinal)
    if step is None:
        raise StepNotFound(f"task {view.task_id} has no step {ordinal}")
    if step.state is not StepState.PARKED:
        raise NotSettleable(f"{place} is {step.state}, not parked")
    left_ms = decidable_in_ms(view, step, clock, now_ms=now_ms)
    if left_ms > 0:
        raise NotNow(
            f"{place}: wait {max(left_ms / 1000, 0.1):.1f} s before you decide; "
            "until then, a request may still reach the service"
        )
    for item in inbox:
        if item.applied or item.ordinal != ordinal:
            continue
        if is_answer(item, step):
            given = DecisionGiven.read(item.body)
            raise NotSettleable(
                f"{place} already has a decision: {given.decision}{_by(given.by)}; the next worker applies it",
                hint=DECIDED_HINT,
            )
        if item.kind is InboxKind.EVIDENCE and EvidenceGiven.read(item.body).outcome == "succeeded":
            raise NotSettleable(
                f"{place} already has evidence that it happened; the next worker applies it", hint=DECIDED_HINT
            )
    return step


def question_epoch(step: StepView) -> int:
    """Which park a decision is about."""
    return step.parked[0] if step.parked else 0


def _by(who: object) -> str:
    return f" by {who}" if who else ""
