"""The run: what a task function is given to act with.

A task function is replayed from its start on every resume. Each use of the run takes the next ordinal; where the
journal already holds that ordinal, the recorded answer is given and nothing is done. So the same code takes the same
path, and code that has changed is noticed at the first ordinal where it asks for something else.

What the run tells its code by a Signal (parked, cancelled, fenced) cannot be overruled: code that swallows it meets it
again at its next use of the run, and when it ends. The same holds for a step that the code itself breaks off
(`asyncio.wait_for` around `run.call`): the run ends there, the step is carried out without the code, and the code, run
again, gets what it gave.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ordinal import compensation, parent
from holdfast.core.rest import BrokenOff, Diverged, Sleep, Suspended, WaitsForApproval, joined
from holdfast.core.values import canonical, checked
from holdfast.core.waiting import is_closed_from_outside, wait_event
from holdfast.errors import Cancelled, Misuse, Signal, StepOpen
from holdfast.host.traces import caller
from holdfast.journal.bodies import ApprovalGiven, PlanNote, QuestionNote
from holdfast.journal.contract import InboxKind, Remark
from holdfast.journal.records import REMARK, Body, NewRecord, Note, RecordKind
from holdfast.journal.rules import check_remark, remark_to
from holdfast.runtime.scratch.scratch import Scratch
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.facts import differences
from holdfast.runtime.step.steps import Steps
from holdfast.runtime.task.awaited import tracked
from holdfast.runtime.tool.tool import Tool, check_tool

if TYPE_CHECKING:
    from holdfast.runtime.models.model import Model
    from holdfast.runtime.models.reply import Reply, Show
    from holdfast.runtime.step.plan import Plan
    from holdfast.runtime.task.talk import Talk

P = ParamSpec("P")
T = TypeVar("T")

SLEEP_HERE_S = 2.0  # shorter sleeps are waited out in the process, longer ones free it
BRANCHES_MAX = 1_000
VERSION_MAX = 1_000_000
_VERSION = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
SLEEP_S_MAX = 366 * 86_400.0


class StepCall(Generic[T]):
    """A call that has not begun: await it, or give it to `run.gather`."""

    __slots__ = ("_compensates", "_run", "args", "ordinal", "tool")

    def __init__(self, run: Run, tool: Tool[..., Any], args: dict[str, Any], compensates: str = "") -> None:
        self._run = run
        self._compensates = compensates
        self.tool = tool
        self.args = args
        self.ordinal = ""  # known once it was awaited
        run.steps.not_awaited[self] = caller(3)

    def __repr__(self) -> str:  # what `asyncio.create_task` shows of it when it refuses it
        return f"<call of {self.tool.name}: await it, or give it to run.gather>"

    @property
    def what(self) -> str:
        """How the code names it."""
        return self.tool.name[1:] if self.tool.name[0] == "@" else f"call({self.tool.name})"

    def __await__(self) -> Generator[Any, None, T]:
        return self.perform(self._run).__await__()

    def perform(self, run: Run) -> Coroutine[Any, Any, T]:
        """What is awaited; `run` is that of the chain that awaits it."""
        steps = run.steps
        steps.not_awaited.pop(self, None)
        if self.ordinal:
            raise Misuse(f"step {self.ordinal} was already awaited", hint="keep its result in a variable")
        extra: Body | None = None
        if self._compensates:
            run.check_free()
            ordinal, extra = self._compensates, {"compensates": parent(self._compensates)}
        else:
            ordinal = run.take_ordinal()
        self.ordinal = ordinal
        return cast("Coroutine[Any, Any, T]", steps.perform(self.tool, ordinal, self.args, extra, run))


class Approval:
    """What a person answered."""

    __slots__ = ("by", "granted", "note")

    def __init__(self, body: Body) -> None:
        given = ApprovalGiven.read(body)
        self.granted, self.by, self.note = bool(given.granted), str(given.by), str(given.note)

    def __bool__(self) -> bool:
        return self.granted


class Run:
    """One run of a task by one worker: what the task function uses to make durable calls."""

    def __init__(self, *, steps: Steps, clock: Clock, entropy: Entropy, prefix: str = "") -> None:
        self.steps = steps
        self._writer: TaskWriter = steps.writer
        self._clock = clock
        self._entropy = entropy
        self._prefix = prefix
        self._next = 0
        self.busy_with = ""  # the ordinal of the step that is open in this chain
        self._signal: BaseException | None = None
        self._compensations: dict[str, int] = {}

    @property
    def task_id(self) -> str:
        return self._writer.view.task_id

    @property
    def epoch(self) -> int:
        return self._writer.hold.epoch

    @property
    def scratch(self) -> Scratch:
        """The task's folder for working files (`run.scratch.path`), restored on resume.

        Every checkpoint includes the files in it; see docs/how-to/scratch-files.md. A task has one
        folder: the branches of a gather share it.
        """
        try:
            return self.steps.scratch()
        except Signal as signal:
            self._signal = signal
            raise

    @property
    def plan(self) -> Plan:
        """The task's plan: items with a state and a result, in every checkpoint."""
        from holdfast.runtime.step.plan import Plan

        return Plan(self.steps.plan, self._change_plan)

    def call(self, tool: Tool[P, T], /, **args: Any) -> StepCall[Any]:  # Any: checked as JSON
        """A durable call of the tool; await it for its result.

        Raises, when awaited: Refused or ToolFailed if the step failed, StepSkipped if a person
        decided to skip it, GateRefused if the task's gate refused it.
        """
        if type(tool) is not Tool or not tool.has_contract:
            check_tool(tool)
        return StepCall(self, tool, self.steps.taken(tool, args))

    def send(self, to: str, body: Any, *, thread: str = "") -> StepCall[Any]:  # Any: checked as JSON
        """Send a message to another agent; await it. Its result says which relays hold the message.

        Args:
            to: the agent: its id, a handle (`ada@relay.example`), or an address with hints.
            body: any JSON value of at most 60,000 bytes.
            thread: a name that the messages of one exchange share.

        Holdfast sends it again under the same key until two relays of the recipient have signed that they hold it;
        the recipient handles it once. Raises, when awaited: Refused if every relay refused it for good, ToolFailed if
        the values cannot be sent.
        """
        from holdfast.runtime.tool.mail_tool import send_mail

        return self.call(send_mail, to=to, body=body, **({"thread": thread} if thread else {}))

    def talk(self, *, system: str | Sequence[str] = ()) -> Talk:
        """A new conversation with a model; `system` is the text of its instructions."""
        from holdfast.runtime.task.talk import Talk  # with its client: only where a model is asked

        return Talk(self._writer, system=system)

    def ask(
        self,
        model: Model,
        talk: Talk | Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Tool[..., Any] | Mapping[str, object]] = (),
        settings: Mapping[str, object] | None = None,
        show: Show | None = None,
    ) -> StepCall[Reply]:
        """A recorded model call; await it for the reply, which is then part of the talk.

        Holdfast records the request before it sends it, and the reply before it acts on it. A replay gets the recorded
        reply and sends nothing.

        Args:
            talk: from `run.talk`; or a list of all messages, which Holdfast then processes as a whole at each call.
            tools: tools, or their schemas, that the model may call.
            settings: override those of the model.
            show: Holdfast calls it with each piece of the reply as it arrives; the pieces are provisional. Holdfast
                does not show a recorded reply again.

        Raises, when awaited: ContextTooLong, ModelKeyRefused, ModelQuotaSpent, ModelNotFound, ModelRejected,
        ReplyGarbled, StateHeldElsewhere, BadInput or TooLarge, if the step failed. While no endpoint replies,
        Holdfast waits and sends the request again, also after a restart.
        """
        from holdfast.runtime.task.ask_step import AskCall

        return AskCall(self, model, talk, tools=tools, settings=settings, show=show)

    def compensate(self, step: StepCall[Any], tool: Tool[P, T], /, **args: Any) -> StepCall[Any]:
        """Undo an earlier step by another call, which has its own ordinal (`4.c1`) and effect key."""
        check_tool(tool)
        args = self.steps.taken(tool, args)
        if not step.ordinal:
            raise Misuse("await the step before you compensate it")
        number = self._compensations.get(step.ordinal, 0) + 1
        self._compensations[step.ordinal] = number
        return StepCall(self, tool, args, compensates=compensation(step.ordinal, number))

    @tracked
    async def gather(
        self, *branches: StepCall[Any] | Callable[[Run], Awaitable[Any]]
    ) -> list[Any]:  # Any: each branch's own result
        """Run branches at the same time; their ordinals are fixed before any starts.

        A branch is a call, or an async function that is given a run of its own. All branches
        come to their end before this returns or raises the first failure in their order.
        """
        if not 1 <= len(branches) <= BRANCHES_MAX:
            raise Misuse(f"gather: give 1 to {BRANCHES_MAX} branches, not {len(branches)}")
        ordinal = self.take_ordinal()
        note = self._note(ordinal, "gather", lambda: {"branches": len(branches)})
        if (before := note.body.get("branches")) != len(branches):
            raise self._diverged(f"step {ordinal}: the gather had {before} branches and now has {len(branches)}")
        if self._writer.view.files is not None:
            await self._enter_gather(ordinal)
        with self.open_step(ordinal):
            tasks = [
                asyncio.ensure_future(self._branch(branch, f"{ordinal}.{number}."))
                for number, branch in enumerate(branches, start=1)
            ]
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                # Broken off by the code or the worker: a branch may not begin its next step.
                self._writer.end(Suspended(BrokenOff()))
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise
            return joined([task.result() for task in tasks])

    @tracked
    async def sleep(self, seconds: float) -> None:
        """Wait durably: after this time any worker resumes the task, also after a restart."""
        if not 0 <= seconds <= SLEEP_S_MAX:
            raise Misuse(f"sleep: give between 0 and {SLEEP_S_MAX:g} seconds, not {seconds!r}")
        ordinal = self.take_ordinal()
        due = self._writer.journal.now_ms() + int(seconds * 1000)
        note = self._note(ordinal, "sleep", lambda: {"due_ms": due})
        if note.answer is not None:
            return
        with self.open_step(ordinal):
            await self._writer.flush()
            due = int(note.body["due_ms"])
            while (left := due - self._writer.journal.now_ms()) > 0:
                self._writer.check_going()
                if self._writer.cancelled:
                    raise Cancelled
                if left > SLEEP_HERE_S * 1000:
                    raise Suspended(Sleep(due))
                self._writer.changed.clear()
                if not await wait_event(self._writer.changed, left / 1000):
                    break  # slept out; a clock that was set back must not make it longer
        body: Body = {"woken_ms": self._writer.journal.now_ms()}
        self._writer.defer(NewRecord(kind=RecordKind.ANSWER, ordinal=ordinal, body=body))

    @tracked
    async def approve(self, question: str, **details: Any) -> Approval:  # Any: checked as JSON
        """Ask a person; the task waits, for as long as it takes.

        The answer is bound to the question and the details: if the code asks something else at
        this place after a change, an earlier answer does not count.
        """
        ordinal = self.take_ordinal()
        asked = checked(details, what="details of the question")
        checked(question, what="question")
        digest = hashlib.sha256(canonical({"question": question, "details": asked})).hexdigest()
        note = self._note(ordinal, "approve", QuestionNote(question, asked, digest).body)
        if (was := QuestionNote.read(note.body)).binding != digest:
            asks = {"question": question, "details": asked}
            detail = differences({"question": was.question, "details": was.details}, asks)
            raise self._diverged(f"step {ordinal}: the question for approval is not the recorded one", detail)
        if note.answer is not None:
            return Approval(note.answer)
        with self.open_step(ordinal):
            await self._writer.flush()
            if self._writer.cancelled:
                raise Cancelled
            items = self._writer.items(InboxKind.APPROVAL, ordinal)
            if not items:
                raise Suspended(WaitsForApproval())
            # There is one. Journals of older versions may hold several: people were told that the newest counts.
            given = ApprovalGiven.read(items[-1].body)
            answer = ApprovalGiven(given.granted, given.by, given.note).body()
            entry = NewRecord(kind=RecordKind.ANSWER, ordinal=ordinal, body=answer)
            await self._writer.write([entry], applied=[item.number for item in items])
        return Approval(answer)

    def version(self, name: str, newest: int) -> int:
        """The version of this part of the code for this task; use it to choose between old and new code.

        Returns `newest` if the task reaches this line for the first time; 0 if the task got past this point before the
        line existed. Uses no ordinal, so you can add it to the code while tasks are open.
        """
        check_version(name, newest)
        ordinal = f"@version {name}"
        note = self._writer.view.notes.get(ordinal)
        if note is None:
            following = f"{self._prefix}{self._next + 1}"
            view = self._writer.view
            if following in view.steps or following in view.notes:
                return 0
            note = self._note(ordinal, "version-of", lambda: {"version": newest})
        return int(note.body["version"])

    @tracked
    async def note(self, text: str, *, to: Literal["MEMORY", "day"] = "day") -> None:
        """Add a line to the agent's memory: to today's log, or to MEMORY.md.

        On return the line is durable. However often this code runs again, the line is added once: a replay
        finds the record and adds nothing, even if the text is now another one. Holdfast writes the file
        from the journal; see docs/how-to/memory.md.
        """
        ordinal = self.take_ordinal()
        view = self._writer.view
        if (known := view.notes.get(ordinal)) is not None:
            if known.what != REMARK:
                raise self._diverged(f"step {ordinal}: the journal has {known.what}, the code now has a note")
            return
        if ordinal in view.steps:
            raise self._diverged(f"step {ordinal}: the journal has a call, the code now has a note")
        said, remark_id = str(checked(text, what="note")), f"{self.task_id}/{ordinal}"
        remark = Remark(remark_id=remark_id, to=remark_to(to), text=said, origin=f"task {view.name}")
        check_remark(remark)
        body: Body = {"to": remark.to.value, "text": remark.text, "origin": remark.origin}
        with self.open_step(ordinal):
            await self._writer.write([NewRecord(kind=RecordKind.REMARK, ordinal=ordinal, body=body)])

    def now(self) -> datetime:
        """The time, recorded: a replay sees the same."""
        note = self._value("now", self._writer.journal.now_ms)
        return datetime.fromtimestamp(int(note) / 1000, UTC)

    def random(self) -> float:
        """A number in [0, 1), recorded: a replay sees the same."""
        return float(self._value("random", lambda: int.from_bytes(self._entropy.bytes(7), "big") / (1 << 56)))

    def uuid(self) -> str:
        """A random UUID, recorded: a replay sees the same."""
        return str(self._value("uuid", lambda: str(uuid.UUID(bytes=self._entropy.bytes(16), version=4))))

    def rng(self) -> random.Random:
        """A random generator whose seed is recorded."""
        return random.Random(self.uuid())

    # used by the runtime

    @property
    def signal(self) -> BaseException | None:
        """What ends this chain, whatever its code has made of it.

        That the worker stops counts only for code that has met it: other code has come to its end in time.
        """
        return self._signal or (None if self._writer.stopping else self._writer.signal)

    def seek(self, number: int) -> None:
        """Continue after this ordinal: for a loop that is rebuilt from its records."""
        self._next = number

    def take_ordinal(self) -> str:
        self.check_free()
        self._next += 1
        return f"{self._prefix}{self._next}"

    def check_free(self) -> None:
        """Raise where this chain was told to end, or a step of it is still open (I5)."""
        self._signal = self._signal or self._writer.signal
        if self._signal is not None:
            raise self._signal
        if self._writer.ended:
            raise StepOpen("the task's code has ended: await each step in it")
        if self.busy_with:
            raise StepOpen(f"step {self.busy_with} is still open: await it first")

    @contextmanager
    def open_step(self, ordinal: str) -> Generator[None]:
        """Marks this chain as busy with one step, so that a second one is refused (I5)."""
        self.busy_with = ordinal
        try:
            yield
        except BaseException as error:  # signals and cancels too end the chain; passed on
            self.end_by(error)
            raise
        finally:
            self.busy_with = ""

    async def _enter_gather(self, ordinal: str) -> None:
        files, scratch = self._writer.view.files, self._writer.scratch
        if scratch is not None and scratch.caught_up:
            return
        if files is not None and files.newest_below(f"{ordinal}.") is not None:
            try:
                await self.scratch.enter_gather(ordinal)
            except Signal as signal:
                self._signal = signal
                raise

    async def _branch(
        self, branch: StepCall[Any] | Callable[[Run], Awaitable[Any]], prefix: str
    ) -> tuple[Any, BaseException | None]:  # Any: the branch's own result
        """What the branch gave, or what ended it; an exit of its code must not end the loop."""
        run = Run(steps=self.steps, clock=self._clock, entropy=self._entropy, prefix=prefix)
        result, error = None, None
        try:
            if isinstance(branch, StepCall):
                result = await cast("StepCall[Any]", branch).perform(run)
            else:
                result = await branch(run)
        except BaseException as raised:  # an exit of one branch must not end the loop under the others
            stopped = isinstance(raised, asyncio.CancelledError) and self._writer.stopping
            if stopped or is_closed_from_outside(raised):
                raise
            error = raised
        return result, run.signal or error

    def _value(self, what: str, make: Callable[[], object]) -> Any:  # Any: JSON of that kind
        return self._note(self.take_ordinal(), what, lambda: {"value": make()}).body["value"]

    def _note(self, ordinal: str, what: str, make: Callable[[], Body]) -> Note:
        """The value recorded at this ordinal; made and recorded now where there is none."""
        note = self._writer.view.notes.get(ordinal)
        if note is None:
            if ordinal in self._writer.view.steps:
                raise self._diverged(f"step {ordinal}: the journal has a call, the code now has {what}")
            entry = NewRecord(kind=RecordKind.NOTE, ordinal=ordinal, body={"what": what, **make()})
            self._writer.defer(entry)
            note = self._writer.view.notes[ordinal]
        if note.what != what:
            raise self._diverged(f"step {ordinal}: the journal has {note.what}, the code now has {what}")
        return note

    def _change_plan(self, change: PlanNote) -> None:
        ordinal = self.take_ordinal()
        made = self._writer.secrets.body(change.body())
        note = self._note(ordinal, "plan", lambda: made)
        if note.body != made:
            raise self._diverged(f"step {ordinal}: the change of the plan is not the recorded one")
        self.steps.plan_changes += 1

    def _diverged(self, why: str, detail: str = "") -> Suspended:
        self._signal = signal = Suspended(Diverged(why, detail))
        return signal

    def end_by(self, error: BaseException) -> None:
        """Remember what ends this chain, so that its code cannot continue."""
        if isinstance(error, Signal):
            self._signal = error
        elif isinstance(error, asyncio.CancelledError) and not self._writer.stopping:
            self._writer.end(Suspended(BrokenOff()))


def check_version(name: str, newest: int) -> None:
    """Refuse what is no name and number of a version."""
    if not _VERSION.fullmatch(name) or type(newest) is not int or not 1 <= newest <= VERSION_MAX:
        raise Misuse(
            f"version: give a name of 1 to 100 letters, digits, - and _, and a whole number from 1 to {VERSION_MAX}"
        )
