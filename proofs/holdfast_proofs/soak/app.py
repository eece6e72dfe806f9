"""The load: a task of many steps, whose effect classes take turns. What a user would write.

The declared delays are true of these far ends: they are on the loopback and answer in
milliseconds, also to a client that has died. `DELAY_S` is how long a question about an effect,
or a person's decision, waits after a doubt; a default of `call.http` would be 5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import holdfast
from holdfast.core.effect import Effect
from holdfast.runtime.tool.tool import Tool
from holdfast_proofs.support.counted_tools import KEYED, TIMEOUT_S, Function, apply_to, find, post, put_one, put_own

if TYPE_CHECKING:  # a worker does without it
    from holdfast.downstream.process import Kind

ClassName = Literal["keyed", "transactional", "queryable", "fenced", "idempotent", "unrepeatable"]
CLASSES: tuple[ClassName, ...] = get_args(ClassName)
FAR_ENDS: tuple[Kind, ...] = ("keyed", "queryable", "fenced", "idempotent", "unrepeatable")
TABLE = "soak_effects"  # where the Transactional steps leave their rows
TASK = "soak"
DELAY_S = 1.0


def class_of(number: int, step: int) -> ClassName:
    """The class of a step: they take turns, and each task begins with another one."""
    return CLASSES[(number + step) % len(CLASSES)]


@holdfast.task(name=TASK)
async def soak(run: holdfast.Run, urls: dict[str, str], number: int, steps: int) -> int:
    for step in range(1, steps + 1):
        name = class_of(number, step)
        await run.call(TOOLS[name], url=urls.get(name, ""), number=step)
    return steps


def make_tools(wrapped: Callable[[Function], Function] = lambda function: function) -> dict[ClassName, Tool[..., Any]]:
    """One of each class."""
    declared: dict[ClassName, tuple[Effect, Function]] = {
        "keyed": (KEYED, post),
        "transactional": (holdfast.Transactional(), apply_to(TABLE)),
        "queryable": (holdfast.Queryable(max_delay_s=DELAY_S), post),
        "fenced": (holdfast.Fenced(), put_one),
        "idempotent": (holdfast.Idempotent(), put_own),
        "unrepeatable": (holdfast.Unrepeatable(max_delay_s=DELAY_S), post),
    }
    made: dict[ClassName, Tool[..., Any]] = {
        name: holdfast.tool(effect=effect, name=name, timeout_s=TIMEOUT_S, http_only=True)(wrapped(function))
        for name, (effect, function) in declared.items()
    }
    made["queryable"].find(find)
    return made


TOOLS = make_tools()
app = holdfast.App([soak], tools=TOOLS.values())
