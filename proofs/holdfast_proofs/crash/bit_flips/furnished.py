"""A journal with something of everything in it, for suites that damage it.

Made by five programs of which four die in the middle, so that it holds tasks in every state
(succeeded, failed, cancelled, sleeping, waiting, parked, queued, and running under a session that
is dead), facts that nobody has applied yet, notices, remarks, and, as one likes, a write-ahead log
that was never moved into the file. Effects are lines in a file of another folder: the far end of
this suite.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import holdfast
from holdfast.errors import NotNow
from holdfast.journal.contract import Remark, RemarkTo
from holdfast.journal.records import TaskState
from holdfast.runtime.tool.tool import Call

JOURNAL = "journal.db"
SETTINGS = holdfast.Settings(pace=0.02, sweep_every_s=0.05, lease_ttl_s=1.0, renew_every_s=0.3, check_after_crash=False)
_BUSY = (TaskState.QUEUED, TaskState.RUNNING)
_DAY_S = 86_400.0


class FarEnd:
    """Where effects are written, and whether this program dies in its next one."""

    book = Path()
    dies_at = ""


def effects(book: Path) -> Counter[str]:
    """How often each effect took place: by tool and effect key."""
    return Counter(book.read_text().split("\n")[:-1]) if book.exists() else Counter()


def _effect(call: Call, what: str) -> None:
    call.sending()
    with open(FarEnd.book, "a") as file:
        file.write(f"{what} {call.effect_key}\n")
    if what == FarEnd.dies_at:
        os.kill(os.getpid(), signal.SIGKILL)


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True), http_only=True)
async def keyed(call: Call, number: int) -> str:
    _effect(call, "keyed")
    return f"receipt {number} " + "x" * 200


@holdfast.tool(http_only=True)
async def unrepeatable(call: Call, number: int) -> str:
    _effect(call, "unrepeatable")
    return f"receipt {number}"


@holdfast.tool(effect=holdfast.Read())
async def refused(call: Call) -> str:
    raise ValueError("there is nothing to read")


@holdfast.task
async def pays(run: holdfast.Run, count: int) -> list[str]:
    return [await run.call(keyed, number=number) for number in range(count)]


@holdfast.task
async def pays_once(run: holdfast.Run) -> str:
    await run.call(keyed, number=0)
    return await run.call(unrepeatable, number=1)


@holdfast.task
async def fails(run: holdfast.Run) -> str:
    return await run.call(refused)


@holdfast.task
async def sleeps(run: holdfast.Run) -> str:
    await run.call(keyed, number=0)
    await run.sleep(_DAY_S)
    return "slept"


@holdfast.task
async def asks(run: holdfast.Run) -> bool:
    await run.call(keyed, number=0)
    return (await run.approve("may I?")).granted


TASKS = [pays, pays_once, fails, sleeps, asks]


async def furnish(folder: Path) -> None:
    """The first program: ends in good order."""
    async with holdfast.open(folder / JOURNAL, tasks=TASKS, settings=SETTINGS) as hf:
        for number in range(4):
            await hf.submit(pays, request_id=f"early-{number}", count=3)
        await hf.submit(fails, request_id="fails")
        await hf.submit(sleeps, request_id="sleeps")
        await hf.submit(asks, request_id="asks")
        await hf.submit(asks, request_id="asks too")
        cancelled = await hf.submit(sleeps, request_id="cancelled")
        await wait_rest(hf)
        await cancelled.cancel(by="a person")
        await wait_rest(hf)
        await hf.journal.add_remarks([_remark("early", number) for number in range(3)])
        await hf.journal.close_remarks(2, folder="f" * 32, name="furnished")


async def die_unrepeatably(folder: Path, request: str) -> None:
    """A program that dies inside an effect that may not be repeated."""
    FarEnd.dies_at = "unrepeatable"
    async with holdfast.open(folder / JOURNAL, tasks=TASKS, settings=SETTINGS) as hf:
        await hf.submit(pays_once, request_id=request)
        await asyncio.Event().wait()


async def resume_and_die(folder: Path) -> None:
    """Parks what the dead left, goes on, drops what nobody applies, and dies in a keyed effect."""
    async with holdfast.open(folder / JOURNAL, tasks=TASKS, settings=SETTINGS) as hf:
        parked = [await hf.submit(pays_once, request_id=name) for name in ("one", "two")]
        for number in range(4):
            await hf.submit(pays, request_id=f"late-{number}", count=3)
        await wait_rest(hf)
        if hf.engine is None or [await one.state() for one in parked] != [TaskState.PARKED] * 2:
            raise RuntimeError("the furnished journal is not as it should be")
        FarEnd.dies_at = "keyed"
        await hf.submit(pays, request_id="interrupted", count=2)
        await asyncio.Event().wait()


async def leave_facts(folder: Path, *, dies: bool) -> None:
    """A program that serves nothing: a decision, an approval and a task for the next worker.

    One that dies leaves its log; one that ends in good order has moved it into the file.
    """
    async with holdfast.open(folder / JOURNAL, tasks=TASKS, serve=False, settings=SETTINGS) as hf:
        task = await hf.submit(pays_once, request_id="one")
        while True:
            try:
                await hf.settle(task.id, "2", "done", result="seen by a person", by="a person")
                break
            except NotNow:
                await asyncio.sleep(0.05)
        waits = await hf.submit(asks, request_id="asks too")
        await hf.approve(waits.id, "2", granted=True, by="a person")
        await hf.submit(pays, request_id="queued", count=1)
        await hf.journal.add_remarks([_remark("late", 0)])
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


def _remark(when: str, number: int) -> Remark:
    text = f"what was learned {when}, {number}"
    return Remark(remark_id=f"{when} {number}", to=RemarkTo.DAY, text=text, origin="user")


async def wait_rest(hf: holdfast.Holdfast) -> None:
    """Until no task is queued or runs in any process."""
    while not await is_at_rest(hf):
        await hf.journal.wait_change(timeout_s=0.05)


async def is_at_rest(hf: holdfast.Holdfast) -> bool:
    counts = await hf.journal.count_tasks()
    return not any(counts.get(state) for state in _BUSY)
