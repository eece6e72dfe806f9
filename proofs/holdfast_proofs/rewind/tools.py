"""The tools of the cases, one for each contract, as a user would write them.

What happens inside a call (the copy is made, the process dies) is decided by `Moments`, which the
life sets; a tool that knows of none simply calls its far end.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast.downstream.process import Choices, Kind
from holdfast.runtime.tool.tool import Call, FindAnswer
from holdfast_proofs.rewind.cases import Side

WINDOW_S = 86_400.0
MAX_DELAY_S = 2.0
CHECKED = holdfast.Keyed(window_s=WINDOW_S, fingerprint="checked", refusals_stored=False, max_delay_s=MAX_DELAY_S)
IGNORED = holdfast.Keyed(window_s=WINDOW_S, fingerprint="ignored", refusals_stored=False, max_delay_s=MAX_DELAY_S)
FAR_ENDS: dict[str, tuple[Kind, Choices]] = {
    "keyed": ("keyed", {"lookup": False}),
    "keyed_found": ("keyed", {}),
    "careless": ("keyed", {"fingerprint": "ignored", "lookup": False}),
    "careless_found": ("keyed", {"fingerprint": "ignored"}),
    "queryable": ("queryable", {}),
    "fenced": ("fenced", {}),
    "idempotent": ("idempotent", {}),
    "unrepeatable": ("unrepeatable", {}),
}
_EFFECTS: dict[str, holdfast.Keyed | holdfast.Queryable | holdfast.Fenced | Any] = {
    "keyed": CHECKED,
    "keyed_found": CHECKED,
    "careless": IGNORED,
    "careless_found": IGNORED,
    "queryable": holdfast.Queryable(max_delay_s=MAX_DELAY_S),
    "fenced": holdfast.Fenced(max_delay_s=MAX_DELAY_S),
    "idempotent": holdfast.Idempotent(max_delay_s=MAX_DELAY_S),
    "unrepeatable": holdfast.Unrepeatable(max_delay_s=MAX_DELAY_S),
}

Moment = Callable[[Side], Awaitable[None]]


class Moments:
    """Called on both sides of every send of this life."""

    reached: Moment | None = None


def variable(name: str) -> str:
    """The environment variable with the address of a far end."""
    return f"REWIND_{name.upper()}"


def make_tool(name: str) -> holdfast.Tool[..., Any]:
    kind = FAR_ENDS[name][0]

    async def send(call: Call, number: int) -> object:
        """Do it."""
        if Moments.reached is not None:
            await Moments.reached("before")
        root, body = os.environ[variable(name)], {"number": number}
        if kind in ("fenced", "idempotent"):
            where = f"{root}/resources/{call.task_id}-{call.ordinal}"
            answer = (await call.http.put(where, json=body)).json()["id"]
        else:
            answer = (await call.http.post(f"{root}/effects", json=body)).json()["id"]
        if Moments.reached is not None:
            await Moments.reached("after")
        return answer

    made: holdfast.Tool[..., Any] = holdfast.tool(effect=_EFFECTS[name], name=name, http_only=True)(send)
    if name in ("keyed_found", "careless_found", "queryable"):
        made.find(_finder(name))
    return made


def _finder(name: str) -> Callable[..., Awaitable[FindAnswer]]:
    async def find(call: Call, number: int) -> FindAnswer:
        asked = {"task": call.task_id, "step": call.ordinal}
        if FAR_ENDS[name][0] == "keyed":
            asked = {"key": call.effect_key}
        answer = await call.http.get(f"{os.environ[variable(name)]}/effects", params=asked)
        found = answer.json()["effects"]
        if not found:
            return holdfast.Absent()
        if len(found) > 1:
            return holdfast.Many([one["id"] for one in found])
        return holdfast.Found(found[0]["id"], args={"number": found[0]["body"]["number"]})

    return find


TOOLS: dict[str, holdfast.Tool[..., Any]] = {name: make_tool(name) for name in FAR_ENDS}
