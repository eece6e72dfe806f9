"""What the function of a tool looks like: its arguments, its version, and whether a sandbox can stand in for it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from holdfast.core.effect import Effect
from holdfast.errors import Misuse

# Any in this file: functions of users, never called here.


def is_blocking(function: Callable[..., Any]) -> bool:
    return not inspect.iscoroutinefunction(inspect.unwrap(function))


def check_sandbox(name: str, function: Callable[..., Any], sandbox: Callable[..., Any], effect: Effect) -> None:
    """Refuse a sandbox that could not answer in place of the function."""
    if not inspect.isroutine(sandbox):
        raise Misuse(
            f"{name}: sandbox: {sandbox!r} is not a function",
            hint="give a function with the same arguments as the tool",
        )
    if effect.letter == "T":
        raise Misuse(f"{name}: sandbox: a Transactional tool changes only the journal, so a drill needs no sandbox")
    if is_blocking(sandbox) != is_blocking(function):
        kind = "`def`" if is_blocking(function) else "`async def`"
        raise Misuse(f"{name}: sandbox: it must be {kind}, as the tool is")
    _, names, required, _ = shape_of(function)
    _, taken, needed, takes_any = shape_of(sandbox)
    missing = [] if takes_any else sorted(names - taken)
    if missing:
        raise Misuse(f"{name}: sandbox: it does not take the argument {missing[0]!r} of the tool")
    extra = sorted(set(needed) - set(required))
    if extra:
        raise Misuse(f"{name}: sandbox: it requires {extra[0]!r}, which the tool does not")


def shape_of(function: Callable[..., Any]) -> tuple[bool, frozenset[str], tuple[str, ...], bool]:
    """Whether the first parameter is the Call, which names are taken, which are required."""
    parameters = list(inspect.signature(function).parameters.values())
    takes_call = bool(parameters) and parameters[0].name == "call"
    if takes_call:
        parameters = parameters[1:]
    kinds = inspect.Parameter
    if any(one.kind in (kinds.POSITIONAL_ONLY, kinds.VAR_POSITIONAL) for one in parameters):
        raise Misuse(f"{function.__name__}: a tool must take its arguments by name")
    takes_any = any(one.kind is kinds.VAR_KEYWORD for one in parameters)
    named = [one for one in parameters if one.kind is not kinds.VAR_KEYWORD]
    required = tuple(one.name for one in named if one.default is kinds.empty)
    return takes_call, frozenset(one.name for one in named), required, takes_any


def version_of(function: Callable[..., Any], name: str, effect: Effect) -> str:
    """A short digest of the tool's code and contract; approvals are bound to it."""
    code = getattr(function, "__code__", None)
    # Constants without nested code objects, whose repr holds a memory address.
    constants = [one.co_code.hex() if hasattr(one, "co_code") else repr(one) for one in getattr(code, "co_consts", ())]
    raw = b"" if code is None else code.co_code + repr(constants).encode()
    return hashlib.sha256(f"{name}\0{effect!r}\0".encode() + raw).hexdigest()[:16]
