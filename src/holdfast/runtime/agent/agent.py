"""An agent: instructions, a model and tools, as a task that can be submitted and resumed; and a conversation with it.

The loop itself is loop.py; here is what it is made of, and the short ways to use it in a process that has a journal
open.

A conversation is one task: messages in, answers out, in order, through every death. A message is a fact dropped into
its inbox: durable when `send` returns, taken by whichever worker holds the task, answered before the next one is taken.
A message id makes a repeat safe: the same id is the same message, and another text under it is refused.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast import errors
from holdfast.core.ids import TaskId
from holdfast.core.values import checked
from holdfast.journal.bodies import MessageAnswered, MessageSaid, SaidNote
from holdfast.journal.contract import InboxItem, InboxKind, Journal
from holdfast.journal.records import ENDED, Body, RecordKind, TaskState, TaskView
from holdfast.runtime.models.model import Model
from holdfast.runtime.models.reply import Show, check_show
from holdfast.runtime.models.request import Object, check_settings, check_tools
from holdfast.runtime.step.code_changes import DIGEST_CHARS, code_digest
from holdfast.runtime.step.plan import PLAN, SCHEMA
from holdfast.runtime.task.content import content_bytes, digest_of
from holdfast.runtime.task.task import OnChange, TaskType, check_gate, check_name, check_on_change
from holdfast.runtime.tool.tool import Tool, check_tool

if TYPE_CHECKING:
    from holdfast.runtime.gate.gate import Gate
    from holdfast.runtime.secrets import Secrets
    from holdfast.runtime.task.run import Run

MAX_TURNS = 50
MAX_TURNS_MOST = 100_000
CONVERSATION = re.compile(r"[^\0-\x1f\x7f]{1,200}")
POLL_S = 0.05
LOOK_EVERY_S = 1.0  # how often all of a conversation is read while an answer is waited for
TEXT_CHARS_MAX = 4_000_000
ID_CHARS_MAX = 200


class Handle(Protocol):
    """A submitted task."""

    @property
    def id(self) -> Any: ...  # Any: the task's id, a text of its own type

    async def result(self, timeout_s: float | None = None) -> Any: ...  # Any: JSON


class Home(Protocol):
    """The open journal that an agent is used with."""

    @property
    def journal(self) -> Journal: ...

    @property
    def secrets(self) -> Secrets: ...

    async def submit(
        self, task: TaskType, /, *, request_id: str | None = None, **args: Any
    ) -> Handle: ...  # Any: checked as JSON

    async def drop(self, item: InboxItem) -> None: ...  # add a fact, with handles for the secrets in it


class Agent(TaskType):
    """A plan-and-act loop over a model and tools.

    Args:
        name: the name of its tasks.
        instructions: the system message to the model.
        model: the model that Holdfast asks.
        tools: what the model may call; each gets its schema from its type hints.
        settings: for every request; they override those of the model.
        max_turns: model calls for one request or one message; then the task is parked.
        spend_cap: millionths of the price's unit for the whole task. Holdfast parks the task before a
            call that could exceed it. The model needs a price; set max_tokens, so that the cap holds.
        gate: allow-list, limits and approvals, outside the model.
        on_change: as for tasks, if model, endpoints, settings, prompt, gate, tools or their code change.
        plan: whether the model gets the built-in tool `plan`.
        scratch: whether its tools have a folder for working files (`call.scratch`).
        show: Holdfast calls it with each piece of a reply as it arrives; the pieces are provisional.
    """

    def __init__(
        self,
        *,
        name: str,
        model: Model,
        instructions: str = "",
        tools: Sequence[Tool[..., Any]] = (),
        settings: Mapping[str, object] | None = None,
        max_turns: int = MAX_TURNS,
        spend_cap: int | None = None,
        gate: Gate | None = None,
        on_change: OnChange = "continue",
        plan: bool = True,
        scratch: bool = False,
        show: Show | None = None,
    ) -> None:
        check_name(name)
        check_on_change(on_change, what="agent")
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance] - a border
            raise errors.Misuse(f"agent {name}: {model!r} is not a model")
        check_gate(gate)
        check_show(show)
        _check_limits(name, model, max_turns=max_turns, spend_cap=spend_cap)
        super().__init__(_loop_of(self), name=name, on_change=on_change, gate=gate)
        self.__doc__ = instructions or None
        self.instructions = instructions
        self.model = model
        self.settings: Object = check_settings(dict(settings or {}))
        self.tools = _by_name(name, tools, plan=plan)
        self.plans = plan
        self.scratch = scratch
        self.max_turns = max_turns
        self.spend_cap = spend_cap
        self.show = show
        self.schemas = check_tools([*(tool.schema for tool in self.tools.values()), *((SCHEMA,) if plan else ())])
        self._homes: list[Home] = []  # open journals, the newest last

    @property
    def offered(self) -> Sequence[Object]:
        """The schemas of what the model may call."""
        return self.schemas

    def check_args(self, args: dict[str, Any]) -> None:  # Any: the submitter's arguments
        super().check_args(args)
        if not all(isinstance(value, str) for value in args.values()):
            raise errors.Misuse(f"{self.name}: request and conversation must be text")
        if args.get("conversation") and args["request"]:
            raise errors.Misuse(
                f"{self.name}: give a request or a conversation, not both",
                hint="send messages to a conversation with agent.chat(NAME).say(TEXT)",
            )

    @property
    def called(self) -> dict[str, Tool[..., Any]]:
        return self.tools

    @property
    def digests(self) -> dict[str, str]:
        """What a run depends on: no code is replayed, but the tools' code is what acts."""
        if self._digests is None:
            self._digests = {
                "model": self.model.name,
                "settings": _digest({**self.model.settings, **self.settings}),
                "prompt": _digest(self.instructions),
                "tools": _digest(self.schemas),
                "code": _digest({name: _code_of(one) for name, one in self.tools.items()}),
                "endpoints": _digest(self.model.places),
            }
            if self.gate is not None:
                self._digests["gate"] = self.gate.digest
        return self._digests

    async def do(self, request: str, *, request_id: str | None = None, timeout_s: float | None = None) -> str:
        """Submit the request and wait for the answer, in a process that has a journal open.

        Raises TaskFailed, TaskParked, TaskCancelled; TaskUnfinished if the time is over; the task continues.
        """
        handle = await self.home.submit(self, request_id=request_id, request=request)
        return cast(str, await handle.result(timeout_s))

    def chat(self, conversation: str) -> Conversation:
        """A durable conversation: with the same name you get the same one, in every process."""
        named = cast(object, conversation)
        if not isinstance(named, str) or not CONVERSATION.fullmatch(named):
            raise errors.Misuse("the name of a conversation must have 1 to 200 printable characters")
        return Conversation(self, self.home, conversation)

    # used where a journal is opened with it

    @property
    def home(self) -> Home:
        if not self._homes:
            raise errors.Misuse(
                f"agent {self.name}: no journal is open with this agent in this process",
                hint="open one with `async with holdfast.open(..., tasks=[agent])`, or use hf.submit(agent, ...)",
            )
        return self._homes[-1]

    def bind(self, home: Home) -> None:
        self._homes.append(home)

    def unbind(self, home: Home) -> None:
        self._homes.remove(home)


def _loop_of(agent: Agent) -> Any:  # Any: a task function
    async def run_agent(run: Run, request: str, conversation: str = "") -> Any:  # Any: JSON
        from holdfast.runtime.agent.loop import Loop

        return await Loop(agent, run, request=request, conversation=conversation).go()

    return run_agent


def _check_limits(name: str, model: Model, *, max_turns: int, spend_cap: int | None) -> None:
    if type(max_turns) is not int or not 1 <= max_turns <= MAX_TURNS_MOST:
        raise errors.BadSettings(f"agent {name}: max_turns must be from 1 to {MAX_TURNS_MOST:,}")
    if spend_cap is None:
        return
    if type(spend_cap) is not int or spend_cap < 0:
        raise errors.BadSettings(f"agent {name}: spend_cap must be a whole number of millionths: 5_000_000 is 5 USD")
    if model.price is None:
        raise errors.BadSettings(
            f"agent {name}: a spend cap needs the model's price",
            hint="holdfast.Model(..., price=holdfast.Price(input=..., output=...))",
        )


def _by_name(agent: str, tools: Sequence[Tool[..., Any]], *, plan: bool) -> dict[str, Tool[..., Any]]:
    found: dict[str, Tool[..., Any]] = {}
    given = cast(object, tools)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise errors.Misuse(f"agent {agent}: tools must be a list, not {given!r}", hint="tools=[...]")
    for tool in tools:
        check_tool(tool)
        if found.setdefault(tool.name, tool) is not tool:
            raise errors.Misuse(f"agent {agent}: two tools are called {tool.name!r}")
    if plan and PLAN in found:
        raise errors.Misuse(
            f"agent {agent}: the name `{PLAN}` belongs to a built-in tool", hint="rename yours, or give plan=False"
        )
    return found


def _code_of(tool: Tool[..., Any]) -> list[str]:
    """Its source, or its version where there is none; and its contract."""
    return [code_digest(tool.function) or tool.version, tool.letter, repr(tool.effect)]


def _digest(value: object) -> str:
    return digest_of(content_bytes(value))[:DIGEST_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the agent answered to one message."""

    message_id: str
    text: str
    refused: bool = False  # the model would not; its words are the text

    def __str__(self) -> str:
        return self.text


class Conversation:
    """One conversation of an agent. Made by `agent.chat`."""

    def __init__(self, agent: Agent, home: Home, name: str) -> None:
        self._agent = agent
        self._home = home
        self.name = name
        self._task_id: TaskId | None = None

    async def say(self, text: str, *, message_id: str = "", timeout_s: float | None = None) -> Answer:
        """Send a message and wait for its answer. Raises as `wait` does."""
        sent = await self.send(text, message_id=message_id)
        return await self.wait(sent, timeout_s=timeout_s)

    async def send(self, text: str, *, message_id: str = "") -> str:
        """Send a message; on return it is durable. Returns its id.

        Raises:
            MessageConflict: the id is that of another message of this conversation.
            SecretInInput: the id holds the value of a secret.
            TaskFailed: the conversation has failed; `holdfast task retry` resumes it.
        """
        if not text.strip() or len(text) > TEXT_CHARS_MAX:
            raise errors.BadInput(f"a message must have 1 to {TEXT_CHARS_MAX:,} characters")
        if len(message_id) > ID_CHARS_MAX:
            raise errors.BadInput(f"a message id may have at most {ID_CHARS_MAX} characters")
        checked(message_id, what="message id")
        self._home.secrets.check_input(message_id, what="the message id")
        named = message_id or uuid.uuid4().hex
        if not message_id or not await self._is_sent(message_id, text):
            await self._drop(MessageSaid(named, text).body())
        if message_id:
            await self._is_sent(message_id, text)  # another process may have been first
        return named

    async def end(self) -> None:
        """End the conversation after all messages sent so far are answered."""
        await self._drop({"end": True})

    async def _is_sent(self, message_id: str, text: str) -> bool:
        """Whether this very message is sent already. Raises MessageConflict for another one."""
        task_id, clean = await self.task_id(), self._home.secrets.text
        for item in await self._home.journal.inbox_of(task_id):
            if item.kind is InboxKind.SAID and item.body.get("id") == message_id:
                if clean(MessageSaid.read(item.body).text) != clean(text):
                    raise errors.MessageConflict(task_id=task_id, message_id=message_id, conversation=self.name)
                return True
        return False

    async def wait(self, message_id: str, *, timeout_s: float | None = None) -> Answer:
        """The answer to a message.

        Raises:
            TaskParked: a person must decide first; wait again afterwards.
            TaskFailed, TaskCancelled: the conversation has ended without it.
            TaskUnfinished: the time is over; the answer comes all the same.
        """
        loop, task_id = asyncio.get_running_loop(), await self.task_id()
        end = None if timeout_s is None else loop.time() + timeout_s
        looked, seen, unread = -LOOK_EVERY_S, -1, False
        while True:
            row = await self._home.journal.find_task(task_id)
            if row is None:
                raise errors.TaskNotFound(task_id)
            answer = None
            if row.records != seen:
                seen, unread = row.records, True
                answer = await self._find_newest(task_id, message_id)
            resting = row.state not in (TaskState.RUNNING, TaskState.QUEUED)
            if answer is None and unread and (resting or loop.time() - looked >= LOOK_EVERY_S):
                looked, unread = loop.time(), False
                answer = _find(await self._home.journal.read_task(task_id), message_id)
            if answer is not None:
                return answer
            if row.state in ENDED or row.state is TaskState.PARKED:
                raise await self._over(task_id, row.state)
            if end is not None and loop.time() >= end:
                raise errors.TaskUnfinished(f"no answer to {message_id!r} within {timeout_s:g} s")
            await self._home.journal.wait_change(timeout_s=POLL_S)

    async def answers(self) -> list[Answer]:
        """All answers so far, in order."""
        view = await self._home.journal.read_task(await self.task_id())
        found = [note for note in view.notes.values() if note.what == "said"]
        return [_answer(note.answer) for note in found if note.answer is not None]

    async def task_id(self) -> TaskId:
        """The task of this conversation; Holdfast submits it if there is none yet."""
        if self._task_id is None:
            handle = await self._home.submit(
                self._agent, request_id=f"conversation/{self.name}", request="", conversation=self.name
            )
            self._task_id = cast(TaskId, handle.id)
        return self._task_id

    async def _drop(self, body: Body) -> None:
        task_id = await self.task_id()
        row = await self._home.journal.find_task(task_id)
        if row is not None and row.state is TaskState.FAILED:
            raise await self._over(task_id, row.state)
        said = await self._home.journal.inbox_of(task_id)
        ends = any(item.kind is InboxKind.SAID and item.body.get("end") for item in said)
        if ends or (row is not None and row.state in ENDED):
            raise errors.BadInput(f"the conversation {self.name!r} has ended", hint="start one with another name")
        await self._home.drop(InboxItem(task_id=task_id, ordinal="", kind=InboxKind.SAID, body=body))

    async def _find_newest(self, task_id: TaskId, message_id: str) -> Answer | None:
        newest = await self._home.journal.read_newest(task_id)
        if newest is None or newest.kind is not RecordKind.ANSWER:
            return None
        answer = _answer(newest.body)
        return answer if answer.message_id == message_id else None

    async def _over(self, task_id: TaskId, state: TaskState) -> Exception:
        newest = await self._home.journal.read_newest(task_id)
        last: Body = {} if newest is None else newest.body
        if state is TaskState.PARKED:
            question = str(last.get("question") or "its records are damaged")
            return errors.TaskParked(task_id=task_id, ordinal=str(last.get("ordinal") or ""), question=question)
        if state is TaskState.CANCELLED:
            return errors.TaskCancelled(task_id=task_id)
        text = str(last.get("text") or "the conversation has ended")
        kind, where = str(last.get("kind") or "ended"), str(last.get("where") or "")
        return errors.TaskFailed(task_id=task_id, kind=kind, text=text, where=where)


def _find(view: TaskView, message_id: str) -> Answer | None:
    said = (note for note in view.notes.values() if note.what == "said" and SaidNote.read(note.body).id == message_id)
    return next((_answer(note.answer) for note in said if note.answer is not None), None)


def _answer(body: Body) -> Answer:
    answered = MessageAnswered.read(body)
    return Answer(message_id=answered.id, text=answered.text, refused=bool(answered.refused))
