"""What is recorded of model calls, read back: pure functions over a task's view.

The arguments of a model step name its request by digests:

    {"after": "3", "count": 5, "head": DIGEST, "new": [DIGEST, ...], "prefix": DIGEST}

`head` is the content {"model", "settings", "system", "tools"}. The messages are those of the step
`after`, then its reply, then the `new` ones; `count` of them in all, and `prefix` is the chain over
their digests. The result is {"reply": ..., "cost": micro-units or null, "unit": ...}; `head` is in
it where an open step was sent with a head that had changed since it was planned, and `garbled`
where so many replies before it could not be used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, cast

import msgspec

from holdfast.core.ordinal import sort_key
from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.core.step import StepState
from holdfast.errors import JournalDamaged
from holdfast.journal.records import Body, StepView, TaskView
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Object, Request

ASK = "@ask"


class AskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a model step."""

    after: str
    count: int
    head: str
    new: tuple[str, ...]
    prefix: str

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "after": self.after,
            "count": self.count,
            "head": self.head,
            "new": list(self.new),
            "prefix": self.prefix,
        }


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What the replies of a task have cost. `unpriced`: replies whose cost is not known."""

    asks: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: dict[str, int]  # micro-units by currency
    unpriced: int


@contextlib.contextmanager
def reading_own() -> Generator[None]:
    """Records of this task are read: where they make no sense, it rests alone for a person.

    JournalDamaged would end the worker, and with it every other task.
    """
    try:
        yield
    except JournalDamaged as error:
        raise Suspended(NeedsPerson(f"damaged: {error.message}")) from None


def asked_of(step: StepView) -> AskRecord:
    """Raises JournalDamaged where the step is no model call of ours."""
    try:
        return msgspec.convert(step.args, AskRecord)
    except msgspec.ValidationError as error:
        raise JournalDamaged(f"step {step.ordinal}: its request cannot be read: {error}") from None


def head_of(view: TaskView, digest: str) -> Body:
    return cast(Body, _content(view, digest))


def reply_of(step: StepView) -> Reply:
    """The reply of a model step that succeeded."""
    try:
        return Reply.from_json(cast(Body, step.result)["reply"])
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise JournalDamaged(f"step {step.ordinal}: its reply cannot be read: {error}") from None


def find_ask(view: TaskView, ordinal: str) -> StepView | None:
    step = view.steps.get(ordinal)
    return step if step is not None and step.tool == ASK else None


def asks_of(view: TaskView) -> list[StepView]:
    """The model steps of a task, in order."""
    found = [ordinal for ordinal, step in view.steps.items() if step.tool == ASK]
    return [view.steps[ordinal] for ordinal in sorted(found, key=sort_key)]


def line_of(view: TaskView, ordinal: str) -> list[StepView]:
    """The model steps of the talk up to this one, oldest first."""
    found: list[StepView] = []
    while ordinal:
        step = find_ask(view, ordinal)
        if step is None or len(found) > len(view.steps):
            raise JournalDamaged(f"task {view.task_id}: step {ordinal} is not a model call")
        found.append(step)
        ordinal = asked_of(step).after
    return found[::-1]


def messages_of(view: TaskView, ordinal: str) -> Iterator[tuple[Object, str | StepView]]:
    """The messages of the request at this ordinal, without the system's.

    Each with its digest, or with the step whose reply it is.
    """
    line = line_of(view, ordinal)
    count = 0
    for step, following in zip(line, (*line[1:], None), strict=True):
        for digest in asked_of(step).new:
            count += 1
            yield cast(Object, _content(view, digest)), digest
        if following is not None:
            count += 1
            yield reply_of(step).message(prefix=f"r{count}"), step


def request_of(view: TaskView, ordinal: str) -> Request:
    """The whole request as it was recorded; what was sent has the same bytes."""
    step = find_ask(view, ordinal)
    if step is None:
        raise JournalDamaged(f"task {view.task_id}: step {ordinal} is not a model call")
    sent = cast(Body, step.result or {}).get("head") or asked_of(step).head
    head = head_of(view, sent)
    messages = [message for message, _ in messages_of(view, ordinal)]
    return Request(
        model=head["model"], messages=[*head["system"], *messages], settings=head["settings"], tools=head["tools"]
    )


def spent_of(view: TaskView) -> Spent | None:
    """What was spent on models, or None where none was asked."""
    done = [
        step
        for step in view.steps.values()
        if step.tool == ASK and step.step is not None and step.state is StepState.SUCCEEDED
    ]
    if not done:
        return None
    cost: dict[str, int] = {}
    tokens = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    unpriced = 0
    for step in done:
        result = cast(Body, step.result or {})
        if result.get("cost") is None:
            unpriced += 1
        else:
            cost[result["unit"]] = cost.get(result["unit"], 0) + int(result["cost"])
        usage = cast(Body, cast(Body, result.get("reply") or {}).get("usage") or {})
        for name in tokens:
            tokens[name] += int(usage.get(name) or 0)
    return Spent(asks=len(done), cost=cost, unpriced=unpriced, **tokens)


def _content(view: TaskView, digest: str) -> object:
    try:
        return view.contents[digest]
    except KeyError:
        raise JournalDamaged(f"task {view.task_id}: content {digest} is missing") from None
