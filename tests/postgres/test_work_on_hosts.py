"""Tasks on several hosts of one journal: shared fairly, and continued on a host whose disk is empty."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import holdfast
from holdfast.journal.records import TaskState
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.task.task import TaskType
from holdfast.testing.lab import wait_state, wait_until
from holdfast.testing.model_server.process import start_blocking
from holdfast.testing.model_server.script import Answer, Script

SCRIPT = Script(answers=(Answer(last="hello", text="Hello there."), Answer(last="more", text="More of it.")))


def new_folder(folder: Path, *, keys_of: Path | None = None) -> Path:
    folder.mkdir(mode=0o700)
    if keys_of is not None:
        shutil.copy(keys_of / "keys.json", folder)
    return folder


async def test_hosts_share_the_tasks_and_take_no_more_than_they_can_run(tmp_path: Path, url: str) -> None:
    """The first host is there before the second, and asks for tasks in larger numbers than it can run."""
    running: Counter[str] = Counter()
    go, ran = asyncio.Event(), list[str]()

    def on(host: str) -> TaskType:
        async def wait(run: holdfast.Run) -> None:
            running[host] += 1
            ran.append(host)
            await go.wait()
            running[host] -= 1

        return holdfast.task(wait)

    one = new_folder(tmp_path / "one")
    async with holdfast.open(url, home=one, tasks=[on("one")], serve=False) as hf:
        for _ in range(30):
            await hf.submit("wait")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            holdfast.open(url, home=one, tasks=[on("one")], settings=Settings(concurrency=6, claim_batch=50))
        )
        await wait_until(lambda: is_so(running["one"] == 6))
        two = new_folder(tmp_path / "two", keys_of=one)
        await stack.enter_async_context(
            holdfast.open(url, home=two, tasks=[on("two")], settings=Settings(concurrency=4, claim_batch=2))
        )
        await wait_until(lambda: is_so(running["two"] == 4))
        assert dict(running) == {"one": 6, "two": 4}
        counts = await first.journal.count_tasks()
        assert (counts[TaskState.RUNNING], counts[TaskState.QUEUED]) == (10, 20)
        go.set()

        async def is_done() -> bool:
            return (await first.journal.count_tasks()).get(TaskState.SUCCEEDED) == 30

        await wait_until(is_done)
    assert len(ran) == 30


async def is_so(value: bool) -> bool:
    return value


async def test_scratch_and_a_conversation_come_onto_an_empty_disk(tmp_path: Path, url: str) -> None:
    with start_blocking(SCRIPT) as server:
        chat = holdfast.Model("model-1", holdfast.Endpoint(name="first", url=server.url, wire="openai"))

        @holdfast.tool(effect=holdfast.Idempotent())
        async def draft(call: holdfast.Call) -> int:
            assert call.scratch is not None
            (call.scratch / "notes").mkdir()
            return (call.scratch / "notes/one.txt").write_text("figures\n")

        @holdfast.task
        async def write(run: holdfast.Run) -> list[str]:
            talk = run.talk(system="Be brief.")
            talk.say("hello")
            said = [(await run.ask(chat, talk)).text]
            assert run.scratch.path
            await run.call(draft)
            await run.approve("go on?")
            talk.say("more")
            said.append((await run.ask(chat, talk)).text)
            return [*said, (run.scratch.path / "notes/one.txt").read_text()]

        one = new_folder(tmp_path / "one")
        async with holdfast.open(url, home=one, tasks=[write]) as hf:
            handle = await hf.submit(write)
            await wait_state(handle, TaskState.WAITING)
        two = new_folder(tmp_path / "two", keys_of=one)
        shutil.rmtree(one)
        async with holdfast.open(url, home=two, tasks=[write]) as hf:
            await hf.approve(handle.id, "3", granted=True)
            assert await hf.task(handle.id).result(30) == ["Hello there.", "More of it.", "figures\n"]
        (_, second) = await server.requests()
    texts = [one["content"] for one in json.loads(second.body)["messages"]]
    assert texts == ["Be brief.", "hello", "Hello there.", "more"]
