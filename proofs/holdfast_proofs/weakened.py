"""The protocol with one rule taken out, to see that the suites notice.

Each weakening replaces a function of the runtime in the process that calls `weaken`: a forked
child that is about to be killed, never a process that does real work. Production code has no
switch for any of this. The rules are those of docs/formats/effect-protocol.md.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import ModuleType
from typing import Any

from holdfast.errors import AttemptTimedOut
from holdfast.journal import records
from holdfast.journal.contract import Hold
from holdfast.journal.postgres import adding, writer
from holdfast.journal.postgres.lane import Lane
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.writer import Append, Writer
from holdfast.journal.records import NewRecord
from holdfast.journal.sqlite import txn
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs import tasks
from holdfast.runtime.http.message import AnswerUnknown
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step import attempt
from holdfast.runtime.step.attempt import AttemptOutcome, RefusedBy
from holdfast.runtime.step.lost_timeline import LostEffects
from holdfast.runtime.tool import blocking
from holdfast.runtime.tool.started import Started
from holdfast.runtime.tool.tool import Absent, Call, Tool

# Any in this file: the replaced functions' own arguments, handed through unread.


class Weakness(StrEnum):
    NO_INTENT = "no intent before send"
    KEY_PER_ATTEMPT = "key per attempt"
    NO_EPOCH_CHECK = "no epoch check"
    TIMEOUT_AS_FAILURE = "timeout taken as failure"
    FIND_BEFORE_QUIET = "find before quiet"
    BLIND_RESTORE = "restored journal taken for the newest"
    OUTLIVED = "what a tool started may outlive its attempt"
    OWN_PLACE_ONLY = "a lost timeline is asked about its own places only"
    PLAIN_READ = "a commit in doubt is looked for with a plain read"


def weaken(weakness: Weakness | None) -> None:
    """Take the rule out of this process."""
    if weakness is not None:
        _WEAKEN[weakness]()


def _no_intent() -> None:
    """The start of a step waits for its end's commit instead of being one (rule 1)."""
    defer, flush_soon = _original(TaskWriter, "defer"), _original(TaskWriter, "_flush_soon")
    beginning = False

    async def begin(self: TaskWriter, entry: NewRecord) -> None:
        nonlocal beginning
        beginning = True
        defer(self, entry)
        beginning = False

    def flush(self: TaskWriter) -> None:
        if not beginning:  # a timer of a few milliseconds would repair it where sends are slow
            flush_soon(self)

    _replace(TaskWriter, "begin", begin)
    _replace(TaskWriter, "_flush_soon", flush)


def _key_per_attempt() -> None:
    """Each attempt has a key of its own (rule 2)."""
    original = _original(attempt, "_call")

    def call(tool: Tool[..., Any], step: Any, *rest: Any, **more: Any) -> Call:
        own = step.effect_key
        step.effect_key = hashlib.sha256(own + bytes((len(step.attempts) & 0xFF,))).digest()[:16]
        try:
            return original(tool, step, *rest, **more)
        finally:
            step.effect_key = own

    _replace(attempt, "_call", call)


def _no_epoch_check() -> None:
    """Whoever held a task once may write to it for ever (rule 8)."""
    original, checked = tasks.Addition.write, "epoch = ? AND seq = ? AND state = 'running'"
    if checked not in txn.MOVE:
        raise AttributeError("the check of a hold is written in another way now")
    txn.MOVE = txn.MOVE.replace(checked, "? NOTNULL AND ? NOTNULL")

    def write(self: tasks.Addition, txn: Txn) -> Any:
        hold = self.hold
        row = txn.db.execute("SELECT seq, head, last FROM task WHERE t = ?", (hold.row,)).fetchone()
        if row is not None:
            hold.seq, hold.head, hold.last = row
        return original(self, txn)

    _replace(tasks.Addition, "write", write)
    _no_epoch_check_on_a_server()


def _no_epoch_check_on_a_server() -> None:
    original, checked = Writer.write, "k.t = w.t AND k.epoch = w.epoch AND k.seq = w.before AND k.state = 'running'"
    if checked not in writer.MOVE or checked not in adding.ADD:
        raise AttributeError("the check of a hold is written in another way now")
    writer.MOVE, adding.ADD = (one.replace(checked, "k.t = w.t") for one in (writer.MOVE, adding.ADD))
    made, given = Writer.append, dict[int, tuple[Any, ...]]()

    def append(self: Writer, hold: Hold, entries: Sequence[NewRecord], **rest: Any) -> Append:
        act = made(self, hold, entries, **rest)
        given[id(act)] = (hold, entries, rest)
        return act

    async def write(self: Writer, link: Link, acts: list[Any]) -> int:
        for act in acts:
            if isinstance(act, Append):
                hold, entries, rest = given[id(act)]
                rows = await link.run("SELECT seq, head FROM $s.task WHERE t = %s", (hold.row,))
                hold.seq, hold.head = rows[0]
                again = made(self, hold, entries, **rest)
                act.made, act.move = again.made, again.move
        return await original(self, link, acts)

    async def check(_self: Writer, _link: Link, acts: list[Append]) -> list[Append]:
        return acts

    def begin(_self: Writer, _queue: object) -> None:
        return None

    _replace(Writer, "append", append)
    _replace(Writer, "begin", begin)
    _replace(Writer, "write", write)
    _replace(Writer, "_check_holds", check)


def _plain_read() -> None:
    """What is still being committed is not waited for, and the lane writes on from whatever stamp it then meets."""
    settle, find_row = _original(Lane, "_settle"), _original(Lane, "_find_row")

    async def stamp_of(lane: Any, link: Link) -> int:  # Any: a lane of whichever acts
        return (await link.run("SELECT stamp FROM $s.tally WHERE w = %s", (lane.tally.w,)))[0][0]

    async def plain(self: Any, link: Link) -> bool:
        if await stamp_of(self, link) != self.tally.stamp:
            return await settle(self, link)
        self.committing(None)
        return False

    async def follow(self: Any, link: Link) -> None:
        await find_row(self, link)
        self.tally.stamp = await stamp_of(self, link)

    _replace(Lane, "_settle", plain)
    _replace(Lane, "_find_row", follow)


def _timeout_as_failure() -> None:
    """No answer in time means that nothing happened (rule 3)."""
    original = _original(attempt, "_judged")

    def judged(tool: Tool[..., Any], error: BaseException, **rest: Any) -> AttemptOutcome:
        late = isinstance(error, AttemptTimedOut) or (
            isinstance(error, AnswerUnknown) and isinstance(error.__cause__, TimeoutError)
        )
        return RefusedBy("timed out") if late else original(tool, error, **rest)

    _replace(attempt, "_judged", judged)


def _find_before_quiet() -> None:
    """The far end is asked at once (rule 5)."""

    def quiet_in_ms(*_args: Any, **_rest: Any) -> int:
        return 0

    for module in _modules_with("quiet_in_ms"):
        _replace(module, "quiet_in_ms", quiet_in_ms)


def _blind_restore() -> None:
    """Slots after the head of a restored copy are fresh, open steps are what they were (rule 7)."""

    def fold_restore(*_args: Any) -> None:
        pass

    _replace(records, "_fold_restore", fold_restore)


def _own_place_only() -> None:
    """What a lost timeline did elsewhere in the task is not asked for (rule 7)."""

    async def elsewhere(*_args: Any, **_rest: Any) -> tuple[str, Absent]:
        return "", Absent()

    _replace(LostEffects, "elsewhere", elsewhere)


def _outlived() -> None:
    """Quiet counts from the end of the attempt, whatever it has started (rule 5)."""

    def left(_started: Started) -> str:
        return ""

    _replace(Started, "left", left)
    _replace(blocking, "PROGRAM", "holdfast_proofs.crash.outliving.weak_child")


def _modules_with(name: str) -> list[ModuleType]:
    """The runtime's modules that know this function, each by a name of its own."""
    found = [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("holdfast.runtime.") and hasattr(module, name)
    ]
    if not found:
        raise AttributeError(f"no module of the runtime has {name}")
    return found


def _original(where: object, name: str) -> Callable[..., Any]:
    return getattr(where, name)


def _replace(where: object, name: str, by: object) -> None:
    """Raises AttributeError where there is nothing to replace: that would weaken nothing."""
    getattr(where, name)
    setattr(where, name, by)


_WEAKEN: dict[Weakness, Callable[[], None]] = {
    Weakness.NO_INTENT: _no_intent,
    Weakness.KEY_PER_ATTEMPT: _key_per_attempt,
    Weakness.NO_EPOCH_CHECK: _no_epoch_check,
    Weakness.TIMEOUT_AS_FAILURE: _timeout_as_failure,
    Weakness.FIND_BEFORE_QUIET: _find_before_quiet,
    Weakness.BLIND_RESTORE: _blind_restore,
    Weakness.OUTLIVED: _outlived,
    Weakness.OWN_PLACE_ONLY: _own_place_only,
    Weakness.PLAIN_READ: _plain_read,
}
