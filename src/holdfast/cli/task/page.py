"""One task for a person: its state, its steps, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.screen.screen import ago, clock_time, json_line, print_fields, print_table, short_time, shown, talk
from holdfast.core.ordinal import sort_key
from holdfast.journal.records import StepView, TaskView
from holdfast.views.tasks import Shape, epoch_text, failure_words, next_try_ms, step_name
from holdfast.views.unfinished import Wait

WAITS = ("sleep", "approve")
FILES_SHOWN_MAX = 50


def print_task(
    shape: Shape, view: TaskView, waits: Sequence[Wait], *, now_ms: int, full: bool = False, trace: bool = False
) -> None:
    print_fields([*_head(shape, view, now_ms=now_ms), *_waits(waits, now_ms)])
    steps = [view.steps[ordinal] for ordinal in sorted(view.steps, key=sort_key)]
    shapes = {one["ordinal"]: one for one in shape["steps"]}
    _print_section(
        ("step", "tool", "class", "state", "tries", "started", "took", "result"),
        [_step_row(view, step, shapes[step.ordinal], now_ms) for step in steps],
    )
    _print_section(("step", "decision", "by", "at", "note"), [decision_row(one) for one in shape["decisions"]])
    if full:
        _print_section(("step", "effect key"), [(one["ordinal"], one["effect_key"]) for one in shape["steps"]])
    plan = [(str(one["number"]), one["title"], one["state"], one["result"]) for one in shape["plan"]]
    _print_section(("item", "plan", "state", "result"), plan)
    rests = [_wait_row(one, view) for one in shape["notes"] if one["what"] in WAITS]
    _print_section(("step", "wait", "since", "until"), rests)
    if shape["scratch"]:
        print()
        _print_scratch(shape["scratch"])
    if full:
        claims = [
            (epoch_text(claim.epoch), one["worker"], claim.session_id, clock_time(claim.at_ms))
            for claim, one in zip(view.claims.values(), shape["claims"], strict=True)
        ]
        _print_section(("epoch", "claimed by", "session", "at"), claims)
    if trace:
        _print_traces(shape, view)


def _print_section(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print()
        print_table(columns, rows, empty="")


def _print_traces(shape: Shape, view: TaskView) -> None:
    """Every traceback that the records hold: of each step's newest failure, then of the task."""
    found = [(f"step {step.ordinal} ({step.tool})", step.failure.trace) for step in view.steps.values()]
    found.append(("task", str(shape["error"].get("trace", ""))))
    found = [(name, text) for name, text in found if text]
    for name, text in found:
        print(f"\ntraceback of {name}:\n{shown(text.rstrip())}")
    if not found:
        talk("no record of this task holds a traceback")


def decision_row(one: Shape) -> tuple[str, ...]:
    what = one["what"] if one["applied"] else f"{one['what']} (waits for a worker)"
    if one["what"] == "done":
        what += f": {json_line(one['result'])}"
    return (one["ordinal"] or "-", what, one["by"] or "-", one["at"], one["note"])


def _print_scratch(scratch: Shape) -> None:
    files, folders = scratch["files"], scratch["empty_folders"]
    rows = [(one["path"], f"{one['size']:,}") for one in files]
    rows += [(f"{path}/", "empty") for path in folders]
    more = len(rows) - FILES_SHOWN_MAX
    print_table(("scratch file", "bytes"), rows[:FILES_SHOWN_MAX], empty="the scratch folder is empty")
    if more > 0:
        print(f"and {more:,} more (--json lists all); {scratch['bytes']:,} bytes in all")


def _wait_row(note: Shape, view: TaskView) -> tuple[str, ...]:
    answer, about = note["answer"], note["about"]
    since = short_time(view.notes[note["ordinal"]].at_ms, day_ms=view.accepted_ms)
    if note["what"] == "sleep":
        until = short_time(int(view.notes[note["ordinal"]].body["due_ms"]), day_ms=view.accepted_ms)
        return (note["ordinal"], "sleep", since, until if answer is None else "woken")
    if answer is None:
        return (note["ordinal"], f"approval: {about}", since, "a person answers")
    said = "granted" if answer.get("granted") else "refused"
    return (note["ordinal"], f"approval: {about}", since, f"{said} by {answer.get('by')}")


def _head(shape: Shape, view: TaskView, *, now_ms: int) -> list[tuple[str, str]]:
    fields = [("task", str(shape["task_id"])), ("name", str(shape["name"]))]
    state = str(shape["state"])
    if shape["cancel_asked"] and state != "cancelled":
        state += " (asked to stop)"
    fields.append(("state", state))
    if shape["erased"]:
        return [*fields, ("payload", "erased: it ended before the retention period")]
    if view.request_id:
        fields.append(("request id", view.request_id))
    fields += [
        ("submitted", f"{clock_time(view.accepted_ms)} ({ago(now_ms - view.accepted_ms)} ago)"),
        ("arguments", json_line(shape["args"], chars_max=300)),
    ]
    if view.finished:
        fields.append(("ended", clock_time(view.ended_ms)))
    if state == "succeeded":
        fields.append(("result", json_line(shape["result"], chars_max=300)))
    if shape["error"]:
        fields.append(("error", f"{shape['error'].get('kind')}: {shape['error'].get('text')}"))
        fields += _raised_at(shape)
    if state == "failed":
        fields.append(("what to do", f"fix the cause, then `holdfast task retry {shape['task_id']}`: results are kept"))
    if shape["crashes"]:
        fields.append(("crashes", f"{shape['crashes']} of its runs died with their worker"))
    if shape["spent"]:
        fields.append(("spent", _spent_line(shape["spent"])))
    if shape["changed"]:
        fields.append(("changed", f"its {' and '.join(shape['changed'])}, since it started"))
    if shape["parked"]:
        fields += [*_parked_after(shape), *_parked(shape)]
    return fields


def _waits(waits: Sequence[Wait], now_ms: int) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for one in waits:
        due_ms = one.due_ms
        when = f", in {ago(due_ms - now_ms)}" if due_ms > now_ms else ", due now" if due_ms else ""
        fields.append(("waits for", one.text + when))
        fields += [("what to do", "\n".join(f"`{command}`" for command in one.commands))] if one.commands else []
    return fields


def _raised_at(shape: Shape) -> list[tuple[str, str]]:
    """The line of the user's code that raised: of the task, and of the tool whose failure it passed on."""
    steps = [one for one in shape["steps"] if one["error"].get("where") and one["state"] == "failed"]
    fields = [("raised at", where)] if (where := shape["error"].get("where")) else []
    fields += [(f"step {one['ordinal']} raised at", str(one["error"]["where"])) for one in steps]
    return [*fields, ("traceback", f"`holdfast task show {shape['task_id']} --trace`")] if fields else []


def _parked(shape: Shape) -> list[tuple[str, str]]:
    parked = shape["parked"]
    detail = [("difference", parked["detail"])] if parked["detail"] else []
    return [("question", parked["question"]), *detail, ("what to do", "\n".join(parked["ways"]))]


def _parked_after(shape: Shape) -> list[tuple[str, str]]:
    """What the parked steps raised, and where: a person who decides asks this first."""
    steps = [one for one in shape["steps"] if one["state"] == "parked" and one["error"]]
    raised = [field for one in steps for field in _raised(one)]
    where = any(one["error"].get("where") for one in steps)
    return [*raised, ("traceback", f"`holdfast task show {shape['task_id']} --trace`")] if where else raised


def _raised(step: Shape) -> list[tuple[str, str]]:
    name, error = f"step {step['ordinal']}", step["error"]
    said = [(f"{name} error", f"{error.get('kind')}: {error.get('text')}")]
    return [*said, (f"{name} raised at", str(error["where"]))] if error.get("where") else said


def _step_row(view: TaskView, step: StepView, shape: Shape, now_ms: int) -> tuple[str, ...]:
    tries = step.earlier + step.attempts
    started_ms = tries[-1].at_ms if tries else 0
    state = shape["state"] + (f" ({shape['compensation']})" if shape["compensation"] else "")
    if shape["orphaned"]:
        state += " (its worker is dead)"
    if shape["ended_by"]:
        state += f" ({shape['ended_by']})"
    took = "-" if shape["took_ms"] is None else ago(shape["took_ms"])
    return (
        step.ordinal,
        step_name(view, step),
        shape["class"],
        state,
        str(len(tries)),
        short_time(started_ms, day_ms=view.accepted_ms),
        took,
        _summary(step, shape, now_ms),
    )


def _ask_line(ask: Shape) -> str:
    """A reply in one line: what it says or calls, its cost, its endpoint."""
    route: Shape = ask["route"] or {}
    usage: Shape = ask["usage"] or {}
    said = [json_line(ask["text"])] if ask["text"] else []
    said += [f"calls {', '.join(ask['tool_calls'])}"] if ask["tool_calls"] else []
    way = [f"{usage['input_tokens']} + {usage['output_tokens']} tokens"] if usage else []
    way += [money(ask["cost"], ask["unit"])] if ask["cost"] is not None else []
    way += [f"by {route['endpoint']}"] if route else []
    failed = [one["endpoint"] for one in route.get("failures", ())]
    way += [f"after {', '.join(failed)}"] if failed else []
    if failed and route.get("cold_tokens") is not None:
        way.append(f"{route['cold_tokens']} tokens not cached")
    way += [f"depends on {', '.join(ask['held_state'])}"] if ask["held_state"] else []
    return f"{'; '.join(said) or ask['stop']} ({', '.join(way)})"


def money(micros: int, unit: str) -> str:
    """Micro-units as people write money."""
    return f"{micros / 1_000_000:.6f} {unit}"


def _spent_line(spent: Shape) -> str:
    asks = f"{spent['asks']} model calls" if spent["asks"] != 1 else "1 model call"
    line = (
        f"{asks}, {spent['input_tokens']:,} tokens in ({spent['cached_tokens']:,} cached), "
        f"{spent['output_tokens']:,} out"
    )
    cost = ", ".join(money(micros, unit) for unit, micros in spent["cost"].items())
    line += f"; {cost}" if cost else ""
    return line + (f"; {spent['unpriced']} without a price" if spent["unpriced"] else "")


def _summary(step: StepView, shape: Shape, now_ms: int) -> str:
    if shape["question"]:
        return str(shape["question"])
    if step.unkept:
        return f"took effect, but its result is lost: {step.unkept}"
    if shape["state"] == "succeeded" and shape["ask"]:
        return _ask_line(shape["ask"])
    if shape["state"] == "succeeded":
        return json_line(step.result)
    if shape["error"]:
        due_ms = next_try_ms(step)
        again = f"; next try in {ago(due_ms - now_ms)}" if due_ms > now_ms else ""
        return failure_words(step.error) + again
    return str(shape["doubt"] or step.note)
