"""The child process in which a blocking tool runs, so that it can be killed; the frames it and the worker send.

Started as `python -m holdfast.runtime.tool.child` with one socket as its standard input and the session's lock among
its descriptors; it runs one call at a time until the socket closes. It has no descriptor of the journal or the keys and
opens neither. It dies with the worker (on Linux at once, with every process that the tool started: keeper.py; elsewhere
when it next reads), and as long as it lives the session's lock is held, so a worker's death is proven only when its
tools have ended too.

What the tool prints goes to standard error. A polite signal to the process group (Ctrl-C, a service manager's SIGTERM)
is left to the worker, which lets the call end or kills it.

Worker and child say frames over the socket: four bytes of length, then JSON. The parent says hello, then for each call
`prepare`; the child imports and finds the function and answers `ready` (or `unfit`); only then does the parent note
that a byte may leave, and says `go`; the child runs the function and answers with its outcome. So everything that goes
wrong before `go` provably sent nothing.

A function is named (`Target`) so that another process finds the same one: by module where a fresh interpreter with our
`sys.path` imports the same file; by file where it does not (the script that was started, an app loaded from a path). A
script is loaded under another name than `__main__`, so its block `if __name__ == "__main__":` does not run again.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from holdfast import errors
from holdfast.core import values
from holdfast.host.hardening import harden
from holdfast.host.traces import TRACE_CHARS_MAX, trace_of
from holdfast.runtime.tool.keeper import STARTS_A_PROCESS, start_kept

Function = Callable[..., Any]  # Any: a tool takes and returns whatever JSON its author chose

_SCRIPT = "__holdfast_script__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function by its place: importable module, or file to load under that module name."""

    module: str
    name: str  # qualified: `Class.method`
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"


def locate(function: Function) -> Target:
    """Where a child process finds this function. Raises ToolNotImportable. Ask once its module is complete: while a
    decorator runs, the name is not bound yet."""
    name: str = getattr(function, "__qualname__", "")
    shown = name or repr(function)
    if not name or "<lambda>" in name:
        raise errors.ToolNotImportable(f"{shown} has no name: a child process cannot import it")
    if "<locals>" in name:
        raise errors.ToolNotImportable(f"{shown} is defined inside a function: a child process cannot import it")
    module = sys.modules.get(function.__module__)
    if module is None or _find(module, name) is not function:
        raise errors.ToolNotImportable(
            f"module {function.__module__} holds something else under the name {name}",
            hint="keep the tool under the name it was defined with, at the top level of its module",
        )
    return place_in(module, name)


def resolve(target: Target) -> Function:
    """Import the target's module, once per process, and return the function. Raises ToolNotImportable; whatever the
    module's own code raises is its cause."""
    try:
        module = _load(target) if target.file else import_module(target.module)
    except Exception as error:  # the module's own code may raise anything
        kind, hint = type(error).__name__, error.hint if isinstance(error, errors.HoldfastError) else ""
        said = f"{kind}: {error}" + (f"; {hint}" if hint else "")
        raise errors.ToolNotImportable(f"cannot import {target.file or target.module}: {said}") from error
    found = _find(module, target.name)
    if not callable(found):
        raise errors.ToolNotImportable(f"{target.file or target.module} has no function {target.name}")
    return cast(Function, found)


def place_in(module: ModuleType, name: str) -> Target:
    """Where another process finds what this module holds under this name. Raises ToolNotImportable."""
    spec = cast("ModuleSpec | None", getattr(module, "__spec__", None))
    file: str | None = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        if spec is not None:
            return Target(module=spec.name, name=name)  # started with `python -m`
        if file is None:
            raise errors.ToolNotImportable(f"{name} is not defined in a file: a child process cannot import it")
        return Target(module=_SCRIPT, name=name, file=os.path.realpath(file))
    if file is not None and not _imports_same(module.__name__, file):
        return Target(module=module.__name__, name=name, file=os.path.realpath(file))
    return Target(module=module.__name__, name=name)


def _imports_same(name: str, file: str) -> bool:
    """Whether a plain import of the name leads to this very file."""
    parent, _, _ = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and path is None:
        return False
    spec = PathFinder.find_spec(name, path)
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


def _load(target: Target) -> ModuleType:
    loaded = sys.modules.get(target.module)
    if loaded is not None and getattr(loaded, "__file__", None) == target.file:
        return loaded
    spec = spec_from_file_location(target.module, target.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{target.file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[target.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # also an exit of the script: half a module must not be found by the next call
        del sys.modules[target.module]
        raise
    return module


def _find(module: ModuleType, name: str) -> object:
    """The function under a qualified name, out of the Tool object that may wrap it."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return getattr(found, "function", found)


CALL_FIELDS = ("task_id", "ordinal", "effect_key", "fence", "attempt")

_in_child = False


def in_child() -> bool:
    """True in a tool's own process, where no journal may be opened."""
    return _in_child


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCall:
    """What a blocking tool knows of the call it serves: the part of Call that can travel."""

    task_id: str
    ordinal: str
    effect_key: str
    fence: int
    attempt: int
    folder: str = ""

    @property
    def scratch(self) -> Path:
        """The task's folder for working files, where its code uses `run.scratch`."""
        return scratch_path(self.folder)

    def sending(self) -> None:
        """Say that the first byte is about to leave. Noted already before the tool began."""

    @property
    def http(self) -> object:
        raise errors.Misuse(
            "only `async def` tools have call.http", hint="make the tool `async def`, or use your own client"
        )


def scratch_path(folder: str) -> Path:
    if not folder:
        raise errors.Misuse("this task has no scratch folder yet", hint="use `run.scratch` in the task's code first")
    return Path(folder)


def main() -> None:
    global _in_child  # noqa: PLW0603 - set once, before any code of the user runs
    _in_child = True
    channel = _take_channel()
    hello = receive(channel)
    if hello is None:
        return
    harden()

    def tell(enclosed: bool, first: int) -> None:
        channel.sendall(frame({"enclosed": enclosed, "first": first}, what="hello"))

    kept = start_kept(hello["parent"], hello["lock"], tell)
    _take_over(hello)
    sys.addaudithook(lambda event, _args: kept.before_start() if event in STARTS_A_PROCESS else None)
    watch = _watch(hello["watch"])
    while (request := receive(channel)) is not None:
        try:
            function = resolve(Target(**request["target"]))
        except errors.ToolNotImportable as error:
            channel.sendall(frame({"unfit": error.message}, what="answer"))
            continue
        channel.sendall(frame({"ready": True}, what="answer"))
        if receive(channel) is None:
            return
        kept.at = request["left_at"]
        if watch is not None:
            watch(request["tool"])
        outcome, is_word = _outcome(function, request)
        if is_word:
            kept.gave_its_word()
        with suppress(OSError, ValueError):  # its words first: the worker may end this process once it has the outcome
            sys.stdout.flush()
        channel.sendall(outcome)


def _watch(given: list[str] | None) -> Callable[[str], None] | None:
    """What notes the files that a tool writes, where that is asked for."""
    if given is None:
        return None
    from holdfast.runtime.tool.file_watch import FileWatch, watch_alone  # only where it is used

    file, *kept = given
    with suppress(OSError):  # the tool runs all the same
        return partial(watch_alone, FileWatch(Path(file), kept=kept))
    return None


def _outcome(function: Function, request: Message) -> tuple[bytes, bool]:
    """The outcome as it travels, and whether the tool said what came of the call."""
    try:
        value = _called(function, request)
    except BaseException as error:  # noqa: BLE001 - a tool's exit or interrupt is an outcome
        told = raised(error)
        return frame(told, what="outcome"), told["kind"] != RAISED
    try:
        return frame(returned(value), what="result"), True
    except errors.HoldfastError as error:  # the effect took place; only its result cannot be kept
        return frame(unkept(error.message), what="outcome"), True
    except RecursionError:
        return frame(unkept("the result is nested too deeply"), what="outcome"), True


def _called(function: Function, request: Message) -> object:
    takes_call = next(iter(inspect.signature(function).parameters), None) == "call"
    value = function(*((ChildCall(**request["call"]),) if takes_call else ()), **request["args"])
    # A plain function around an async one: what it returned has not happened yet.
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _take_channel() -> socket.socket:
    """Move the socket away from standard input, which a tool may read."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _take_over(hello: Message) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler, not SIG_IGN: programs that the tool starts must not inherit deafness.
        signal.signal(number, _leave_to_worker)
    sys.path[:] = hello["path"]
    if hello["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = hello["pythonpath"]


def _leave_to_worker(number: int, frame: FrameType | None) -> None:
    """The worker got the same signal and decides."""


if __name__ == "__main__":
    # Under its own name: as `__main__` this file would be a second module with its own flag.
    from holdfast.runtime.tool import child  # noqa: PLW0406 - see above

    child.main()


FRAME_BYTES_MAX = 32 * 1024 * 1024  # twice what a step may hold, for the names around it
_LENGTH_BYTES = 4
_TEXT_CHARS_MAX = 10_000
_PROOF_BYTES_MAX = 64 * 1024

Message = dict[str, Any]  # Any: JSON; the fields are written and read in this file and child.py

RAISED = "raised"  # says nothing about the effect; every other kind does

# What each kind of outcome says, and of which type that is.
_FIELDS: dict[Any, dict[str, type | tuple[type, ...]]] = {
    "returned": {"value": object},
    "unkept": {"why": str},
    "refused": {"proof": object, "retry_after_s": (int, float, type(None))},
    "key-reused": {"proof": object},
    "not-sent": {"reason": str},
    "busy": {"retry_after_s": (int, float)},
    RAISED: {"type": str, "text": str, "code": str, "where": str, "trace": str},
}


def frame(message: Message, *, what: str) -> bytes:
    """The bytes of one message. Raises TooLarge."""
    body = values.encode(message, what=what, bytes_max=FRAME_BYTES_MAX)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises EOFError or ConnectionError where the child is of no use."""
    try:
        body = await reader.readexactly(_checked_length(await reader.readexactly(_LENGTH_BYTES)))
        message = values.decode(body)
    except (errors.TooLarge, ValueError, RecursionError) as error:  # the tool wrote over our socket
        raise ConnectionError(f"the tool's process sent a garbled message: {error}") from error
    if not isinstance(message, dict):
        raise ConnectionError("the tool's process sent something that is not a message")
    return cast(Message, message)


def outcome_of(message: Message) -> Message:
    """The message, where it is a whole outcome. Raises ConnectionError where it is none. A tool that found the child's
    socket can write anything into it."""
    kinds = _FIELDS.get(message.get("kind")) if isinstance(message.get("kind"), str) else None
    if kinds is None or not all(name in message and isinstance(message[name], kind) for name, kind in kinds.items()):
        raise ConnectionError("the tool's process sent a message that is not an outcome")
    return message


def receive(channel: socket.socket) -> Message | None:
    """The next message, or None where the parent has ended."""
    head = _receive_exactly(channel, _LENGTH_BYTES)
    body = _receive_exactly(channel, _checked_length(head)) if head else None
    return None if body is None else cast(Message, values.decode(body))


def returned(value: object) -> Message:
    return {"kind": "returned", "value": values.checked(value, what="result")}


def unkept(why: str) -> Message:
    return {"kind": "unkept", "why": _tidy(why)}


class Unkept(Exception):
    """The tool returned, so its effect took place; its result is no JSON value we can keep."""


def raised(error: BaseException) -> Message:
    """How an exception of the tool travels: the four that say something, or its name and text."""
    match error:
        case errors.Refused():
            proof, later = _proof(error.proof), error.retry_after_s
            return {"kind": "refused", "proof": proof, "retry_after_s": later}
        case errors.KeyReused():
            return {"kind": "key-reused", "proof": _proof(error.proof)}
        case errors.NotSent():
            return {"kind": "not-sent", "reason": _tidy(error.message)}
        case errors.Busy():
            return {"kind": "busy", "retry_after_s": float(error.retry_after_s)}
        case _:
            code = error.code if isinstance(error, errors.HoldfastError) else ""
            kind, text = type(error).__name__, errors.text_of(error)
            where, trace = trace_of(error)
            # More than is kept: the worker swaps secrets first, and half a secret is none to swap.
            trace = trace[-10 * TRACE_CHARS_MAX :]
            return {"kind": RAISED, "type": kind, "text": text, "code": code, "where": where, "trace": trace}


def opened(outcome: Message, *, tool: str) -> object:
    """The value the tool returned; or what it raised, raised here."""
    match outcome["kind"]:
        case "returned":
            return outcome["value"]
        case "unkept":
            raise Unkept(outcome["why"])
        case "refused":
            raise errors.Refused(outcome["proof"], retry_after_s=outcome["retry_after_s"])
        case "key-reused":
            raise errors.KeyReused(outcome["proof"])
        case "not-sent":
            raise errors.NotSent(outcome["reason"])
        case "busy":
            raise errors.Busy(outcome["retry_after_s"])
        case _:
            trace = (outcome["where"], outcome["trace"])
            raise errors.ToolRaised(
                tool=tool, kind=outcome["type"], text=outcome["text"], error_code=outcome["code"], trace=trace
            )


def _checked_length(head: bytes) -> int:
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES_MAX:
        raise errors.TooLarge(f"the message has {length:,} bytes; the limit is {FRAME_BYTES_MAX:,}")
    return length


def _receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _proof(value: object) -> object:
    """A proof that cannot be kept as it is is kept as text: it proves the same."""
    try:
        kept = values.checked(value, what="proof")
        values.encode(kept, what="proof", bytes_max=_PROOF_BYTES_MAX)
        return kept
    except (errors.BadValue, errors.TooLarge):
        return _tidy(repr(value))


def _tidy(text: str) -> str:
    return text[:_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
