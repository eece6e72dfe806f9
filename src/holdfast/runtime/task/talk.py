"""A talk: the messages of a conversation with a model, in order, each recorded once, and read back.

A talk only grows. What it costs to record a turn depends on the turn's own messages: they are checked, hashed and
linked to the prefix when they are added, and the step that asks the model next names the step before it and the digests
of what is new. So the whole talk can be read back from any of its steps, and no turn hashes, copies or writes what came
before.

A reply is in the talk as the message that `Reply.message` makes of it. It is not kept a second time: its step has it.

`Contents` are the values that a task's records name by digest, each kept once. A content's record is deferred, so that
it shares the commit of the step that first names it; a writer's records leave in order, so none is named before it is
durable.

The arguments of a model step name its request by digests:

    {"after": "3", "count": 5, "head": DIGEST, "new": [DIGEST, ...], "prefix": DIGEST}

`head` is the content {"model", "settings", "system", "tools"}. The messages are those of the step `after`, then its
reply, then the `new` ones; `count` of them in all, and `prefix` is the chain over their digests. The result is
{"reply": ..., "cost": micro-units or null, "unit": ...}; `head` is in it where an open step was sent with a head that
had changed since it was planned, and `garbled` where so many replies before it could not be used.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from holdfast.core.decoding import convert
from holdfast.core.ordinal import sort_key
from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.core.step import StepState
from holdfast.core.values import PAYLOAD_BYTES_MAX, Json, checked, encode_unchecked
from holdfast.errors import BadInput, JournalDamaged, Misuse, TooLarge
from holdfast.journal.bodies import ContentKept
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView, TaskView
from holdfast.runtime.models.reply import Reply, ToolCall, ref_of
from holdfast.runtime.models.request import MESSAGES_MAX, MessageOrder, Object, check_message
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.task.content import NO_PREFIX, content_bytes, digest_of, link

ASK = "@ask"


class AskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a model step."""

    after: str
    count: int
    head: str
    new: tuple[str, ...]
    prefix: str

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {**msgspec.structs.asdict(self), "new": list(self.new)}


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What the replies of a task have cost. `unpriced`: replies whose cost is not known."""

    asks: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: dict[str, int]  # micro-units by currency
    unpriced: int


@contextlib.contextmanager
def reading_own() -> Generator[None]:
    """Records of this task are read: where they make no sense, it rests alone for a person. JournalDamaged would end
    the worker, and with it every other task."""
    try:
        yield
    except JournalDamaged as error:
        raise Suspended(NeedsPerson(f"damaged: {error.message}")) from None


def asked_of(step: StepView) -> AskRecord:
    """Raises JournalDamaged where the step is no model call of ours."""
    try:
        return convert(step.args, AskRecord)
    except msgspec.ValidationError as error:
        raise JournalDamaged(f"step {step.ordinal}: its request cannot be read: {error}") from None


def head_of(view: TaskView, digest: str) -> Body:
    return cast(Body, _content(view, digest))


def reply_of(step: StepView) -> Reply:
    """The reply of a model step that succeeded."""
    try:
        return Reply.from_json(cast(Body, step.result)["reply"])
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise JournalDamaged(f"step {step.ordinal}: its reply cannot be read: {error}") from None


def asks_of(view: TaskView) -> list[StepView]:
    """The model steps of a task, in order."""
    found = [ordinal for ordinal, step in view.steps.items() if step.tool == ASK]
    return [view.steps[ordinal] for ordinal in sorted(found, key=sort_key)]


def line_of(view: TaskView, ordinal: str) -> list[StepView]:
    """The model steps of the talk up to this one, oldest first."""
    found: list[StepView] = []
    while ordinal:
        step = view.steps.get(ordinal)
        if step is None or step.tool != ASK or len(found) > len(view.steps):
            raise JournalDamaged(f"task {view.task_id}: step {ordinal} is not a model call")
        found.append(step)
        ordinal = asked_of(step).after
    return found[::-1]


def messages_of(view: TaskView, ordinal: str) -> Iterator[tuple[Object, str | StepView]]:
    """The messages of the request at this ordinal, without the system's. Each with its digest, or with the step whose
    reply it is."""
    line = line_of(view, ordinal)
    count = 0
    for step, following in zip(line, (*line[1:], None), strict=True):
        for digest in asked_of(step).new:
            count += 1
            yield cast(Object, _content(view, digest)), digest
        if following is not None:
            count += 1
            yield reply_of(step).message(prefix=f"r{count}"), step


def spent_of(view: TaskView) -> Spent | None:
    """What was spent on models, or None where none was asked."""
    done = [one for one in view.steps.values() if one.tool == ASK and one.step and one.state is StepState.SUCCEEDED]
    if not done:
        return None
    cost: dict[str, int] = {}
    tokens = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    unpriced = 0
    for step in done:
        result = cast(Body, step.result or {})
        if result.get("cost") is None:
            unpriced += 1
        else:
            cost[result["unit"]] = cost.get(result["unit"], 0) + int(result["cost"])
        usage = cast(Body, cast(Body, result.get("reply") or {}).get("usage") or {})
        for name in tokens:
            tokens[name] += int(usage.get(name) or 0)
    return Spent(asks=len(done), cost=cost, unpriced=unpriced, **tokens)


def _content(view: TaskView, digest: str) -> object:
    try:
        return view.contents[digest]
    except KeyError:
        raise JournalDamaged(f"task {view.task_id}: the part of a model call with digest {digest} is missing") from None


@dataclass(slots=True, eq=False)
class Contents:
    """The contents of one task, through its writer."""

    writer: TaskWriter

    def named(self, value: Json, *, what: str) -> tuple[Json, str]:
        """The checked value as it may be written, and its digest. Nothing is recorded yet. Values of secrets become
        handles, unless the very value is kept already: a secret that was set since must not turn a replay into another
        talk. Raises TooLarge."""
        raw = content_bytes(value)
        if len(raw) > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"{what} has {len(raw):,} bytes of JSON; the limit is {PAYLOAD_BYTES_MAX:,}")
        digest = digest_of(raw)
        known = self.writer.view.contents.get(digest)
        if known is not None:
            return known, digest
        secrets = self.writer.secrets
        if secrets.active and (clean := secrets.value(value)) is not value:
            return clean, digest_of(content_bytes(clean))
        return value, digest

    def record(self, value: Json, digest: str) -> None:
        """Have it in the journal with the next commit, if it is not there."""
        if digest not in self.writer.view.contents:
            self.writer.defer(NewRecord(kind=RecordKind.CONTENT, body=ContentKept(digest, value).body()))


class Talk:
    """A conversation with a model. Made by `run.talk`; `run.ask` adds each reply to it."""

    def __init__(self, writer: TaskWriter, *, system: str | Sequence[str | Object] = ()) -> None:
        self._contents = Contents(writer)
        self._messages: list[Object] = []  # those of the system first
        self._order = MessageOrder()
        self._new: list[tuple[Object, str]] = []  # not yet named by a step
        self._answers: dict[str, Object] = {}  # results by ref, until every call has one
        self._refs = ""  # how the calls of the newest reply are named
        self.prefix = NO_PREFIX
        self.after = ""  # ordinal of the step whose reply is the newest in it
        self.session = ""  # by which an endpoint may know it again
        self.kept: Mapping[str, Mapping[str, str]] = {}
        self.asking = False
        for one in filter(None, (system,) if isinstance(system, str) else system):
            said = _spoken("system", one) if isinstance(one, str) else one
            message = check_message(said, place=f"system message {len(self._messages) + 1}")
            self._order.take(message)
            self._messages.append(message)
        self._system = len(self._messages)

    def __len__(self) -> int:
        """How many messages it has, without those of the system."""
        return len(self._messages) - self._system

    def __repr__(self) -> str:
        return f"<talk of {len(self)} messages>"

    @property
    def messages(self) -> Sequence[Object]:
        """All of it, the system's messages first. Not to be changed."""
        return self._messages

    @property
    def system(self) -> list[Object]:
        return self._messages[: self._system]

    @property
    def new(self) -> Sequence[tuple[Object, str]]:
        """Messages that no step has named yet, with their digests."""
        return self._new

    def say(self, text: str) -> None:
        """The user says this."""
        self.add(_spoken("user", text))

    def add(self, message: Mapping[str, object]) -> None:
        """Add a message of any form (docs/reference/models.md). Raises BadInput, TooLarge."""
        kept = check_message(dict(message), place=f"message {len(self) + 1}")
        if kept["role"] == "system":
            raise BadInput("system messages must come first: give them with run.talk(system=...)")
        if self.asking:
            raise Misuse("the model has not answered yet: add messages after its reply")
        if len(self._messages) >= MESSAGES_MAX:
            raise BadInput(f"a conversation may have at most {MESSAGES_MAX:,} messages")
        value, digest = self._contents.named(kept, what=f"message {len(self) + 1} of the conversation")
        self.take_recorded(cast(Object, value), digest)

    def answer(self, call: ToolCall, result: object, *, failed: bool = False) -> None:
        """Add the result of a tool call of the newest reply: text, or a JSON value.

        The model gets the results in the order of its calls, when every call has one.
        """
        ref = ref_of(call, prefix=self._refs)
        if ref not in self._order.open_calls or ref in self._answers:
            raise Misuse(f"call {call.number} ({call.tool}) already has a result, or is not a call of the newest reply")
        text = as_text(checked(result, what=f"result of {call.tool}"))
        part: dict[str, object] = {"type": "tool_result", "ref": ref, "text": text}
        if failed:
            part["failed"] = True
        self._answers[ref] = part
        if len(self._answers) == len(self._order.open_calls):
            parts = [self._answers[ref] for ref in self._order.open_calls]
            self._answers = {}
            self.add({"role": "tool", "parts": parts})

    def copy(self) -> Talk:
        """Another talk that begins with the same messages."""
        other = copy.copy(self)
        other._messages = list(self._messages)
        other._new = list(self._new)
        other._answers = dict(self._answers)
        other._order = self._order.copy()
        other.asking = False
        return other

    # used by the runtime

    def check_end(self) -> None:
        """Raise where a model cannot be asked now."""
        if self._order.open_calls:
            open_calls = len(self._order.open_calls) - len(self._answers)
            raise Misuse(
                f"{open_calls} of the newest reply's tool calls have no result",
                hint="give each call its result: talk.answer(call, result)",
            )
        self._order.check_end()

    def set_system(self, messages: Sequence[Object]) -> None:
        """The system's messages as they are recorded: with handles for secrets."""
        self._messages[: self._system] = messages
        self._system = len(messages)

    def take_reply(self, reply: Reply, ordinal: str) -> None:
        """The reply of the step at this ordinal, as the newest message."""
        self._refs = f"r{len(self) + 1}"
        message = reply.message(prefix=self._refs)
        # As its step has it, also where a secret in it has become known since: no other prefix.
        self._order.take(message)
        self._messages.append(message)
        self.prefix = link(self.prefix, digest_of(content_bytes(message)))
        self._new = []
        self.after = ordinal
        if reply.route is not None:
            self.kept = reply.route.kept

    def take_recorded(self, message: Object, digest: str) -> None:
        """A message that a step has named, read back; new until a reply follows it."""
        self._order.take(message)
        self._messages.append(message)
        self.prefix = link(self.prefix, digest)
        self._new.append((message, digest))


def as_text(value: Json) -> str:
    """A result as a model is told it: text as it is, other values as JSON."""
    return value if isinstance(value, str) else encode_unchecked(value).decode()


def _spoken(role: str, text: str) -> Object:
    return {"role": role, "parts": [{"type": "text", "text": text}]}
