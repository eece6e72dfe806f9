"""Tasks: how they are written, submitted, decided on, and how they end. And the signals that end a run."""

from __future__ import annotations

from holdfast.errors.base import EXIT_FAILED, EXIT_RETRY, BadInput, BadUsage, Conflict, NotFound, Terminal, Unresolved


class BadApp(BadUsage):
    """APP does not lead to tasks. The file or module does not exist, fails at import, lacks the attribute, or the
    attribute is not a list of tasks or a `holdfast.App`. If it has several tasks, choose one with `--task`."""

    code = "bad-app"
    default_hint = "name a list of tasks as `module:attribute` or `path/file.py:attribute`, for example `trip.py:tasks`"


class BadReference(BadUsage):
    """The text is not a task id, effect key or TASK/ORDINAL, or it is the beginning of several ids. You can shorten an
    id to any unique beginning."""

    code = "bad-reference"
    default_hint = "name a step as TASK/ORDINAL, for example 01J9ZK3V5T8Q2M4N6P7R8S9T0V/4"


class BadEvent(BadInput):
    """A webhook request is not signed by the provider of a ready contract, is too old, or is not an event. Nothing was
    taken from it. See docs/reference/contracts/README.md."""

    code = "bad-event"
    default_hint = "answer with status 400; if the provider did send the request, check the endpoint's signing secret"


class NotDurable(BadUsage):
    """A tool was called like a plain function, so nothing would have been recorded."""

    code = "not-durable"
    default_hint = "call the tool with `run.call(...)` in a task, or in `hf.scope(...)`"


class StepOpen(BadUsage):
    """A task began a step while the previous step was still open."""

    code = "step-open"
    default_hint = "await each step before the next one, or use `run.gather(...)`"


class ToolNotImportable(BadUsage):
    """A blocking tool runs in its own process and must be found there by its name."""

    code = "tool-not-importable"
    default_hint = "define the blocking tool at the top level of a module, or make it `async def`"


class NoSchema(BadUsage):
    """A tool cannot be offered to a model or checked by a gate, because a parameter's type is not a JSON value: a date,
    a dataclass, a set. The message names the tool and the parameter. Without a model or gate the tool still works."""

    code = "no-schema"
    default_hint = (
        "give the parameter a JSON type (`holdfast explain schemas`), or write the schema by hand: "
        "@holdfast.tool(parameters={...})"
    )

    def __init__(self, *, tool: str, why: str, parameter: str = "") -> None:
        where = f"tool {tool}" + (f": parameter {parameter!r}" if parameter else "")
        super().__init__(f"{where}: {why}")
        self.tool = tool
        self.parameter = parameter


class BadSecret(BadUsage):
    """The name or value of a secret is not allowed: a value below 8 characters, too large, or part of a name; a name
    with other characters than small letters, digits, `_` and `-`; a secret that exists already.
    The value is never shown."""

    code = "bad-secret"
    default_hint = "see `holdfast explain secrets`"


class SecretInInput(BadUsage):
    """The arguments or the request id of a task contain the value of a known secret, plain or encoded. Nothing was
    written."""

    code = "secret-in-input"
    default_hint = "pass the handle `secret://NAME` instead; Holdfast would record the value itself"

    def __init__(self, *, what: str, handle: str) -> None:
        super().__init__(f"{what} would hold the value of {handle}")
        self.handle = handle


class SecretNotFound(NotFound):
    """This journal has no secret of that name, or it was removed."""

    code = "secret-not-found"
    default_hint = "`holdfast secret list` shows the secrets of this journal"

    def __init__(self, name: str) -> None:
        super().__init__(f"this journal has no secret {name!r}")
        self.name = name


class SecretInUse(Conflict):
    """Open steps have recorded that they send this secret; the message names them. Nothing was removed. With `--force`
    a step that would send it is parked with a question."""

    code = "secret-in-use"
    default_hint = "let those steps finish, or give --force: Holdfast then parks them instead of sending"


class ScratchRefused(BadUsage):
    """The scratch folder holds something that another worker cannot get as it is: a link, pipe, socket or device, a
    file on another file system, a name that is not UTF-8, or two names that some file systems treat as one.
    The message names the path. `run.call` raises it before anything is sent; after a call it is scratch-not-kept."""

    code = "scratch-refused"
    default_hint = "keep only plain files and folders below run.scratch.path"


class ScratchTooLarge(BadUsage):
    """The scratch folder is over a limit of `[scratch]` in docs/reference/settings.md."""

    code = "scratch-too-large"
    default_hint = "remove files that are no longer needed, or raise the limits under [scratch]"


class ScratchChanging(BadUsage):
    """A scratch file changed each time it was read for a checkpoint, and no other call of the task was writing it. A
    thread or a background program may be."""

    code = "scratch-changing"
    default_hint = "let the program that writes the file finish before the next step"


class RequestConflict(Conflict):
    """The request id belongs to a task with another input, or the slot of a scope belongs to another call."""

    code = "request-conflict"
    default_hint = "use a new request id for new work; the same id always means the same task"

    def __init__(self, *, task_id: str, request_id: str, name: str) -> None:
        super().__init__(
            f"request id {request_id!r} of {name} belongs to task {task_id}, which was submitted with another input"
        )
        self.task_id = task_id
        self.request_id = request_id


class MessageConflict(Conflict):
    """The message id belongs to another message of this conversation. This one was not accepted."""

    code = "message-conflict"
    default_hint = "use a new message id for a new message; the same id always means the same message"

    def __init__(self, *, task_id: str, message_id: str, conversation: str) -> None:
        super().__init__(f"message id {message_id!r} of the conversation {conversation!r} was sent with another text")
        self.task_id = task_id
        self.message_id = message_id


class ScopeBusy(Conflict):
    """Another process holds the scope."""

    code = "scope-busy"
    default_hint = "only one process holds a scope at a time; close it in the other process, or use another name"


class NotNow(Conflict):
    """The command does not fit the present state; nothing was changed. A decision came too early, while a request may
    still be in transit (`holdfast effect show` names the time); or the keys of the agent changed elsewhere, for example
    because another machine recovered it. The message says which, and its hint what to do."""

    code = "too-early"
    default_hint = "a request may still be in flight; decide after that time"


class NotSettleable(Conflict):
    """The step or task is not in a state for this decision. Only a parked step can be settled, and only once: the first
    decision counts. Only a parked or failed task can be retried; an ended task cannot be cancelled. Nothing was
    recorded."""

    code = "not-settleable"
    default_hint = "you can decide only parked steps; `holdfast effect list` shows them"


class TaskFailed(Terminal):
    """The task ended with an error of its own code, or of a step that it did not handle. `holdfast task retry TASK`
    runs it again; closed steps are not repeated."""

    code = "task-failed"
    exit_code = EXIT_FAILED
    default_hint = "`holdfast task show TASK` shows the step and the reason"

    def __init__(self, *, task_id: str, kind: str, text: str, where: str = "") -> None:
        line = " and the line that raised; with --trace the whole traceback" if where else ""
        hint = f"`holdfast task show {task_id}` shows the steps{line}"
        hint += "" if where else f"; `holdfast task retry {task_id}` runs the task again with the code as it is now"
        super().__init__(f"task {task_id} failed: {kind}: {text}", hint=hint)
        self.task_id = task_id
        self.kind = kind
        self.text = text


class TaskCancelled(Terminal):
    """A person or a caller cancelled the task. Earlier effects stay."""

    code = "task-cancelled"
    exit_code = EXIT_FAILED

    def __init__(self, *, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class TaskParked(Unresolved):
    """A step needs a person, or the task cannot continue by itself: its code has changed, or its last runs killed their
    process. The hint names the commands for this task."""

    code = "task-parked"

    def __init__(self, *, task_id: str, ordinal: str, question: str) -> None:
        where = f"task {task_id}" + (f" step {ordinal}" if ordinal else "")
        if ordinal:
            place = f"{task_id}/{ordinal}"
            hint = f"`holdfast effect show {place}` shows the evidence, `holdfast effect settle {place}` decides"
        else:
            hint = f"`holdfast task show {task_id}` says what to do; then `holdfast task retry {task_id}` runs it again"
        super().__init__(f"{where} is parked: {question}", hint=hint)
        self.task_id = task_id
        self.ordinal = ordinal
        self.question = question


class TaskUnfinished(Unresolved):
    """A wait ended before the task did. The task is not stopped: a worker continues it."""

    code = "task-unfinished"
    exit_code = EXIT_RETRY
    default_hint = "the task is not stopped; wait longer, or see `holdfast task show TASK`"


class ResultErased(NotFound):
    """The task ended so long ago that retention erased its payload. How it ended is still known."""

    code = "result-erased"
    default_hint = "Holdfast keeps results for `keep_days` days; if you need one longer, store it elsewhere"

    def __init__(self, *, task_id: str, state: str) -> None:
        super().__init__(f"task {task_id} {state}; its result was erased by retention")
        self.task_id = task_id
        self.state = state


class Signal(BaseException):
    """Control flow of the runtime. Agent code must let it pass."""


class RunFenced(Signal):
    """This run's epoch is stale or its session is over; it may not act any more."""


Fenced = RunFenced  # its name until 0.2


class Cancelled(Signal):
    """The task was cancelled by a person or a caller."""
