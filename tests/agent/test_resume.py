"""Agents whose worker dies: each effect once, every open call closed truly, the model told once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.errors import NotNow, NotSettleable, TaskCancelled, TaskParked
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState, TaskView
from holdfast.runtime.agent.calls import OPENING
from holdfast.runtime.step.code_changes import MARKS, find_changed
from holdfast.runtime.task.talk import asked_of, asks_of, messages_of
from holdfast.testing.lab import Lab, Scripted, look_dead, program, wait_state, wait_step, wait_until
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind
from holdfast_proofs.shim import Mode, Trace, armed
from holdfast_proofs.support.talks import request_of

MakeAgent = Callable[..., holdfast.Agent]
SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]
TRIP = Path(__file__).parent / "programs" / "trip.py"
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


def runtimes_words(view: TaskView, ordinal: str) -> list[str]:
    """What the runtime told the model up to this call."""
    texts: list[str] = []
    for message in request_of(view, ordinal).messages:
        for part in cast("list[dict[str, Any]]", message["parts"]):
            if str(part.get("text", "")).startswith(OPENING):
                texts.append(str(part["text"]))
    return texts


async def read(folder: Path) -> TaskView:
    async with holdfast.open(folder / "journal.db", serve=False) as hf:
        [row] = await hf.journal.list_tasks(Filter(limit=5))
        return await hf.journal.read_task(row.task_id)


def ledger(folder: Path, name: str) -> list[str]:
    path = folder.parent / "far" / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("request_text", "name", "answer", "fate"),
    [
        ("pay alone", "charges", "Paid once, I am told.", "sent again under the same key"),
        ("mail ada", "mails", "The mail had gone out once.", "looked up and found done once"),
    ],
)
async def test_killed_inside_an_effect_it_is_once_and_the_model_is_told(
    lab: Lab, server: ModelServer, request_text: str, name: str, answer: str, fate: str
) -> None:
    async with program(TRIP, lab.folder, server.url, "inside") as first:
        await first.tell(request_text)
        await first.hear("inside")
        await first.kill()
    async with program(TRIP, lab.folder, server.url) as second:
        await second.tell(request_text)
        assert await second.hear("answer") == answer
    assert len(ledger(lab.folder, name)) == 1
    view = await read(lab.folder)
    newest = asks_of(view)[-1].ordinal
    [words] = runtimes_words(view, newest)
    assert "the worker died, and another one took over at 2" in words
    assert fate in words
    assert view.task_id not in words


async def test_what_was_told_is_not_told_again(lab: Lab, agent: MakeAgent, server: ModelServer) -> None:
    """Three deaths: inside a call, inside the next model call, and after it."""
    slow = Scripted(KEYED, _forever, "paid 1", name="charge")
    ada = agent(_charge(slow))
    async with lab.open(ada) as first:
        handle = await first.submit(ada, request="pay alone")
        await slow.entered.wait()
        look_dead(first)
        await server.faults(Fault(kind=FaultKind.HOLD, last="under the same key"))
        async with lab.open(ada) as second:
            await wait_step(second.task(handle.id), "3", "started")  # pyright: ignore[reportArgumentType] - its word
            look_dead(second)
            async with lab.open(ada) as third:
                assert await third.task(handle.id).result(20) == "Paid once, I am told."
                view = await third.task(handle.id).view()
        await server.release()
    assert len(runtimes_words(view, "3")) == 1
    assert len(asks_of(view)) == 2


async def test_an_orderly_stop_is_nothing_to_tell(lab: Lab, agent: MakeAgent) -> None:
    waits = Scripted(KEYED, "paid 1", name="charge", needs_approval=True)
    ada = agent(_charge(waits))
    async with lab.open(ada) as hf:
        handle = await hf.submit(ada, request="pay alone")
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(ada) as hf:
        await hf.approve(handle.id, "2.1.1", granted=True)
        assert await hf.task(handle.id).result(20) == "Paid 1."
        assert runtimes_words(await hf.task(handle.id).view(), "3") == []


async def test_an_effect_in_doubt_parks_and_a_persons_word_is_told(lab: Lab, agent: MakeAgent) -> None:
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0.01), _forever, name="charge")
    ada = agent(_charge(once))
    async with lab.open(ada, concurrency=1) as first:
        handle = await first.submit(ada, request="pay alone")
        await once.entered.wait()
        look_dead(first)
        async with lab.open(ada) as second:
            handle = second.task(handle.id)
            await wait_state(handle, TaskState.PARKED)

            async def settled() -> bool:
                try:
                    await second.settle(handle.id, "2.1.1", "done", result="paid 1")
                except holdfast.HoldfastError:
                    return False
                return True

            await wait_until(settled)
            assert await handle.result(20) == "Paid 1."
            view = await handle.view()
    assert len(once.calls) == 1
    [words] = runtimes_words(view, "3")
    assert "call 1 (charge) was in doubt; a person says that it was done" in words


def test_killed_at_sampled_calls_the_answer_and_the_ledgers_are_the_same(
    blocking_server: ModelServer, shim: Path, tmp_path: Path
) -> None:
    """A real process, killed with SIGKILL right after its n-th durable or network call."""
    reached = 0
    for at in range(9, 400, 31):
        folder = tmp_path / f"at-{at}" / "agent"
        folder.mkdir(parents=True, mode=0o700)
        words = [sys.executable, str(TRIP), str(folder), blocking_server.url]
        with contextlib.closing(Trace.in_file(tmp_path / f"trace-{at}")):
            killing = armed(shim, tmp_path / f"trace-{at}", Mode.KILL_AFTER, at=at, root=folder)
            first = _played(words, os.environ | killing)
        second = _played(words, dict(os.environ))
        assert second.returncode == 0, (at, second.stderr[-2000:])
        assert second.stdout.splitlines()[-1] == b"answer Booked: flight 7.", at
        assert len(ledger(folder, "charges")) == 1, at
        view = asyncio.run(read(folder))
        newest = asks_of(view)[-1]
        assert len([*messages_of(view, newest.ordinal)]) == asked_of(newest).count
        assert all(step.closed for step in view.steps.values())
        if first.returncode == 0:
            break
        assert first.returncode == -signal.SIGKILL, first.stderr[-2000:]
        reached += 1
    assert reached >= 6


def _played(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, input=b"book a trip\n", capture_output=True, env=environment, timeout=60, check=False)


# What changes between two runs

CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model swapped": ({"model_name": "model-2"}, ["model"]),
    "settings changed": ({"settings": {"temperature": 0.5}}, ["settings"]),
    "prompt edited": ({"instructions": "You are Eve."}, ["prompt"]),
    "tool renamed": ({"rename": "bill"}, ["code", "tools"]),
    "tool removed": ({"remove": True}, ["code", "tools"]),
    "schema changed": ({"schema": True}, ["tools"]),
    "code changed": ({"code": True}, ["code"]),
    "contract changed": ({"effect": dataclasses.replace(KEYED, window_s=3_600)}, ["code"]),
    "endpoint swapped": ({"endpoint": "second"}, ["endpoints"]),
    "wire changed": ({"wire": "anthropic"}, ["endpoints"]),
    "gate added": ({"gate": holdfast.Gate(allow=["charge"])}, ["gate"]),
}


def changed(agent: MakeAgent, waits: Scripted, change: dict[str, Any], **more: Any) -> Any:
    given = dict(change)
    tools = [] if given.pop("remove", False) else [_charge(waits, **_named(given))]
    return agent(*tools, **given | more)


def _named(given: dict[str, Any]) -> dict[str, Any]:
    names = {"rename": "name", "schema": "other", "effect": "effect", "code": "code"}
    return {key: given.pop(old) for old, key in names.items() if old in given}


@pytest.mark.parametrize("policy", ["continue", "park"])
@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_between_crash_and_resume_is_reported_and_follows_the_policy(
    lab: Lab, agent: MakeAgent, seen: SeenNow, case: str, policy: str
) -> None:
    """The worker dies inside a call whose effect is done; then the agent is another one."""
    change, words = CHANGES[case]
    pays = Scripted(KEYED, _forever, "paid 1", name="charge")
    ada = agent(_charge(pays))
    async with lab.open(ada, concurrency=1) as first:  # which claims nothing else
        handle = await first.submit(ada, request="pay alone")
        await pays.entered.wait()
        look_dead(first)
        other = changed(agent, pays, change, on_change=policy)
        async with lab.open(other) as second:
            handle = second.task(handle.id)
            if policy == "park":
                with pytest.raises(TaskParked, match=f"the task's {' and '.join(words)} changed after it began"):
                    await handle.result(20)
                assert len(await seen()) == 1
                await second.retry(handle.id)
            if case in ("tool renamed", "tool removed"):
                with pytest.raises(TaskParked, match="The agent no longer has this tool"):
                    await handle.result(20)
            else:
                assert await handle.result(20) == "Paid once, I am told."
            view = await handle.view()
            assert view.notes[MARKS].body["changed"] == words
    if case in ("tool renamed", "tool removed"):
        async with lab.open(ada) as third:  # the tool is given back
            await wait_until(lambda: settled(third, handle.id, "run"))
            assert await third.task(handle.id).result(20) == "Run again, I am told."
    assert len({call.effect_key for call in pays.calls}) == 1


async def test_marks_that_an_older_journal_lacks_are_no_change(agent: MakeAgent) -> None:
    marks = agent(_charge(Scripted(KEYED, "paid 1", name="charge"))).digests
    old = {name: mark for name, mark in marks.items() if name not in ("code", "endpoints")}
    assert find_changed(old, marks) == []
    assert find_changed(old, {**marks, "gate": "0"}) == ["gate"]
    assert find_changed(marks, {**marks, "code": "0", "endpoints": "0"}) == ["code", "endpoints"]


async def settled(hf: holdfast.Holdfast, task_id: str, decision: Any, **more: Any) -> bool:
    """Whether the open call is decided; not before nothing of it can be under way."""
    try:
        await hf.settle(task_id, "2.1.1", decision, **more)
    except (NotNow, NotSettleable):
        return False
    return True


GONE: dict[str, dict[str, Any]] = {
    "removed": {"remove": True},
    "renamed": {"rename": "bill"},
    "another class": {"effect": holdfast.Read()},
}


@pytest.mark.parametrize(
    ("case", "how"),
    [
        ("removed", "done"),
        ("removed", "skip"),
        ("removed", "run"),
        ("removed", "evidence"),
        ("removed", "cancel"),
        ("renamed", "evidence"),
        ("another class", "done"),
    ],
)
async def test_an_open_call_whose_tool_is_gone_is_settled_like_every_other(
    lab: Lab, agent: MakeAgent, case: str, how: str
) -> None:
    pays = Scripted(holdfast.Unrepeatable(), _forever, "paid 1", name="charge")
    ada = agent(_charge(pays))
    async with lab.open(ada, concurrency=1) as first:
        handle = await first.submit(ada, request="pay alone")
        await pays.entered.wait()
        look_dead(first)
        async with lab.open(changed(agent, pays, GONE[case])) as second:
            handle = second.task(handle.id)
            with pytest.raises(
                TaskParked, match=r"was it done\? The (agent no longer has this tool|step is recorded as)"
            ) as parked:
                await handle.result(20)
            assert parked.value.ordinal == "2.1.1"
            if how == "cancel":
                await second.cancel(handle.id)
            if how == "evidence":
                await second.evidence(task_id=handle.id, ordinal="2.1.1", result="paid 1")
            elif how != "run":
                said = "done" if how == "done" else "skip"
                result = "paid 1" if how == "done" else None
                await wait_until(lambda: settled(second, handle.id, said, result=result))
            else:
                # Run what is not there: asked again, not sent.
                await wait_until(lambda: settled(second, handle.id, "run"))
                await wait_until(lambda: settled(second, handle.id, "done", result="paid 1"))
            if how == "cancel":
                with pytest.raises(TaskCancelled):
                    await handle.result(20)
            else:
                assert await handle.result(20) in ("Paid 1.", "Then not.")
            view = await handle.view()
    assert len(pays.calls) == 1
    assert view.steps["2.1.1"].closed


async def _forever(_call: object) -> None:
    from holdfast.testing.lab import hang

    await hang(_call)  # pyright: ignore[reportArgumentType] - it looks at nothing


def _charge(
    scripted: Scripted, *, name: str = "charge", other: bool = False, effect: Any = None, code: bool = False
) -> holdfast.Tool[..., Any]:
    """The scripted tool under a schema that a model can be told."""
    properties: dict[str, object] = {"card": {"type": "string"}, "cents": {"type": "integer"}}
    if other:
        properties["note"] = {"type": "string"}
    plain: Any = scripted.tool.function

    async def rewritten(call: holdfast.Call, **args: Any) -> Any:
        return await plain(call, **args)

    made: holdfast.Tool[..., Any] = holdfast.tool(
        effect=effect or scripted.tool.effect,
        name=name,
        needs_approval=scripted.tool.needs_approval,
        parameters={"type": "object", "properties": properties},
    )(rewritten if code else plain)
    return made
