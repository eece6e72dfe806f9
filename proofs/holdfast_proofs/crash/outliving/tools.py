"""Tools whose code outlives a killed worker or a timeout if nothing stops it: what a user would write.

In each trial one attempt is slow: its request leaves after LATE_S. If its worker dies, or it is given up, before that,
its code is still waiting to send.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import holdfast
from holdfast.core.effect import Effect
from holdfast.runtime.tool.tool import Call, Tool
from holdfast_proofs.crash.child_tools import DELAY_S, find_queryable, post
from holdfast_proofs.crash.subjects import ClassName, Subject

Shape = Literal["subprocess", "thread"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
STEPS = 2
LATE_S = 1.0
THREAD_TIMEOUT_S = 0.4
BEGAN = "HOLDFAST_CRASH_BEGAN"  # the file that the slow attempt of a trial makes
SENT = ".sent"  # ends the name of the file that a thread makes when it has sent
_SENDER = str(Path(__file__).with_name("sender.py"))


def _wait_s() -> float:
    """LATE_S for the first attempt of a trial, nothing for all others."""
    try:
        with open(os.environ[BEGAN], "x", encoding="ascii") as began:
            began.write(str(os.getpid()))
    except FileExistsError:
        return 0.0
    return LATE_S


def _by_process(call: Call, url: str, number: int) -> object:
    wait_s, where, body = _wait_s(), urlsplit(url), json.dumps({"number": number})
    how = "detached" if number % 2 else "plain"
    head = (
        f"POST /effects HTTP/1.1\r\nHost: {where.hostname}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {call.effect_key}\r\nHoldfast-Task: {call.task_id}\r\nHoldfast-Step: {call.ordinal}\r\n"
    )
    command = [sys.executable, "-ISE", _SENDER, how, str(wait_s), str(where.hostname), str(where.port), head, body]
    command.append(os.environ[BEGAN])
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["id"]


async def _by_thread(call: Call, url: str, number: int) -> object:
    wait_s = _wait_s()

    def late() -> object:
        time.sleep(wait_s)
        try:
            return post(call, url, number)
        finally:
            Path(os.environ[BEGAN] + SENT).touch()

    return await asyncio.to_thread(late)


_QUERYABLE, _UNREPEATABLE = holdfast.Queryable(max_delay_s=DELAY_S), holdfast.Unrepeatable(max_delay_s=DELAY_S)


@holdfast.tool(effect=_QUERYABLE, timeout_s=30)
def queryable_process(call: Call, url: str, number: int) -> object:
    return _by_process(call, url, number)


@holdfast.tool(effect=_UNREPEATABLE, timeout_s=30)
def unrepeatable_process(call: Call, url: str, number: int) -> object:
    return _by_process(call, url, number)


def _threaded(effect: Effect) -> Tool[..., Any]:  # Any: JSON of the far end
    return holdfast.tool(effect=effect, timeout_s=THREAD_TIMEOUT_S, name=f"{effect.name} thread")(_by_thread)


queryable_thread, unrepeatable_thread = _threaded(_QUERYABLE), _threaded(_UNREPEATABLE)
queryable_process.find(find_queryable)
queryable_thread.find(find_queryable)
_TOOLS: dict[tuple[Shape, str], Tool[..., Any]] = {
    ("subprocess", "queryable"): queryable_process,
    ("subprocess", "unrepeatable"): unrepeatable_process,
    ("thread", "queryable"): queryable_thread,
    ("thread", "unrepeatable"): unrepeatable_thread,
}


def make_outliving_subject(shape: Shape, name: ClassName) -> Subject:
    tool = _TOOLS[shape, name]

    @holdfast.task(name=f"{STEPS} {name} steps by {shape}")
    async def in_a_row(run: holdfast.Run, url: str) -> list[object]:
        return [await run.call(tool, url=url, number=number) for number in range(1, STEPS + 1)]

    far_end = "queryable" if name == "queryable" else "unrepeatable"
    return Subject(name=name, letter=tool.effect.letter, far_end=far_end, steps=STEPS, task=in_a_row)
