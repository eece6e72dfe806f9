"""Tasks: how they are written, submitted, decided on, and how they end. And the signals that end a run."""

from __future__ import annotations

from holdfast.errors.base import EXIT_FAILED, EXIT_RETRY, BadInput, BadUsage, Conflict, NotFound, Terminal, Unresolved


class BadApp(BadUsage):
    code = "bad-app"
    default_hint = (
        "name a list of tasks as `module:attribute` or `path/file.py:attribute`, for example `examples/trip.py:tasks`"
    )


class BadReference(BadUsage):
    code = "bad-reference"
    default_hint = "name a step as TASK/ORDINAL, for example 01J9ZK3V5T8Q2M4N6P7R8S9T0V/4"


class BadEvent(BadInput):
    """A webhook request that is not the provider's, or cannot be read: nothing is taken from it."""

    code = "bad-event"
    default_hint = "answer 400; if it is the provider's, check the signing secret of the endpoint"


class NotDurable(BadUsage):
    code = "not-durable"
    default_hint = "call the tool through `run.call(...)` in a task, or in `hf.scope(...)`"


class StepOpen(BadUsage):
    code = "step-open"
    default_hint = "await each step before the next one, or use `run.gather(...)`"


class ToolNotImportable(BadUsage):
    code = "tool-not-importable"
    default_hint = "define the blocking tool at the top level of a module, or make it `async def`"


class NoSchema(BadUsage):
    """A tool cannot be offered to a model: a parameter's type is no JSON value."""

    code = "no-schema"
    default_hint = (
        "give the parameter a type of JSON values (docs/reference/schemas.md), or write the schema "
        "by hand: @holdfast.tool(parameters={...})"
    )

    def __init__(self, *, tool: str, why: str, parameter: str = "") -> None:
        where = f"tool {tool}" + (f": parameter {parameter!r}" if parameter else "")
        super().__init__(f"{where}: {why}")
        self.tool = tool
        self.parameter = parameter


class BadSecret(BadUsage):
    """A secret's name or value cannot be taken; the value is never shown."""

    code = "bad-secret"
    default_hint = "see docs/how-to/secrets.md"


class SecretInInput(BadUsage):
    """What was to be recorded holds a known secret's value."""

    code = "secret-in-input"
    default_hint = "pass the handle `secret://NAME` instead; a value would be written down"

    def __init__(self, *, what: str, handle: str) -> None:
        super().__init__(f"{what} would hold the value of {handle}")
        self.handle = handle


class SecretNotFound(NotFound):
    code = "secret-not-found"
    default_hint = "`holdfast secret list` shows the secrets of this journal"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no secret {name!r} beside this journal")
        self.name = name


class SecretInUse(Conflict):
    """Open steps have recorded that they send this secret."""

    code = "secret-in-use"
    default_hint = "let them end, or give --force: they are parked when they would be sent"


class ScratchRefused(BadUsage):
    """Something lies in the scratch folder that cannot be given to another worker as it is."""

    code = "scratch-refused"
    default_hint = "keep only plain files and folders below run.scratch.path"


class ScratchTooLarge(BadUsage):
    code = "scratch-too-large"
    default_hint = "remove files that are not needed any more, or raise the limits under [scratch]"


class ScratchChanging(BadUsage):
    """A file was written each time it was read, by something that no step waits for."""

    code = "scratch-changing"
    default_hint = "let whatever writes the file end before the next step"


class RequestConflict(Conflict):
    """The request id belongs to a task that was submitted with another input."""

    code = "request-conflict"
    default_hint = "use a new request id for new work; the same id always means the same task"

    def __init__(self, *, task_id: str, request_id: str, name: str) -> None:
        super().__init__(
            f"request id {request_id!r} of {name} is task {task_id}, which was submitted with another input"
        )
        self.task_id = task_id
        self.request_id = request_id


class MessageConflict(Conflict):
    """The message id belongs to a message of this conversation that has another text."""

    code = "message-conflict"
    default_hint = "use a new message id for a new message; the same id always means the same one"

    def __init__(self, *, task_id: str, message_id: str, conversation: str) -> None:
        super().__init__(f"message id {message_id!r} of the conversation {conversation!r} was sent with another text")
        self.task_id = task_id
        self.message_id = message_id


class ScopeBusy(Conflict):
    code = "scope-busy"
    default_hint = "one process holds a scope at a time; close it there, or use another name"


class NotNow(Conflict):
    """A decision before the step is quiet: a request may still be under way."""

    code = "too-early"
    default_hint = "a request may still be under way; decide after that time"


class NotSettleable(Conflict):
    code = "not-settleable"
    default_hint = "only parked steps take a decision; `holdfast effect list` shows them"


class TaskFailed(Terminal):
    code = "task-failed"
    exit_code = EXIT_FAILED
    default_hint = "`holdfast task show TASK` shows the step and the reason"

    def __init__(self, *, task_id: str, kind: str, text: str) -> None:
        super().__init__(f"task {task_id} failed: {kind}: {text}")
        self.task_id = task_id
        self.kind = kind
        self.text = text


class TaskCancelled(Terminal):
    code = "task-cancelled"
    exit_code = EXIT_FAILED

    def __init__(self, *, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class TaskParked(Unresolved):
    code = "task-parked"

    def __init__(self, *, task_id: str, ordinal: str, question: str) -> None:
        where = f"task {task_id}" + (f" step {ordinal}" if ordinal else "")
        if ordinal:
            look, act = f"effect show {task_id}/{ordinal}", f"effect settle {task_id}/{ordinal}"
        else:
            look, act = f"task show {task_id}", f"task retry {task_id}"
        super().__init__(
            f"{where} is parked: {question}", hint=f"`holdfast {look}` shows the evidence, `holdfast {act}` goes on"
        )
        self.task_id = task_id
        self.ordinal = ordinal
        self.question = question


class TaskUnfinished(Unresolved):
    code = "task-unfinished"
    exit_code = EXIT_RETRY
    default_hint = "the task goes on; wait longer, or see `holdfast task show TASK`"


class ResultErased(NotFound):
    """The task ended so long ago that retention has erased its payload."""

    code = "result-erased"
    default_hint = "results are kept for `keep_days`; keep what you need longer elsewhere"

    def __init__(self, *, task_id: str, state: str) -> None:
        super().__init__(f"task {task_id} {state}; its result was erased by retention")
        self.task_id = task_id
        self.state = state


class Signal(BaseException):
    """Control flow of the runtime. Agent code must let it pass."""


class RunFenced(Signal):
    """This run's epoch is stale or its session is over; it may not act any more."""


class Suspended(Signal):
    """The run ends here for now; the journal says why (sleeping, waiting, parked)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Cancelled(Signal):
    """The task was cancelled by a person or a caller."""
