"""Submitting: the same request is the same task, however often and from wherever it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import BadInput, Misuse, RequestConflict
from holdfast.journal.contract import Claimed, Filter, Submission
from holdfast.journal.records import TaskState
from holdfast.layout.engine_settings import request_scopes
from holdfast.testing.lab import Lab, program


@holdfast.task
async def greet(run: holdfast.Run, name: str) -> str:
    return f"hello {name}"


@holdfast.task
async def part(run: holdfast.Run, name: str) -> str:
    return f"goodbye {name}"


async def count(hf: holdfast.Holdfast) -> int:
    return len(await hf.journal.list_tasks(Filter(limit=1_000)))


async def test_the_same_request_is_the_same_task(lab: Lab) -> None:
    """A request id finds the task it made, with its result, also after a restart."""
    async with lab.open(greet) as hf:
        first = await hf.submit(greet, name="ada", request_id="order-1")
        again = await hf.submit(greet, name="ada", request_id="order-1")
        assert (first.created, again.created, first.task_id) == (True, False, again.task_id)
        assert first.id == first.task_id == (await first.row()).task_id
        assert await again.result(10) == "hello ada"
    async with lab.open(greet) as hf:
        later = await hf.submit(greet, name="ada", request_id="order-1")
        assert (later.id, later.created) == (first.id, False)
        assert await later.result(10) == "hello ada"
        assert await count(hf) == 1


async def test_a_task_that_is_given_to_the_engine_begins_without_a_claim(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submission() -> Submission:
        task_id = task_id_from_bytes(os.urandom(16))
        return Submission(
            task_id=task_id, name="greet", args={"name": "ada"}, args_fingerprint=bytes(16), request_id=""
        )

    async def nothing(*_: object, **__: object) -> list[Claimed]:
        return []

    async with lab.open(greet) as hf:
        engine = hf.engine
        assert engine is not None
        await until(lambda: engine._claimer._is_first)  # it has seen that nothing waits
        monkeypatch.setattr(hf.journal, "claim", nothing)
        given = await engine.submit(submission())
        await until(lambda: engine.counts["finished"] == 1)
        row = await hf.journal.find_task(given.task_id)
        assert row is not None
        assert row.state is TaskState.SUCCEEDED
        engine.stop()
        assert (await engine.submit(submission())).state is TaskState.QUEUED


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - what it asks about has no event
            await asyncio.sleep(0.01)


async def test_submitting_at_the_same_time_makes_one_task(lab: Lab) -> None:
    async with lab.open(greet) as hf:
        handles = await asyncio.gather(*(hf.submit(greet, name="ada", request_id="order-1") for _ in range(20)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(handle.created for handle in handles) == 1
        assert await count(hf) == 1


async def test_processes_that_submit_the_same_request_make_one_task(lab: Lab, script: Callable[[str], Path]) -> None:
    async with lab.open(serve=False):
        pass  # the journal exists: the race is about the task
    await race(script("submit"), [lab.journal], [lab.journal])


async def race(script: Path, *words: list[str | Path]) -> None:
    """Two programs submit one request at the same moment: one task."""
    async with program(script, *words[0]) as one, program(script, *words[1]) as two:
        for process in (one, two):
            await process.hear("ready")
        for process in (one, two):
            await process.tell("go")
        ids = [await process.hear("task ") for process in (one, two)]
        made = [await process.hear("created ") for process in (one, two)]
        assert ids[0] == ids[1]
        assert sorted(made) == ["False", "True"]


@pytest.mark.parametrize("scope", ["", "default"], ids=["no scope", "the scope of an older program"])
async def test_a_program_without_settings_and_a_command_submit_one_task(
    lab: Lab, script: Callable[[str], Path], scope: str
) -> None:
    """A command takes its scope from the settings file. Under two ids one payment would be made twice."""
    (lab.journal.parent / "holdfast.toml").write_text('agent = "ada"\n')
    async with lab.open(serve=False):
        pass
    await race(script("submit"), [lab.journal, scope], [lab.journal, "file"])
    async with lab.open(serve=False) as hf:
        assert await count(hf) == 1


@pytest.mark.parametrize("before", ["ada", "default"])
async def test_a_request_from_before_is_found_under_every_usual_scope(lab: Lab, before: str) -> None:
    settings = lab.journal.parent / "holdfast.toml"
    async with lab.open(greet, request_scope=before) as hf:
        first = await hf.submit(greet, name="ada", request_id="order-1")
        async with hf.scope("thread-7") as scope:
            kept = scope.task_id
    settings.write_text('agent = "ada"\nrequest_scope = "default"\n')
    for agent, scope in (("default", ""), ("ada", ""), ("default", "default"), ("default", "ada")):
        async with lab.open(greet, agent=agent, request_scope=scope) as hf:
            again = await hf.submit(greet, name="ada", request_id="order-1")
            assert (again.id, again.created) == (first.id, False)
            with pytest.raises(RequestConflict):
                await hf.submit(greet, name="bob", request_id="order-1")
            async with hf.scope("thread-7") as thread:
                assert thread.task_id == kept
    async with lab.open(greet, request_scope="eve") as hf:
        assert (await hf.submit(greet, name="ada", request_id="order-1")).created


def test_the_scopes_of_a_request() -> None:
    plain, ada = holdfast.Settings(), holdfast.Settings(agent="ada")
    older = holdfast.Settings(agent="ada", request_scope="default")
    assert request_scopes(plain, beside=plain) == ("default",)
    assert request_scopes(plain, beside=ada) == request_scopes(ada, beside=ada) == ("ada", "default")
    assert request_scopes(ada, beside=older) == request_scopes(plain, beside=older) == ("default", "ada")
    assert request_scopes(holdfast.Settings(agent="eve"), beside=older) == ("eve",)
    assert request_scopes(ada, beside=plain) == ("ada",)


async def test_the_same_request_id_with_another_input_is_a_conflict(lab: Lab) -> None:
    async with lab.open(greet, serve=False) as hf:
        first = await hf.submit(greet, name="ada", request_id="order-1")
        with pytest.raises(RequestConflict) as conflict:
            await hf.submit(greet, name="bob", request_id="order-1")
        assert conflict.value.task_id == first.id
        assert "order-1" in conflict.value.message
        assert conflict.value.hint
        assert await count(hf) == 1


async def test_arguments_are_the_same_whatever_their_order_or_python_type(lab: Lab) -> None:
    """One fingerprint per JSON value: a tuple is a list, the order of keys means nothing."""

    @holdfast.task
    async def keep(run: holdfast.Run, **args: Any) -> Any:
        return args

    async with lab.open(keep) as hf:
        first = await hf.submit(keep, request_id="r", a={"x": 1, "y": (1, 2)}, b="ü")
        again = await hf.submit(keep, request_id="r", b="ü", a={"y": [1, 2], "x": 1})
        assert first.id == again.id
        with pytest.raises(RequestConflict):
            await hf.submit(keep, request_id="r", b="ü", a={"y": [1, 2.5], "x": 1})


async def test_a_request_id_belongs_to_its_agent_and_its_task(lab: Lab) -> None:
    ids: set[str] = set()
    for agent in ("ada", "bob"):
        async with lab.open(greet, part, serve=False, agent=agent) as hf:
            for task in (greet, part):
                handle = await hf.submit(task, name="x", request_id="same")
                assert handle.created
                ids.add(handle.id)
    assert len(ids) == 4


async def test_without_a_request_id_each_submission_is_a_task(lab: Lab) -> None:
    async with lab.open(greet) as hf:
        one, two = [await hf.submit(greet, name="ada") for _ in range(2)]
        assert one.id != two.id
        assert [await one.result(10), await two.result(10)] == ["hello ada"] * 2


@pytest.mark.parametrize("request_id", ["x" * 501, "a\0b", 5, b"raw"], ids=["long", "NUL", "number", "bytes"])
async def test_an_unfit_request_id_is_refused_and_nothing_accepted(lab: Lab, request_id: Any) -> None:
    async with lab.open(greet, serve=False) as hf:
        with pytest.raises(BadInput):
            await hf.submit(greet, name="ada", request_id=request_id)
        assert await count(hf) == 0


@pytest.mark.parametrize("name", ["", "@scope", "x" * 201, "a\nb"])
async def test_a_name_that_no_task_can_have_is_refused(lab: Lab, name: str) -> None:
    """The runtime's own names begin with @: nobody can submit into a scope."""
    async with lab.open(greet, serve=False) as hf:
        with pytest.raises(Misuse):
            await hf.submit(name, scope="x")
        assert await count(hf) == 0


async def test_arguments_that_the_task_does_not_take_are_refused(lab: Lab) -> None:
    async with lab.open(greet, serve=False) as hf:
        unfit: list[dict[str, Any]] = [{}, {"nome": "ada"}, {"name": "ada", "age": 36}]
        for args in unfit:
            with pytest.raises(Misuse, match="greet"):
                await hf.submit(greet, **args)
        with pytest.raises(Misuse):
            await hf.submit("greet", nome="ada")
        assert await count(hf) == 0


async def test_a_task_of_another_program_waits_for_it(lab: Lab) -> None:
    """A name that nobody serves here is accepted, and done by whoever serves it later."""
    async with lab.open(part) as hf:
        handle = await hf.submit("greet", name="ada")
        await hf.submit(part, name="ada")
        assert await handle.state() is TaskState.QUEUED
    async with lab.open(greet) as hf:
        assert await hf.task(handle.id).result(10) == "hello ada"


async def test_two_tasks_of_one_name_are_refused(lab: Lab) -> None:
    """Which of the two would run? Neither: the program is told at once."""

    @holdfast.task(name="greet")
    async def other(run: holdfast.Run) -> None: ...

    with pytest.raises(Misuse, match="greet"):
        async with lab.open(greet, other):
            pass
    async with lab.open(greet, greet):
        pass  # the very same one twice is no question


async def test_what_is_no_task_is_refused(lab: Lab) -> None:
    async def plain(run: holdfast.Run) -> None: ...

    unfit: Any = plain
    with pytest.raises(Misuse, match="not a task"):
        async with lab.open(unfit):
            pass
