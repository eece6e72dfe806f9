"""The run: what a task function is given to act with.

A task function is replayed from its start on every resume. Each use of the run takes the next
ordinal; where the journal already holds that ordinal, the recorded answer is given and nothing
is done. So the same code takes the same path, and code that has changed is noticed at the first
ordinal where it asks for something else.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Generic, ParamSpec, TypeVar, cast

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ordinal import compensation
from holdfast.core.values import canonical, checked
from holdfast.errors import Cancelled, Fenced, Misuse, Signal, StepOpen, Suspended
from holdfast.journal.contract import InboxKind
from holdfast.journal.records import Body, Entry, Kind, Note
from holdfast.runtime.book import Book
from holdfast.runtime.steps import Steps
from holdfast.runtime.tool import Tool

P = ParamSpec("P")
T = TypeVar("T")

SLEEP_HERE_S = 2.0  # shorter sleeps are waited out in the process, longer ones free it
BRANCHES_MAX = 1_000
SLEEP_S_MAX = 366 * 86_400.0


class StepCall(Generic[T]):
    """A call that has not begun: await it, or give it to `run.gather`."""

    __slots__ = ("_compensates", "_run", "args", "ordinal", "tool")

    def __init__(
        self, run: Run, tool: Tool[..., Any], args: dict[str, Any], compensates: str = ""
    ) -> None:
        self._run = run
        self._compensates = compensates
        self.tool = tool
        self.args = args
        self.ordinal = ""  # known once it was awaited

    def __await__(self) -> Generator[Any, None, T]:
        return self.perform(self._run).__await__()

    async def perform(self, run: Run) -> T:
        if self.ordinal:
            raise Misuse(f"step {self.ordinal} was awaited already", hint="keep its result")
        if self._compensates:
            run.check_free()
        ordinal = self._compensates or run.take_ordinal()
        self.ordinal = ordinal
        extra: Body | None = {"compensates": self._compensates} if self._compensates else None
        with run.open_step(ordinal):
            result = await run.steps.perform(self.tool, ordinal, self.args, extra=extra)
        return cast(T, result)


class Approval:
    """What a person answered."""

    __slots__ = ("by", "granted", "note")

    def __init__(self, body: Body) -> None:
        self.granted = bool(body.get("granted"))
        self.by = str(body.get("by", ""))
        self.note = str(body.get("note", ""))

    def __bool__(self) -> bool:
        return self.granted


class Run:
    """One worker's hold on a task under one epoch, as the task function sees it."""

    def __init__(
        self, *, steps: Steps, clock: Clock, entropy: Entropy, prefix: str = "",
    ) -> None:  # fmt: skip
        self.steps = steps
        self._book: Book = steps.book
        self._clock = clock
        self._entropy = entropy
        self._prefix = prefix
        self._next = 0
        self._open = ""
        self._compensations: dict[str, int] = {}

    @property
    def task_id(self) -> str:
        return self._book.view.task_id

    @property
    def epoch(self) -> int:
        return self._book.hold.epoch

    def call(self, tool: Tool[P, T], /, **args: Any) -> StepCall[Any]:  # Any: checked as JSON
        """A durable call of the tool; await it for its result.

        Raises, when awaited: Refused or ToolFailed where the step is closed as failed,
        StepSkipped where a person decided so.
        """
        _check_tool(tool)
        tool.check_args(args)
        return StepCall(self, tool, args)

    def compensate(self, step: StepCall[Any], tool: Tool[P, T], /, **args: Any) -> StepCall[Any]:
        """Undo an earlier step by another call, with an ordinal and key of its own (`4.c1`)."""
        _check_tool(tool)
        tool.check_args(args)
        if not step.ordinal:
            raise Misuse("only a step that was awaited can be compensated")
        number = self._compensations.get(step.ordinal, 0) + 1
        self._compensations[step.ordinal] = number
        return StepCall(self, tool, args, compensates=compensation(step.ordinal, number))

    async def gather(
        self, *branches: StepCall[Any] | Callable[[Run], Awaitable[Any]]
    ) -> list[Any]:  # Any: each branch's own result
        """Run branches at the same time; their ordinals are fixed before any starts.

        A branch is a call, or an async function that is given a run of its own. All branches
        come to their end before this returns or raises the first failure in their order.
        """
        if not 1 <= len(branches) <= BRANCHES_MAX:
            raise Misuse(f"gather: 1 to {BRANCHES_MAX} branches, not {len(branches)}")
        ordinal = self.take_ordinal()
        note = self._note(ordinal, "gather", lambda: {"branches": len(branches)})
        if note.body.get("branches") != len(branches):
            raise Suspended(
                f"diverged: the gather at {ordinal} had {note.body.get('branches')} branches, "
                f"now it has {len(branches)}"
            )
        with self.open_step(ordinal):
            tasks = [
                asyncio.ensure_future(self._branch(branch, f"{ordinal}.{number}."))
                for number, branch in enumerate(branches, start=1)
            ]
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                # Broken off by the code or the worker: a branch may not have begun its next step.
                self._book.signal = Suspended("broken-off")
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise
        return _joined(tasks)

    async def sleep(self, seconds: float) -> None:
        """Rest durably; wakes once, on whichever worker, also after a restart."""
        if not 0 <= seconds <= SLEEP_S_MAX:
            raise Misuse(f"sleep: between 0 and {SLEEP_S_MAX:g} seconds, not {seconds!r}")
        ordinal = self.take_ordinal()
        due = self._book.journal.now_ms() + int(seconds * 1000)
        note = self._note(ordinal, "sleep", lambda: {"due_ms": due})
        if note.answer is not None:
            return
        with self.open_step(ordinal):
            await self._book.flush()
            due = int(note.body["due_ms"])
            while (left := due - self._book.journal.now_ms()) > 0:
                if self._book.cancelled:
                    raise Cancelled
                if left > SLEEP_HERE_S * 1000:
                    raise Suspended(f"sleeping {due}")
                self._book.changed.clear()
                try:
                    await asyncio.wait_for(self._book.changed.wait(), left / 1000)
                except TimeoutError:
                    continue
        self._answer(ordinal, {"woken_ms": self._book.journal.now_ms()})

    async def approve(self, question: str, **details: Any) -> Approval:  # Any: checked as JSON
        """Ask a person; the task waits, for as long as it takes.

        The answer is bound to the question and the details: if the code asks something else at
        this place after a change, an earlier answer does not count.
        """
        ordinal = self.take_ordinal()
        asked = checked(details, what="details of the question")
        digest = sha256(canonical({"question": question, "details": asked})).hexdigest()
        note = self._note(
            ordinal, "approve", lambda: {"question": question, "details": asked, "binding": digest}
        )
        if note.body.get("binding") != digest:
            raise Suspended(f"diverged: the question at {ordinal} has changed")
        if note.answer is not None:
            return Approval(note.answer)
        with self.open_step(ordinal):
            await self._book.flush()
            if self._book.cancelled:
                raise Cancelled
            item = self._book.find_item(InboxKind.APPROVAL, ordinal)
            if item is None:
                raise Suspended("approval")
            answer = {key: item.body.get(key) for key in ("granted", "by", "note")}
            entry = Entry(kind=Kind.ANSWER, ordinal=ordinal, body=answer)
            await self._book.write([entry], applied=(item.number,))
        return Approval(answer)

    def now(self) -> datetime:
        """The time, recorded: a replay sees the same."""
        note = self._value("now", self._book.journal.now_ms)
        return datetime.fromtimestamp(int(note) / 1000, UTC)

    def random(self) -> float:
        """A number in [0, 1), recorded: a replay sees the same."""
        return float(
            self._value("random", lambda: int.from_bytes(self._entropy.bytes(7), "big") / (1 << 56))
        )

    def uuid(self) -> str:
        """A random UUID, recorded: a replay sees the same."""
        raw = self._value("uuid", lambda: str(uuid.UUID(bytes=self._entropy.bytes(16), version=4)))
        return str(raw)

    def rng(self) -> random.Random:
        """A random generator whose seed is recorded."""
        return random.Random(self.uuid())

    # used by the runtime

    def check_free(self) -> None:
        """Refuse a second step beside an open one, also one that undoes it (I5)."""
        signal = self._book.signal
        if signal is not None:
            raise signal  # the code has swallowed it: it may not go on all the same
        if self._open:
            raise StepOpen(f"step {self._open} is still open: it must be awaited first")

    def take_ordinal(self) -> str:
        self.check_free()
        self._next += 1
        return f"{self._prefix}{self._next}"

    def open_step(self, ordinal: str) -> _Open:
        return _Open(self, ordinal)

    async def _branch(
        self, branch: StepCall[Any] | Callable[[Run], Awaitable[Any]], prefix: str
    ) -> Any:  # Any: the branch's own result
        run = Run(steps=self.steps, clock=self._clock, entropy=self._entropy, prefix=prefix)
        if isinstance(branch, StepCall):
            return await cast("StepCall[Any]", branch).perform(run)
        return await branch(run)

    def _value(self, what: str, make: Callable[[], object]) -> Any:  # Any: JSON of that kind
        note = self._note(self.take_ordinal(), what, lambda: {"value": make()})
        return note.body["value"]

    def _note(self, ordinal: str, what: str, make: Callable[[], Body]) -> Note:
        """The value recorded at this ordinal; made and recorded now where there is none."""
        note = self._book.view.notes.get(ordinal)
        if note is None:
            if ordinal in self._book.view.steps:
                raise Suspended(f"diverged: step {ordinal} was a call, now it is {what}")
            entry = Entry(kind=Kind.NOTE, ordinal=ordinal, body={"what": what, **make()})
            self._book.defer(entry)
            note = self._book.view.notes[ordinal]
        if note.what != what:
            raise Suspended(f"diverged: step {ordinal} was {note.what}, now it is {what}")
        return note

    def _answer(self, ordinal: str, body: Body) -> None:
        self._book.defer(Entry(kind=Kind.ANSWER, ordinal=ordinal, body=body))

    def set_open(self, ordinal: str) -> None:
        self._open = ordinal

    def remember(self, signal: Signal) -> None:
        """A signal ends the run; a branch's signal ends the whole task's, when all are done."""
        if not self._prefix:
            self._book.signal = signal


class _Open:
    """Marks a chain as busy with one step, so that a second one is refused (I5)."""

    __slots__ = ("_ordinal", "_run")

    def __init__(self, run: Run, ordinal: str) -> None:
        self._run = run
        self._ordinal = ordinal

    def __enter__(self) -> None:
        self._run.set_open(self._ordinal)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._run.set_open("")
        if isinstance(error, Signal):
            self._run.remember(error)


def _joined(tasks: Sequence[asyncio.Future[Any]]) -> list[Any]:
    """All results; or a signal before any failure, the first failure in order otherwise."""
    errors = [task.exception() for task in tasks if not task.cancelled()]
    if any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError
    for kind in (Fenced, Cancelled, Suspended, Signal, BaseException):
        for error in errors:
            if isinstance(error, kind):
                raise error
    return [task.result() for task in tasks]


def _check_tool(tool: object) -> None:
    if not isinstance(tool, Tool):
        raise Misuse(f"{tool!r} is not a tool", hint="decorate the function with @holdfast.tool")
