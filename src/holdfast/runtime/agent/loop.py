"""The plan-and-act loop of an agent, rebuilt from its records and never replayed; and what its spend cap counts.

A turn is a model call and the tool calls of its reply. Turn t asks at ordinal 2t - 1; call n of the recorded reply is
step 2t.n.1. So where a run is follows from the records alone: the newest model call, its reply, and what the journal
knows at the ordinals of its calls. A resumed run reads the talk back (its prefix must be the recorded one), closes
every call of the newest reply with its true outcome, tells the model what happened while it was away, and asks on. No
code of the user's is run again, and nothing that was told before is made again: messages that a model has been asked
with are read from the journal.

What ends a run before its answer is recorded as the reason it rests or fails: a turn or spend limit parks it (a person
raises the limit and retries), a refusal of the model fails it.

In a conversation the user's messages come through the inbox. Each is taken by one commit that records it and marks it
as taken, and answered before the next one is taken; the answer is durable before it is shown.

A cap on spending must hold against providers that do not count, or count nonsense. So each model step records the most
that it can cost (`most`, in tokens, from `_check_spend`), before it is sent; a reply whose usage cannot be believed
counts as that much, and so does every reply that was thrown away.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET

from holdfast.core.decoding import convert
from holdfast.core.rest import Diverged, NeedsPerson, Suspended, WaitsForMessage
from holdfast.core.step import StepState
from holdfast.core.waiting import wait_event
from holdfast.errors import Cancelled, JournalDamaged, ModelRefused, ReplyGarbled
from holdfast.journal.bodies import MessageAnswered, MessageSaid, SaidNote, ToldNote
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView
from holdfast.runtime.agent.calls import carry_out, last_slot, resume_message
from holdfast.runtime.models.model import Price
from holdfast.runtime.models.reply import Reply, StopReason, Usage
from holdfast.runtime.models.request import Object
from holdfast.runtime.step.plan import changes_of
from holdfast.runtime.task.ask_step import GARBLED_MAX, MODEL_ERRORS, AskCall
from holdfast.runtime.task.content import content_bytes
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.talk import Contents, Talk, asked_of, asks_of, messages_of, reading_own, reply_of

if TYPE_CHECKING:
    from holdfast.runtime.agent.agent import Agent

IDLE_S = 5.0  # how long a conversation stays in memory without a message
SAID = "said"
CUT = (
    "[From the runtime, not from the user.] Your reply was cut off at its length limit. Go on, or answer more briefly."
)
CALL_CUT = "your reply was cut off at its length limit: this call was not made"
CALL_REFUSED = "the reply was refused: this call was not made"


def said_at(number: int) -> str:
    """The ordinal of a user's message in a conversation."""
    return f"@said {number}"


class Loop:
    """One run of an agent's task."""

    def __init__(self, agent: Agent, run: Run, *, request: str, conversation: str) -> None:
        self._agent = agent
        self._run = run
        self._writer = run.steps.writer
        self._request = request
        self._conversation = conversation
        self._talk = Talk(self._writer, system=agent.instructions)
        self._turn = 0  # model calls so far
        self._asked_epoch = 0  # under which the newest of them was planned
        self._said = 0  # of the user's messages, the one that is being answered
        self._ids: set[str] = set()  # of all messages that were taken
        self._turns = 0  # model calls for this request or message
        self._spent = 0  # millionths, in the unit of the model's price
        self._reply: Reply | None = None  # the newest, where its calls are not told yet

    async def go(self) -> object:
        """Until the answer; in a conversation until it is ended."""
        steps, view = self._run.steps, self._writer.view
        steps.plan.update({item.number: item for item in view.plan})
        steps.plan_changes = changes_of(view)
        if self._agent.scratch:
            await self._run.scratch.enter_newest()
        await self._rebuild()
        while True:
            if self._reply is None:
                if not await self._have_something_to_answer():
                    return {"answered": self._said}
                self._reply = await self._ask()
            reply, self._reply = self._reply, None
            if await self._goes_on(reply):
                continue
            if not self._conversation:
                if reply.refusal is not None:
                    why = reply.refusal or reply.text or "it gave no reason"
                    raise ModelRefused(f"the model refused: {why}")
                return reply.text
            await self._record_answer(reply)

    # how far it has come

    async def _rebuild(self) -> None:
        view = self._writer.view
        self._ids = {SaidNote.read(note.body).id for note in view.notes.values() if note.what == SAID}
        self._said = len(self._ids)
        asks = asks_of(view)
        if not asks:
            return
        newest = asks[-1]
        self._turns = sum(not self._conversation or ask.body.get(SAID) == self._said for ask in asks)
        self._count_spent(asks)
        self._take_back(newest)
        if newest.closed and newest.state is not StepState.SUCCEEDED:
            return  # it failed, and a person has retried the task: the same is asked again
        if newest.closed:
            if self._is_void(newest):
                return  # no reply was kept: the same is asked again
            with reading_own():
                self._reply = reply_of(newest)
            self._talk.take_reply(self._reply, newest.ordinal)
        else:
            self._turn -= 1
            self._reply = await self._ask_at(None)  # it was open: sent as it is recorded
            self._count_spent([newest])
        if self._conversation and (
            newest.body.get(SAID) != self._said or view.notes[said_at(self._said)].answer is not None
        ):
            if self._reply.tool_calls:
                await self._act(self._reply)  # a refusal's: told again that they were not made
            self._reply = None  # the last word of a message that is answered

    def _is_void(self, ask: StepView) -> bool:
        """Whether its reply was not kept, or is none (settled by hand), and nothing followed."""
        try:
            reply_of(ask)
        except JournalDamaged:
            return f"{int(ask.ordinal) + 1}" not in self._writer.view.notes
        return False

    def _take_back(self, newest: StepView) -> None:
        """Read the talk up to this model call from the journal."""
        talk = self._talk
        with reading_own():
            asked = asked_of(newest)
            for message, source in messages_of(self._writer.view, newest.ordinal):
                if isinstance(source, StepView):
                    talk.take_reply(reply_of(source), source.ordinal)
                else:
                    talk.take_recorded(message, source)
        if (len(talk), talk.prefix) != (asked.count, asked.prefix):
            why = f"step {newest.ordinal}: the messages in the journal are not those that the model got: "
            raise Suspended(Diverged(why + f"their hash is {talk.prefix[:8]}, the recorded one {asked.prefix[:8]}"))
        self._turn = (int(newest.ordinal) + 1) // 2
        self._asked_epoch = newest.attempts[0].epoch if newest.attempts else self._writer.hold.epoch

    # asking

    async def _ask(self) -> Reply:
        self._check_turns()
        self._tell_resumed()
        extra = self._check_spend()
        if self._conversation:
            extra[SAID] = self._said
        self._asked_epoch = self._writer.hold.epoch
        self._turns += 1
        reply = await self._ask_at(extra)
        self._count_spent([self._writer.get_step(self._talk.after)])
        return reply

    async def _ask_at(self, extra: Body | None) -> Reply:
        agent, talk = self._agent, self._talk
        self._run.seek(2 * self._turn)
        self._turn += 1
        try:
            return await AskCall(
                self._run, agent.model, talk, tools=agent.schemas, settings=agent.settings, show=agent.show, extra=extra
            )
        except MODEL_ERRORS as error:
            # Nothing is wrong with the task: once a person has fixed the cause, a retry asks again.
            raise Suspended(
                NeedsPerson(f"{error.code}: {error.message}; fix the cause, then retry the task")
            ) from error

    def _check_turns(self) -> None:
        if self._turns >= self._agent.max_turns:
            why = f"max-turns: {self._turns} model calls gave no answer; raise max_turns and retry the task"
            raise Suspended(NeedsPerson(why))

    def _check_spend(self) -> Body:
        """What the step's record says of its cost. Suspended where it could pass the cap."""
        agent, price = self._agent, self._agent.model.price
        if agent.spend_cap is None or price is None:
            return {}
        spent = self._spent
        settings = {**agent.model.settings, **agent.settings}
        read, written = self._input_most(), int(cast(int, settings.get("max_tokens", 0)))
        most = price.most(input_tokens=read, output_tokens=written)
        if spent + most > agent.spend_cap:
            why = (
                f"spend-cap: {spent:,} of {agent.spend_cap:,} millionths of a {price.unit} are spent, "
                f"and the next model call may cost {most:,}; raise spend_cap and retry the task"
            )
            raise Suspended(NeedsPerson(why))
        return {MOST: {"input": read, "output": written}}

    def _count_spent(self, asks: Iterable[StepView]) -> None:
        price = self._agent.model.price
        if price is not None:
            self._spent += sum(counted(ask, price) for ask in asks)

    def _input_most(self) -> int:
        """The most tokens that the next prompt can have: no token is shorter than a byte."""
        new = sum(len(content_bytes(message)) for message, _ in self._talk.new)
        after = self._talk.after
        usage = find_usage(self._writer.get_step(after)) if after else None
        if usage is not None:
            return usage.input_tokens + usage.output_tokens + new
        tools = len(content_bytes(list(self._agent.schemas)))
        return tools + sum(len(content_bytes(message)) for message in self._talk.messages)

    def _tell_resumed(self) -> None:
        """Say once what happened since the model was asked last."""
        if not self._asked_epoch or self._asked_epoch == self._writer.hold.epoch:
            return
        view = self._writer.view
        step = view.steps.get(self._talk.after)
        fates = [
            (call.number, call.tool, last_slot(view, f"{int(step.ordinal) + 1}.{call.number}.1"))
            for call in (reply_of(step).tool_calls if step is not None else ())
            if step is not None
        ]
        text = resume_message(view, since=self._asked_epoch, now=self._writer.hold.epoch, calls=fates)
        if text:
            self._talk.say(text)
        self._asked_epoch = self._writer.hold.epoch

    # acting

    async def _goes_on(self, reply: Reply) -> bool:
        """Act on a reply; False where it is the answer."""
        if reply.tool_calls:
            await self._act(reply)
            if reply.refusal is not None:
                return False
        if reply.stop is StopReason.LENGTH:
            self._talk.say(CUT)
            return True
        return bool(reply.tool_calls) or reply.stop is StopReason.PAUSED

    async def _act(self, reply: Reply) -> None:
        self._run.seek(2 * self._turn - 1)
        agent = self._agent
        # One that was cut may be half of what was meant.
        unmade = CALL_CUT if reply.stop is StopReason.LENGTH else ""
        if reply.refusal is not None:
            unmade = CALL_REFUSED
        branches: list[Callable[[Run], Awaitable[Any]]] = [
            functools.partial(carry_out, call=call, tools=agent.tools, plans=agent.plans, unmade=unmade)
            for call in reply.tool_calls
        ]
        told = cast("list[ToldNote]", await self._run.gather(*branches))
        if self._writer.scratch is not None:
            await self._writer.scratch.drop_unkept(f"{2 * self._turn}.")
        for call, one in zip(reply.tool_calls, told, strict=True):
            self._talk.answer(call, one.text, failed=one.failed)

    # what the user says

    async def _tell_memory(self) -> None:
        """What the agent's own files say, as the first message of its talk. It is recorded with the step that asks: a
        resumed run reads it back, whatever the files say by then."""
        memory = self._run.steps.memory
        if memory is None or len(self._talk):
            return
        text = await memory.tell()
        if text:
            self._talk.say(text)

    async def _have_something_to_answer(self) -> bool:
        """Have a message in the talk that is not answered; False where the conversation ends."""
        if not self._conversation:
            if not len(self._talk):
                await self._tell_memory()
                self._talk.say(self._request)
            return True
        view = self._writer.view
        if self._said and view.notes[said_at(self._said)].answer is None:
            newest = view.steps.get(str(2 * self._turn - 1))
            if newest is None or newest.body.get(SAID) != self._said:
                note = view.notes[said_at(self._said)]
                await self._tell_memory()
                self._tell_resumed()
                self._talk.add(cast(Object, view.contents[SaidNote.read(note.body).digest]))
            return True
        return await self._take_next()

    async def _take_next(self) -> bool:
        while True:
            item = await self._wait_item()
            if item.body.get("end"):
                await self._writer.write((), applied=[item.number])
                return False
            message = MessageSaid.read(item.body)
            if message.id in self._ids:  # said twice, under one id
                await self._writer.write((), applied=[item.number])
                continue
            await self._take(message, item.number)
            return True

    async def _take(self, user: MessageSaid, number: int) -> None:
        """One commit: the message is recorded, and is no longer in the inbox."""
        said = {"role": "user", "parts": [{"type": "text", "text": user.text}]}
        contents = Contents(self._writer)
        message, digest = contents.named(said, what="the message")
        contents.record(message, digest)
        self._said += 1
        self._turns = 0
        self._ids.add(user.id)
        note = SaidNote(user.id, digest).body()
        entry = NewRecord(kind=RecordKind.NOTE, ordinal=said_at(self._said), body=note)
        await self._writer.write([entry], applied=[number])
        await self._tell_memory()
        self._tell_resumed()
        self._talk.add(cast(Object, message))

    async def _wait_item(self) -> InboxItem:
        """The user's next message; the task rests where none comes soon."""
        writer, loop = self._writer, asyncio.get_running_loop()
        await writer.flush()
        end = loop.time() + IDLE_S
        while True:
            writer.check_going()
            if writer.cancelled:
                raise Cancelled
            items = [item for item in writer.inbox if item.kind is InboxKind.SAID]
            if items:
                return items[0]
            left = end - loop.time()
            if left <= 0:
                raise Suspended(WaitsForMessage())
            writer.changed.clear()
            await wait_event(writer.changed, left)

    async def _record_answer(self, reply: Reply) -> None:
        note = self._writer.view.notes[said_at(self._said)]
        text, refused = reply.refusal or reply.text, reply.refusal is not None
        answer = MessageAnswered(text, SaidNote.read(note.body).id, self._talk.after, refused or UNSET)
        entry = NewRecord(kind=RecordKind.ANSWER, ordinal=said_at(self._said), body=answer.body())
        await self._writer.write([entry])


MOST = "most"
# What a provider may count beyond our bound: its own prompt, pictures, hidden thoughts.
BEYOND_TIMES = 10
BEYOND_TOKENS = 1_000_000


def find_usage(ask: StepView) -> Usage | None:
    """The usage of its reply, where it can be true."""
    try:
        usage = convert(cast(Body, ask.result)["reply"]["usage"], Usage | None)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None
    if usage is None or usage.input_tokens <= 0 or usage.output_tokens < 0:
        return None  # no prompt is empty
    if (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0) > usage.input_tokens:
        return None  # parts of the prompt
    most = ask.body.get(MOST)
    if most is not None and (
        usage.input_tokens > int(most["input"]) * BEYOND_TIMES + BEYOND_TOKENS
        or usage.output_tokens > int(most["output"]) * BEYOND_TIMES + BEYOND_TOKENS
    ):
        return None
    return usage


def counted(ask: StepView, price: Price) -> int:
    """Millionths that this model step has cost, or can have cost where it is not known."""
    found = ask.result
    result = cast(Body, found) if isinstance(found, dict) else {}
    if not ask.closed:
        return 0
    if "reply" not in result:
        thrown_away = GARBLED_MAX if ask.failure.kind == ReplyGarbled.__name__ else 0
        return (thrown_away + bool(ask.unkept)) * _most(ask, price, result)
    spent = int(result.get("garbled") or 0) * _most(ask, price, result)
    if find_usage(ask) is None:
        return spent + _most(ask, price, result)
    return spent + (max(0, int(result.get("cost") or 0)) if result.get("unit") == price.unit else 0)


def _most(ask: StepView, price: Price, result: Body) -> int:
    most = ask.body.get(MOST)
    if most is None:
        return 0  # made before there was a cap
    # Without max_tokens nothing bounds a reply but itself: no token is shorter than a byte.
    output = int(most["output"]) or len(content_bytes(result.get("reply") or ""))
    return price.most(input_tokens=int(most["input"]), output_tokens=output)
