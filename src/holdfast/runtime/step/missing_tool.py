"""In place of a tool that an agent does not have any more, or has under another class.

An open call of such a tool may have taken effect, and nothing here can find out: what was sent is
known, what it meant is not. So the step itself is parked, with that question: then evidence, a
person's decision and a cancel do for it what they do for every parked step. It has no
attempts, so it is never sent; it has no lookup, so nothing is asked of it.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.effect import CLASSES, Effect, Keyed
from holdfast.errors import NotSent
from holdfast.journal.records import StepView
from holdfast.runtime.tool.tool import Tool

NONE_AT_ALL = -1_000_000  # below every count of attempts that were spared
QUESTION = (
    "was it done? The call is open, and the agent has no such tool any more; "
    "say done or skip, or give the tool back and say run"
)
OTHER_CLASS = (
    "was it done? The call is open as {was}, and the tool is {now} now; "
    "say done or skip, or give it back its class and say run"
)


class MissingTool(Tool[..., Any]):
    """The tool of a recorded step, as far as the record knows it."""

    def __init__(self, step: StepView, now: Tool[..., Any] | None) -> None:
        super().__init__(
            _refuse,
            name=step.tool,
            effect=_effect_of(step),
            timeout_s=1.0,
            attempts=NONE_AT_ALL,
            retries=NONE_AT_ALL,
            marks_sending=True,
        )
        self.question = QUESTION
        if now is not None:
            self.delay_ms = max(self.delay_ms, now.delay_ms)
            self.question = OTHER_CLASS.format(was=self.effect.name, now=now.effect.name)


async def _refuse(**_args: object) -> None:
    raise NotSent("the agent does not have its tool any more")


def _effect_of(step: StepView) -> Effect:
    if step.letter != Keyed.letter:
        return CLASSES[step.letter]()
    window_s = max(1.0, step.planned.window_ms / 1000)
    return Keyed(window_s=window_s, fingerprint="checked", refusals_stored=True)
