"""What the crash suites run: a task of a few steps, once for each effect class.

All steps of a task are of one class and, but for Transactional, talk to a counting far end
through `call.http`. A tool knows nothing of crashes: the code here is what a user would write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import holdfast
from holdfast.core.effect import Effect, Letter
from holdfast.downstream.process import Kind
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.tool import Call
from holdfast_proofs.support.counted_tools import KEYED, TIMEOUT_S, Function, apply_to, find, post, put_one, put_own

ClassName = Literal["read", "transactional", "fenced", "keyed", "queryable", "idempotent", "unrepeatable"]
CLASSES: tuple[ClassName, ...] = get_args(ClassName)
STEPS = 3  # unless told otherwise
TABLE = "crash_effects"  # where the Transactional steps leave their rows


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
    tool = holdfast.tool(effect=effect, name=f"{name}_effect", timeout_s=timeout_s, http_only=True)(function)
    if name == "queryable":
        tool.find(find)

    @holdfast.task(name=f"{steps} {name} steps")
    async def in_a_row(run: holdfast.Run, url: str) -> list[object]:
        return [await run.call(tool, url=url, number=number) for number in range(1, steps + 1)]

    return Subject(name=name, letter=effect.letter, far_end=far_end, steps=steps, task=in_a_row)


async def _read(call: Call, url: str, number: int) -> object:
    response = await call.http.get(f"{url}/value", params={"number": str(number)})
    return response.json()["value"]


_CLASSES: dict[ClassName, tuple[Effect, Function, Kind | None]] = {
    "read": (holdfast.Read(), _read, "read"),
    "transactional": (holdfast.Transactional(), apply_to(TABLE), None),
    "fenced": (holdfast.Fenced(), put_one, "fenced"),
    "keyed": (KEYED, post, "keyed"),
    "queryable": (holdfast.Queryable(), post, "queryable"),
    "idempotent": (holdfast.Idempotent(), put_own, "idempotent"),
    "unrepeatable": (holdfast.Unrepeatable(), post, "unrepeatable"),
}
