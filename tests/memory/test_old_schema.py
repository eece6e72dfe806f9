"""A journal that an older Holdfast made opens, is raised to today's schema, and goes on."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from holdfast.core.clock import SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.errors import JournalDamaged, JournalNewer, KeysWrong, RowsPutBack
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal, Remark, RemarkTo, Submission
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.opening import check
from holdfast.journal.sqlite.opening import open as opening
from holdfast.journal.sqlite.schema import SCHEMA, schema_step
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory.projection import project_now
from holdfast.testing.clocks import ManualClock
from holdfast.testing.journal_contract.world import planned, succeeded


class FixedKeys:
    k_effect = b"e" * 32
    current_journal_key = 1

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


TASK = Submission(task_id=cast(Any, "0" * 26), name="trip", args={}, args_fingerprint=b"f")
CLOCK = ManualClock()


async def opened(folder: Path) -> SqliteJournal:
    path, instance, entropy = folder / "journal.db", folder / "instance", SystemEntropy()
    return await opening.open_journal(
        path, instance, FixedKeys(), CLOCK, entropy, create=True, network_fs=False, sync="FULL"
    )


async def findings(journal: Journal) -> list[str]:
    return [finding async for finding in journal.check()]


def raw(folder: Path) -> Any:  # Any: apsw's own types can only be read from Python 3.12 on
    return apsw.Connection(str(folder / "journal.db"))


@pytest.fixture(params=range(1, SCHEMA))
async def old(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a journal of an older schema that has worked: a task with a finished step."""
    tmp_path.chmod(0o700)
    journal = await opened(tmp_path)
    session = await journal.open_session(worker="old", ttl_ms=10_000)
    await journal.submit(TASK)
    (claimed,) = await journal.claim(session, names=None, limit=1)
    await journal.append(claimed.hold, [planned("1"), succeeded("1", "paid")])
    await journal.end_session(session)
    await journal.close()
    lower(tmp_path, cast(int, request.param))
    return tmp_path


def lower(folder: Path, schema: int) -> None:
    """The same rows in a file as a Holdfast of that schema made it."""
    path, older = folder / "journal.db", folder / "older.db"
    older.touch(mode=0o600)
    db: Any = apsw.Connection(str(older))
    for number in range(1, schema + 1):
        db.execute(schema_step(number)).fetchall()
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    db.execute("ATTACH ? AS now", (str(path),))
    for table in tables:
        if not table.startswith("sqlite_"):
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM now.{table}")
    db.pragma("application_id", opening.APPLICATION_ID)
    db.pragma("user_version", schema)
    db.close()
    for name in ("journal.db-wal", "journal.db-shm"):
        (folder / name).unlink(missing_ok=True)
    older.replace(path)


def version(folder: Path) -> int:
    db = raw(folder)
    try:
        return int(db.pragma("user_version"))
    finally:
        db.close()


async def test_an_old_journal_opens_and_goes_on(old: Path) -> None:
    assert version(old) < SCHEMA
    journal = await opened(old)
    try:
        view = await journal.read_task(TASK.task_id)
        assert view.steps["1"].result == "paid"
        added = Remark(remark_id="a", to=RemarkTo.DAY, text="new", origin="user")
        assert await journal.add_remarks([added]) == [1]
        session = await journal.open_session(worker="new", ttl_ms=10_000)
        assert len(await journal.claim(session, names=None, limit=1)) == 1
        assert await findings(journal) == []
    finally:
        await journal.close()
    assert version(old) == SCHEMA
    again = await opened(old)
    assert [kept.remark.text for kept in await again.remarks_after(0, limit=9)] == ["new"]
    await again.close()


async def test_two_processes_may_open_it_at_once(old: Path) -> None:
    both = await asyncio.gather(opened(old), opened(old))
    for journal in both:
        assert await journal.remarks_after(0, limit=9) == []
        await journal.close()
    assert version(old) == SCHEMA


async def test_whoever_comes_second_finds_it_raised_already(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await opened(old)).close()
    real, stale = opening._version, [1]
    monkeypatch.setattr(opening, "_version", lambda db: stale.pop() if stale else real(db))  # pyright: ignore
    journal = await opened(old)
    assert await journal.remarks_after(0, limit=9) == []
    await journal.close()


async def test_the_full_check_of_an_old_journal_asks_for_no_remarks(old: Path) -> None:
    assert check.find_damage(old / "journal.db", opening.KeyWraps(FixedKeys())) == []


async def test_an_old_journal_can_be_restored_from(old: Path) -> None:
    before = version(old)
    await journal_at(file_at(old / "journal.db")).restore(keys=FixedKeys(), clock=CLOCK, dry_run=True)
    assert version(old) == before
    await journal_at(file_at(old / "journal.db")).restore(keys=FixedKeys(), clock=CLOCK)
    journal = await opened(old)
    assert journal.incarnation == 2
    assert await journal.remarks_after(0, limit=9) == []
    await journal.close()


async def test_a_newer_one_is_refused(old: Path) -> None:
    db = raw(old)
    db.pragma("user_version", SCHEMA + 1)
    db.close()
    with pytest.raises(JournalNewer):
        await opened(old)


async def test_its_total_begins_with_what_is_there(old: Path) -> None:
    """From then on a task that is put back is found; with other keys nothing is begun."""

    class OtherKeys(FixedKeys):
        k_effect = b"o" * 32

    admin, entropy = journal_at(file_at(old / "journal.db")), SystemEntropy()
    with pytest.raises(KeysWrong):
        await admin.open(keys=OtherKeys(), clock=CLOCK, entropy=entropy)
    assert version(old) < SCHEMA
    await (await opened(old)).close()
    db = raw(old)
    db.execute("DELETE FROM task")
    db.close()
    with pytest.raises(RowsPutBack):
        await opened(old)


def other_byte(column: str) -> str:
    """A first byte that is not the one there: one of 256 sealed bodies begins with 00."""
    return f"iif(hex(substr({column}, 1, 1)) = '00', x'01', x'00')"


async def test_damage_of_remarks_is_found(old: Path) -> None:
    journal = await opened(old)
    one, two = (Remark(remark_id=name, to=RemarkTo.DAY, text=name, origin="user") for name in "ab")
    await journal.add_remarks([one, two])
    await journal.close()

    async def damaged(sql: str) -> list[str]:
        db = raw(old)
        db.execute("BEGIN")
        triggers = db.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'remark'"
        ).fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(sql)
        for _, made in triggers:
            db.execute(made)
        db.execute("COMMIT")
        db.close()
        return check.find_damage(old / "journal.db", opening.KeyWraps(FixedKeys()))

    kept = (old / "journal.db").read_bytes()
    for sql, word in (
        (f"UPDATE remark SET body = CAST({other_byte('body')} || substr(body, 2) AS BLOB) WHERE n = 1", "was changed"),
        ("UPDATE remark SET at_ms = at_ms + 1 WHERE n = 2", "was changed"),
        ("DELETE FROM remark WHERE n = 2", "newest is missing"),
        ("DELETE FROM remark WHERE n = 1", "an earlier remark is missing"),
        ("UPDATE meta SET value = x'00' WHERE key = 'remark_head'", "newest is missing"),
        ("INSERT INTO remark_mark VALUES ('f', '', 9, 0)", "more are marked"),
    ):
        found = await damaged(sql)
        assert any(word in one for one in found), (sql, found)
        for name in ("journal.db-wal", "journal.db-shm"):
            (old / name).unlink(missing_ok=True)
        (old / "journal.db").write_bytes(kept)
    db = raw(old)
    with pytest.raises(apsw.ConstraintError, match="until it is in its files"):
        db.execute("DELETE FROM remark WHERE n = 1")
    db.close()


async def test_a_remark_that_was_changed_is_not_read(old: Path) -> None:
    journal = await opened(old)
    await journal.add_remarks([Remark(remark_id="a", to=RemarkTo.DAY, text="x", origin="user")])
    await journal.close()
    db = raw(old)
    (trigger,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'remark_never_changes'").fetchone()
    db.execute("DROP TRIGGER remark_never_changes; UPDATE remark SET body = x'0000'")
    db.execute(trigger)
    db.close()
    journal = await opened(old)
    with pytest.raises(JournalDamaged):
        await journal.remarks_after(0, limit=9)
    await journal.close()


async def test_the_one_mark_of_older_days_goes_over_to_the_folder(tmp_path: Path) -> None:
    """What was written then is not written again, and the first folder that goes on takes the mark's place."""
    tmp_path.chmod(0o700)
    journal = await opened(tmp_path)
    await journal.add_remarks([Remark(remark_id=one, to=RemarkTo.MEMORY, text=one, origin="user") for one in "abc"])
    await journal.close()
    lower(tmp_path, 3)
    db = raw(tmp_path)
    db.execute("INSERT INTO meta VALUES ('remarks_written', 2); DELETE FROM remark WHERE n = 1")
    db.close()
    assert check.find_damage(tmp_path / "journal.db", opening.KeyWraps(FixedKeys())) == []

    journal = await opened(tmp_path)
    assert [(one.folder, one.number) for one in await journal.remark_marks()] == [("", 2)]
    assert await findings(journal) == []
    await project_now(journal, MemoryPlace(folder=tmp_path))
    (mark,) = await journal.remark_marks()
    assert (mark.folder != "", mark.name.endswith(f":{tmp_path}"), mark.number) == (True, True, 3)
    written = (tmp_path / "MEMORY.md").read_text()
    assert "c" in written.splitlines()[-1]
    assert "- b" not in written
    await journal.close()


async def test_a_folder_on_another_machine_takes_the_mark_of_its_journal_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    journal, place = await opened(tmp_path), MemoryPlace(folder=tmp_path)
    await journal.add_remarks([Remark(remark_id="a", to=RemarkTo.MEMORY, text="before", origin="user")])
    await project_now(journal, place)
    (before,) = await journal.remark_marks()
    monkeypatch.setattr("holdfast.host.machine.machine_id", lambda: "another")
    shutil.rmtree(place.private)
    place.memory_file.write_text("# Memory\n")  # a person has removed the line: it does not come back
    await journal.add_remarks([Remark(remark_id="b", to=RemarkTo.MEMORY, text="after", origin="user")])
    await project_now(journal, place)
    (mark,) = await journal.remark_marks()
    assert (mark.folder != before.folder, mark.number) == (True, 2)
    assert "before" not in place.memory_file.read_text()
    await journal.close()
