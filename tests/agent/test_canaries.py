"""Fifty planted secrets in everything an agent says and is told: none is found afterwards.

In the instructions, the arguments of the model's calls, a tool's result, the
model's last word and what is streamed. The model itself has them: its script is a far end's.
"""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import SecretInInput
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.contract import Filter
from holdfast.runtime.models.reply import TextDelta
from holdfast.testing.lab import Lab
from holdfast.testing.model_server.process import start
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall
from holdfast_proofs.canaries.traces import COUNT, Opened, files_below, hits, planted


@holdfast.tool(effect=holdfast.Read())
async def look_up(text: str, number: int) -> dict[str, object]:
    """What is known about a text."""
    value = VALUES[number]
    return {"told": text, "known": [value, value.encode().hex()], "end": f"looked up {number}."}


VALUES: list[str] = []


def _script(values: list[str]) -> Script:
    answers: list[Answer] = []
    for number, value in enumerate(values):
        call = ScriptedCall(tool="look_up", arguments={"text": f"({value})", "number": number})
        answers.append(Answer(last=f"begin {number}.", text=f"I think of {value}.", tool_calls=(call,)))
        answers.append(Answer(last=f"looked up {number}.", text=f"It is {value}, {number}."))
    return Script(answers=tuple(answers))


async def test_no_canary_is_found_in_what_an_agent_leaves(lab: Lab) -> None:
    values = planted()
    VALUES[:] = values
    entropy = SystemEntropy()
    keys = load_or_create(lab.folder / "keys.json", journal_exists=False, entropy=entropy)
    store = SecretFile(lab.folder, keys=keys, clock=SystemClock(), entropy=entropy)
    for number, value in enumerate(values):
        store.set(f"canary-{number}", value)
    shown: list[str] = []
    opened = Opened()
    async with start(_script(values)) as server:
        agent = holdfast.Agent(
            name="leaky",
            model=holdfast.Model("model-1", holdfast.Endpoint(name="first", url=server.url, wire="openai")),
            instructions=f"Keep to {values[0]} and {values[1]}.",
            tools=[look_up],
            show=lambda one: shown.append(one.text if isinstance(one, TextDelta) else ""),
        )
        async with lab.open(agent) as hf:
            with pytest.raises(SecretInInput):
                await hf.submit(agent, request=f"With {values[0]} begin 0.")
            tasks = [
                await hf.submit(agent, request=f"With secret://canary-{number} begin {number}.")
                for number in range(COUNT)
            ]
            answers = await asyncio.gather(*(task.result(60) for task in tasks))
            during = list(files_below(lab.folder))
        sent = [one.body for one in await server.requests()]
    with opened.collecting():
        async with lab.open(agent, serve=False) as hf:
            for row in await hf.journal.list_tasks(Filter(limit=1_000)):
                await hf.journal.read_task(row.task_id)
    searched = [
        *during,
        *files_below(lab.folder),
        *((f"opened {n}", one) for n, one in enumerate(opened)),
        *((f"sent {n}", one) for n, one in enumerate(sent)),
        *((f"answer {n}", str(one).encode()) for n, one in enumerate(answers)),
    ]
    searched.append(("shown", "".join(shown).encode()))
    found = hits(searched, values)
    assert not found, found[:5]
    assert sum(one.count(b"secret://canary-") for one in opened) > 5 * COUNT
    assert sorted(answers) == sorted(f"It is secret://canary-{number}, {number}." for number in range(COUNT))
