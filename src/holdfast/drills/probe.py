"""What a drill lets the agent do in a shadow: steps whose effects the far ends of the drill count.

A real `holdfast worker` runs this app there. The agent's own tasks stay as they are: their tools have far ends that a
drill must not reach. The far ends' addresses come by the environment; `python -m holdfast.downstream` serves them.
"""

from __future__ import annotations

import os
from typing import Any

import holdfast

Json = dict[str, Any]  # Any: JSON of a far end
APP = "holdfast.drills.probe:tasks"
TASK = "holdfast_drill"
ERRAND = "holdfast_drill_errand"
TALK = "holdfast_drill_talk"
MODEL_URLS = ("HOLDFAST_DRILL_MODEL_URL", "HOLDFAST_DRILL_OTHER_MODEL_URL")
LETTER_DELAY_S = 1.0  # the far end is on this machine: what it has not got by then, it never gets


def variable(kind: str) -> str:
    """The environment variable with the address of this kind of far end."""
    return f"HOLDFAST_DRILL_{kind.upper()}_URL"


def _url(kind: str) -> str:
    return f"{os.environ[variable(kind)]}/effects"


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True), http_only=True)
async def drill_keyed(call: holdfast.Call, number: int) -> Json:
    return (await call.http.post(_url("keyed"), json={"number": number})).json()


@holdfast.tool(effect=holdfast.Queryable(find_returns_result=True), http_only=True)
async def drill_queryable(call: holdfast.Call, number: int) -> Json:
    return (await call.http.post(_url("queryable"), json={"number": number})).json()


@drill_queryable.find
async def find_queryable(call: holdfast.Call, number: int) -> holdfast.Found | holdfast.Absent | holdfast.Many:
    answer = await call.http.get(_url("queryable"), params={"task": call.task_id, "step": call.ordinal})
    match answer.json()["effects"]:
        case []:
            return holdfast.Absent()
        case [one]:
            return holdfast.Found(one)
        case several:
            return holdfast.Many(several)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=LETTER_DELAY_S), http_only=True)
async def drill_unrepeatable(call: holdfast.Call, number: int) -> Json:
    return (await call.http.post(_url("unrepeatable"), json={"number": number})).json()


TOOLS = {"keyed": drill_keyed, "queryable": drill_queryable, "unrepeatable": drill_unrepeatable}


@holdfast.task(name=TASK)
async def drill(run: holdfast.Run, steps: list[str], pause_s: float = 0.0) -> int:
    """One step of each named kind, in this order."""
    for number, kind in enumerate(steps):
        await run.call(TOOLS[kind], number=number)
        if pause_s:
            await run.sleep(pause_s)
    return len(steps)


@holdfast.task(name=ERRAND)
async def errand(run: holdfast.Run, question: str) -> str:
    """Something done, something decided, something pending: what a hand-off must say."""
    await run.call(drill_keyed, number=1)
    await run.approve(question)
    await run.call(drill_keyed, number=2)
    await run.approve(f"{question} (again)")
    return "done"


@holdfast.task(name=TALK)
async def two_turns(run: holdfast.Run, first: str, second: str, pause_s: float) -> str:
    """Two turns of one conversation, with a pause in which an endpoint may go away."""
    ends = [holdfast.Endpoint(name=name.lower(), url=os.environ[name], wire="openai") for name in MODEL_URLS]
    model = holdfast.Model("drill", ends)
    talk = run.talk(system="A drill.")
    talk.say(first)
    await run.ask(model, talk)
    await run.sleep(pause_s)
    talk.say(second)
    return (await run.ask(model, talk)).text


@holdfast.on_mail
async def on_letter(run: holdfast.Run, letter: holdfast.Letter) -> None:
    """One step for a message."""
    await run.call(drill_keyed, number=letter.body["number"])  # pyright: ignore[reportIndexIssue] - the drill wrote it


tasks = [drill, errand, two_turns, on_letter]
