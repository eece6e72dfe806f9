"""Mail as the JSON that `holdfast mail` prints (docs/reference/json.md): read from tasks and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.core.clock import iso
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.mail import TTL_S
from holdfast.core.step import StepState
from holdfast.journal.bodies import EvidenceGiven
from holdfast.journal.contract import InboxItem, TaskRow
from holdfast.journal.records import StepView, TaskState, TaskView
from holdfast.runtime.task.mail_task import has_expired, letter_of, note_of
from holdfast.runtime.tool.mail_tool import NAME

Shape = dict[str, Any]  # Any: JSON for printing

WAITING, SENT, DELIVERED, EXPIRED = "waiting", "sent", "delivered", "expired"
_STATES = {StepState.FAILED: "refused", StepState.PARKED: "parked", StepState.SKIPPED: "skipped"}
DEAD_SENT = frozenset((*_STATES.values(), EXPIRED))
UNREAD = f"the recipient has not signed for it within {TTL_S // 86_400} days, and relays keep mail no longer"
DEAD_RECEIVED = frozenset((TaskState.FAILED, TaskState.PARKED, TaskState.CANCELLED))


def received_line(row: TaskRow, view: TaskView) -> Shape:
    """One message to the agent."""
    letter = letter_of(view.args)
    return {
        "task_id": row.task_id,
        "sender": letter.sender,
        "handles": list(letter.handles),
        "thread": letter.thread,
        "key": letter.key,
        "state": row.state.value,
        "sent_at": iso(letter.at_ms) if letter.at_ms else "",
        "received_at": iso(row.created_ms),
        "missing": list(letter.missing),
        "body": letter.body,
    }


def dead_line(row: TaskRow, view: TaskView) -> Shape:
    """One message to the agent that cannot be read."""
    args = _shape(view.args)
    return {
        "task_id": row.task_id,
        "envelope": args.get("envelope", ""),
        "sender": args.get("sender", ""),  # as it claims
        "received_at": iso(row.created_ms),
        "reason": args.get("fault", ""),
    }


def sent_lines(view: TaskView, inbox: Sequence[InboxItem], *, now_ms: int) -> list[Shape]:
    """Every message that the task has sent, or is sending."""
    return [_sent_line(view, one, inbox, now_ms) for one in view.steps.values() if one.tool == NAME]


def _sent_line(view: TaskView, step: StepView, inbox: Sequence[InboxItem], now_ms: int) -> Shape:
    note = note_of(inbox, step.ordinal)
    args, result = _shape(step.args), _shape(step.result)
    proof = "" if note is None else str(EvidenceGiven.read(note.body).result["note"])
    state = _STATES.get(step.state, WAITING)
    if step.state is StepState.SUCCEEDED or note is not None:
        state = DELIVERED if note is not None else EXPIRED if has_expired(step, now_ms=now_ms) else SENT
    return {
        "effect": f"{view.task_id}/{step.ordinal}",
        "to": args.get("to", ""),
        "id": result.get("to", ""),
        "thread": args.get("thread", ""),
        "key": effect_key_from_bytes(step.effect_key) if step.effect_key else "",
        "state": state,
        "relays": result.get("relays", []),
        "trouble": result.get("trouble", {}),
        "tries": len(step.earlier) + len(step.attempts),
        "first_sent_at": iso(step.attempts[0].at_ms) if step.attempts else "",
        "delivered_at": "" if note is None else iso(note.at_ms),
        "reason": "" if state in (SENT, DELIVERED) else UNREAD if state == EXPIRED else _reason(step),
        "body": args.get("body"),
        "note": proof,
    }


def _reason(step: StepView) -> str:
    said = step.question or str(_shape(step.failure.proof).get("text") or step.failure.said)
    return said.removeprefix("MailUnconfirmed: ")  # the kind of an error that a tool raised


def _shape(value: object) -> Shape:
    return cast(Shape, value) if isinstance(value, dict) else {}
