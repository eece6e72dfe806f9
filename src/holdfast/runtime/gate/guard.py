"""Enforcing a gate: each new call of a task is judged once, and the answer recorded with it.

Every call passes here when its slot is new: of the code, of a branch, a compensation, a retry slot, a call of a scope.
What the journal holds is never judged again, so a replay, another worker and a changed gate find the same answer.

* Let through: nothing is added; the step is begun as without a gate.
* Refused: one record plans the step and skips it (T1, T11). It has its ordinal and its arguments, nothing was sent, it
  is closed and counts for nothing; `run.call` raises GateRefused, the first time and on every replay. A crash before
  that commit leaves nothing, one after it all.
* A person must say yes: the step is planned, and waits like a tool that needs approval.

Judging and taking the place is one act without an await. Between it and the commit the call is remembered here, so that
branches that are judged in the same moment do not pass a limit together. If the process dies before the commit the
place is free again: nothing was begun.

After a restore a slot may have been used in the timeline that is lost. To record that it was not would be wrong, so a
call that is refused there is opened as in doubt, to be looked up or parked; it is not sent unless a person says yes
twice.

What the calls of a tool add up to is kept in a `Tally`, at a cost that does not grow with the task: a closed call never
changes (I7), so it is added once and not looked at again; the few open ones are looked at each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from itertools import islice
from typing import Any, cast

from holdfast.core.rest import Diverged, Suspended
from holdfast.core.step import CLOSED, Event, StepState
from holdfast.core.values import checked
from holdfast.errors import Misuse, NoSchema
from holdfast.journal.records import Attempt, Body, StepView
from holdfast.runtime.gate.gate import NOTHING, Gate, GateVerdict, Past, Spent, amount_of
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.tool.tool import Tool
from holdfast.runtime.tool.validation import problems

OnRefused = Callable[[str, str, str], None]  # ordinal, tool, rule


def silent(_ordinal: str, _tool: str, _rule: str) -> None:
    pass


def is_builtin(tool: str) -> bool:
    """Whether it is the runtime's own, such as `@ask`: a gate is for what code and models call."""
    return tool.startswith("@")


class Guard:
    """The gate of one task under one hold."""

    __slots__ = ("_writer", "_gate", "_known", "_on_refused", "_taken", "_tallies")

    def __init__(self, gate: Gate, writer: TaskWriter, *, on_refused: OnRefused = silent) -> None:
        self._gate = gate
        self._writer = writer
        self._on_refused = on_refused
        self._tallies: dict[str, Tally] = {}
        self._known = 0  # steps of the view that are in them
        self._taken: dict[str, tuple[str, object]] = {}  # let through, not yet in the view

    def judge(self, tool: Tool[..., Any], ordinal: str, body: Body) -> tuple[Event, ...]:
        """What the new step begins with, where it is not simply begun; told in its body too."""
        if is_builtin(tool.name):
            return ()
        verdict = self._verdict(tool, ordinal, cast("dict[str, object]", body["args"]))
        if (verdict is None or not verdict.refused) and self._gate.looks_back(tool.name):
            self._taken[ordinal] = (tool.name, body["args"])
        if verdict is None:
            return ()
        body["gate"] = said = _said(verdict)
        restored = self._writer.view.restored_ms and not tool.effect.changes_nothing
        if verdict.refused:
            self._on_refused(ordinal, tool.name, verdict.rule)
        if restored:
            said["verdict"] = "approve"
            return ()
        if not verdict.refused:
            return (Event.PLAN,)
        body["note"] = f"refused by the gate: {verdict.why}"
        return (Event.PLAN, Event.SKIP)

    def check_recorded(self, tool: Tool[..., Any], step: StepView) -> None:
        """An open step is resumed with its arguments, if the function still takes them."""
        if is_builtin(tool.name):
            return
        args = cast("dict[str, object]", step.args)
        try:
            tool.check_args({name: one for name, one in args.items() if name not in tool.given})
        except Misuse as error:
            raise Suspended(Diverged(f"step {step.ordinal}: {error.message}")) from None

    def _verdict(self, tool: Tool[..., Any], ordinal: str, args: Mapping[str, object]) -> GateVerdict | None:
        name = tool.name
        told = _problems(tool, args) if self._gate.allows(name) else ()
        if not self._gate.looks_back(name):
            return self._gate.decide(name, args, NOTHING, problems=told)
        self._take_in()
        beside = [(at, given) for at, (taken, given) in self._taken.items() if taken == name and at != ordinal]
        return self._gate.decide(name, args, self._tally(name).past(beside), problems=told)

    def _take_in(self) -> None:
        """Add what has come into the view since; steps are never taken out of it."""
        steps = self._writer.view.steps
        new = islice(reversed(steps.values()), len(steps) - self._known)
        for step in reversed(list(new)):
            if self._gate.looks_back(step.tool):
                self._tally(step.tool).add(step)
                self._taken.pop(step.ordinal, None)
        self._known = len(steps)

    def _tally(self, tool: str) -> Tally:
        found = self._tallies.get(tool)
        if found is None:
            arguments, span_ms = self._gate.counted(tool)
            found = self._tallies[tool] = Tally(arguments, span_ms, self._sent_ago_ms)
        return found

    def _sent_ago_ms(self, step: StepView) -> int | None:
        if step.attempts:
            return self._ago_ms(step.attempts[-1])
        if step.state not in CLOSED:
            return 0
        if step.state is StepState.SKIPPED:
            return None
        return max(0, self._writer.journal.now_ms() - step.closed_ms)  # settled or found

    def _ago_ms(self, attempt: Attempt) -> int:
        """On the boot clock where it can be: a wall clock set forward must not end a span."""
        clock, claim = self._writer.clock, self._writer.view.claims.get(attempt.epoch)
        if claim is not None and claim.boot_id == clock.boot_id:
            return max(0, clock.boot_ms() - attempt.boot_ms)
        return max(0, self._writer.journal.now_ms() - attempt.at_ms)


def _problems(tool: Tool[..., Any], args: Mapping[str, object]) -> list[str]:
    told: list[str] = []
    own: dict[str, object] = {}
    for name, value in args.items():
        if name not in tool.given:
            own[name] = value
        elif value != checked(tool.given[name], what=name):
            told.append(f"{name}: leave it out, the tool sets it")
    try:
        return told + problems(tool.schema["parameters"], own)
    except NoSchema as error:
        return [error.message]


def _said(verdict: GateVerdict) -> Body:
    said: Body = {"verdict": "refused" if verdict.refused else "approve", "rule": verdict.rule, "why": verdict.why}
    if verdict.retry_after_s is not None:
        said["retry_after_s"] = verdict.retry_after_s
    return said


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
        calls, sent = self._calls + len(under_way), len(self._sent) + len(under_way)
        return Past(calls=calls, spent=spent, sent_most=sent, sent_ago_ms=lambda: self._ago(len(taken)))

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
