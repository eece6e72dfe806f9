"""Tools: functions that touch the outside world, each with the contract of its effect class.

A tool is never called directly (that raises NotDurable): `run.call(tool, ...)` gives it a `Call`
made by the orchestrator, after the checkpoint is durable. What it says about its outcome:

* it returns: the effect took place, the value is recorded;
* `raise Refused(proof)`: the far end says it did not happen and will not;
* `raise NotSent()`: no byte was sent; `raise Busy(after)`: the far end still works on this key;
* anything else, a timeout or a cancel: unknown. (For Read and Transactional: a plain failure.)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from holdfast.core.effect import Effect, Keyed, Letter, Queryable, Unrepeatable, check_effect
from holdfast.core.ids import effect_key_from_bytes
from holdfast.errors import Misuse, NotDurable
from holdfast.host.shadowed import in_shadow
from holdfast.journal.contract import Statement
from holdfast.journal.records import Body, TaskView
from holdfast.runtime.tool.child import Target, locate, scratch_path
from holdfast.runtime.tool.shape import check_sandbox, is_blocking, shape_of, version_of

if TYPE_CHECKING:
    from holdfast.core.mail import Post
    from holdfast.core.ports import Memory
    from holdfast.runtime.http.client import HttpClient
    from holdfast.runtime.tool.schema import ToolSchema

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS_MAX, TIMEOUT_S = 5, 60.0
NAME_CHARS_MAX = 200
FITTING_MAX = 100
_NOTHING: dict[str, Any] = {}  # Any: never filled


class Call:
    """One attempt of one step, as the tool sees it. Only Holdfast makes it."""

    planned: Body  # what the plan of the step says; given to tools with `plans_more` alone
    __slots__ = (
        "_effect",
        "_effect_key",
        "_ends",
        "_http",
        "_lookup",
        "_mark",
        "_memory",
        "_noted",
        "_post",
        "_scratch",
        "_tool",
        "attempt",
        "fence",
        "ordinal",
        "planned",
        "sent_ago_s",
        "task_id",
    )

    def __init__(
        self,
        task_id: str,
        ordinal: str,
        effect_key: bytes,
        fence: int,
        attempt: int,
        ends: float,
        mark: Callable[[], None],
        effect: Effect,
        lookup: bool = False,
        sent_ago_s: float | None = None,
    ) -> None:
        self.task_id = task_id
        self.ordinal = ordinal
        self.fence = fence
        self.attempt = attempt
        self.sent_ago_s = sent_ago_s  # in a lookup: the effect cannot be older; None where no bound is certain
        self._effect_key = effect_key
        self._ends = ends  # on the clock of the event loop
        self._mark = mark
        self._effect = effect
        self._lookup = lookup
        self._http: HttpClient | None = None

    @property
    def effect_key(self) -> str:
        """The same for every attempt of this step, on every worker; the service recognizes a repeat by it."""
        return effect_key_from_bytes(self._effect_key)

    @property
    def deadline_s(self) -> float:
        """Seconds left until Holdfast gives this attempt up and its outcome is unknown."""
        return self._ends - asyncio.get_running_loop().time()

    @property
    def http(self) -> HttpClient:
        """An HTTP client bound to this attempt: sets the key, reads answers, never retries."""
        if self._http is None:
            from holdfast.runtime.http.client import HttpClient  # with ssl: only where it is used

            self._http = HttpClient(
                effect=self._effect,
                effect_key=self.effect_key,
                task_id=self.task_id,
                ordinal=self.ordinal,
                fence=self.fence,
                time_left_s=lambda: self.deadline_s,
                on_first_byte=self._mark,
                lookup=self._lookup,
            )
        return self._http

    @property
    def scratch(self) -> Path:
        """The task's folder for working files, if the task's code uses `run.scratch`."""
        return scratch_path(self.folder)

    @property
    def folder(self) -> str:
        """The path of the task's scratch folder, or None."""
        try:
            return str(self._scratch)
        except AttributeError:  # not set at all: most tasks have none, and every step passes here
            return ""

    def give_scratch(self, folder: Path) -> None:
        self._scratch = folder

    @property
    def memory(self) -> Memory:
        """The agent's memory files. Raises Misuse if this journal is not in an agent's folder."""
        try:
            return self._memory
        except AttributeError:
            raise Misuse(
                "this journal is not in an agent's folder: there is no memory",
                hint="make an agent with `holdfast init`, or name the agent in holdfast.toml",
            ) from None

    def give_memory(self, memory: Memory, *, tool: str) -> None:
        self._memory, self._tool, self._noted = memory, tool, 0

    async def note(self, text: str, *, to: Literal["MEMORY", "day"] = "day") -> None:
        """Add a line to the agent's memory, with this tool as its origin. A second attempt does not add the line again.
        Raises Misuse if this journal is not in an agent's folder."""
        memory = self.memory
        self._noted += 1
        await memory.remember(
            remark_id=f"effect {self.effect_key}/{self._noted}", to=to, text=text, origin=f"tool {self._tool}"
        )

    @property
    def post(self) -> Post:
        """Sends mail to other agents. Raises Misuse if this journal is not that of an agent with relays."""
        try:
            return self._post
        except AttributeError:
            text = "no mail can be sent from here: this journal does not belong to an agent with relays"
            raise Misuse(text, hint="give the agent a relay: `holdfast relay add ADDRESS`") from None

    def give_post(self, post: Post) -> None:
        self._post = post

    def sending(self) -> None:
        """Say that the next byte may leave now; for tools declared `marks_sending=True`."""
        self._mark()


@dataclass(frozen=True, slots=True)
class Found:
    """The lookup found the effect exactly once; `result` is what the call would have returned.

    If the service shows what it did, pass it as `args`: Holdfast compares it with the recorded arguments.
    """

    result: Any = None  # Any: a JSON value, checked when it is recorded
    args: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The far end has never seen the effect."""


@dataclass(frozen=True, slots=True)
class Many:
    """The effect is there more than once."""

    results: Sequence[Any] = ()  # Any: JSON values shown to a person


@dataclass(frozen=True, slots=True)
class Unsure:
    """The far end cannot say."""

    reason: str = ""


FindAnswer = Found | Absent | Many | Unsure
Finder = Callable[..., Awaitable[FindAnswer]]


@dataclass(frozen=True, slots=True)
class Apply:
    """What a Transactional tool returns: statements for the closing commit, and its result."""

    statements: Sequence[tuple[str, Sequence[Any]]]  # Any: values that SQLite can bind
    result: Any = None  # Any: a JSON value, checked when it is recorded

    def parsed(self) -> list[Statement]:
        """Raises Misuse where they are not pairs of SQL and values."""
        try:
            return [Statement(sql=_sql(sql), params=tuple(params)) for sql, params in self.statements]
        except (TypeError, ValueError):
            raise Misuse("Apply: statements must be pairs of SQL and a list of values") from None


def _sql(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError("not SQL")
    return text


class Tool(Generic[P, T]):
    """A registered tool."""

    plans_more: Callable[[TaskView, Mapping[str, Any]], Body] | None = None  # what its plan says besides; pure
    asks_first: Callable[[Mapping[str, Any], Post | None], Awaitable[Body]] | None = None  # the same, before it sends
    spared_max = 20  # attempts that were not sent or met a busy far end, beyond its own limit

    def __init__(
        self,
        function: Callable[P, Awaitable[T] | T],
        *,
        name: str,
        effect: Effect,
        timeout_s: float,
        attempts: int,
        retries: int = 0,
        retry_delay_s: float = 0.0,
        http_only: bool = False,
        marks_sending: bool = False,
        needs_approval: bool = False,
        secrets: Mapping[str, tuple[str, ...]] = _NOTHING,
        given: Mapping[str, Any] = _NOTHING,
        parameters: Mapping[str, object] | None = None,
        sandbox: Callable[..., Any] | None = None,
    ) -> None:
        self.sandbox = sandbox
        # In a shadow of a drill the sandbox answers, wherever the call is made; else the function does.
        called = function if sandbox is None or not in_shadow() else sandbox
        self.function = called
        self.name = name
        self.effect = effect
        self.letter: Letter = effect.letter
        self.timeout_s = timeout_s
        self.attempts = attempts
        self.retries = retries
        self.retry_delay_s = retry_delay_s
        # Whether its result may wait for the next step's commit: if it is lost with the process,
        # it is asked for again and the same.
        self.merges = effect.merges or (isinstance(effect, Queryable) and effect.find_returns_result)
        self.marks_itself = http_only or marks_sending
        self.needs_approval = needs_approval
        self.delay_ms = int(effect.delay_s(http_only=http_only) * 1000)
        self.blocking = is_blocking(function)  # not a plain wrapper around an async one: that gives a coroutine
        # Whether what it starts in this process is watched: it may run on after the attempt (started.py).
        self.watched = not (self.blocking or effect.repeatable or http_only)
        self.finder: Finder | None = None
        self.has_contract = not isinstance(effect, Queryable)  # that one needs its lookup too
        self.needs_child = self.blocking and not effect.repeatable  # a process of its own, which can be ended
        self.window_ms = int(effect.window_s * 1000) if isinstance(effect, Keyed) else 0
        self._target: Target | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", name)
        _, names, required, self._any = shape_of(function)
        self._takes_call = shape_of(called)[0]
        self.given = given
        self._names = names - given.keys()
        self._required = tuple(one for one in required if one not in given)
        self.args_title = f"arguments of {name}"
        self.result_title = f"result of {name}"
        self._needed = frozenset(self._required)
        self._fitting: set[tuple[str, ...]] = set()  # names of arguments, in their order, that were taken before
        self.version = version_of(function, name, effect)
        self.secrets = secrets
        for what, chosen in (("secrets", secrets), ("given", given)):
            unknown = [] if self._any else [one for one in chosen if one not in names]
            if unknown:
                raise Misuse(f"{name}: {what}: the tool has no argument {unknown[0]!r}")
        if sandbox is not None:
            check_sandbox(name, function, sandbox, effect)
        self._parameters = None if parameters is None else self._checked_parameters(parameters)
        self._schema: ToolSchema | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotDurable(f"{self.name} was called directly: Holdfast would record nothing")

    def find(self, finder: Finder) -> Finder:
        """Register the lookup. Holdfast calls it when the step is quiet, to ask whether the effect happened."""
        if not inspect.iscoroutinefunction(finder):
            raise Misuse(f"{self.name}.find: a lookup must be an `async def`")
        self.finder, self.has_contract = finder, True
        return finder

    def check_args(self, args: dict[str, Any]) -> dict[str, Any]:  # Any: the caller's, unchecked
        """Refuse arguments that the function would not take, before anything is planned.

        Returns them with those that the tool itself gives.
        """
        names = tuple(args)
        if names in self._fitting:
            return args
        if args.keys() <= self._names and self._needed <= args.keys():
            if self.given:
                return {**args, **self.given}
            if len(self._fitting) < FITTING_MAX:
                self._fitting.add(names)
            return args
        fixed = [name for name in args if name in self.given]
        if fixed:
            raise Misuse(f"{self.name}: do not pass {fixed[0]!r}: the tool sets it itself")
        unknown = [] if self._any else [name for name in args if name not in self._names]
        missing = [name for name in self._required if name not in args]
        if unknown or missing:
            told = [*(f"unexpected {name!r}" for name in unknown), *(f"missing {n!r}" for n in missing)]
            raise Misuse(f"{self.name}: {', '.join(told)}")
        return {**args, **self.given}

    @property
    def schema(self) -> ToolSchema:
        """Name, description and parameters, as a model gets them. Raises NoSchema.

        Holdfast makes it at the first use: a tool that no model uses may have any type hints.
        """
        if self._schema is None:
            from holdfast.runtime.tool.schema import tool_schema

            self._schema = tool_schema(self.name, self.function, parameters=self._parameters, given=self.given)
        return self._schema

    def takes(self, argument: str) -> bool:
        """Whether a caller may pass an argument of this name."""
        return argument in self._names or (self._any and argument not in self.given)

    def _checked_parameters(self, by_hand: Mapping[str, object]) -> Mapping[str, object]:
        """A schema by hand, held against the function."""
        from holdfast.runtime.tool.validation import checked_parameters

        schema = checked_parameters(dict(by_hand), what=f"{self.name}: parameters")
        known = cast("dict[str, object]", schema["properties"])
        required = cast("list[str]", schema.get("required", []))
        for name in (*known, *required):
            if not self.takes(name):
                raise Misuse(f"{self.name}: parameters: the function has no argument {name!r} that a caller may pass")
        if not self._any and schema["additionalProperties"] is not False:
            raise Misuse(
                f"{self.name}: parameters: set additionalProperties to false; the function takes no other arguments"
            )
        for name in self._required:
            if name not in required:
                raise Misuse(f"{self.name}: parameters: list {name!r} under `required`; the function requires it")
        return schema

    @property
    def target(self) -> Target:
        """Where a child process finds the function. Raises ToolNotImportable."""
        if self._target is None:
            self._target = locate(self.function)
        return self._target

    @property
    def takes_call(self) -> bool:
        return self._takes_call

    def begin(self, call: Call, args: dict[str, Any]) -> Any:  # Any: user code
        """Call the function: what it gives, of an async one its coroutine. The one place where a call is made."""
        function: Any = self.function
        return function(call, **args) if self._takes_call else function(**args)

    def bound(self, call: Call, args: dict[str, Any]) -> Callable[[], Any]:  # Any: user code
        return lambda: self.begin(call, args)


@overload
def tool(function: Callable[P, T], /) -> Tool[P, T]: ...


@overload
def tool(
    *,
    effect: Effect = ...,
    name: str = ...,
    timeout_s: float = ...,
    attempts: int = ...,
    retries: int = ...,
    retry_delay_s: float = ...,
    http_only: bool = ...,
    marks_sending: bool = ...,
    needs_approval: bool = ...,
    secrets: Mapping[str, str | Sequence[str]] | None = ...,
    given: Mapping[str, Any] | None = ...,
    parameters: Mapping[str, object] | None = ...,
    sandbox: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, T]], Tool[P, T]]: ...


def tool(
    function: Callable[P, T] | None = None,
    /,
    *,
    effect: Effect | None = None,
    name: str = "",
    timeout_s: float = TIMEOUT_S,
    attempts: int = ATTEMPTS_MAX,
    retries: int = 0,
    retry_delay_s: float = 1.0,
    http_only: bool = False,
    marks_sending: bool = False,
    needs_approval: bool = False,
    secrets: Mapping[str, str | Sequence[str]] | None = None,
    given: Mapping[str, Any] | None = None,
    parameters: Mapping[str, object] | None = None,
    sandbox: Callable[..., Any] | None = None,
) -> Tool[P, T] | Callable[[Callable[P, T]], Tool[P, T]]:
    """Register a function as a tool.

    Args:
        effect: the effect class (default: Unrepeatable).
        timeout_s: seconds after which Holdfast gives an attempt up; its outcome is then unknown (not for Read).
        attempts: how often Holdfast sends a step before it parks it.
        retries: how often Holdfast tries again after a proven refusal (or a failed Read).
        http_only: the tool sends only through `call.http`, which knows when the first byte is sent
            and enforces its own deadline. So fewer outcomes are unknown, and a step is quiet sooner.
        marks_sending: the tool calls `call.sending()` itself right before its first byte.
        needs_approval: a person must grant each call before it starts.
        secrets: which secrets an argument may name by `secret://NAME`: maps an argument to a name, names
            or patterns such as `tenant-*`. Holdfast fills in no other secret.
        given: arguments that the tool itself sets, such as an account or an address. Holdfast records them
            with each step; no caller and no model passes them.
        parameters: a JSON schema of the arguments, instead of the one made from the type hints;
            see docs/reference/schemas.md.
        sandbox: a function with the same arguments that answers in place of the tool in a drill's shadow, and
            nowhere else; see docs/how-to/write-a-tool.md.
    """
    if timeout_s <= 0 or attempts < 1 or retries < 0 or retry_delay_s < 0:
        raise Misuse("tool: timeout_s and attempts must be positive, retries not negative")

    def register(function: Callable[P, T]) -> Tool[P, T]:
        title = name or getattr(function, "__name__", "")
        if not title or len(title) > NAME_CHARS_MAX or title.startswith("@"):
            # A gate lets the runtime's own tools pass, and knows them by their @.
            raise Misuse("tool: the name must have 1 to 200 characters and must not start with @")
        return Tool(
            function,
            name=title,
            effect=Unrepeatable() if effect is None else check_effect(effect, tool=title),
            timeout_s=timeout_s,
            attempts=attempts,
            retries=retries,
            retry_delay_s=retry_delay_s,
            http_only=http_only,
            marks_sending=marks_sending,
            needs_approval=needs_approval,
            secrets={
                one: (names,) if isinstance(names, str) else tuple(names) for one, names in (secrets or {}).items()
            },
            given=dict(given or {}),
            parameters=parameters,
            sandbox=sandbox,
        )

    return register if function is None else register(function)


def check_tool(tool: object) -> None:
    """Refuse what is no tool, or one whose contract cannot be kept."""
    if not isinstance(tool, Tool):
        raise Misuse(f"{tool!r} is not a tool", hint="decorate the function with @holdfast.tool")
    check_registered(cast("Tool[..., Any]", tool))


def check_registered(tool: Tool[..., Any]) -> None:
    """Refuse a contract that cannot be kept, before the first call."""
    if not tool.has_contract:
        raise Misuse(
            f"{tool.name} is Queryable but has no lookup",
            hint=f"add `@{tool.__name__}.find` with a function that asks the downstream",
        )
