"""What the calls of one tool add up to in one task, at a cost that does not grow with the task.

A closed call never changes (I7), so it is added once and not looked at again; open ones are few
and are looked at each time. Times are kept as far back as the longest span of a rate goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from fractions import Fraction

from holdfast.core.step import StepState
from holdfast.journal.records import StepView
from holdfast.runtime.gate.gate import Past, Spent
from holdfast.runtime.gate.limits import amount_of

_FOR_NOTHING = (StepState.FAILED, StepState.SKIPPED)


class Tally:
    """The calls of one tool."""

    __slots__ = ("_ago_ms", "_calls", "_open", "_sent", "_span_ms", "_spent")

    def __init__(self, arguments: Collection[str], span_ms: int, ago_ms: Callable[[StepView], int | None]) -> None:
        """`ago_ms`: how long ago a step was sent; None where it never was."""
        self._calls = 0
        self._spent: dict[str, Spent] = {name: Fraction(0) for name in arguments}
        self._span_ms = span_ms
        self._ago_ms = ago_ms
        self._open: dict[str, StepView] = {}
        self._sent: deque[StepView] = deque()  # closed ones, oldest first

    def add(self, step: StepView) -> None:
        self._open[step.ordinal] = step

    def past(self, taken: Collection[tuple[str, object]]) -> Past:
        """All of them; `taken`: ordinal and arguments of calls that are not yet recorded."""
        for step in [one for one in self._open.values() if one.closed]:
            self._close(step)
        under_way = [(one.ordinal, one.args) for one in self._open.values()]
        under_way += taken
        spent = dict(self._spent)
        for ordinal, args in under_way:
            _spend(spent, ordinal, args)
        return Past(
            calls=self._calls + len(under_way),
            spent=spent,
            sent_most=len(self._sent) + len(under_way),
            sent_ago_ms=lambda: self._ago(len(taken)),
        )

    def _close(self, step: StepView) -> None:
        del self._open[step.ordinal]
        if step.state not in _FOR_NOTHING:
            self._calls += 1
            _spend(self._spent, step.ordinal, step.args)
        if self._span_ms and self._ago_ms(step) is not None:
            self._sent.append(step)

    def _ago(self, taken: int) -> list[int]:
        while self._sent and (self._ago_ms(self._sent[0]) or 0) >= self._span_ms:
            self._sent.popleft()
        steps = (*self._sent, *self._open.values())
        agos = [ago for one in steps if (ago := self._ago_ms(one)) is not None]
        return agos + [0] * taken


def _spend(spent: dict[str, Spent], ordinal: str, args: object) -> None:
    for name, before in spent.items():
        amount = amount_of(args, name)
        if isinstance(before, str):
            continue
        unknown = isinstance(amount, str)
        spent[name] = f"{name}: what step {ordinal} spends is not known" if unknown else before + amount
