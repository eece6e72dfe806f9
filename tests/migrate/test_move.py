"""An agent moves to another host: it goes on there, once, and not here."""

from __future__ import annotations

import asyncio
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from hosts import WAIT_S, Host

import holdfast
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import start_blocking
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.records import TaskState
from holdfast.layout.moved import NAME
from holdfast.recovery.move_in import READY, ReadyImport

Pair = tuple[Host, Host]


def test_a_task_under_way_finishes_on_the_other_host(pair: Pair, tmp_path: Path) -> None:
    """Its worker stops at the export; the far end counts each payment once."""
    here, there = pair
    package = tmp_path / "ada.move"
    task_id = here.submit()
    with start_blocking("payment", faults=(Fault(kind=FaultKind.HOLD),)) as far, ThreadPoolExecutor() as threads:
        worker = here.start(far.url)
        far.wait_inside(timeout_s=WAIT_S)
        leaving = threads.submit(here.export, package)
        here.wait(lambda: "moved to another host" in here.said())
        far.release()
        out = leaving.result(WAIT_S)
        assert worker.wait(WAIT_S) == 4
        assert out["yielded"]
        assert here.command("task", "list", "--journal", str(here.journal), code=4)["code"] == ("moved-away")
        for words in (("identity", "rotate", "--yes"), ("place", "add", "nas", str(tmp_path))):
            left_behind = here.command(*words, "--home", str(here.home), code=4)
            assert left_behind["code"] == "moved-away", words
        again = here.start(far.url)
        assert again.wait(WAIT_S) == 4
        assert "was moved to another host" in here.said()
        done = there.take(package)
        assert (done["incarnation"], done["claimed"]) == (out["incarnation"] + 1, True)
        assert not there.suspect(task_id)
        assert there.state(task_id) is TaskState.QUEUED
        assert far.ledger().count == 1
        worker = there.start(far.url)
        there.wait(lambda: there.state(task_id) is TaskState.SUCCEEDED)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S) == 0
        page = far.ledger()
    assert (page.count, page.duplicates) == (2, 0)
    assert "handoff.md" in {path.name for path in there.home.iterdir()}


def test_a_further_journal_keeps_its_ids_on_the_other_host(alone: Pair, tmp_path: Path) -> None:
    """The vault was carried over before there was a salt: the journal brings it, and the ring there learns it."""
    here, there = alone

    async def opened(journal: Path) -> None:
        async with holdfast.open(journal, serve=False):
            pass

    asyncio.run(opened(here.home / "first.db"))
    task_id = here.submit()
    here.export(tmp_path / "ada.move")
    there.take(tmp_path / "ada.move")
    assert there.submit() == task_id
    there.journal.unlink()
    there.run("recover", "--journal", str(there.journal), "--begin-anew", "--yes")
    assert there.submit() == task_id


def test_copies_of_the_escrow_go_to_the_new_home(alone: Pair, tmp_path: Path) -> None:
    """The old machine is gone: keys that change must not wait for a copy in its folder."""
    here, there = alone
    here.submit()
    here.export(tmp_path / "ada.move")
    there.take(tmp_path / "ada.move")
    shutil.rmtree(here.root)

    async def opened() -> None:
        async with holdfast.open(there.home / "further.db", serve=False):
            pass

    asyncio.run(opened())
    with open_vault(there.vault) as vault:
        found = read_escrow(vault)
    assert found.places == (str(there.home),)
    assert [(one.name, len(one.salt)) for one in found.keys.journals] == [("further.db", 16)]
    assert (there.home / "escrow.age").read_bytes() == (there.vault / "escrow.age").read_bytes()


def test_a_package_is_taken_once(pair: Pair, tmp_path: Path) -> None:
    here, there = pair
    here.submit()
    package, copy = tmp_path / "ada.move", tmp_path / "copy.move"
    out = here.export(package)
    shutil.copy2(package, copy)
    assert here.export(tmp_path / "other.move", code=4)["code"] == "moved-away"
    assert not (tmp_path / "other.move").exists()
    assert here.export(package)["snapshot"] == out["snapshot"] == 1
    assert there.take(tmp_path / "nope.move", code=2)["code"] == "bad-input"
    assert there.take(tmp_path, code=2)["code"] == "bad-input"
    there.take(package)
    assert not package.exists()
    _leave_ready(there.root / ".ada.moving", out)
    assert there.take(package)["incarnation"] == 2  # it is done, and says so
    assert not (there.root / ".ada.moving").exists()
    shutil.copy2(copy, tmp_path / "second.move")
    assert there.take(tmp_path / "second.move")["incarnation"] == 2
    third = Host(tmp_path / "c", here.arbiter)
    third.root.mkdir(mode=0o700)
    third.bring_vault(here)
    assert "imported elsewhere" in third.take(copy, code=4)["message"]
    assert here.cancel("--nobody-has-it", code=4)["code"] == "move-refused"


def _leave_ready(work: Path, out: dict[str, Any]) -> None:
    """What a kill leaves between the folder's new name and the removal of its old place: the same
    command again says that all is done."""
    work.mkdir(mode=0o700)
    ready = ReadyImport(
        package=out["sha256"],
        id=out["id"],
        seq=out["snapshot"],
        rank=(0, 0, 1, 1),
        archive="x",
        incarnation=1,
        sequence=out["sequence"],
    )
    (work / READY).write_bytes(msgspec.json.encode(ready))


def test_there_and_back_and_an_older_package(pair: Pair, tmp_path: Path) -> None:
    here, there = pair
    task_id = here.submit()
    first, second, old = (tmp_path / f"{n}.move" for n in ("first", "second", "old"))
    here.export(first)
    shutil.copy2(first, old)
    there.take(first)
    there.export(second)
    done = here.take(second)
    assert done["incarnation"] == 3
    assert Path(done["kept"]).is_dir()
    assert not (here.home / "instance" / NAME).exists()
    assert here.state(task_id) is TaskState.QUEUED
    assert there.take(old, code=4)["code"] == "move-refused"


def test_a_move_is_taken_back_where_nobody_took_it(pair: Pair, tmp_path: Path) -> None:
    here, there = pair
    task_id = here.submit()
    package, copy = tmp_path / "ada.move", tmp_path / "copy.move"
    here.export(package)
    shutil.copy2(package, copy)
    assert "cannot know whether" in here.cancel(code=4)["message"]
    back = here.cancel("--nobody-has-it")
    assert (back["incarnation"], back["suspect"]) == (2, 1)
    assert not package.exists()
    assert there.take(copy, code=4)["code"] == "move-refused"
    with start_blocking("payment") as far:
        here.start(far.url)
        here.wait(lambda: here.state(task_id) is TaskState.SUCCEEDED)
        assert far.ledger().duplicates == 0


def test_without_an_arbiter_a_person_says_what_nobody_can_know(alone: Pair, tmp_path: Path) -> None:
    here, there = alone
    task_id = here.submit()
    package = tmp_path / "ada.move"
    out = here.export(package)
    assert not out["yielded"]
    here.cancel(code=4)
    back = here.cancel("--nobody-has-it")
    assert (back["incarnation"], back["suspect"]) == (2, 1)
    assert here.suspect(task_id)
    second = tmp_path / "again.move"
    here.export(second)
    done = there.take(second)
    assert (done["incarnation"], done["claimed"]) == (3, False)
    assert here.command("task", "list", "--journal", str(here.journal), code=4)


def test_while_somebody_has_the_journal_open_nothing_is_packed(pair: Pair, tmp_path: Path) -> None:
    """A program of a user's own is not killed: the move waits, and can be given up."""
    here, _ = pair
    here.submit()
    package = tmp_path / "ada.move"

    async def held() -> None:
        async with holdfast.open(here.journal, serve=False):
            busy = here.command("migrate", "export", str(package), "--home", str(here.home), "--wait", "0.5", code=8)
            assert busy["code"] == "journal-busy"

    asyncio.run(held())
    assert here.command("task", "list", "--journal", str(here.journal), code=4)
    here.cancel()
    assert len(here.command("task", "list", "--journal", str(here.journal))) >= 1
    here.export(package)


def test_a_changed_package_is_refused(pair: Pair, tmp_path: Path) -> None:
    """One wrong bit in its header, its cover, its files or its end; then the right one is taken."""
    here, there = pair
    here.submit()
    package = tmp_path / "ada.move"
    here.export(package)
    right = package.read_bytes()
    for at in (0, 40, 4_000, len(right) // 2, -40):
        wrong = bytearray(right)
        wrong[at] ^= 1
        package.write_bytes(wrong)
        done = there.run("migrate", "import", str(package), "--home", str(there.home), "--vault", str(there.vault))
        assert done.returncode not in (0, 1), (at, done.stderr)
        assert not there.home.exists()
    package.write_bytes(right)
    there.take(package)


def test_a_package_for_another_vault_stays_closed(pair: Pair, tmp_path: Path) -> None:
    here, _ = pair
    here.submit()
    package = tmp_path / "ada.move"
    here.export(package)
    stranger = Host(tmp_path / "s", None)
    stranger.root.mkdir(mode=0o700)
    stranger.make()
    shutil.rmtree(stranger.home)
    assert stranger.run(
        "migrate", "import", str(package), "--home", str(stranger.home), "--vault", str(stranger.vault)
    ).returncode not in (0, 1)
    assert not stranger.home.exists()
