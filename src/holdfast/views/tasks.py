"""Tasks and steps as the JSON that commands print (docs/reference/json.md); tables show the same.

Values in, values out. A step that another one undid is shown as compensated; this is derived here
from the child step, the row itself is never rewritten (T12).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from holdfast.core.clock import iso
from holdfast.core.decoding import convert
from holdfast.core.effect import CLASSES
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.ordinal import sort_key
from holdfast.core.rest import Diverged, read_rest
from holdfast.core.step import CLOSED, Event, StepState
from holdfast.host.manifest import Manifest
from holdfast.journal.bodies import Body, HeadsNote, MarksNote, QuestionNote, Rested, StepFailure, ToldNote
from holdfast.journal.contract import InboxItem, InboxKind, SessionRow, TaskRow
from holdfast.journal.records import Failure, Note, StepView, TaskState, TaskView
from holdfast.journal.rules import COUNTER_BITS, NEVER_MS
from holdfast.runtime.task.talk import ASK, asked_of, spent_of

MARKS = "@marks"
ASKED = "@asked"
ERROR_FIELDS = ("kind", "text", "code", "where", "trace")
Shape = dict[str, Any]  # Any: JSON for printing


def epoch_text(epoch: int) -> str:
    """An epoch as people read it: incarnation, dot, number of the claim."""
    return f"{epoch >> COUNTER_BITS}.{epoch & ((1 << COUNTER_BITS) - 1)}" if epoch else "-"


def task_line(row: TaskRow, sessions: Mapping[str, SessionRow]) -> Shape:
    """A task in a list."""
    session = sessions.get(row.session_id)
    return {
        "task_id": row.task_id,
        "name": row.name,
        "build": row.build,
        "state": row.state.value,
        "epoch": row.epoch,
        "records": row.records,
        "crashes": row.crashes,
        "cancel_asked": row.cancel_asked,
        "erased": row.erased,
        "created": iso(row.created_ms),
        "changed": iso(row.changed_ms),
        "changed_at": iso(row.changed_ms),
        "due": "" if row.due_ms == NEVER_MS else iso(row.due_ms),
        "worker": session.worker if session else "",
        "worker_alive": bool(session and session.alive),
    }


def _about(note: Note) -> str:
    """What a wait is for: the question, or when a sleep is over."""
    match note.what:
        case "sleep":
            return iso(int(note.body["due_ms"]))
        case "approve":
            return str(QuestionNote.read(note.body).question)
        case "told":
            return ToldNote.read(note.body).text
        case _:
            return ""


def _changed(view: TaskView) -> list[str]:
    """What had changed when the newest run began; see runtime/step/code_changes.py."""
    bodies = [view.notes[name].body for name in (MARKS, ASKED) if name in view.notes]
    notes = [convert(body, MarksNote | HeadsNote) for body in bodies]
    return list(dict.fromkeys(one for note in notes for one in note.changed or ()))


def task_shape(row: TaskRow, view: TaskView, sessions: Mapping[str, SessionRow]) -> Shape:
    """A task with everything the journal knows of it."""
    return {
        **task_line(row, sessions),
        "conversation": conversation_of(view),
        "request_id": view.request_id,
        "args": view.args,
        "ended": iso(view.ended_ms) if view.finished else "",
        "result": view.end.result,
        "error": {key: view.outcome[key] for key in ERROR_FIELDS if view.outcome.get(key)},
        "parked": _parked(row, view),
        "scratch": None,
        "spent": _spent(view),
        "plan": msgspec.to_builtins(view.plan),
        "changed": _changed(view),
        "code_changed": _changed(view),
        "claims": [
            {
                "epoch": claim.epoch,
                "session_id": claim.session_id,
                "worker": _worker(claim.session_id, claim.worker, sessions),
                "at": iso(claim.at_ms),
            }
            for claim in view.claims.values()
        ],
        "steps": [step_shape(view, view.steps[ordinal], sessions) for ordinal in sorted(view.steps, key=sort_key)],
        "notes": [
            {"ordinal": ordinal, "what": note.what, "at": iso(note.at_ms), "answer": note.answer, "about": _about(note)}
            for ordinal, note in sorted(view.notes.items(), key=lambda pair: sort_key(pair[0]))
        ],
    }


def conversation_of(view: TaskView) -> str:
    """The name of the conversation that a task of an agent is, or empty."""
    args = view.args
    return str(cast(Shape, args).get("conversation", "")) if isinstance(args, dict) else ""


def _spent(view: TaskView) -> Shape | None:
    """What its model calls cost; None if it made none."""
    spent = spent_of(view)
    return None if spent is None else msgspec.to_builtins(spent)


def ask_shape(view: TaskView, step: StepView) -> Shape | None:
    """A model call: the request, and the route of the reply; None for every other step."""
    if step.tool != ASK or not isinstance(step.args, dict):
        return None
    asked = asked_of(step)
    result = cast(Shape, step.result or {})
    reply: Shape = result.get("reply") or {}
    head: Any = view.contents.get(result.get("head") or asked.head) or {}
    return {
        "model": head.get("model", ""),
        "settings": head.get("settings", {}),
        "tools": [tool["name"] for tool in head.get("tools", ())],
        "messages": asked.count,
        "prefix": asked.prefix,
        "head": asked.head,
        "text": "".join(str(part.get("text", "")) for part in reply.get("parts", ()) if part.get("type") == "text"),
        "tool_calls": [part["tool"] for part in reply.get("parts", ()) if part.get("type") == "tool_call"],
        "stop": reply.get("stop", ""),
        "usage": reply.get("usage"),
        "cost": result.get("cost"),
        "unit": result.get("unit", ""),
        "route": reply.get("route"),
        "held_state": reply.get("held_state", []),
    }


def step_name(view: TaskView, step: StepView) -> str:
    """What a step calls, as every screen names it."""
    ask = ask_shape(view, step)
    return f"ask {ask['model']}" if ask else step.tool


def scratch_shape(manifest: Manifest) -> Shape:
    """What the newest checkpoint holds of the scratch folder."""
    return {
        "bytes": manifest.size,
        "files": [{"path": file.path, "size": file.size, "executable": file.executable} for file in manifest.files],
        "empty_folders": list(manifest.folders),
    }


def step_shape(view: TaskView, step: StepView, sessions: Mapping[str, SessionRow]) -> Shape:
    """One step: state, key, attempts, times, result."""
    started_ms = step.attempts[-1].at_ms if step.attempts else 0
    return {
        "ordinal": step.ordinal,
        "tool": step.tool,
        "class": CLASSES[step.letter].name,
        "state": step.state.value,
        "compensation": compensation_of(view, step),
        "effect_key": effect_key_from_bytes(step.effect_key),
        "args": step.args,
        "attempts": 0 if step.step is None else step.step.attempts,
        "sends": [
            {
                "started": iso(one.at_ms),
                "epoch": one.epoch,
                "worker": _worker_of(view, one.epoch, sessions),
                "fence": one.fence,
            }
            for one in step.attempts
        ],
        "tries": tries_of(view, step, sessions),
        "next_try": iso(next_try_ms(step)),
        "ended_by": ended_by(step),
        "planned": iso(step.planned_ms),
        "started": iso(started_ms),
        "ended": iso(step.closed_ms),
        "took_ms": max(0, step.closed_ms - started_ms) if step.closed_ms and started_ms else None,
        "result": step.result,
        "unkept": step.unkept,
        "error": dict(step.error) if step.state is not StepState.SUCCEEDED else {},
        "doubt": step.doubt if step.state not in CLOSED else "",
        "orphaned": is_orphaned(view, step, sessions),
        "question": step.question if step.state is StepState.PARKED else "",
        "evidence": list(step.evidence) if step.state is StepState.PARKED else [],
        "not_before": iso(step.not_before_ms) if step.state is StepState.PARKED else "",
        "note": step.note,
        "gate": dict(step.body.get("gate") or {}),
        "ask": ask_shape(view, step),
    }


def tries_of(view: TaskView, step: StepView, sessions: Mapping[str, SessionRow]) -> list[Shape]:
    """Every attempt, also those before a person's decision, and how it ended where that was without a result."""
    failures = {one.number: one for one in step.failures}
    none = Failure(0, 0, {})
    return [
        {
            "started": iso(one.at_ms),
            "epoch": one.epoch,
            "worker": _worker_of(view, one.epoch, sessions),
            "fence": one.fence,
            "ended": iso((failed := failures.get(one.number, none)).at_ms),
            "reason": failure_words(failed.body),
            "where": str(failed.body.get("where", "")),
        }
        for one in step.earlier + step.attempts
    ]


def failure_words(body: Body) -> str:
    """Why an attempt had no result; with the proof of a refusal."""
    failure = convert(body, StepFailure)
    return f"refused: {json.dumps(failure.proof, ensure_ascii=False)}" if failure.proven else failure.said


def next_try_ms(step: StepView) -> int:
    """When a step that failed is tried again by itself; 0 where it is not."""
    waits = step.step is not None and step.state in (StepState.PLANNED, StepState.UNKNOWN)
    return step.failure.again_ms if waits else 0


def ended_by(step: StepView) -> str:
    """Who or what closed the step, where that was not its own call."""
    match step.ending:
        case Event.SETTLE_DONE | Event.SETTLE_SKIP:
            return f"decided by {step.by or 'a person'}"
        case Event.SKIP if step.by:
            return f"refused by {step.by}"
        case Event.ADOPT:
            return f"reported by {step.by or 'evidence'}"
        case Event.FIND:
            return "found by the lookup"
        case _:
            return ""


def effect_line(view: TaskView, step: StepView, sessions: Mapping[str, SessionRow]) -> Shape:
    """A step in the list of effects."""
    return {
        "effect": f"{view.task_id}/{step.ordinal}",
        "task_id": view.task_id,
        "task_name": view.name,
        **step_shape(view, step, sessions),
    }


def decision_shape(one: InboxItem) -> Shape:
    """What a person, or a report from elsewhere, said about a task."""
    body = one.body
    match one.kind:
        case InboxKind.APPROVAL:
            what = "granted" if body.get("granted") else "refused"
        case InboxKind.EVIDENCE:
            what = "happened" if body.get("outcome") == "succeeded" else "did not happen"
        case _:
            what = str(body.get("decision") or one.kind.value)
    return {
        "ordinal": one.ordinal,
        "what": what,
        "by": str(body.get("by") or body.get("source") or ""),
        "at": iso(one.at_ms),
        "note": str(body.get("note") or ""),
        "result": body.get("result"),
        "applied": one.applied,
    }


def decisions_of(items: Iterable[InboxItem]) -> list[Shape]:
    """What was said about a task, oldest first; not the messages of a conversation, nor what a scope does to itself."""
    said = [one for one in items if one.kind is not InboxKind.SAID and one.body.get("by") != "scope"]
    return [decision_shape(one) for one in said]


def item_shape(one: InboxItem) -> Shape:
    """A fact from outside; unless applied, no worker has used it yet."""
    return {
        "kind": one.kind.value,
        "ordinal": one.ordinal,
        "at": iso(one.at_ms),
        "applied": one.applied,
        "body": one.body,
    }


def compensation_of(view: TaskView, step: StepView) -> str:
    """`compensated` or `compensating` where a step `n.c1` undoes this one, else empty."""
    if step.state is not StepState.SUCCEEDED:
        return ""
    undoing = [
        child
        for ordinal, child in view.steps.items()
        if ordinal.rpartition(".c")[0] == step.ordinal and child.step is not None
    ]
    if any(child.state is StepState.SUCCEEDED for child in undoing):
        return "compensated"
    return "compensating" if any(not child.closed for child in undoing) else ""


def is_orphaned(view: TaskView, step: StepView, sessions: Mapping[str, SessionRow]) -> bool:
    """Whether the step was started by a session that is dead: its outcome is in doubt."""
    if step.step is None or step.state is not StepState.STARTED:
        return False
    claim = view.claims.get(step.step.epoch)
    session = sessions.get(claim.session_id) if claim else None
    return session is None or not session.alive


def is_in_doubt(view: TaskView, step: StepView, sessions: Mapping[str, SessionRow]) -> bool:
    if step.step is None:
        return False
    in_doubt = step.state in (StepState.PARKED, StepState.UNKNOWN)
    return in_doubt or is_orphaned(view, step, sessions)


def _parked(row: TaskRow, view: TaskView) -> Shape:
    if row.state is not TaskState.PARKED:
        return {}
    rest = view.rest
    return {
        "ordinal": rest.ordinal,
        "question": rest.question or "its records are damaged",
        "why": rest.why or "damaged",
        "detail": rest.detail,
        "ways": _ways(row.task_id, rest),
    }


def _ways(task_id: str, rest: Rested) -> list[str]:
    """What a person can do about a parked task, in the order to try it."""
    if rest.ordinal:
        place = f"{task_id}/{rest.ordinal}"
        return [f"`holdfast effect show {place}` shows the evidence", f"`holdfast effect settle {place}` decides"]
    if not isinstance(read_rest(rest.why), Diverged):
        return [f"`holdfast task retry {task_id}` runs it again"]
    return [
        f"put the code back as it was, then `holdfast task retry {task_id}`",
        "or keep both ways in the code with `run.version`, then retry (`holdfast explain change-code`)",
        "chance, time and ids differ on each run: take them from run.random(), run.now(), run.uuid()",
        "a retry alone runs the same code, and diverges again",
    ]


def _worker_of(view: TaskView, epoch: int, sessions: Mapping[str, SessionRow]) -> str:
    claim = view.claims.get(epoch)
    return "" if claim is None else _worker(claim.session_id, claim.worker, sessions)


def _worker(session_id: str, pid: str, sessions: Mapping[str, SessionRow]) -> str:
    session = sessions.get(session_id)
    return session.worker if session else f"pid {pid}"
