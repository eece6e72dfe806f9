"""An agent: instructions, a model and tools, as a task that can be submitted and resumed.

The loop itself is agent_loop.py; here is what it is made of, and the short ways to use it in a
process that has a journal open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast.core.content import content_bytes, digest_of
from holdfast.errors import BadSettings, Misuse
from holdfast.runtime.models.model import Model
from holdfast.runtime.models.port import Show, check_show
from holdfast.runtime.models.request import Object, check_settings, check_tools
from holdfast.runtime.step.code_changes import DIGEST_CHARS, code_digest
from holdfast.runtime.step.plan import PLAN, SCHEMA
from holdfast.runtime.task.task import OnChange, TaskType, check_gate, check_name
from holdfast.runtime.tool.tool import Tool, check_tool

if TYPE_CHECKING:
    from holdfast.journal.contract import InboxItem, Journal
    from holdfast.runtime.agent.conversation import Conversation
    from holdfast.runtime.gate.gate import Gate
    from holdfast.runtime.secrets import Secrets
    from holdfast.runtime.task.run import Run

MAX_TURNS = 50
MAX_TURNS_MOST = 100_000
CONVERSATION = re.compile(r"[^\0-\x1f\x7f]{1,200}")


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
        name: under which its tasks are kept.
        instructions: the system's words to the model.
        model: which one is asked.
        tools: what it may call; each has a schema by its type hints.
        settings: of every request, before those of the model.
        max_turns: model calls for one request or one message; then the task is parked.
        spend_cap: millionths of the price's unit for the whole task. The task is parked before a
            call that could pass it; the model needs a price, and max_tokens makes it firm.
        gate: allow-list, limits and approvals, outside the model.
        on_change: of model, endpoints, settings, prompt, tools, their code or gate, as for tasks.
        plan: whether the model is offered the built-in tool `plan`.
        scratch: whether its tools have a folder for working files (`call.scratch`).
        show: is given pieces of replies as they come, which are provisional.
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
        if on_change not in ("continue", "park"):
            raise Misuse("agent: on_change must be 'continue' or 'park'")
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance] - a border
            raise Misuse(f"agent {name}: {model!r} is not a model")
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
            raise Misuse(f"{self.name}: request and conversation must be text")
        if args.get("conversation") and args["request"]:
            raise Misuse(
                f"{self.name}: give a request or a conversation, not both",
                hint="send messages to a conversation with agent.chat(NAME).say(TEXT)",
            )

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

        Raises TaskFailed, TaskParked, TaskCancelled; TaskUnfinished where the time is over and the task goes on.
        """
        handle = await self.home.submit(self, request_id=request_id, request=request)
        return cast(str, await handle.result(timeout_s))

    def chat(self, conversation: str) -> Conversation:
        """A conversation that is kept: the same name finds the same one, in every process."""
        from holdfast.runtime.agent.conversation import Conversation

        named = cast(object, conversation)
        if not isinstance(named, str) or not CONVERSATION.fullmatch(named):
            raise Misuse("the name of a conversation must have 1 to 200 printable characters")
        return Conversation(self, self.home, conversation)

    # used where a journal is opened with it

    @property
    def home(self) -> Home:
        if not self._homes:
            raise Misuse(
                f"agent {self.name}: no journal is open with this agent in this process",
                hint="`async with holdfast.open(..., tasks=[agent])`, or hf.submit(agent, ...)",
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
        raise BadSettings(f"agent {name}: max_turns must be from 1 to {MAX_TURNS_MOST:,}")
    if spend_cap is None:
        return
    if type(spend_cap) is not int or spend_cap < 0:
        raise BadSettings(f"agent {name}: spend_cap must be a whole number of millionths")
    if model.price is None:
        raise BadSettings(
            f"agent {name}: a spend cap needs the model's price",
            hint="holdfast.Model(..., price=holdfast.Price(input=..., output=...))",
        )


def _by_name(agent: str, tools: Sequence[Tool[..., Any]], *, plan: bool) -> dict[str, Tool[..., Any]]:
    found: dict[str, Tool[..., Any]] = {}
    given = cast(object, tools)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Misuse(f"agent {agent}: tools must be a list, not {given!r}", hint="tools=[...]")
    for tool in tools:
        check_tool(tool)
        if found.setdefault(tool.name, tool) is not tool:
            raise Misuse(f"agent {agent}: two tools are called {tool.name!r}")
    if plan and PLAN in found:
        raise Misuse(
            f"agent {agent}: the name `{PLAN}` belongs to a built-in tool", hint="rename yours, or give plan=False"
        )
    return found


def _code_of(tool: Tool[..., Any]) -> list[str]:
    """Its source, or its version where there is none; and its contract."""
    return [code_digest(tool.function) or tool.version, tool.letter, repr(tool.effect)]


def _digest(value: object) -> str:
    return digest_of(content_bytes(value))[:DIGEST_CHARS]
