"""What the crash suites run: a task of a few steps, once for each effect class.

All steps of a task are of one class and, but for Transactional, talk to a counting far end
through `call.http`. A tool knows nothing of crashes: the code here is what a user would write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import holdfast
from holdfast.core.effect import Effect, Letter
from holdfast.downstream.process import Kind
from holdfast.runtime.task import TaskType
from holdfast.runtime.tool import Call, FindAnswer

ClassName = Literal[
    "read", "transactional", "fenced", "keyed", "queryable", "idempotent", "unrepeatable"
]
CLASSES: tuple[ClassName, ...] = get_args(ClassName)
STEPS = 3  # unless told otherwise
TABLE = "crash_effects"  # where the Transactional steps leave their rows
TIMEOUT_S = 30.0  # a far end that is merely slow, on a busy machine, is not what is tried here

Function = Callable[..., Awaitable[Any]]  # Any: JSON of the far end


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One class under trial."""

    name: ClassName
    letter: Letter
    far_end: Kind | None  # Transactional steps happen inside the journal
    steps: int
    task: TaskType


def make_subject(name: ClassName, *, steps: int = STEPS, timeout_s: float = TIMEOUT_S) -> Subject:
    """The task of so many steps of this class."""
    effect, function, far_end = _CLASSES[name]
    tool = holdfast.tool(effect=effect, name=f"{name}_effect", timeout_s=timeout_s, http_only=True)(
        function
    )
    if name == "queryable":
        tool.find(_find)

    @holdfast.task(name=f"{steps} {name} steps")
    async def in_a_row(run: holdfast.Run, url: str) -> list[object]:
        return [await run.call(tool, url=url, number=number) for number in range(1, steps + 1)]

    return Subject(name=name, letter=effect.letter, far_end=far_end, steps=steps, task=in_a_row)


async def _read(call: Call, url: str, number: int) -> object:
    response = await call.http.get(f"{url}/value", params={"number": str(number)})
    return response.json()["value"]


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
    """All steps write one resource: only the fence keeps an old write from landing last."""
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


_KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
_CLASSES: dict[ClassName, tuple[Effect, Function, Kind | None]] = {
    "read": (holdfast.Read(), _read, "read"),
    "transactional": (holdfast.Transactional(), _apply, None),
    "fenced": (holdfast.Fenced(), _put_one, "fenced"),
    "keyed": (_KEYED, _post, "keyed"),
    "queryable": (holdfast.Queryable(), _post, "queryable"),
    "idempotent": (holdfast.Idempotent(), _put_own, "idempotent"),
    "unrepeatable": (holdfast.Unrepeatable(), _post, "unrepeatable"),
}
