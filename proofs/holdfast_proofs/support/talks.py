"""The request of a model call, put together again from a task's records."""

from __future__ import annotations

from typing import cast

from holdfast.journal.records import Body, TaskView
from holdfast.runtime.models.request import Request
from holdfast.runtime.task.talk import asked_of, head_of, messages_of


def request_of(view: TaskView, ordinal: str) -> Request:
    """The whole request as it was recorded; what was sent has the same bytes."""
    messages = [message for message, _ in messages_of(view, ordinal)]  # raises where it is no model call
    step = view.steps[ordinal]
    head = head_of(view, cast(Body, step.result or {}).get("head") or asked_of(step).head)
    return Request(
        model=head["model"], messages=[*head["system"], *messages], settings=head["settings"], tools=head["tools"]
    )
