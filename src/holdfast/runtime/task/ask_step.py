"""Asking a model: a step like any other, of class Read, whose request is kept by digest.

The order never changes: what the request names is deferred, the step that names it is planned and started in the commit
that takes it along, the request is sent, the reply is recorded before any later step can begin. A crash before the
commit leaves nothing or contents that no record names; after it a started Read, which is sent again; a lost reply is
asked for again; nothing has followed from it.

After an error that may pass, the step waits in the record (`busy`, with the provider's Retry-After), for as long as it
takes; every other one closes the step as failed with its kind and words, and the code gets the same error on each
replay. A garbled reply is paid for, so it is asked for again only a few times.

While a reply comes its pieces are shown (`StreamView`), with handles for known secrets. A piece may end inside a secret
that the model echoes: so the end of the text is held back while it may be the beginning of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.core.effect import Read
from holdfast.core.rest import Diverged, Suspended
from holdfast.core.values import checked, encode
from holdfast.journal.records import Body, StepView
from holdfast.runtime.models.model import Model
from holdfast.runtime.models.reply import Reply, Restarted, Show, Shown, TextDelta, check_show
from holdfast.runtime.models.request import Object, Request, check_settings, check_tools
from holdfast.runtime.secrets import Secrets
from holdfast.runtime.task.content import content_bytes
from holdfast.runtime.task.run import Run, StepCall
from holdfast.runtime.task.talk import ASK, AskRecord, Contents, Talk, asked_of, head_of, reading_own
from holdfast.runtime.tool.tool import Call, Tool

if TYPE_CHECKING:
    from holdfast.runtime.session.task_writer import TaskWriter

GARBLED_MAX = 3  # replies of one run of a step that could not be used
GRACE_S = 5.0  # a model call ends by its own time before its step is given up
SEEN_MAX = 64
_TERMINAL = {
    kind.__name__: kind
    for kind in (
        errors.BadInput,
        errors.ContextTooLong,
        errors.ModelKeyRefused,
        errors.ModelNotFound,
        errors.ModelQuotaSpent,
        errors.ModelRejected,
        errors.StateHeldElsewhere,
        errors.TooLarge,
    )
}

# With these a model step is closed as failed.
MODEL_ERRORS: tuple[type[errors.HoldfastError], ...] = (*_TERMINAL.values(), errors.ReplyGarbled)

Tools = Sequence[Tool[..., Any] | Mapping[str, object]]


class AskCall(StepCall[Reply]):
    """A model call that has not begun: await it, or give it to `run.gather`."""

    __slots__ = ("_extra", "_model", "_settings", "_show", "_talk", "_tools")

    def __init__(
        self,
        run: Run,
        model: Model,
        talk: Talk | Sequence[Mapping[str, object]],
        *,
        tools: Tools,
        settings: Mapping[str, object] | None,
        show: Show | None,
        extra: Body | None = None,
    ) -> None:
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance] - a border
            raise errors.Misuse(f"{model!r} is not a model", hint="make one: holdfast.Model(name, at=...)")
        check_show(show)
        super().__init__(run, _tool_of(model), {})
        self._model = model
        self._talk = talk
        self._tools = tools
        self._settings = settings
        self._show = show
        self._extra = extra  # into the step's record

    async def perform(self, run: Run) -> Reply:
        self._run.steps.not_awaited.pop(self, None)
        if self.ordinal:
            raise errors.Misuse(f"step {self.ordinal} was already awaited", hint="keep its result in a variable")
        writer = run.steps.writer
        talk = self._talk if isinstance(self._talk, Talk) else _listed(writer, self._talk)
        if talk.asking:
            raise errors.Misuse(
                "an earlier call with this `Talk` is still waiting for the model's answer",
                hint="use talk.copy() for a second conversation",
            )
        talk.check_end()
        head = checked_head(self._model, talk, tools=self._tools, settings=self._settings)
        self.ordinal = run.take_ordinal()
        talk.asking = True
        try:
            with run.open_step(self.ordinal):
                return await ask_at(run, self.ordinal, self._model, talk, head=head, show=self._show, extra=self._extra)
        finally:
            talk.asking = False


async def ask_at(
    run: Run, ordinal: str, model: Model, talk: Talk, *, head: Body, show: Show | None, extra: Body | None = None
) -> Reply:
    """The reply at this ordinal, recorded or asked for now, and taken into the talk."""
    writer = run.steps.writer
    talk.session = talk.session or f"{writer.view.task_id}/{ordinal}"
    contents = Contents(writer)
    kept, digest = contents.named(head, what="the head of the request")
    named = (digest, cast(Body, kept))
    talk.set_system(named[1]["system"])
    step = writer.view.steps.get(ordinal)
    if step is not None and step.tool == ASK:
        asked = _same(run, step, talk, named)
    else:
        asked = AskRecord(
            after=talk.after, count=len(talk), head=digest, prefix=talk.prefix, new=tuple(one for _, one in talk.new)
        )
        if not writer.cancelled:
            for message, name in talk.new:
                contents.record(message, name)
    if step is None or not step.closed:
        contents.record(named[1], digest)
    sending = _Sending(
        model, named[1], talk, show=show, secrets=writer.secrets, head_digest="" if asked.head == digest else digest
    )
    tool = _tool_of(model).with_sending(sending)
    try:
        result = await run.steps.perform(tool, ordinal, asked.to_json(), extra=extra)
    except errors.ToolFailed as failed:
        raise _model_error(failed) from None
    reply = _reply_in(result, ordinal)
    talk.asking = False
    talk.take_reply(reply, ordinal)
    return reply


def checked_head(model: Model, talk: Talk, *, tools: Tools, settings: Mapping[str, object] | None) -> Body:
    """What is sent before the talk. Raises BadInput or BadValue."""
    offered = [one if isinstance(one, Mapping) else _schema_of(one) for one in tools]
    given = {"settings": {**model.settings, **(settings or {})}, "tools": offered}
    head = _known_head(given)
    return {"model": model.name, "settings": head["settings"], "system": talk.system, "tools": head["tools"]}


_heads: dict[bytes, Body] = {}  # checked before, by their bytes: a loop offers the same ones again


def _known_head(given: Body) -> Body:
    try:
        raw = content_bytes(given)
    except (TypeError, ValueError):
        raw = b""  # what is wrong with it is said below
    known = _heads.get(raw)
    if known is None:
        known = {"settings": check_settings(given["settings"]), "tools": check_tools(given["tools"])}
        if len(_heads) >= SEEN_MAX:
            _heads.clear()
        _heads[raw] = known
    return known


def _schema_of(tool: object) -> object:
    if not isinstance(tool, Tool):
        raise errors.Misuse(f"{tool!r} is neither a tool nor the schema of one")
    return cast("Tool[..., Any]", tool).schema


def _same(run: Run, step: StepView, talk: Talk, head: tuple[str, Body]) -> AskRecord:
    """The recorded request, where this is the same talk. Suspended where it is another one."""
    with reading_own():
        asked = asked_of(step)
    if (asked.count, asked.prefix) != (len(talk), talk.prefix):
        why = (
            f"step {step.ordinal}: the messages before this model call are not the recorded ones: "
            f"now {len(talk)} messages with hash {talk.prefix[:8]}, "
            f"recorded {asked.count} with hash {asked.prefix[:8]}"
        )
        raise Suspended(Diverged(why))
    if asked.head != head[0] and run.steps.changes is not None:
        with reading_own():
            before = head_of(run.steps.writer.view, asked.head)
        run.steps.changes.check_head((asked.head, before), head)
    return asked


class _AskTool(Tool[..., Any]):
    """The built-in tool of model calls; each call has a copy with what it sends."""

    spared_max = 0  # a provider that is busy or away is what its attempts are for
    sending: _Sending

    def with_sending(self, sending: _Sending) -> _AskTool:
        made = object.__new__(_AskTool)
        made.__dict__ = {**self.__dict__, "sending": sending}
        return made

    def begin(self, call: Call, args: dict[str, Any]) -> Any:  # Any: a coroutine
        return self.sending.send()


async def _ask() -> None:
    """Never called: `_AskTool.sending` sends."""


_tools: dict[tuple[float, int], _AskTool] = {}


def _tool_of(model: Model) -> _AskTool:
    key = (model.time_s, model.attempts)
    found = _tools.get(key)
    if found is None:
        timeout_s = model.time_s + GRACE_S
        found = _AskTool(_ask, name=ASK, effect=Read(), timeout_s=timeout_s, attempts=model.attempts)
        if len(_tools) >= SEEN_MAX:
            _tools.clear()
        _tools[key] = found
    return found


class _Sending:
    """One model step on its way, over as many attempts as it takes."""

    def __init__(
        self, model: Model, head: Body, talk: Talk, *, show: Show | None, secrets: Secrets, head_digest: str
    ) -> None:
        self._model = model
        self._talk = talk
        self._request = Request(
            model=head["model"], messages=talk.messages, settings=head["settings"], tools=head["tools"]
        )
        self._view = None if show is None else StreamView(show, secrets)
        self._secrets = secrets
        self._head_digest = head_digest
        self._garbled = 0

    async def send(self) -> Body:
        """One attempt. Raises Busy where a later one may do better."""
        showing = self._view
        if showing is not None:
            showing.restart(self._model.name)
        try:
            reply = await self._model.chat.ask(
                self._request,
                show=None if showing is None else showing.piece,
                session=self._talk.session,
                kept=self._talk.kept,
                time_s=self._model.time_s,
                keys=self._secrets.get_value,
            )
            result = self._result(reply)
        except errors.ModelUnavailable as error:
            raise _later(error, error.retry_after_s) from None
        except errors.ReplyGarbled as error:
            self._garbled += 1
            if self._garbled >= min(GARBLED_MAX, self._model.attempts):
                raise
            raise _later(error, None) from None
        if showing is not None:
            showing.end()
        return result

    def _result(self, reply: Reply) -> Body:
        """What is recorded. Raises ReplyGarbled where no record can hold it."""
        price = self._model.price
        result: Body = {"reply": reply.to_json(), "cost": None}
        if price is not None and reply.usage is not None:
            result |= {"cost": price.cost(reply.usage), "unit": price.unit}
        if self._head_digest:
            result["head"] = self._head_digest
        if self._garbled:
            result["garbled"] = self._garbled
        try:
            encode(self._secrets.value(checked(result, what="the reply")), what="the reply")
        except (errors.BadValue, errors.TooLarge) as error:
            text = f"the reply cannot be kept: {error.message}"
            raise errors.ReplyGarbled(text, reason="too-large") from None
        return result


def _later(error: errors.ModelUnavailable | errors.ReplyGarbled, after_s: float | None) -> errors.Busy:
    return errors.Busy(after_s or 0.0, kind=type(error).__name__, text=error.message)


def _model_error(failed: errors.ToolFailed) -> Exception:
    """The recorded failure as the error it was."""
    if failed.kind == errors.ReplyGarbled.__name__:
        return errors.ReplyGarbled(failed.text, reason="garbage")
    kind = _TERMINAL.get(failed.kind)
    return failed if kind is None else kind(failed.text)


def _reply_in(result: object, ordinal: str) -> Reply:
    try:
        return Reply.from_json(cast(Body, result)["reply"])
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        # Only a person who settled the step by hand can have given it.
        text = f"step {ordinal}: its result is not a model's reply: {error}"
        raise errors.ReplyGarbled(text, reason="garbage") from None


def _listed(writer: TaskWriter, messages: object) -> Talk:
    """A talk of these messages, for one question."""
    if not isinstance(messages, list | tuple):
        raise errors.Misuse("ask: give a `Talk` (from run.talk) or a list of messages")
    given = cast("Sequence[object]", messages)
    roles = [cast(Object, one).get("role") if isinstance(one, Mapping) else None for one in given]
    leading = next((at for at, role in enumerate(roles) if role != "system"), len(given))
    talk = Talk(writer, system=given[:leading])  # pyright: ignore[reportArgumentType] - checked there
    for message in given[leading:]:
        if not isinstance(message, Mapping):
            raise errors.BadInput(f"message {len(talk) + 1}: must be an object")
        talk.add(cast(Object, message))
    return talk


class StreamView:
    """Passes on the pieces of one reply, over as many attempts as it takes."""

    __slots__ = ("_held", "_secrets", "_show", "_shown")

    def __init__(self, show: Show, secrets: Secrets) -> None:
        self._show: Show | None = show
        self._secrets = secrets
        self._held = ""
        self._shown = False  # something that is void if another attempt begins

    def restart(self, failed: str) -> None:
        """Another attempt begins."""
        self._held = ""
        if self._shown:
            self._pass_on(Restarted(failed=failed))
        self._shown = False

    def piece(self, shown: Shown) -> None:
        if not isinstance(shown, TextDelta):
            self._held, self._shown = "", False
            self._pass_on(shown)
            return
        text, self._held = self._secrets.split(self._held + shown.text)
        self._text(text)

    def end(self) -> None:
        """The reply is whole."""
        text, self._held = self._secrets.text(self._held), ""
        self._text(text)

    def _text(self, text: str) -> None:
        if text:
            self._shown = True
            self._pass_on(TextDelta(text=text))

    def _pass_on(self, shown: Shown) -> None:
        if self._show is None:
            return
        try:
            self._show(shown)
        except Exception:  # noqa: BLE001 - the user's own function: one that fails is not shown the rest
            self._show = None
