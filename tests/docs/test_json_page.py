"""Every field that a command prints with --json is in docs/reference/json.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.cli.command import COMMANDS
from holdfast.cli.main import build_parser, main
from holdfast.runtime.models.reply import Reply, Route, StopReason, Text
from holdfast_proofs.support.command_line import Commands

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


@holdfast.task
async def fails(run: holdfast.Run) -> None:
    raise ValueError("no")


async def _failed(folder: Path) -> str:
    async with holdfast.open(folder, tasks=[fails]) as hf:
        task = await hf.submit(fails)
        with pytest.raises(holdfast.TaskFailed):
            await task.result(30)
        return task.id


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
        for names, text in zip(parts[1::2], parts[2::2], strict=True)
        for name in names.split(", ")
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
OPEN = ("args", "details", "body", "result", "answer", "evidence", "error", "settings", "usage", "route", "cost")


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
        "todo": 0,
        "journal show": 0,
        "journal check": 0,
        f"journal copy --to {folder / 'new.db'} --dry-run": 0,
        "recover --dry-run": 0,
    }.items():
        printed = hf.look(*words.split(), "--json", code=code).json
        name = next(one for one in known if f"holdfast {words}".startswith(one))
        missing = keys_of(printed) - known[name]
        assert not missing, f"{name}: {missing}"
        assert printed, name


def test_every_field_of_levels_surfaces_and_targets_is_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text('agent = "ada"\n')
    known = sections()
    for words in ("level show", "surface list", "target show"):
        assert main([*words.split(), "--json", "--home", str(folder)]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed
        missing = keys_of(printed) - known[f"holdfast {words}"] - {"at risk"}
        assert not missing, f"{words}: {missing}"


# Why a command prints no object of its own.
WITHOUT = {
    "completion": "prints a script",
    "worker": "runs until it is stopped; its events are JSON lines on standard error",
    "identity signer": "runs until it is stopped",
    "identity answer": "prints a signed line of JSON as it is",
    "paper print": "prints pages with secret words",
    "paper card": "prints a page",
    "share split": "prints secret words",
    "share combine": "prints secret words",
}


def test_every_command_that_says_something_says_it_as_json_too() -> None:
    """Or it is named above with its reason; and every such command has its section."""
    known = set(sections())
    for words, parser in each_command():
        options = parser._option_string_actions
        if words in WITHOUT:
            assert "--json" not in options, words
        else:
            assert "--json" in options, words
            assert known & {f"holdfast {words}"} or words in SAME, words


# Print what another one prints, as its section says.
SAME = {f"identity {verb}": "identity show" for verb in ("rotate", "evict", "recover", "retire")}


def test_acting_commands_print_what_is_documented(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    task_id = asyncio.run(_fill(folder))
    failed = asyncio.run(_failed(folder))
    hf = Commands(folder, main)
    value = tmp_path / "value"
    value.touch(mode=0o600)
    value.write_text("correct-horse-battery")
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("staple-battery-horse")
    approval = hf.look("approval", "list", "--json").json["approvals"][0]["approval"]
    known = sections()
    for words in (
        f"task retry {failed} --dry-run",
        f"task retry {failed}",
        f"secret set billing --from-file {value}",
        f"secret rotate billing --from-file {other} --drop-old",
        "secret remove billing --dry-run",
        "secret remove billing --yes",
        f"effect evidence {task_id}/3 --did-not-happen",
        f"effect settle {task_id}/3 --skip --dry-run",
        f"effect settle {task_id}/3 --skip --yes",
        f"approval grant {approval}",
        f"task cancel {task_id} --dry-run",
        f"task cancel {task_id} --yes",
    ):
        done = hf.look(*words.split(), "--json")
        name = next(one for one in known if f"holdfast {words}".startswith(one))
        assert done.json, words
        assert keys_of(done.json) <= known[name], words
        assert done.err == "", words


def each_command() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and verb, with its parser."""
    for name in COMMANDS:
        yield from _leaves(name, _choices(build_parser([name]))[name])


def _leaves(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    verbs = _choices(parser)
    if not verbs:
        yield words, parser
    for verb, one in verbs.items():
        yield from _leaves(f"{words} {verb}", one)


def _choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return cast("Any", action).choices
    return {}


def test_errors_are_documented(tmp_path: Path) -> None:
    done = Commands(tmp_path, main).look("task", "list", "--json", code=6)
    assert keys_of(done.error) <= sections()["Errors"]
