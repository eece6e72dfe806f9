"""Planted bugs: the protocol with one rule taken out, to see that the simulation notices.

A rule is taken out by replacing one function for the time of a `with` block, in this process
only; the shipped code has no switch for any of it. A simulation that does not find every one of
these is not worth its green light.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from holdfast.core import step as core_step
from holdfast.core.clock import Clock
from holdfast.core.step import Event, Facts, Step, StepState
from holdfast.errors import AttemptTimedOut
from holdfast.journal import records, rules
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import NewRecord, StepView
from holdfast.journal.steady import SteadyTime
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.gate.gate import Past
from holdfast.runtime.gate.guard import Guard, Tally
from holdfast.runtime.session.lease import SessionLease
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step import attempt, decisions, reconcile
from holdfast.runtime.step.attempt import AttemptOutcome, RefusedBy
from holdfast.runtime.step.reconcile import Reconciler
from holdfast.runtime.step.sending import Sender
from holdfast.runtime.step.steps import Steps
from holdfast.runtime.task.run import Run
from holdfast.runtime.tool.tool import Call, Tool
from holdfast_proofs.memory_journal.journal import MemoryJournal
from holdfast_proofs.simulate.campaign import mode_of
from holdfast_proofs.simulate.parts import ledger
from holdfast_proofs.simulate.run import Stage, Verdict, simulate

# Any in this file: the replaced functions' own arguments, handed through unread.

Replace = Callable[[object, str, Any], None]


@contextmanager
def planted(name: str) -> Generator[None]:
    """Take one rule out while the block runs."""
    with ExitStack() as undo:

        def replace(where: object, what: str, by: Any) -> None:
            undo.callback(setattr, where, what, getattr(where, what))
            setattr(where, what, by)

        BUGS[name](replace)
        yield


def find_bug(name: str, *, seeds_max: int, stage: Stage | None = None) -> Verdict | None:
    """The first world in which the bug shows itself."""
    with planted(name):
        for seed in range(seeds_max):
            verdict = simulate(seed, mode_of(seed), stage=stage)
            if verdict.breaches:
                return verdict
    return None


def find_bugs(*, seeds_max: int) -> dict[str, Verdict | None]:
    return {name: find_bug(name, seeds_max=seeds_max) for name in BUGS}


def _find_before_quiet(replace: Replace) -> None:
    replace(reconcile, "quiet_in_ms", _always(0))


def _no_lease_check(replace: Replace) -> None:
    replace(SessionLease, "check", _always(None))
    replace(SessionLease, "ok", _always(True))


def _retry_of_unrepeatable(replace: Replace) -> None:
    original = _get(Reconciler, "_facts")

    def facts(self: Reconciler, *args: Any) -> Facts:
        return msgspec.structs.replace(original(self, *args), at_least_once=True)

    replace(Reconciler, "_facts", facts)


def _key_per_attempt(replace: Replace) -> None:
    original = _get(attempt, "_call")

    def call(tool: Tool[..., Any], step: Any, *rest: Any, **more: Any) -> Call:
        own = step.effect_key
        step.effect_key = hashlib.sha256(own + bytes((len(step.attempts) & 0xFF,))).digest()[:16]
        try:
            return original(tool, step, *rest, **more)
        finally:
            step.effect_key = own

    replace(attempt, "_call", call)


def _timeout_as_failure(replace: Replace) -> None:
    original = _get(attempt, "_judged")

    def judged(tool: Tool[..., Any], error: BaseException, **rest: Any) -> AttemptOutcome:
        if isinstance(error, AttemptTimedOut):
            return RefusedBy("timed out")
        return original(tool, error, **rest)

    replace(attempt, "_judged", judged)


def _no_epoch_check(replace: Replace) -> None:
    replace(rules, "check_hold", _always(None))


def _refusal_closes(replace: Replace) -> None:
    original = core_step.apply

    def apply(step: Step | None, event: Event, **more: Any) -> Step:
        after = original(step, event, **more)
        started = event is Event.START
        return msgspec.structs.replace(after, alone=True) if started else after

    for module in (core_step, records, ledger):
        replace(module, "apply", apply)
    replace(core_step, "_next_memo", {})  # neither use nor leave answers of the other function


def _window_ignored(replace: Replace) -> None:
    replace(reconcile, "in_window", _always(True))


def _no_intent(replace: Replace) -> None:
    async def begin(self: TaskWriter, entry: NewRecord) -> None:
        self.defer(entry)

    replace(TaskWriter, "begin", begin)


def _page_believed(replace: Replace) -> None:
    replace(MemoryJournal, "send_begun", _always(False))


# Breaches that the simulation found in the shipped code: each is put back and must be found again.


def _goes_on_past_a_broken_call(replace: Replace) -> None:
    replace(Steps, "_left_open", _always(False))
    replace(Run, "end_by", _always(None))


def _keeps_what_it_lost(replace: Replace) -> None:
    async def release_strays(_self: Engine) -> None:
        return None

    replace(Engine, "_release_strays", release_strays)


def _time_stands_still(replace: Replace) -> None:
    clocks = _get(SteadyTime, "__init__")

    def init(self: Any, clock: Clock) -> None:
        clocks(self, _Stopped(clock))

    replace(SteadyTime, "__init__", init)


class _Stopped:
    """A clock whose boot time stands still."""

    def __init__(self, clock: Clock) -> None:
        self.boot_id = clock.boot_id
        self.wall_ms = clock.wall_ms

    def boot_ms(self) -> int:
        return 0


def _unapplied_result_as_evidence(replace: Replace) -> None:
    original = _get(TaskWriter, "_leave_evidence")

    async def leave_evidence(self: TaskWriter, entries: Sequence[NewRecord]) -> None:
        view = self.view
        for entry in entries:
            step = view.steps.get(entry.ordinal)
            if step is not None and step.letter == "T" and Event.SUCCEED in entry.events:
                body = {"outcome": "succeeded", "result": entry.body.get("result"), "source": "bug"}
                kind, ordinal = InboxKind.EVIDENCE, entry.ordinal
                await self.journal.drop(InboxItem(task_id=view.task_id, ordinal=ordinal, kind=kind, body=body))
        await original(self, entries)

    replace(TaskWriter, "_leave_evidence", leave_evidence)


def _window_looked_at_once(replace: Replace) -> None:
    original, in_window = _get(Reconciler, "_start_again"), _get(Reconciler, "_in_window")

    async def start_again(self: Any, tool: Tool[..., Any], step: StepView, *rest: Any) -> None:
        self._in_window = _always(in_window(self, tool, step))
        try:
            await original(self, tool, step, *rest)
        finally:
            del self._in_window

    replace(Reconciler, "_start_again", start_again)
    replace(Sender, "late_ms", _always(0))


def _decides_before_quiet(replace: Replace) -> None:
    replace(decisions, "decidable_in_ms", _always(0))


def _believes_a_broken_confirmation(replace: Replace) -> None:
    async def confirm(self: TaskWriter, seq: int) -> Any:
        return await self.journal.confirm(self.hold, seq=seq)

    replace(TaskWriter, "_confirm", confirm)


def _moves_after_the_end(replace: Replace) -> None:
    replace(Sender, "check_owner", _always(None))


def _blind_restore(replace: Replace) -> None:
    replace(records, "_fold_restore", _always(None))


def _frozen_unnoticed(replace: Replace) -> None:
    replace(SessionLease, "_jump_ms", _always(0))


def _always(value: object) -> Callable[..., Any]:
    def function(*_args: Any, **_more: Any) -> object:
        return value

    return function


def _get(where: object, name: str) -> Callable[..., Any]:
    return getattr(where, name)


def _limits_raced(replace: Replace) -> None:
    original = _get(Guard, "judge")

    def judge(self: Any, *args: Any) -> Any:
        events = original(self, *args)
        self._taken.clear()
        return events

    replace(Guard, "judge", judge)


def _doubt_uncounted(replace: Replace) -> None:
    original = _get(Tally, "past")

    def past(self: Any, taken: Any) -> Past:
        for ordinal in [o for o, one in self._open.items() if one.state is StepState.PARKED]:
            del self._open[ordinal]
        return original(self, taken)

    replace(Tally, "past", past)


BUGS: dict[str, Callable[[Replace], None]] = {
    "find before quiet": _find_before_quiet,
    "no lease check before send": _no_lease_check,
    "retry of unrepeatable": _retry_of_unrepeatable,
    "key per attempt": _key_per_attempt,
    "timeout as failure": _timeout_as_failure,
    "no epoch check": _no_epoch_check,
    "refusal closes while another attempt flies": _refusal_closes,
    "window ignored": _window_ignored,
    "no intent before send": _no_intent,
    "send-begun page always believed": _page_believed,
    "code goes on past a call it broke off": _goes_on_past_a_broken_call,
    "a living session keeps a run it lost": _keeps_what_it_lost,
    "time stands still behind a newer record": _time_stands_still,
    "an unapplied result taken as evidence": _unapplied_result_as_evidence,
    "key window looked at once": _window_looked_at_once,
    "a person decides before quiet": _decides_before_quiet,
    "a confirmation broken off is believed": _believes_a_broken_confirmation,
    "branches pass a limit together": _limits_raced,
    "a call in doubt does not count": _doubt_uncounted,
    "a branch moves after its run has ended": _moves_after_the_end,
    "a restored journal is taken for the newest": _blind_restore,
    "a machine that stood still goes on": _frozen_unnoticed,
}
