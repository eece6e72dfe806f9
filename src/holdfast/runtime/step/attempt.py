"""One attempt: the tool is called once, and what it did is put into one word.

By the time this runs the start record is durable. The send-begun slot is marked before the tool's code is entered, or,
for tools that say when (`http_only`, `marks_sending`), right before their first byte. Whatever the tool does, exactly
one AttemptOutcome comes back; only a fenced or stopping worker breaks off, and then nothing is concluded here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.core.mail import Post
from holdfast.core.ports import Memory
from holdfast.core.values import Json, checked, checked_json, copied, encode
from holdfast.core.waiting import is_closed_from_outside
from holdfast.host.traces import WHERE_CHARS_MAX, Trace, cut_trace, trace_of
from holdfast.journal.records import StepView
from holdfast.runtime.http.client import BadRequest
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.session.deadlines import EXACT_BELOW_S, Deadlines
from holdfast.runtime.session.lease import SessionLease
from holdfast.runtime.tool.blocking import ChildPool, Threads
from holdfast.runtime.tool.child import CALL_FIELDS, Unkept
from holdfast.runtime.tool.file_watch import FileWatch
from holdfast.runtime.tool.started import A_PROCESS, Started
from holdfast.runtime.tool.tool import Absent, Apply, Call, FindAnswer, Found, Many, Tool, Unsure

TEXT_CHARS_MAX = 2_000  # of an error's message that is kept
FIND_TIMEOUT_S = 30.0
_NO_WORD = frozenset(("timeout", "raised"))  # doubts in which the tool itself said nothing about the effect

Args = dict[str, Any]  # Any: JSON values, checked before they are planned


class Returned(msgspec.Struct):
    result: Json  # nobody else holds it
    unkept: str = ""  # why the value could not be kept; the effect did take place
    apply: Apply | None = None
    raw: bytes = b""  # the result's JSON


class RefusedBy(msgspec.Struct):
    proof: Json
    retry_after_s: float | None = None  # it may be asked again after this time


class Unsent(msgspec.Struct):
    reason: str
    retry_after_s: float = 0.0


class Doubtful(msgspec.Struct):
    reason: str
    kind: str = ""
    text: str = ""
    retry_after_s: float = 0.0
    left: str = ""  # what it started and what still runs
    trace: Trace = Trace()


class Raised(msgspec.Struct):
    """It raised, and nothing outside can have changed."""

    kind: str
    text: str
    trace: Trace = Trace()


AttemptOutcome = Returned | RefusedBy | Unsent | Doubtful | Raised


class Send(msgspec.Struct, eq=False, gc=False):
    """Whether an attempt's first byte may have left, and the slot that says so to others."""

    lease: SessionLease
    slot: int
    begun: bool = False
    left: str = ""  # what the attempt started and what still ran when it was given up
    over: bool = False

    def mark(self) -> None:
        """The next byte may leave now. Raises RunFenced where the lease is over. Raises NotSent where the attempt has
        been given up, or where the mark cannot be kept, as on a full disk that copies on write."""
        if not self.begun:
            if self.over:
                raise errors.NotSent("this attempt has been given up")
            self.lease.check()
            try:
                self.lease.session.mark_begun(self.slot)
            except (errors.JournalFull, errors.ReadOnly, OSError) as error:
                raise errors.NotSent(f"could not record the start of the send: {errors.text_of(error)}") from error
            self.begun = True

    def mark_left(self) -> None:
        """Something that outlives this process is about to start, or still runs."""
        self.lease.session.mark_left(self.slot)


@dataclass(slots=True, kw_only=True, repr=False)
class Caller:
    """Calls tools and lookups for one worker."""

    lease: SessionLease
    children: ChildPool
    threads: Threads
    deadlines: Deadlines
    secrets: Secrets = NO_SECRETS
    memory: Memory | None = None
    post: Post | None = None

    async def attempt(
        self, tool: Tool[..., Any], step: StepView, args: Args, task_id: str, send: Send, folder: Path | None = None
    ) -> AttemptOutcome:
        """Call the tool once, with arguments that nobody else holds. Raises RunFenced before anything is sent where the
        lease is over."""
        ends = self.deadlines.loop.time() + tool.timeout_s
        call = _call(tool, step, task_id, ends, send.mark)
        if folder is not None:
            call.give_scratch(folder)
        if self.memory is not None:
            call.give_memory(self.memory, tool=tool.name)
        if self.post is not None:
            call.give_post(self.post)
        if tool.plans_more is not None:
            call.planned = step.body
        started = Started(send.mark_left) if tool.watched else None
        try:
            own = args
            if "secrets" in step.body:  # not `planned`: every call passes here
                own = self.secrets.resolve(tool, step, own)
            if tool.blocking:
                value = await self._invoke(tool, call, own, send)
            else:
                if tool.marks_itself:
                    self.lease.check()
                else:
                    send.mark()
                if started is None and tool.timeout_s >= EXACT_BELOW_S:  # most calls: no coroutine around the tool's
                    deadline = self.deadlines.begin(tool.timeout_s, (task_id, step.ordinal))
                    try:
                        value = await tool.begin(call, own)
                    except asyncio.CancelledError:
                        if deadline.is_late():
                            raise TimeoutError from None
                        raise
                    finally:
                        self.deadlines.end(deadline)
                else:
                    with started or nullcontext():
                        bound = tool.bound(call, own)
                        value = await self.deadlines.run(bound, tool.timeout_s, task_id, step.ordinal)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                send.left = self._left(tool, send, started)
                raise
            return await self._given_up(tool, error, send, started)
        except TimeoutError:
            # One of the tool's own says the same: no outcome in time.
            late = errors.AttemptTimedOut(tool=tool.name, timeout_s=tool.timeout_s)
            return await self._given_up(tool, late, send, started)
        except Unkept as error:
            return Returned(None, unkept=str(error))
        except BaseException as error:  # a tool may raise anything, an exit too: it is the attempt's outcome
            if self._is_fenced(error) or is_closed_from_outside(error):
                if self._left(tool, send, started):
                    send.mark_left()
                raise
            return await self._given_up(tool, error, send, started)
        finally:
            send.over = True
            if started is not None:
                started.close()
        return _returned(tool, value, self.secrets)

    async def _given_up(
        self, tool: Tool[..., Any], error: BaseException, send: Send, started: Started | None
    ) -> AttemptOutcome:
        """What an attempt without a result means, once what it started had a while to end."""
        outcome = _judged(tool, error, begun=send.begun, secrets=self.secrets)
        if isinstance(outcome, Doubtful) and outcome.reason in _NO_WORD:
            send.left = self._left(tool, send, started)
            if send.left and started is not None:
                send.left = await started.left_in_the_end()
            outcome.left = send.left
        return outcome

    def _left(self, tool: Tool[..., Any], send: Send, started: Started | None) -> str:
        """What of the attempt still runs, or may; empty where all of it has ended."""
        if started is not None:
            return started.left()
        return A_PROCESS if tool.needs_child and self.lease.session.is_left(send.slot) else ""

    async def find(
        self, tool: Tool[..., Any], step: StepView, args: Args, *, task_id: str, sent_ago_s: float | None = None
    ) -> FindAnswer:
        """Ask the lookup. Whatever it raises means that it cannot say."""
        if tool.finder is None:
            return Unsure("the tool has no lookup")
        ends = asyncio.get_running_loop().time() + FIND_TIMEOUT_S
        call = _call(tool, step, task_id, ends, lambda: None, lookup=True, sent_ago_s=sent_ago_s)
        try:
            own = self.secrets.resolve(tool, step, cast(Args, copied(args)), lookup=True)
            async with asyncio.timeout(FIND_TIMEOUT_S):
                answer = cast(object, await tool.finder(call, **own))
        except BaseException as error:  # a lookup may raise anything, an exit too: then it cannot say
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            if self._is_fenced(error) or is_closed_from_outside(error):
                raise
            text = self.secrets.text(errors.text_of(error))
            return Unsure(f"{type(error).__name__}: {text[:TEXT_CHARS_MAX]}")
        if not isinstance(answer, (Found, Absent, Many, Unsure)):
            return Unsure(f"the lookup returned a {type(answer).__name__}, not Found, Absent, Many or Unsure")
        return answer

    def _is_fenced(self, error: BaseException) -> bool:
        """Whether it is our own signal; one that a tool raises is an error like any other."""
        return isinstance(error, errors.RunFenced) and self.lease.lost

    async def _invoke(self, tool: Tool[..., Any], call: Call, args: Args, send: Send) -> object:
        """Call a blocking tool, in a child process or in a thread."""
        self.lease.check()
        if tool.needs_child:
            fields = {name: getattr(call, name) for name in (*CALL_FIELDS, "folder")}
            left_at = self.lease.session.left_at(send.slot)
            return await self.children.run(
                tool.target, fields, args, tool.timeout_s, before_send=send.mark, left_at=left_at, name=tool.name
            )
        send.mark()
        return await self.deadlines.run(
            lambda: self._in_thread(tool.bound(call, args)), tool.timeout_s, call.task_id, call.ordinal
        )

    async def _in_thread(self, bound: Callable[[], Any]) -> object:
        value = await self.threads.run(bound)
        # A plain function around an async one: what it returned has not happened yet.
        return await value if inspect.isawaitable(value) else value


@dataclass(slots=True, kw_only=True, repr=False)
class WatchedCaller(Caller):
    """Notes which files the calls write. A class of its own: without it no call pays for it."""

    files: FileWatch

    async def attempt(
        self, tool: Tool[..., Any], step: StepView, args: Args, task_id: str, send: Send, folder: Path | None = None
    ) -> AttemptOutcome:
        with self.files.of(tool.name):
            return await Caller.attempt(self, tool, step, args, task_id, send, folder)


def _returned(tool: Tool[..., Any], value: object, secrets: Secrets) -> AttemptOutcome:
    """A value means that the effect took place, also where the value cannot be kept."""
    apply = None
    if tool.letter == "T":
        if not isinstance(value, Apply):
            return Raised("Misuse", "a Transactional tool must return holdfast.Apply(statements, result)")
        apply, value = value, value.result
        try:
            apply = _swapped(apply, secrets)
        except errors.Misuse as error:
            return Raised("Misuse", error.message)
    try:
        kept, raw = checked_json(value, what=tool.result_title)
        if secrets.active:
            kept = secrets.value(kept)
            raw = encode(kept, what=tool.result_title)
    except (errors.BadValue, errors.TooLarge) as error:
        if tool.letter == "T":
            return Raised(type(error).__name__, error.message)
        return Returned(None, unkept=error.message)
    return Returned(kept, "", apply, raw)


def _swapped(apply: Apply, secrets: Secrets) -> Apply:
    """What it writes into its own tables is in the same file. Raises Misuse."""
    parsed = apply.parsed()
    if not secrets.active:
        return apply
    statements = [
        (one.sql, [secrets.text(item) if isinstance(item, str) else item for item in one.params]) for one in parsed
    ]
    return Apply(statements, apply.result)


def _judged(tool: Tool[..., Any], error: BaseException, *, begun: bool, secrets: Secrets) -> AttemptOutcome:
    def cut(text: str) -> str:
        return secrets.text(text)[:TEXT_CHARS_MAX]  # in this order: half a secret is none to swap

    def traced() -> Trace:
        where, text = error.trace if isinstance(error, errors.ToolRaised) else trace_of(error)
        return Trace(secrets.text(where)[:WHERE_CHARS_MAX], cut_trace(secrets.text(text)))

    harmless = tool.effect.changes_nothing
    match error:
        case errors.Refused():
            return RefusedBy(_shown_json(error.proof, secrets), error.retry_after_s)
        case BadRequest() if not begun:
            return Raised(type(error).__name__, cut(error.message), traced())
        case errors.NotSent() if not begun or not tool.marks_itself:
            return Unsent(cut(str(error)), error.retry_after_s)
        case errors.Busy():
            return Doubtful("busy", kind=error.kind, text=cut(error.text), retry_after_s=error.retry_after_s)
        case errors.KeyReused():
            told = errors.KeyReused(_shown_json(error.proof, secrets))  # its message cuts the proof
            return Doubtful("key-reused", text=cut(str(told)))
        case errors.ToolNotImportable() | errors.TooLarge() if not begun:
            return Raised(type(error).__name__, cut(error.message))
        case errors.AttemptTimedOut() if not harmless and not begun:
            return Unsent("the attempt timed out before it sent a byte")
        case errors.AttemptTimedOut() if not harmless:
            return Doubtful("timeout", kind="AttemptTimedOut", text=str(error))
        case errors.ToolRaised():
            kind, text = error.kind, cut(error.text)
        case errors.HoldfastError():
            kind, text = type(error).__name__, cut(error.message)
        case _:
            kind, text = type(error).__name__, cut(errors.text_of(error))
    if harmless or (tool.marks_itself and not begun):
        return Raised(kind, text, traced())  # nothing outside was changed: nothing was sent
    return Doubtful("raised", kind=kind, text=text, trace=traced())


def _is_cancelled() -> bool:
    """Whether this call was cancelled; a tool may also raise CancelledError itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _shown_json(proof: object, secrets: Secrets) -> Json:
    """The proof as JSON; what cannot be kept is kept as text."""
    try:
        kept = secrets.value(checked(proof, what="proof"))
        encode(kept, what="proof", bytes_max=64 * 1024)
        return kept
    except (errors.BadValue, errors.TooLarge):
        return secrets.text(repr(proof).encode(errors="replace").decode())[:TEXT_CHARS_MAX]


def _call(
    tool: Tool[..., Any],
    step: StepView,
    task_id: str,
    ends: float,
    mark: Callable[[], None],
    *,
    lookup: bool = False,
    sent_ago_s: float | None = None,
) -> Call:
    count, key = len(step.attempts), step.effect_key
    fence = step.attempts[-1].fence if count else 0
    # Positions, not names: every call passes here.
    return Call(task_id, step.ordinal, key, fence, count, ends, mark, tool.effect, lookup, sent_ago_s)
