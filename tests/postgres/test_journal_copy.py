"""`holdfast journal`: the same journal in a file and in PostgreSQL, there and back; and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.binder import KEYS, open_journal
from holdfast.app.loading import load_app
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.errors import JournalBusy, JournalDamaged, JournalGone, JournalOlderCopy, NotNow
from holdfast.host.sqlite import open_existing
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, InboxItem, InboxKind, Remark, RemarkTo
from holdfast.layout.journal_location import journal_in
from holdfast.recovery.copy_journal import copy_journal
from holdfast_proofs.support.postgres import Server

SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"

STORED = {
    "task": "SELECT t, task_id, fingerprint, seq, head, key_id, data_key FROM task ORDER BY t",
    "record": "SELECT t, seq, n, effect_key, fingerprint, body, hash FROM record ORDER BY t, seq",
    "blob": "SELECT digest, size, body FROM blob ORDER BY digest",
    "remark": "SELECT n, body, prev_hash, hash FROM remark ORDER BY n",
    "inbox": "SELECT n, t, body FROM inbox ORDER BY n",
}

Command = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    shutil.copy(SAMPLE, folder / "app.py")
    return folder


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    return f"{server.url()}&schema={tmp_path.name.replace('-', '_').lower()[-30:].lstrip('0123456789_')}"


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command over this folder: what it printed with --json, or its error."""

    def run(*words: str, code: int = 0) -> Any:  # Any: JSON
        capsys.readouterr()
        found = main([*words, "--home", str(home), "--json"])
        out, err = capsys.readouterr()
        assert found == code, err
        return json.loads(out) if out else json.loads(err)["error"]

    return run


def tasks(home: Path) -> list[Any]:
    return list(load_app(f"{home / 'app.py'}:tasks").tasks.values())


async def task_state(hf: holdfast.Holdfast, task_id: TaskId) -> str:
    row = await hf.journal.find_task(task_id)
    return "" if row is None else row.state


async def live(address: JournalAddress, home: Path) -> None:
    """Some of everything: ended, failed, parked and waiting tasks, an inbox item, lines of memory, a blob, a notice."""
    async with holdfast.open(address, tasks=tasks(home)) as hf:
        done = await hf.submit("hello", who="me", request_id="order-1")
        await done.result(20)
        for name in ("parks", "launches", "fails"):
            task = await hf.submit(name, request_id=name)
            async with asyncio.timeout(60):
                while (await task_state(hf, task.id)) not in ("parked", "waiting", "failed"):
                    await hf.journal.wait_change(timeout_s=0.1)
        await hf.journal.put_blob(b"some bytes" * 500)
        lines = [Remark(remark_id=f"r{n}", to=RemarkTo.DAY, text=f"line {n}", origin="user") for n in (1, 2)]
        await hf.journal.add_remarks(lines)
    async with holdfast.open(address, tasks=tasks(home), serve=False) as hf:
        await hf.submit("echo", value="x" * 3_000, request_id="waits")
        parked = (await hf.journal.list_tasks(Filter(prefix="", limit=100)))[0].task_id
        await hf.journal.drop(InboxItem(task_id=parked, kind=InboxKind.EVIDENCE, ordinal="1", body={"seen": True}))


async def contents(address: JournalAddress, home: Path) -> dict[str, Any]:
    """Everything that the contract shows, as values that can be compared."""
    async with holdfast.open(address, tasks=tasks(home), serve=False) as hf:
        journal, found = hf.journal, dict[str, Any]()
        for row in await journal.list_tasks(Filter(prefix="", limit=100)):
            view = await journal.read_task(row.task_id)
            newest = await journal.read_newest(row.task_id)
            items = await journal.inbox_of(row.task_id)
            steps = {at: (one.state, one.effect_key, one.attempts, one.result) for at, one in view.steps.items()}
            found[row.task_id] = (row.name, row.state, row.records, row.due_ms, view.seq, steps, newest, items)
        found["sums"] = await journal.count_tasks()
        found["remarks"] = await journal.remarks_after(0, limit=100)
        return found


async def submitted_again(address: JournalAddress, home: Path) -> str:
    async with holdfast.open(address, tasks=tasks(home), serve=False) as hf:
        return (await hf.submit("hello", who="me", request_id="order-1")).id


def rows_in_file(home: Path, name: str = "journal.db") -> dict[str, list[tuple[Any, ...]]]:
    """What the chains and digests are made of, as it is stored."""
    with closing(open_existing(home / name)) as db:
        return {table: list(db.execute(query)) for table, query in STORED.items()}


def rows_in_database(server: Server, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    return {table: server.execute(query.replace("FROM ", f"FROM {schema}.")) for table, query in STORED.items()}


def at(home: Path, url: str) -> JournalAddress:
    return JournalAddress(folder=home, url=url)


async def test_a_journal_moves_into_the_database_and_back_unchanged(home: Path, url: str, server: Server) -> None:
    """Every task, record, inbox item, chain and digest is equal, as it is read and as it is stored; the same request is
    the same task, and it goes on there."""
    file = file_at(home / "journal.db")
    async with holdfast.open(home / "first.db", serve=False):
        pass  # so the journal has a salt
    await live(file, home)
    before, same = await contents(file, home), await submitted_again(file, home)

    stored, schema = rows_in_file(home), url.rpartition("=")[2]
    assert all(stored.values())
    there = await copy_journal(file, at(home, url))
    assert rows_in_database(server, schema) == stored
    assert (there.incarnation, there.tables_left) == (2, ())
    assert not (home / "journal.db").exists()
    assert journal_in(home) == at(home, url)
    assert await contents(at(home, url), home) == before
    assert await submitted_again(at(home, url), home) == same
    await live_on(at(home, url), home)

    between, stored = await contents(at(home, url), home), rows_in_database(server, schema)
    back = await copy_journal(at(home, url), file)
    assert rows_in_file(home) == stored
    assert back.incarnation == 3
    assert not journal_at(at(home, url)).exists()
    assert journal_in(home) == file
    assert await contents(file, home) == between
    assert await submitted_again(file, home) == same
    keys = load_or_create(home / KEYS, journal_exists=True, entropy=SystemEntropy())
    assert journal_at(file).find_damage(keys) == []
    await live_on(file, home)


async def live_on(address: JournalAddress, home: Path) -> None:
    """New tasks and the waiting one are done."""
    async with holdfast.open(address, tasks=tasks(home)) as hf:
        await (await hf.submit("hello", who="you")).result(20)
        await (await hf.submit("echo", value="x" * 3_000, request_id="waits")).result(20)


async def test_what_a_dead_worker_held_is_taken_after_the_move(home: Path, url: str) -> None:
    file = file_at(home / "journal.db")
    async with holdfast.open(file, tasks=tasks(home), serve=False) as hf:
        task = await hf.submit("echo", value=1)
    journal, _ = await open_journal(file)
    session = await journal.open_session(worker="dies", ttl_ms=1_000)
    assert len(await journal.claim(session, names=None, limit=1)) == 1
    await journal.end_session(session, orderly=False)
    await journal.close()
    await copy_journal(file, at(home, url))
    async with holdfast.open(at(home, url), tasks=tasks(home)) as hf:
        assert await hf.task(task.id).result(30)


async def test_the_old_file_cannot_be_used_again_beside_the_new_journal(home: Path, url: str) -> None:
    file = file_at(home / "journal.db")
    await live(file, home)
    done = await copy_journal(file, at(home, url))
    os.rename(done.kept, home / "journal.db")
    with pytest.raises(JournalOlderCopy):
        await contents(file, home)


async def test_a_host_that_shared_the_database_finds_it_gone(home: Path, url: str, tmp_path: Path) -> None:
    await live(at(home, url), home)
    other = tmp_path / "other"
    shutil.copytree(home, other, ignore=shutil.ignore_patterns("instance"))
    assert await contents(at(other, url), home)
    await copy_journal(at(home, url), file_at(home / "journal.db"))
    with pytest.raises(JournalGone):
        await contents(at(other, url), home)


async def test_nothing_moves_while_a_worker_is_alive(home: Path, url: str) -> None:
    for source, target in ((file_at(home / "journal.db"), at(home, url)), (at(home, url), file_at(home / "x.db"))):
        async with holdfast.open(source, tasks=tasks(home)):
            with pytest.raises(JournalBusy) as busy:
                await copy_journal(source, target, wait_s=0.1)
        assert "stop every worker" in str(busy.value.hint)
        assert not journal_at(target).exists()
        (home / "journal.db").unlink(missing_ok=True)
        shutil.rmtree(home / "instance", ignore_errors=True)
        (home / KEYS).unlink()


async def test_a_task_that_is_submitted_during_the_copy_is_not_lost(home: Path, url: str) -> None:
    """A process without a session does not count as a worker; the journal stays where it is."""
    await live(at(home, url), home)
    admin = journal_at(at(home, url))
    async with holdfast.open(at(home, url), tasks=tasks(home), serve=False) as hf:
        copy = home / "copy"
        copy.touch(0o600)
        admin.copy(copy)
        await hf.submit("hello", who="late")
        with pytest.raises(JournalBusy):
            admin.set_aside()
        assert admin.exists()


async def test_a_target_that_is_not_empty_is_left_alone(home: Path, url: str) -> None:
    file = file_at(home / "journal.db")
    await live(file, home)
    await copy_journal(file, at(home, url))
    (home / "journal.db").write_bytes(b"mine")
    with pytest.raises(NotNow):
        await copy_journal(at(home, url), file)
    assert (home / "journal.db").read_bytes() == b"mine"


async def test_a_damaged_journal_is_not_copied(home: Path, url: str) -> None:
    file = file_at(home / "journal.db")
    await live(file, home)
    with closing(open_existing(home / "journal.db")) as db:
        db.execute("DROP TRIGGER record_never_changes")
        db.execute("UPDATE record SET body = x'00' WHERE n = 3")
    with pytest.raises(JournalDamaged):
        await copy_journal(file, at(home, url))
    assert not journal_at(at(home, url)).exists()
    assert (home / "journal.db").exists()


async def test_a_row_that_was_deleted_in_the_database_is_found_in_its_copy(
    home: Path, url: str, server: Server
) -> None:
    """A copy is made without keys, and still carries the running total."""
    await live(at(home, url), home)
    schema = url.rpartition("=")[2]
    server.execute(
        f"WITH one AS (DELETE FROM {schema}.task WHERE t = (SELECT min(t) FROM {schema}.task) RETURNING t) "
        f"DELETE FROM {schema}.record WHERE t IN (SELECT t FROM one)"
    )
    copy = home / "copy.db"
    copy.touch(0o600)
    journal_at(at(home, url)).copy(copy)
    keys = load_or_create(home / KEYS, journal_exists=True, entropy=SystemEntropy())
    done = await journal_at(file_at(copy), instance=home / "copied").restore(keys=keys, clock=SystemClock())
    assert done.put_back


async def test_tables_of_tools_that_stay_behind_are_named(home: Path, url: str, server: Server) -> None:
    schema = url.rpartition("=")[2]
    await live(at(home, url), home)
    server.execute(f"CREATE TABLE {schema}_tools.ledger (id int)")
    done = await copy_journal(at(home, url), file_at(home / "journal.db"))
    assert done.tables_left == (f"{schema}_tools.ledger",)
    with closing(open_existing(home / "journal.db")) as db:
        db.execute("CREATE TABLE ledger (id)")
    again = await copy_journal(file_at(home / "journal.db"), at(home, url))
    assert again.tables_left == ("ledger",)


def test_the_commands_show_copy_and_check(home: Path, url: str, server: Server, command: Command) -> None:
    asyncio.run(live(file_at(home / "journal.db"), home))
    shown = command("journal", "show")
    assert (shown["workers"], shown["tasks"]["parked"], shown["durability"]) == (0, 1, "one disk")
    planned = command("journal", "copy", "--to", url, "--dry-run")
    assert not planned["done"]
    moved = command("journal", "copy", "--to", url, "--yes")
    assert (moved["done"], moved["target"], moved["sequence"]) == (True, url, shown["sequence"])
    there = command("journal", "show")
    assert (there["journal"], there["journal_id"]) == (url, shown["journal_id"])
    assert (there["tasks"], there["durability"]) == (shown["tasks"], "no standby")
    assert command("journal", "check")["findings"] == []
    server.execute(f"UPDATE {url.rpartition('=')[2]}.record SET body = '' WHERE seq = 1")
    assert command("journal", "check", code=6)["findings"]
    assert "damaged journal" in command("journal", "copy", "--to", str(home / "journal.db"), "--yes", code=6)["message"]


def test_errors_say_what_to_do(home: Path, url: str, server: Server, command: Command) -> None:
    """No server, a password in the url, no rights, a database that can only be read, a newer schema."""
    asyncio.run(live(file_at(home / "journal.db"), home))
    kept = (home / "journal.db").stat().st_ino

    def refused(to: str, code: int) -> Any:  # Any: JSON
        error = command("journal", "copy", "--to", to, "--yes", code=code)
        assert (home / "journal.db").stat().st_ino == kept
        return error

    assert refused("postgresql://holdfast@/postgres?host=/nowhere", 8)["code"] == "journal-busy"
    assert "passfile" in refused("postgresql://holdfast:secret@db/postgres", 2)["hint"]
    server.execute("CREATE ROLE poor LOGIN; CREATE ROLE reader LOGIN; GRANT CREATE ON DATABASE postgres TO reader")
    server.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    try:
        assert "may not" in refused(server.url(user="poor"), 7)["message"]
        assert "primary" in refused(server.url(user="reader"), 7)["hint"]
    finally:
        server.execute("REVOKE CREATE ON DATABASE postgres FROM reader; DROP ROLE poor; DROP ROLE reader")
    command("journal", "copy", "--to", url, "--yes")
    server.execute(f"UPDATE {url.rpartition('=')[2]}.version SET number = 99")
    newer = command("journal", "copy", "--to", str(home / "journal.db"), "--yes", code=6)
    assert newer["code"] == "journal-newer"
    assert not (home / "journal.db").exists()
