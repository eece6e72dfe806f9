"""The load: a task of many steps, whose effect classes take turns. What a user would write.

The declared delays are true of these far ends: they are on the loopback and answer in
milliseconds, also to a client that has died. `DELAY_S` is how long a question about an effect,
or a person's decision, waits after a doubt; a default of `call.http` would be 5 s.
"""

from __future__ import annotations

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


def _tool(name: ClassName, effect: Effect, function: Function) -> Tool[..., Any]:
    made = holdfast.tool(effect=effect, name=name, timeout_s=TIMEOUT_S, http_only=True)(function)
    if name == "queryable":
        made.find(find)
    return made


TOOLS: dict[ClassName, Tool[..., Any]] = {
    "keyed": _tool("keyed", KEYED, post),
    "transactional": _tool("transactional", holdfast.Transactional(), apply_to(TABLE)),
    "queryable": _tool("queryable", holdfast.Queryable(max_delay_s=DELAY_S), post),
    "fenced": _tool("fenced", holdfast.Fenced(), put_one),
    "idempotent": _tool("idempotent", holdfast.Idempotent(), put_own),
    "unrepeatable": _tool("unrepeatable", holdfast.Unrepeatable(max_delay_s=DELAY_S), post),
}
app = holdfast.App([soak], tools=TOOLS.values())
