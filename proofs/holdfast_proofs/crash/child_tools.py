"""Blocking tools that run in killable child processes, and the arming of such a child.

The tools are what a user would write: a plain function with a plain client. A child that imports
this module looks into its environment once and, where the trial asks for it, arms the crash shim
for the calls that its tool will make; the children that come after it run unharmed.
"""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import holdfast
from holdfast.runtime.tool.child import in_child
from holdfast.runtime.tool.tool import Call, FindAnswer
from holdfast_proofs.crash.subjects import STEPS, TIMEOUT_S, ClassName, Subject
from holdfast_proofs.shim import Mode, Trace, arm

ARMED = "HOLDFAST_CRASH_CHILD"  # folder, mode and call, by spaces
TRACE = "child-trace"
DELAY_S = 5.0  # by when a request of a dead child has arrived, divided by the suite's pace


def post(call: Call, url: str, number: int) -> object:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(cast(str, where.hostname), where.port, timeout=10)
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": call.effect_key,
        "Holdfast-Task": call.task_id,
        "Holdfast-Step": call.ordinal,
    }
    try:
        connection.request("POST", "/effects", json.dumps({"number": number}), headers)
        return json.loads(connection.getresponse().read())["id"]
    finally:
        connection.close()


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S)
def unrepeatable(call: Call, url: str, number: int) -> object:
    return post(call, url, number)


@holdfast.tool(effect=holdfast.Queryable(max_delay_s=DELAY_S), timeout_s=TIMEOUT_S)
def queryable(call: Call, url: str, number: int) -> object:
    return post(call, url, number)


@queryable.find
async def find_queryable(call: Call, url: str, number: int) -> FindAnswer:
    asked = {"task": call.task_id, "step": call.ordinal}
    found = (await call.http.get(f"{url}/effects", params=asked)).json()["effects"]
    if not found:
        return holdfast.Absent()
    if len(found) > 1:
        return holdfast.Many([one["id"] for one in found])
    return holdfast.Found(found[0]["id"], args={"url": url, "number": found[0]["body"]["number"]})


def make_blocking_subject(name: ClassName, *, steps: int = STEPS) -> Subject:
    """A task of so many steps whose tool runs in a child."""
    tool = {"queryable": queryable, "unrepeatable": unrepeatable}[name]

    @holdfast.task(name=f"{steps} blocking {name} steps")
    async def in_a_row(run: holdfast.Run, url: str) -> list[object]:
        return [await run.call(tool, url=url, number=number) for number in range(1, steps + 1)]

    far_end = "queryable" if name == "queryable" else "unrepeatable"
    letter = tool.effect.letter
    return Subject(name=name, letter=letter, far_end=far_end, steps=steps, task=in_a_row)


def order_armed(folder: Path, mode: Mode, at: int) -> None:
    """Let the first child of this process be armed."""
    os.environ[ARMED] = f"{folder} {int(mode)} {at}"


def _arm_if_first() -> Trace | None:
    """The trace, which has to be kept for as long as the process is armed."""
    order = os.environ.get(ARMED)
    if not in_child() or not order:
        return None
    folder, mode, at = order.rsplit(" ", 2)
    try:
        os.close(os.open(Path(folder, "armed"), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return None
    trace = Trace.in_file(Path(folder, TRACE))
    arm(trace, Mode(int(mode)), at=int(at), root=Path(folder))
    return trace


_KEPT = _arm_if_first()
