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
from holdfast.core.step import Event, Facts, Step
from holdfast.errors import AttemptTimedOut
from holdfast.journal import records, rules
from holdfast.journal.memory import MemoryJournal
from holdfast.journal.records import Entry
from holdfast.runtime import attempt, reconcile
from holdfast.runtime.attempt import Caller, Outcome, RefusedBy
from holdfast.runtime.book import Book
from holdfast.runtime.lease import Lease
from holdfast.runtime.reconcile import Reconciler
from holdfast.runtime.tool import Call, Tool
from holdfast.testing.simulate import ledger
from holdfast.testing.simulate.campaign import mode_of
from holdfast.testing.simulate.run import Verdict, simulate

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


def find_bug(name: str, *, seeds_max: int, first: int = 0) -> Verdict | None:
    """The first world in which the bug shows itself."""
    with planted(name):
        for seed in range(first, first + seeds_max):
            verdict = simulate(seed, mode_of(seed))
            if verdict.breaches:
                return verdict
    return None


def find_bugs(*, seeds_max: int) -> dict[str, Verdict | None]:
    return {name: find_bug(name, seeds_max=seeds_max) for name in BUGS}


def _find_before_quiet(replace: Replace) -> None:
    replace(reconcile, "quiet_in_ms", _always(0))


def _no_lease_check(replace: Replace) -> None:
    replace(Lease, "check", _always(None))
    replace(Lease, "ok", _always(True))


def _retry_of_unrepeatable(replace: Replace) -> None:
    original = _get(Reconciler, "_facts")

    def facts(self: Reconciler, *args: Any) -> Facts:
        return msgspec.structs.replace(original(self, *args), at_least_once=True)

    replace(Reconciler, "_facts", facts)


def _key_per_attempt(replace: Replace) -> None:
    original = _get(Caller, "_call")

    def call(self: Caller, tool: Tool[..., Any], step: Any, *, attempt: int, **more: Any) -> Call:
        own = step.effect_key
        step.effect_key = hashlib.sha256(own + bytes((attempt & 0xFF,))).digest()[:16]
        try:
            return original(self, tool, step, attempt=attempt, **more)
        finally:
            step.effect_key = own

    replace(Caller, "_call", call)


def _timeout_as_failure(replace: Replace) -> None:
    original = _get(attempt, "_judged")

    def judged(tool: Tool[..., Any], error: BaseException, *, begun: bool) -> Outcome:
        if isinstance(error, AttemptTimedOut):
            return RefusedBy("timed out")
        return original(tool, error, begun=begun)

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


def _window_ignored(replace: Replace) -> None:
    replace(reconcile, "in_window", _always(True))


def _no_intent(replace: Replace) -> None:
    async def begin(self: Book, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.defer(entry)

    replace(Book, "begin", begin)


def _page_believed(replace: Replace) -> None:
    replace(MemoryJournal, "send_begun", _always(False))


def _always(value: object) -> Callable[..., Any]:
    def function(*_args: Any, **_more: Any) -> object:
        return value

    return function


def _get(where: object, name: str) -> Callable[..., Any]:
    return getattr(where, name)


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
}
