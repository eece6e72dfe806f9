"""Transactional tools: their statements and the record of their step are one commit."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import ToolFailed
from holdfast.testing.lab import Lab, Scripted, hang

CREATE = ("CREATE TABLE IF NOT EXISTS seat (name TEXT PRIMARY KEY, who TEXT)", ())


def rows(lab: Lab, sql: str) -> list[tuple[Any, ...]]:
    db: Any = apsw.Connection(str(lab.journal))
    try:
        return list(db.execute(sql))
    finally:
        db.close()


@holdfast.tool(effect=holdfast.Transactional())
async def take(call: holdfast.Call, name: str, who: str) -> holdfast.Apply:
    insert = ("INSERT INTO seat VALUES (?, ?)", (name, who))
    return holdfast.Apply([CREATE, insert], result={"seat": name})


@holdfast.task
async def book(run: holdfast.Run, name: str, who: str) -> Any:
    try:
        return await run.call(take, name=name, who=who)
    except ToolFailed as error:
        return [error.kind, error.text]


async def test_statements_are_applied_once_with_the_record(lab: Lab) -> None:
    async with lab.open(book) as hf:
        handle = await hf.submit(book, name="12A", who="ada")
        assert await handle.result(10) == {"seat": "12A"}
    async with lab.open(book) as hf:
        assert await hf.task(handle.id).result(10) == {"seat": "12A"}
    assert rows(lab, "SELECT name, who FROM seat") == [("12A", "ada")]


async def test_a_refused_statement_fails_the_step_and_undoes_the_rest(lab: Lab) -> None:
    async with lab.open(book) as hf:
        await (await hf.submit(book, name="12A", who="ada")).result(10)
        handle = await hf.submit(book, name="12A", who="bob")
        kind, text = await handle.result(10)
        assert kind == "StatementFailed"
        assert "UNIQUE" in text
        assert (await handle.view()).steps["1"].state is StepState.FAILED
    assert rows(lab, "SELECT who FROM seat") == [("ada",)]


@pytest.mark.parametrize(
    "statement",
    [
        ("UPDATE task SET state = 'succeeded'", ()),
        ("DELETE FROM record", ()),
        ("DROP TABLE inbox", ()),
        ("DROP TRIGGER remark_never_changes", ()),
        ("DELETE FROM remark", ()),
        ("PRAGMA user_version = 9", ()),
        ("ATTACH ':memory:' AS other", ()),
        ("COMMIT", ()),
        ("CREATE TRIGGER t AFTER INSERT ON record BEGIN DELETE FROM seat; END", ()),
        ("INSERT INTO seat VALUES (?, ?)", (2**70, "x")),
        ("INSERT INTO seat VALUES (?, ?)", ("\ud800", "x")),
    ],
    ids=lambda statement: statement[0][:24],
)
async def test_the_journals_own_tables_and_the_commit_are_out_of_reach(
    lab: Lab, statement: tuple[str, tuple[Any, ...]]
) -> None:
    @holdfast.tool(effect=holdfast.Transactional())
    async def meddle() -> holdfast.Apply:
        seat = ("INSERT INTO seat VALUES ('9C', 'x')", ())
        return holdfast.Apply([CREATE, seat, statement])

    @holdfast.task
    async def spoil(run: holdfast.Run) -> Any:
        try:
            await run.call(meddle)
        except ToolFailed as error:
            return error.kind

    async with lab.open(book, spoil) as hf:
        await (await hf.submit(book, name="12A", who="ada")).result(10)
        handle = await hf.submit(spoil)
        assert await handle.result(10) == "StatementFailed"
        assert await (await hf.submit(book, name="12B", who="ada")).result(10) == {"seat": "12B"}
        assert [finding async for finding in hf.journal.check()] == []
    assert rows(lab, "SELECT name FROM seat ORDER BY name") == [("12A",), ("12B",)]


@pytest.mark.parametrize(
    "value",
    [
        "no statements",
        holdfast.Apply([CREATE], result=b"raw"),
        holdfast.Apply([("SELECT 1",)]),  # pyright: ignore[reportArgumentType]
        holdfast.Apply([(1, ())]),  # pyright: ignore[reportArgumentType]
        holdfast.Apply(None),  # pyright: ignore[reportArgumentType]
    ],
    ids=["text", "unkeepable result", "no values", "no SQL", "nothing"],
)
async def test_what_is_no_statement_fails_the_step_and_changes_nothing(lab: Lab, value: Any) -> None:
    tool = Scripted(holdfast.Transactional(), value)

    @holdfast.task
    async def odd(run: holdfast.Run) -> Any:
        try:
            await run.call(tool.tool)
        except ToolFailed as error:
            return error.kind

    async with lab.open(odd) as hf:
        assert await (await hf.submit(odd)).result(10) in ("Misuse", "BadValue")
    assert rows(lab, "SELECT name FROM sqlite_schema WHERE name = 'seat'") == []


async def test_a_tool_cut_off_by_a_stop_is_run_again_and_applied_once(lab: Lab) -> None:
    insert = ("INSERT INTO seat VALUES ('1A', 'ada')", ())
    tool = Scripted(holdfast.Transactional(), hang, holdfast.Apply([CREATE, insert], "seated"))

    @holdfast.task
    async def sit(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(sit, grace_s=0) as hf:
        handle = await hf.submit(sit)
        await tool.entered.wait()
    async with lab.open(sit) as hf:
        assert await hf.task(handle.id).result(10) == "seated"
    assert rows(lab, "SELECT name FROM seat") == [("1A",)]
