"""A talk: the messages of a conversation with a model, in order, each recorded once.

A talk only grows. What it costs to record a turn depends on the turn's own messages: they are
checked, hashed and linked to the prefix when they are added, and the step that asks the model next
names the step before it and the digests of what is new. So the whole talk can be read back from
any of its steps (see asked.py), and no turn hashes, copies or writes what came before.

A reply is in the talk as the message that `Reply.message` makes of it. It is not kept a second
time: its step has it.

`Contents` are the values that a task's records name by digest, each kept once. A content's record is deferred, so that
it shares the commit of the step that first names it; a writer's records leave in order, so none is named before it is
durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.core.content import NO_PREFIX, content_bytes, digest_of, link
from holdfast.core.values import PAYLOAD_BYTES_MAX, Json, checked, encode_unchecked
from holdfast.errors import BadInput, Misuse, TooLarge
from holdfast.journal.records import NewRecord, RecordKind
from holdfast.runtime.models.reply import Reply, ToolCall, ref_of
from holdfast.runtime.models.request import MESSAGES_MAX, MessageOrder, Object, check_message
from holdfast.runtime.session.task_writer import TaskWriter


class Contents:
    """The contents of one task, through its writer."""

    __slots__ = ("_writer",)

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer

    def named(self, value: Json, *, what: str) -> tuple[Json, str]:
        """The checked value as it may be written, and its digest. Nothing is recorded yet.

        Values of secrets become handles, unless the very value is kept already: a secret that was
        set since must not turn a replay into another talk. Raises TooLarge.
        """
        raw = content_bytes(value)
        if len(raw) > PAYLOAD_BYTES_MAX:
            raise TooLarge(f"{what} has {len(raw):,} bytes of JSON; the limit is {PAYLOAD_BYTES_MAX:,}")
        digest = digest_of(raw)
        known = self._writer.view.contents.get(digest)
        if known is not None:
            return known, digest
        secrets = self._writer.secrets
        if secrets.active and (clean := secrets.value(value)) is not value:
            return clean, digest_of(content_bytes(clean))
        return value, digest

    def record(self, value: Json, digest: str) -> None:
        """Have it in the journal with the next commit, if it is not there."""
        if digest not in self._writer.view.contents:
            body = {"digest": digest, "value": value}
            self._writer.defer(NewRecord(kind=RecordKind.CONTENT, body=body))


class Talk:
    """A conversation with a model. Made by `run.talk`; `run.ask` adds each reply to it."""

    __slots__ = (
        "_answers",
        "_contents",
        "_messages",
        "_new",
        "_order",
        "_refs",
        "_system",
        "after",
        "asking",
        "kept",
        "prefix",
        "session",
    )

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
            raise BadInput("system messages come first: run.talk(system=...)")
        self._append(kept)

    def answer(self, call: ToolCall, result: object, *, failed: bool = False) -> None:
        """What came of a tool call of the newest reply: text, or a JSON value.

        The model is told the results in the order of its calls, once each has one.
        """
        ref = ref_of(call, prefix=self._refs)
        if ref not in self._order.open_calls or ref in self._answers:
            raise Misuse(f"call {call.number} ({call.tool}) does not wait for a result")
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
        other = Talk.__new__(Talk)
        for name in Talk.__slots__:
            setattr(other, name, getattr(self, name))
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
                hint="give each one: talk.answer(call, result)",
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

    def _append(self, message: Object) -> None:
        if self.asking:
            raise Misuse("the model is answering: add messages when the reply is there")
        if len(self._messages) >= MESSAGES_MAX:
            raise BadInput(f"a talk has at most {MESSAGES_MAX:,} messages")
        value, digest = self._contents.named(message, what=f"message {len(self) + 1} of the talk")
        kept = cast(Object, value)
        self._order.take(kept)
        self._messages.append(kept)
        self.prefix = link(self.prefix, digest)
        self._new.append((kept, digest))


def as_text(value: Json) -> str:
    """A result as a model is told it: text as it is, other values as JSON."""
    return value if isinstance(value, str) else encode_unchecked(value).decode()


def _spoken(role: str, text: str) -> Object:
    return {"role": role, "parts": [{"type": "text", "text": text}]}
