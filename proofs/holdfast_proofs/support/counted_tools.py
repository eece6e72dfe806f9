"""Tools of every class for counting far ends: what a user would write, and knows of no crash.

Each takes the far end's address and a number; shared by the suites, so that they try one thing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast.runtime.tool.tool import Call, FindAnswer

Function = Callable[..., Awaitable[Any]]  # Any: JSON of the far end
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
TIMEOUT_S = 30.0  # a far end that is merely slow, on a busy machine, is not what is tried here


def apply_to(table: str) -> Function:
    """A Transactional tool that leaves its rows in this table."""

    async def apply(call: Call, url: str, number: int) -> holdfast.Apply:
        return holdfast.Apply(
            [
                (f"CREATE TABLE IF NOT EXISTS {table} (task TEXT, step TEXT)", ()),
                (f"INSERT INTO {table} VALUES (?, ?)", (call.task_id, call.ordinal)),
            ],
            result=number,
        )

    return apply


async def post(call: Call, url: str, number: int) -> object:
    return (await call.http.post(f"{url}/effects", json={"number": number})).json()["id"]


async def put_one(call: Call, url: str, number: int) -> object:
    """All steps write one resource: only the fence keeps an old write from landing last."""
    where = f"{url}/resources/{call.task_id}"
    return (await call.http.put(where, json={"number": number})).json()["id"]


async def put_own(call: Call, url: str, number: int) -> object:
    where = f"{url}/resources/{call.task_id}-{number}"
    return (await call.http.put(where, json={"number": number})).json()["id"]


async def find(call: Call, url: str, number: int) -> FindAnswer:
    asked = {"task": call.task_id, "step": call.ordinal}
    found = (await call.http.get(f"{url}/effects", params=asked)).json()["effects"]
    if not found:
        return holdfast.Absent()
    if len(found) > 1:
        return holdfast.Many([one["id"] for one in found])
    return holdfast.Found(found[0]["id"], args={"url": url, "number": found[0]["body"]["number"]})
