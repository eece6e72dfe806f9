"""A tool that cannot work is refused when its app starts, with the line to write; not on the day it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.declared import window_trouble
from holdfast.app.loading import load_app
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.runtime.tool.called import tools_called
from holdfast.testing.lab import Lab, Scripted, hang, look_dead, wait_state

SHORT = holdfast.Keyed(window_s=60, fingerprint="checked", refusals_stored=True)


@holdfast.tool(effect=holdfast.Queryable())
async def unasked(call: holdfast.Call) -> None: ...


@holdfast.tool(effect=SHORT)
async def short(call: holdfast.Call) -> None: ...


TABLE = {"unasked": unasked}


def helper(run: holdfast.Run) -> Any:
    return run.call(short)


@pytest.mark.parametrize(
    ("effect", "said", "write"),
    [
        (holdfast.Read, "the class Read", "effect=holdfast.Read()"),
        (holdfast.Keyed, "the class Keyed", "effect=holdfast.Keyed(window_s="),
        ("keyed", "'keyed'", "effect=holdfast.Keyed(window_s="),
        ("read", "'read'", "effect=holdfast.Read()"),
        ("", "''", "use one of: Read, Transactional"),
        (7, "7", "use one of: Read, Transactional"),
        (dict, "the class dict", "use one of: Read, Transactional"),
    ],
)
def test_an_effect_that_is_none_says_what_to_write(effect: Any, said: str, write: str) -> None:
    with pytest.raises(Misuse, match="tool pay: effect must be an object of an effect class") as refused:

        @holdfast.tool(effect=effect)
        async def pay() -> None: ...

    assert said in refused.value.message
    assert write in refused.value.hint


def test_the_tools_of_a_task_are_found_in_its_code() -> None:
    inner = Scripted(holdfast.Read(), name="inner")
    this = sys.modules[__name__]

    async def by_name(run: holdfast.Run) -> None:
        await run.call(unasked)

    async def by_closure_and_attribute(run: holdfast.Run) -> None:
        async def branch(run: holdfast.Run) -> None:
            await run.call(inner.tool)

        await run.gather(branch)

    async def by_module(run: holdfast.Run) -> None:
        await run.call(this.short)

    async def by_helper(run: holdfast.Run) -> None:
        await helper(run)

    async def by_table(run: holdfast.Run) -> None:
        await run.call(TABLE["unasked"])

    async def none(run: holdfast.Run) -> None:
        await run.sleep(1)

    found = [
        sorted(tools_called(one)) for one in (by_name, by_closure_and_attribute, by_module, by_helper, by_table, none)
    ]
    assert found == [["unasked"], ["inner"], ["short"], ["short"], ["unasked"], []]


async def test_a_queryable_tool_without_a_lookup_is_refused_when_the_journal_is_opened(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(unasked)

    with pytest.raises(Misuse, match="unasked is Queryable but has no lookup") as refused:
        async with lab.open(order):
            pass
    assert "@unasked.find" in refused.value.hint
    assert not lab.journal.exists()


def test_a_queryable_tool_without_a_lookup_is_refused_when_its_app_is_loaded(tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text(
        "import holdfast\n"
        "@holdfast.tool(effect=holdfast.Queryable())\nasync def ship(call): ...\n"
        "@holdfast.task\nasync def order(run):\n    await run.call(ship)\n"
        "app = holdfast.App([order])\n"
    )
    with pytest.raises(Misuse, match="ship is Queryable but has no lookup"):
        load_app(f"{app}:app")


def test_a_window_must_outlast_an_attempt() -> None:
    assert "must be longer than 130 s: timeout_s 60 + lease 10 + max_delay_s 60" in window_trouble(short, lease_s=10)

    def keyed(window_s: float, **options: Any) -> holdfast.Tool[..., Any]:
        effect = holdfast.Keyed(window_s=window_s, fingerprint="checked", refusals_stored=True)
        return holdfast.tool(effect=effect, name="pay", **options)(unasked.function)

    assert window_trouble(keyed(130), lease_s=10)
    assert not window_trouble(keyed(131), lease_s=10)
    assert not window_trouble(keyed(80, http_only=True, timeout_s=60), lease_s=10)
    assert window_trouble(keyed(75, http_only=True, timeout_s=60), lease_s=10)
    assert not window_trouble(Scripted(SHORT).finds(None).tool, lease_s=10), "a lookup finds it after the window"
    assert not window_trouble(unasked, lease_s=10)


async def test_a_short_window_is_refused_and_only_warned_of_where_its_steps_are_open(lab: Lab) -> None:
    """A worker that would not start could never bring them to their end."""
    enough = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
    before, after = Scripted(enough, hang, name="pay"), Scripted(SHORT, "paid", name="pay")

    def order(act: Scripted) -> holdfast.TaskType:
        @holdfast.task(name="order")
        async def order(run: holdfast.Run) -> Any:
            return await run.call(act.tool)

        return order

    with pytest.raises(Misuse, match="window_s=60 is too short") as refused:
        async with lab.open(order(after)):
            pass
    assert "a lookup" in refused.value.hint
    first = order(before)
    async with lab.open(first, grace_s=0) as hf:
        handle = await hf.submit(first)
        await before.entered.wait()
        look_dead(hf)
    with pytest.warns(UserWarning, match="window_s=60 is too short"):
        async with lab.open(order(after)) as hf:
            await wait_state(hf.task(handle.id), TaskState.PARKED)
    async with lab.open(order(after), serve=False):
        pass  # who only looks is not stopped


SCRIPT = """
import asyncio, sys
import holdfast

@holdfast.tool{effect}
{word} send(to):
    return to

@holdfast.task
async def order(run):
    return await run.call(send, to="ada")

async def main():
    async with holdfast.open(sys.argv[1], tasks=[order]) as hf:
        print(await (await hf.submit(order)).result(20))

{start}
"""
PLAIN = "asyncio.run(main())"
GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())'


@pytest.mark.parametrize(
    ("effect", "word", "start", "fits"),
    [
        ("", "def", PLAIN, False),
        ("", "def", GUARDED, True),
        ("", "async def", PLAIN, True),
        ("(effect=holdfast.Read())", "def", PLAIN, True),
    ],
    ids=["blocking", "guarded", "async", "in a thread"],
)
def test_a_script_with_a_blocking_tool_needs_a_main_guard(
    tmp_path: Path, effect: str, word: str, start: str, fits: bool
) -> None:
    """Its tool's process imports the script, and would run it again."""
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT.format(effect=effect, word=word, start=start))
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    words = [sys.executable, str(script), str(folder / "journal.db")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if fits:
        assert (done.returncode, done.stdout) == (0, "ada\n"), done.stderr
        return
    assert done.returncode != 0
    assert "tool send runs in a process of its own, which imports shop.py and would start your program" in done.stderr
    assert "again at line 17" in done.stderr
    assert 'hint: put the code that starts your program under `if __name__ == "__main__":`' in done.stderr
    assert not (folder / "journal.db").exists()


async def test_values_that_do_not_fit_the_hints_of_a_task_are_refused_at_submit(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run, request: str, count: int = 1, note: str = None, odd: Path | None = None) -> str:  # type: ignore[assignment] # noqa: RUF013
        return request

    async with lab.open(order) as hf:
        refused: list[Callable[[], Any]] = [
            lambda: hf.submit(order, request=5),
            lambda: hf.submit("order", request="a", count="b"),
            lambda: hf.submit(order, request="a", count=True),
        ]
        for one in refused:
            with pytest.raises(Misuse, match="order: "):
                await one()
        with pytest.raises(Misuse, match="request") as told:
            await hf.submit(order, request=5)
        assert "request: str" in told.value.hint
        assert await (await hf.submit(order, request="a", count=2, note=None, odd=None)).result(10) == "a"
        assert await (await hf.submit(order, request="a", odd="not checked")).result(10) == "a"
        assert len(await hf.journal.count_tasks()) == 1
