"""A task whose rows were put back, or that was deleted, with SQL and no key: found before anything is sent again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.app.doctor import Level, examine
from holdfast.core.journal_address import file_at
from holdfast.errors import JournalDamaged, RowsPutBack, TaskParked
from holdfast.host.sqlite import Db, open_db
from holdfast.journal.bind import journal_at
from holdfast.recovery.recover_journal import recover_journal
from holdfast_proofs.support.warm_start import run_command

Rows = list[tuple[Any, ...]]
sent: list[str] = []


@holdfast.tool
async def letter(call: holdfast.Call, to: str) -> str:
    sent.append(to)
    return "sent"


@holdfast.task
async def write(run: holdfast.Run, to: str) -> str:
    return await run.call(letter, to=to)


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


async def submit(path: Path, to: str) -> str:
    async with holdfast.open(path, serve=False) as hf:
        return (await hf.submit(write, request_id=to, to=to)).id


async def run(path: Path, to: str) -> None:
    async with holdfast.open(path, tasks=[write]) as hf:
        assert await (await hf.submit(write, request_id=to, to=to)).result(20) == "sent"


def raw(path: Path) -> Db:
    return open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE, busy_ms=5_000)


def ask(path: Path, sql: str) -> Rows:
    db = raw(path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def change(path: Path, *statements: str) -> None:
    """As a careful hand would: every trigger is as before when it is done."""
    db = raw(path)
    db.execute("BEGIN IMMEDIATE")
    triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for sql in statements:
        db.execute(sql).fetchall()
    for _, sql in triggers:
        db.execute(sql)
    db.execute("COMMIT")
    db.close()


OLD_ROW = (
    "CREATE TABLE mine_task AS SELECT * FROM task; CREATE TABLE mine_total AS SELECT max(n) AS n, total FROM record"
)
ROW_BACK = "DELETE FROM task WHERE t = 1; INSERT INTO task SELECT * FROM mine_task WHERE t = 1"
RECORDS_GONE = "DELETE FROM record WHERE t = 1 AND n > (SELECT last FROM mine_task WHERE t = 1)"
ALL_RECORDS_GONE = "DELETE FROM record WHERE t = 1"
ROW_GONE = "DELETE FROM task WHERE t = 1"
TOTAL_BACK = "UPDATE record SET total = (SELECT total FROM mine_total) WHERE n = (SELECT max(n) FROM record)"
NO_TOTAL = "UPDATE record SET total = x'' WHERE n = (SELECT max(n) FROM record)"
ERASED = "UPDATE task SET erased_ms = 1, data_key = x'' WHERE t = 1"

WAYS = {
    "rolled back": (RECORDS_GONE, ROW_BACK),
    "only its row": (ROW_BACK,),
    "with the total of its day": (RECORDS_GONE, ROW_BACK, TOTAL_BACK),
    "without a total": (RECORDS_GONE, ROW_BACK, NO_TOTAL),
    "deleted": (ALL_RECORDS_GONE, ROW_GONE),
    "called erased": (ALL_RECORDS_GONE, ERASED),
}


async def lived(path: Path) -> str:
    """A journal in which two letters were sent; what it said before the first is kept in two tables of its own."""
    task_id = await submit(path, "ada")
    ask(path, OLD_ROW)
    await run(path, "ada")
    await run(path, "bob")
    return task_id


@pytest.mark.parametrize("way", WAYS)
async def test_it_is_found_when_the_journal_is_opened(tmp_path: Path, way: str) -> None:
    path = tmp_path / "journal.db"
    await lived(path)
    change(path, *WAYS[way])
    with pytest.raises(RowsPutBack) as refused:
        async with holdfast.open(path, tasks=[write]):
            pass
    assert "holdfast recover --journal" in refused.value.hint
    found = [one async for one in examine(file_at(path), settings=holdfast.Settings(), deep=True)]
    assert [one.check for one in found if one.level is Level.DAMAGE] == ["rows-put-back"]
    assert sent == ["ada", "bob"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_worker_that_runs_finds_it_before_it_claims(tmp_path: Path, way: str) -> None:
    """And the full check finds it beside that worker."""
    path = tmp_path / "journal.db"
    await lived(path)
    async with holdfast.open(path, serve=False) as hf:
        change(path, *WAYS[way])
        assert any("running total" in line for line in [line async for line in hf.journal.check()])
        with pytest.raises(RowsPutBack):
            async with holdfast.open(path, tasks=[write]) as worker:  # not the first one: left to its sweep
                await (await worker.submit(write, request_id="eve", to="eve")).result(20)
    assert sent == ["ada", "bob"]


async def test_one_that_is_put_back_under_a_worker_is_not_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await lived(path)
    async with holdfast.open(path, tasks=[write]) as hf:
        await (await hf.submit(write, request_id="carl", to="carl")).result(20)
        change(path, *WAYS["rolled back"])
        waiting = await hf.submit(write, request_id="dora", to="dora")
        with pytest.raises(RowsPutBack):
            await hf.task(waiting.id).result(60)
    assert sent.count("ada") == 1


async def test_a_restore_goes_on_with_it_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    ada = await lived(path)
    eve = await submit(path, "eve")
    change(path, *WAYS["rolled back"], "DELETE FROM record WHERE t = 2", "DELETE FROM task WHERE t = 2")
    dry = await recover_journal(file_at(path), dry_run=True)
    with pytest.raises(RowsPutBack):
        await submit(path, "fay")
    done = await recover_journal(file_at(path))
    assert done == dry
    assert (done.put_back, done.open_tasks, done.lost_after_ms) == (True, 2, 1)
    async with holdfast.open(path, tasks=[write]) as hf:
        bob = await hf.submit(write, request_id="bob", to="bob")
        for task_id in (ada, bob.id, eve):
            with pytest.raises(TaskParked):
                await hf.task(task_id).result(20)
        assert [line async for line in hf.journal.check()] == []
    assert sent == ["ada", "bob"]


async def test_retention_keeps_the_total_right_and_a_tombstone_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await lived(path)
    async with holdfast.open(path, serve=False) as hf:
        assert await hf.journal.retain(keep_ms=-1, tombstone_ms=10**9) == 1  # the newest record's task stays
        assert [line async for line in hf.journal.check()] == []
    kept = path.read_bytes()
    change(path, ROW_GONE)
    with pytest.raises(RowsPutBack):
        await submit(path, "ada")
    path.write_bytes(kept)
    async with holdfast.open(path, serve=False) as hf:
        await hf.journal.retain(keep_ms=-1, tombstone_ms=-1)
    assert ask(path, "SELECT count(*) FROM task") == [(1,)]
    await run(path, "carl")


async def test_processes_that_write_by_turns_keep_one_total(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with holdfast.open(path, tasks=[write]) as one, holdfast.open(path, tasks=[write]) as two:
        for number in range(6):
            handles = [await hf.submit(write, to=f"{number}") for hf in (one, two)]
            for handle in handles:
                await handle.result(20)
            await (one, two)[number % 2].journal.retain(keep_ms=-1, tombstone_ms=-1 if number % 3 else 10**9)
        assert [line async for line in one.journal.check()] == []
        await one.journal.check_total()
        await two.journal.check_total()
    assert len(sent) == 12
    await run(path, "ada")


async def test_a_damaged_row_is_not_one_that_was_put_back(tmp_path: Path) -> None:
    """Its task is parked by its chain, as before; the others go on."""
    path = tmp_path / "journal.db"
    task_id = await submit(path, "ada")
    change(
        path,
        "UPDATE task SET head = CAST(iif(hex(substr(head, 1, 1)) = '00', x'01', x'00') || substr(head, 2) AS BLOB)",
    )
    await run(path, "bob")
    async with holdfast.open(path, serve=False) as hf:
        row = await hf.journal.find_task(hf.task(task_id).id)
        assert row is not None
        assert row.state == "parked"
        with pytest.raises(JournalDamaged):
            await hf.task(task_id).view()


async def test_a_copy_has_the_total_of_its_moment(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await lived(path)
    async with holdfast.open(path, tasks=[write]) as hf:
        for number in range(5):
            await (await hf.submit(write, to=f"{number}")).result(20)
            (tmp_path / "copy.db").touch(mode=0o600)
            journal_at(file_at(path)).copy(tmp_path / "copy.db")
            (tmp_path / "copy.db").unlink()


async def test_the_check_finds_a_changed_definition(tmp_path: Path) -> None:
    """One letter of a table's definition: no command opens the journal, and `journal check` says so too."""
    path = tmp_path / "journal.db"
    await run(path, "ada")
    with closing(raw(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'session'")
    with pytest.raises(JournalDamaged, match="session was changed"):
        await submit(path, "bob")
    done = run_command(["journal", "check", "--journal", str(path)])
    assert (done.returncode, "session was changed" in done.stdout + done.stderr) == (6, True), done
