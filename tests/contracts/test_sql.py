"""SQL over a user's own database: rows, messages and the effect's own row commit together."""

from __future__ import annotations

import asyncio
import json
import sqlite3  # noqa: TID251 - a user's own database, by the standard library
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.contracts import Sql
from holdfast.contracts.sql import Transaction, Words
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.testing.far_ends import drivers
from holdfast.testing.lab import Lab, Program, wait_state

DONE = (TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, free INTEGER CHECK (free >= 0))")
        db.execute("INSERT INTO stock VALUES ('chair', 10)")
    Sql(lambda: drivers.standard(path)).create_tables()
    return path


def rows(path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(path) as db:
        return db.execute(sql).fetchall()


def taken(path: Path) -> tuple[int, int, int]:
    """Chairs taken, effects, messages."""
    return (
        10 - rows(path, "SELECT free FROM stock")[0][0],
        rows(path, "SELECT count(*) FROM holdfast_effects")[0][0],
        rows(path, "SELECT count(*) FROM holdfast_outbox")[0][0],
    )


def taking(sql: Sql, mark: str = "?") -> holdfast.Tool[..., Any]:
    @sql.tool
    def take(tx: Transaction, sku: str, count: int = 1) -> dict[str, Any]:
        """Take some of an article.

        Args:
            sku: the article
        """
        tx.execute(f"UPDATE stock SET free = free - {mark} WHERE sku = {mark}", (count, sku))
        left = tx.execute("SELECT free FROM stock").fetchone()[0]
        if left == 7:
            raise holdfast.Refused("seven is unlucky")
        tx.emit("taken", {"sku": sku, "count": count})
        return {"left": left}

    return take


async def play(lab: Lab, tool: holdfast.Tool[..., Any], **args: Any) -> tuple[TaskState, Any]:
    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool, **args)
        except holdfast.Refused as error:
            return ["refused", error.proof]

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        row = await wait_state(handle, *DONE)
        view = await handle.view()
        return row.state, view.outcome["result"] if view.outcome else view.steps["1"].question


CONNECTS: dict[str, tuple[Callable[[Path], Any], Any, str]] = {
    "standard": (drivers.standard, "qmark", "?"),
    "standard, numeric": (drivers.standard, "numeric", "?"),
    "standard, named": (drivers.standard, "named", "?"),
    "no own transactions": (drivers.plain, "qmark", "?"),
    "apsw": (drivers.other, "qmark", "?"),
    "psycopg's habits": (drivers.Postgres, "pyformat", "%s"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("driver", CONNECTS)
async def test_every_driver(lab: Lab, shop: Path, driver: str) -> None:
    connect, style, mark = CONNECTS[driver]
    sql = Sql(lambda: connect(shop), paramstyle=style)
    sql.create_tables()
    tool = taking(sql, mark)
    assert await play(lab, tool, sku="chair", count=2) == (TaskState.SUCCEEDED, {"left": 8})
    assert taken(shop) == (2, 1, 1)
    (message,) = sql.pending()
    assert (message.topic, message.body) == ("taken", {"sku": "chair", "count": 2})
    sql.mark_sent([message])
    assert sql.pending() == []
    # a refusal of the code's own, and one of the database: both undo everything
    assert await play(lab, tool, sku="chair", count=1) == (TaskState.SUCCEEDED, ["refused", "seven is unlucky"])
    state, told = await play(lab, tool, sku="chair", count=100)
    assert (state, told[0]) == (TaskState.SUCCEEDED, "refused")
    assert "CHECK" in str(told[1])
    assert taken(shop) == (2, 1, 1)


async def test_a_commit_in_doubt_is_settled_by_the_row(lab: Lab, shop: Path) -> None:
    drivers.DiesAfterCommit.deaths = 1
    sql = Sql(lambda: sqlite3.connect(shop, factory=drivers.DiesAfterCommit))
    assert await play(lab, taking(sql), sku="chair") == (TaskState.SUCCEEDED, {"left": 9})
    assert taken(shop) == (1, 1, 1)
    assert drivers.DiesAfterCommit.deaths == 0


async def test_attempts_that_all_die_in_their_commit_are_looked_up(lab: Lab, shop: Path) -> None:
    class NeverSays(sqlite3.Connection):
        def commit(self) -> None:
            super().commit()
            raise sqlite3.OperationalError("gone")

    made = [0]

    def connect() -> sqlite3.Connection:
        made[0] += 1
        if made[0] in range(2, 6):
            raise OSError("no route to host")
        return sqlite3.connect(shop, factory=NeverSays)

    state, result = await play(lab, taking(Sql(connect)), sku="chair")
    assert (state, result) == (TaskState.SUCCEEDED, {"left": 9})
    assert taken(shop) == (1, 1, 1)


async def test_a_locked_database_is_come_back_to(lab: Lab, shop: Path) -> None:
    blocker = sqlite3.connect(shop, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    tries = [0]

    def connect() -> sqlite3.Connection:
        tries[0] += 1
        if tries[0] == 3:
            blocker.rollback()
        return sqlite3.connect(shop, timeout=0)

    state, result = await play(lab, taking(Sql(connect)), sku="chair")
    blocker.close()
    assert (state, result) == (TaskState.SUCCEEDED, {"left": 9})
    assert (taken(shop), tries[0]) == ((1, 1, 1), 3)


async def test_two_attempts_at_one_moment_are_one_effect(lab: Lab, shop: Path) -> None:
    """A worker that was taken for dead, and the one that took over: the row lets one pass."""
    tool = taking(Sql(lambda: drivers.standard(shop)))

    class _Call:
        task_id, ordinal = "T", "1"
        effect_key = "00000000-0000-8000-8000-000000000001"

    call: Any = _Call()
    work: Any = tool.function
    results = await asyncio.gather(*(asyncio.to_thread(lambda: work(call, sku="chair", count=2)) for _ in range(12)))
    assert results == [{"left": 8}] * 12
    assert taken(shop) == (2, 1, 1)
    with pytest.raises(holdfast.KeyReused):
        work(call, sku="chair", count=3)
    assert isinstance(await tool.finder(call, sku="chair", count=3), holdfast.Unsure)  # type: ignore[misc]
    assert await tool.finder(call, sku="chair", count=2) == holdfast.Found({"left": 8})  # type: ignore[misc]


@pytest.mark.parametrize("stop", ["before", "after"])
async def test_a_killed_worker_takes_one_chair(
    lab: Lab, shop: Path, stop: str, start_worker: Callable[..., Any]
) -> None:
    """SIGKILL right before the commit, or between the commit and our record of it."""
    first: Program
    async with start_worker("sql", path=str(shop), stop=stop, args={"sku": "chair"}) as first:
        await first.hear("inside")
        await first.kill()
    assert taken(shop) == ((0, 0, 0) if stop == "before" else (1, 1, 1))
    async with start_worker("sql", path=str(shop), stop="", args={"sku": "chair"}) as second:
        result = json.loads(await second.hear("result"))
    assert result[1] == {"left": 9}
    assert taken(shop) == (1, 1, 1)


async def test_a_password_is_put_in_when_it_is_sent(lab: Lab, shop: Path, keep: Callable[[str, str], None]) -> None:
    keep("shop-db", f"file:{shop}?password=battery-staple")
    seen: list[str] = []

    def connect(dsn: str) -> sqlite3.Connection:
        seen.append(dsn)
        return drivers.standard(dsn.removeprefix("file:").partition("?")[0])

    state, _ = await play(lab, taking(Sql(connect, dsn="secret://shop-db")), sku="chair")
    assert (state, seen) == (TaskState.SUCCEEDED, [f"file:{shop}?password=battery-staple"])
    assert b"battery-staple" not in lab.journal.read_bytes()


def test_a_model_sees_the_arguments_alone() -> None:
    schema: Any = taking(Sql(print, dsn="secret://db")).schema
    assert schema["description"] == "Take some of an article."
    assert set(schema["parameters"]["properties"]) == {"sku", "count"}
    assert schema["parameters"]["required"] == ["sku"]


async def test_a_connection_in_autocommit_is_refused(lab: Lab, shop: Path) -> None:
    class Auto(drivers.Postgres):
        autocommit = True

    state, told = await play(lab, taking(Sql(lambda: Auto(shop), paramstyle="format")), sku="chair")
    assert (state, told[0]) == (TaskState.SUCCEEDED, "refused")
    assert "autocommit" in told[1]["text"]
    assert taken(shop) == (0, 0, 0)


def test_what_is_wrong_is_said_at_once() -> None:
    sql = Sql(print)

    async def late(tx: Transaction) -> None: ...

    def without() -> None: ...

    for bad in (late, without, lambda sku: sku):  # pyright: ignore[reportUnknownLambdaType,reportUnknownVariableType]
        with pytest.raises(Misuse):
            sql.tool(bad)  # pyright: ignore[reportUnknownArgumentType]
    for words in ({"effects": "a; DROP"}, {"outbox": ""}, {"paramstyle": "dollar"}):
        with pytest.raises(Misuse):
            Sql(print, **words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("qmark", ("UPDATE e SET result = ? WHERE effect_key = ?", ("r", "k"))),
        ("format", ("UPDATE e SET result = %s WHERE effect_key = %s", ("r", "k"))),
        ("numeric", ("UPDATE e SET result = :1 WHERE effect_key = :2", ("r", "k"))),
        ("named", ("UPDATE e SET result = :p1 WHERE effect_key = :p2", {"p1": "r", "p2": "k"})),
    ],
)
def test_every_style_of_parameters(style: str, expected: Any) -> None:
    assert Words(style, effects="e", outbox="o").set_result(("r", "k")) == expected
