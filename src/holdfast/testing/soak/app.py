"""The load: a task of many steps, whose effect classes take turns. What a user would write.

The declared delays are true of these far ends: they are on the loopback and answer in
milliseconds, also to a client that has died. `DELAY_S` is how long a question about an effect,
or a person's decision, waits after a doubt; a default of `call.http` would be 5 s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import holdfast
from holdfast.core.effect import Effect
from holdfast.runtime.tool import Call, FindAnswer, Tool

if TYPE_CHECKING:  # a worker does without it
    from holdfast.downstream.process import Kind

ClassName = Literal[
    "keyed", "transactional", "queryable", "fenced", "idempotent", "unrepeatable"
]  # fmt: skip
CLASSES: tuple[ClassName, ...] = get_args(ClassName)
FAR_ENDS: tuple[Kind, ...] = ("keyed", "queryable", "fenced", "idempotent", "unrepeatable")
TABLE = "soak_effects"  # where the Transactional steps leave their rows
TASK = "soak"
DELAY_S = 1.0
TIMEOUT_S = 30.0  # a far end that is merely slow, on a busy machine, is not what is tried here

Function = Callable[..., Awaitable[Any]]  # Any: JSON of the far end


def class_of(number: int, step: int) -> ClassName:
    """The class of a step: they take turns, and each task begins with another one."""
    return CLASSES[(number + step) % len(CLASSES)]


@holdfast.task(name=TASK)
async def soak(run: holdfast.Run, urls: dict[str, str], number: int, steps: int) -> int:
    for step in range(1, steps + 1):
        name = class_of(number, step)
        await run.call(TOOLS[name], url=urls.get(name, ""), number=step)
    return steps


async def _apply(call: Call, url: str, number: int) -> holdfast.Apply:
    return holdfast.Apply(
        [
            (f"CREATE TABLE IF NOT EXISTS {TABLE} (task TEXT, step TEXT)", ()),
            (f"INSERT INTO {TABLE} VALUES (?, ?)", (call.task_id, call.ordinal)),
        ],
        result=number,
    )


async def _post(call: Call, url: str, number: int) -> object:
    return (await call.http.post(f"{url}/effects", json={"number": number})).json()["id"]


async def _put_one(call: Call, url: str, number: int) -> object:
    """All fenced steps of a task write one resource."""
    where = f"{url}/resources/{call.task_id}"
    return (await call.http.put(where, json={"number": number})).json()["id"]


async def _put_own(call: Call, url: str, number: int) -> object:
    where = f"{url}/resources/{call.task_id}-{number}"
    return (await call.http.put(where, json={"number": number})).json()["id"]


async def _find(call: Call, url: str, number: int) -> FindAnswer:
    asked = {"task": call.task_id, "step": call.ordinal}
    found = (await call.http.get(f"{url}/effects", params=asked)).json()["effects"]
    if not found:
        return holdfast.Absent()
    if len(found) > 1:
        return holdfast.Many([one["id"] for one in found])
    return holdfast.Found(found[0]["id"], args={"url": url, "number": found[0]["body"]["number"]})


def _tool(name: ClassName, effect: Effect, function: Function) -> Tool[..., Any]:
    made = holdfast.tool(effect=effect, name=name, timeout_s=TIMEOUT_S, http_only=True)(function)
    if name == "queryable":
        made.find(_find)
    return made


TOOLS: dict[ClassName, Tool[..., Any]] = {
    "keyed": _tool(
        "keyed",
        holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True),
        _post,
    ),
    "transactional": _tool("transactional", holdfast.Transactional(), _apply),
    "queryable": _tool("queryable", holdfast.Queryable(max_delay_s=DELAY_S), _post),
    "fenced": _tool("fenced", holdfast.Fenced(), _put_one),
    "idempotent": _tool("idempotent", holdfast.Idempotent(), _put_own),
    "unrepeatable": _tool("unrepeatable", holdfast.Unrepeatable(max_delay_s=DELAY_S), _post),
}
app = holdfast.App([soak], tools=TOOLS.values())
