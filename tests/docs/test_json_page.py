"""Every field that a command prints with --json is in docs/reference/json.md."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.runtime.models.reply import Reply, Route, StopReason, Text
from holdfast.testing.command_line import Commands

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01))
async def lose() -> None:
    raise ConnectionError("reset")


class Parrot:
    async def ask(self, request: object, **_more: object) -> Reply:
        usage = holdfast.Usage(input_tokens=1, output_tokens=1)
        route = Route(endpoint="first", region="", wire="openai")
        return Reply(parts=(Text(text="hi"),), stop=StopReason.END, usage=usage, route=route)


MODEL = holdfast.Model("model-1", Parrot(), price=holdfast.Price(input=1, output=1))


@holdfast.task
async def parks(run: holdfast.Run) -> None:
    (run.scratch.path / "file").write_text("x")
    talk = run.talk()
    talk.say("hello")
    await run.ask(MODEL, talk)
    run.now()
    await run.call(lose)


@holdfast.task
async def asks(run: holdfast.Run) -> None:
    await run.approve("go on?", why="a test")


async def _fill(folder: Path) -> str:
    async with holdfast.open(folder, tasks=[parks, asks]) as hf:
        waiting = await hf.submit(asks)
        parked = await hf.submit(parks)
        with pytest.raises(holdfast.TaskParked):
            await parked.result(30)
        async for row in waiting.watch():
            if row.state == "waiting":
                break
        await hf.evidence(task_id=parked.id, ordinal="3", happened=False)
        return parked.id


def sections() -> dict[str, set[str]]:
    """The words in backticks of each section; `task show` includes `task list`, and so on."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    found = {
        name.strip("`"): set(re.findall(r"`(\w+)`", text))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    found["holdfast task show"] |= found["holdfast task list"]
    found["holdfast effect list"] |= found["holdfast task show"] | {"effects"}
    found["holdfast effect show"] |= found["holdfast effect list"]
    for name in ("tasks", "more"):
        found["holdfast task list"].add(name)
    found["holdfast approval list"].add("approvals")
    found["holdfast secret list"].add("secrets")
    return found


# The user's own, or of the reference of models.
OPEN = (
    "args", "details", "body", "result", "answer", "evidence", "error", "settings", "usage",
    "route", "cost",
)  # fmt: skip


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        inner = [keys_of(one) for name, one in items.items() if name not in OPEN]
        return set(items).union(*inner)
    if isinstance(value, list):
        return set[str]().union(*(keys_of(one) for one in cast("list[Any]", value)))
    return set()


def test_every_field_is_documented(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    task_id = asyncio.run(_fill(folder))
    hf = Commands(folder, main)
    value = tmp_path / "value"
    value.touch(mode=0o600)
    value.write_text("correct-horse-battery")
    hf.look("secret", "set", "billing", "--from-file", str(value), code=0)
    known = sections()
    for words, code in {
        "task list": 0,
        f"task show {task_id}": 0,
        "effect list": 0,
        f"effect show {task_id}/3": 0,
        "approval list": 0,
        "secret list": 0,
        "doctor": 1,
        "recover --dry-run": 0,
    }.items():
        printed = hf.look(*words.split(), "--json", code=code).json
        name = next(one for one in known if f"holdfast {words}".startswith(one))
        missing = keys_of(printed) - known[name]
        assert not missing, f"{name}: {missing}"
        assert printed, name


def test_errors_are_documented(tmp_path: Path) -> None:
    done = Commands(tmp_path, main).look("task", "list", "--json", code=6)
    assert keys_of(done.error) <= sections()["Errors"]
