"""What stands before a talk changes between two runs: reported always, then by policy; secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import TaskFailed, TaskParked
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.records import TaskState
from holdfast.runtime.step.code_changes import ASKED
from holdfast.runtime.task.talk import asked_of
from holdfast.runtime.task.task import OnChange, TaskType
from holdfast.testing.lab import Lab, look_dead, wait_state, wait_step
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind
from holdfast_proofs.support.talks import request_of

MakeModel = Callable[..., holdfast.Model]
SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]
SCHEMA: dict[str, object] = {"type": "object", "properties": {"q": {"type": "string"}}}
OTHER: dict[str, object] = {"type": "object", "properties": {"q": {"type": "integer"}}}

# What a task asks with, before and after a change, and the words for the change.
BEFORE: dict[str, Any] = {
    "name": "model-1",
    "settings": {"max_tokens": 50},
    "system": "Be brief.",
    "tools": (("search", SCHEMA), ("now", SCHEMA)),
}
CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model swapped": ({"name": "model-2"}, ["model"]),
    "settings changed": ({"settings": {"max_tokens": 60}}, ["settings"]),
    "prompt edited": ({"system": "Be brief!"}, ["prompt"]),
    "tool renamed": ({"tools": (("find", SCHEMA), ("now", SCHEMA))}, ["tools"]),
    "tool removed": ({"tools": (("search", SCHEMA),)}, ["tools"]),
    "schema changed": ({"tools": (("search", OTHER), ("now", SCHEMA))}, ["tools"]),
    "two at once": ({"name": "model-2", "system": "Be long."}, ["model", "prompt"]),
}


def asks_with(model: MakeModel, on_change: OnChange, **given: Any) -> TaskType:
    chat = model(given["name"], settings=given["settings"])
    tools = [{"name": name, "description": "", "parameters": schema} for name, schema in given["tools"]]

    @holdfast.task(name="asks", on_change=on_change)
    async def asks(run: holdfast.Run) -> list[str]:
        talk = run.talk(system=given["system"])
        talk.say("hello")
        first = await run.ask(chat, talk, tools=tools)
        await run.approve("go on?")
        talk.say("more")
        return [first.text, (await run.ask(chat, talk, tools=tools)).text]

    return asks


async def begun(lab: Lab, model: MakeModel) -> str:
    task = asks_with(model, "continue", **BEFORE)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(task, serve=False) as hf:  # the code that asks next is the changed one
        await hf.approve(handle.id, "2", granted=True)
    return handle.id


@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_is_reported_and_goes_on(lab: Lab, model: MakeModel, case: str) -> None:
    change, words = CHANGES[case]
    task_id = await begun(lab, model)
    task = asks_with(model, "continue", **BEFORE | change)
    async with lab.open(task) as hf:
        handle = hf.task(task_id)
        assert await handle.result(10) == ["Hello there, dear friend.", "More of it."]
        view = await handle.view()
    assert view.notes[ASKED].body["changed"] == words
    assert asked_of(view.steps["1"]).head != asked_of(view.steps["3"]).head
    now = BEFORE | change
    request = request_of(view, "3")
    assert (request.model, request.settings) == (now["name"], now["settings"])
    assert [tool["name"] for tool in request.tools] == [name for name, _ in now["tools"]]


@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_is_reported_and_parks(lab: Lab, model: MakeModel, seen: SeenNow, case: str) -> None:
    change, words = CHANGES[case]
    task_id = await begun(lab, model)
    task = asks_with(model, "park", **BEFORE | change)
    async with lab.open(task) as hf:
        handle = hf.task(task_id)
        with pytest.raises(TaskParked, match=f"the task's {' and '.join(words)} changed"):
            await handle.result(10)
        assert len(await seen()) == 1
        await hf.retry(task_id)
        assert await handle.result(10) == ["Hello there, dear friend.", "More of it."]


async def test_what_was_let_pass_once_is_not_asked_again(lab: Lab, model: MakeModel) -> None:
    task_id = await begun(lab, model)
    changed = asks_with(model, "park", **BEFORE | {"name": "model-2"})
    waits = holdfast.task(name="asks", on_change="park")(_then_waits(changed))
    async with lab.open(waits) as hf:
        handle = hf.task(task_id)
        await wait_state(handle, TaskState.PARKED)
        await hf.retry(task_id)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(waits) as hf:
        await hf.approve(task_id, "4", granted=True)
        assert await hf.task(task_id).result(10) == ["Hello there, dear friend.", "More of it."]


def _then_waits(task: TaskType) -> Callable[..., Awaitable[Any]]:
    async def asks(run: holdfast.Run) -> Any:
        result = await task.function(run)
        await run.approve("and now?")
        return result

    return asks


async def test_an_open_call_goes_out_with_what_is_there_now_and_says_so(
    lab: Lab, model: MakeModel, server: ModelServer, seen: SeenNow
) -> None:
    await server.faults(Fault(kind=FaultKind.HOLD))
    task = asks_with(model, "continue", **BEFORE)
    async with lab.open(task, grace_s=0.05) as hf:
        handle = await hf.submit(task)
        await wait_step(handle, "1", "started")  # pyright: ignore[reportArgumentType] - its word
        await server.wait_requests(len(await server.requests()) or 1)
    await server.release()
    task = asks_with(model, "continue", **BEFORE | {"name": "model-2"})
    async with lab.open(task) as hf:
        handle = hf.task(handle.id)
        await wait_state(handle, TaskState.WAITING)
        view = await handle.view()
    assert request_of(view, "1").model == "model-2"
    assert view.contents[asked_of(view.steps["1"]).head]["model"] == "model-1"  # pyright: ignore[reportIndexIssue] - JSON
    assert (await seen())[-1].body_sha256 == view.steps["1"].result["reply"]["route"]["body_sha256"]  # pyright: ignore[reportIndexIssue] - JSON


# secrets


@pytest.fixture
def store(lab: Lab) -> SecretFile:
    entropy = SystemEntropy()
    keys = load_or_create(lab.folder / "keys.json", journal_exists=False, entropy=entropy)
    return SecretFile(lab.folder, keys=keys, clock=SystemClock(), entropy=entropy)


async def test_a_key_is_looked_up_when_it_is_sent_and_is_nowhere_else(
    lab: Lab, model: MakeModel, store: SecretFile, seen: SeenNow
) -> None:
    chat = model(key="secret://provider")

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("hello")
        return (await run.ask(chat, talk)).text

    async with lab.open(asks) as hf:
        with pytest.raises(TaskFailed, match="secret://provider is not set"):
            await (await hf.submit(asks)).result(10)
        store.set("provider", "sk-canary-77aa31")
    chat = model(key="secret://provider")
    async with lab.open(asks) as hf:
        await (await hf.submit(asks)).result(10)
    assert [bool(one.key_sha256) for one in await seen()] == [True]
    assert all(b"sk-canary" not in file.read_bytes() for file in lab.folder.rglob("*.db*"))


async def test_a_known_value_is_swapped_before_the_model_is_told(
    lab: Lab, model: MakeModel, store: SecretFile, seen: SeenNow
) -> None:
    store.set("door", "open-sesame-7")
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk(system="The word is open-sesame-7.")
        talk.say("hello open-sesame-7")
        await run.ask(chat, talk)
        talk.say("tell me the secret")
        return (await run.ask(chat, talk)).text

    async with lab.open(asks) as hf:
        assert await (await hf.submit(asks)).result(10) == "The word is secret://door."
    assert all(b"open-sesame-7" not in one.body for one in await seen())


async def test_a_secret_that_is_set_later_does_not_make_it_another_talk(
    lab: Lab, model: MakeModel, store: SecretFile
) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk(system="The word is open-sesame-7.")
        talk.say("tell me the secret: open-sesame-7")
        await run.ask(chat, talk)
        await run.approve("go on?")
        talk.say("more")
        return (await run.ask(chat, talk)).text

    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        await wait_state(handle, TaskState.WAITING)
    store.set("door", "open-sesame-7")
    async with lab.open(asks) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == "More of it."
        assert ASKED not in (await hf.task(handle.id).view()).notes


async def test_a_dead_workers_call_is_taken_over(
    lab: Lab, model: MakeModel, server: ModelServer, seen: SeenNow
) -> None:
    """A session that looks dead to others: the second engine asks anew, one reply counts."""
    await server.faults(Fault(kind=FaultKind.HOLD))
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("held")
        return (await run.ask(chat, talk)).text

    async with lab.open(asks) as first:
        handle = await first.submit(asks)
        await wait_step(handle, "1", "started")  # pyright: ignore[reportArgumentType] - its word
        look_dead(first)
        async with lab.open(asks) as second:
            assert await second.task(handle.id).result(20) == "At last."
        await server.release()
        view = await handle.view()
    assert len(view.steps["1"].attempts) == 2
    assert len({one.body_sha256 for one in await seen()}) == 1
