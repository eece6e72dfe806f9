"""One effect for a person: the question, the evidence, what to do."""

from __future__ import annotations

from holdfast.cli.screen.screen import ago, clock_time, json_line, print_fields
from holdfast.core.step import StepState
from holdfast.journal.records import StepView
from holdfast.views.tasks import Shape, epoch_text


def ways(place: str, step: StepView) -> list[str]:
    """The commands that help with a step in this state."""
    match step.state:
        case StepState.PARKED:
            return [
                f"holdfast effect settle {place} --done --result JSON   # it happened",
                f"holdfast effect settle {place} --run    # it did not happen: run it now",
                f"holdfast effect settle {place} --skip   # do not do it",
            ]
        case StepState.UNKNOWN | StepState.STARTED:
            return [
                "holdfast worker APP   # looks it up or sends it again, as its class allows",
                f"holdfast effect evidence {place} --result JSON   # if you know that it happened",
            ]
        case StepState.PLANNED:
            return ["holdfast worker APP   # runs it", f"holdfast approval grant {place}   # if it waits for a yes"]
        case StepState.SUCCEEDED | StepState.FAILED | StepState.SKIPPED:
            return []


def print_effect(shape: Shape, step: StepView, *, now_ms: int) -> None:
    state = str(shape["state"])
    if shape["compensation"]:
        state += f" ({shape['compensation']})"
    if shape["orphaned"]:
        state += " (the worker that sent it is dead)"
    fields = [
        ("effect", str(shape["effect"])),
        ("task", str(shape["task_name"])),
        ("tool", f"{shape['tool']} ({shape['class']})"),
        ("state", state),
        ("effect key", str(shape["effect_key"])),
        ("arguments", json_line(shape["args"], chars_max=500)),
    ]
    if shape["question"]:
        fields.append(("question", str(shape["question"])))
    fields += _attempts(shape, step)
    fields += [("evidence", json_line(one, chars_max=500)) for one in shape["evidence"]]
    fields += [("fact", _fact(one)) for one in shape["facts"]]
    if step.state is StepState.PARKED:
        left = step.not_before_ms - now_ms
        when = "now" if left <= 0 else f"in {ago(left)}: a request may still be in flight"
        fields.append(("may be decided", when))
    if state == "succeeded":
        fields.append(("result", step.unkept or json_line(shape["result"], chars_max=500)))
    if shape["error"]:
        fields.append(("error", json_line(shape["error"], chars_max=500)))
    if step.closed_ms:
        fields.append(("ended", clock_time(step.closed_ms)))
    if step.note:
        fields.append(("note", step.note))
    if shape["ways"]:
        fields.append(("what to do", "\n".join(shape["ways"])))
    print_fields(fields)


def _attempts(shape: Shape, step: StepView) -> list[tuple[str, str]]:
    return [
        (
            f"attempt {number}",
            f"{clock_time(one.at_ms)}, epoch {epoch_text(one.epoch)}, fence {one.fence}, "
            f"by {send['worker'] or 'an unknown worker'}",
        )
        for number, (one, send) in enumerate(zip(step.attempts, shape["sends"], strict=True), start=1)
    ]


def _fact(item: Shape) -> str:
    state = "" if item["applied"] else " (waits for a worker)"
    return f"{item['at']} {item['kind']}{state}: {json_line(item['body'], chars_max=300)}"
