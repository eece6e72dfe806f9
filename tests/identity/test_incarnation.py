"""The journal's incarnation goes with the agent's; a session's lease ends with the agent's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.app.binder import open_journal
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import file_at
from holdfast.core.ports import KeyRing
from holdfast.errors import JournalBusy, JournalOlderCopy, RunFenced
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Session
from holdfast.runtime.session.lease import BoundLease, SessionLease
from holdfast.testing.clocks import ManualClock


async def raise_to(path: Path, e: int, **changes: Any) -> None:
    journal, keys = await open_journal(file_at(path))
    await journal.close()
    await journal_at(file_at(path)).raise_incarnation(to=e, keys=keys, clock=SystemClock(), wait_s=0.1, **changes)


@holdfast.task
async def nothing(run: holdfast.Run) -> int:
    return 1


async def test_a_raised_journal_goes_on_and_no_task_is_suspect(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    assert journal_at(file_at(path)).incarnation() == 0
    async with holdfast.open(path, serve=False) as hf:
        task = await hf.submit("nothing", request_id="1")
    assert journal_at(file_at(path)).incarnation() == 1
    await raise_to(path, 5)
    await raise_to(path, 5)
    await raise_to(path, 3)  # never down
    assert journal_at(file_at(path)).incarnation() == 5
    async with holdfast.open(path, tasks=[nothing]) as hf:
        again = hf.task(task.id)
        assert await again.result(timeout_s=20) == 1
        assert (await again.view()).restored_ms == 0
        assert (await again.row()).epoch >> 32 == 5


async def test_nothing_is_raised_under_an_open_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, keys = await open_journal(file_at(path))
    with pytest.raises(JournalBusy):
        await journal_at(file_at(path)).raise_incarnation(to=2, keys=keys, clock=SystemClock(), wait_s=0.1)
    await journal.close()
    assert journal_at(file_at(path)).incarnation() == 1


async def test_an_older_copy_is_not_raised_but_restored_above_what_was_granted(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with holdfast.open(path, serve=False) as hf:
        await hf.submit("nothing", request_id="1")
    old = path.read_bytes()
    wal = path.with_name("journal.db-wal")
    old_wal = wal.read_bytes() if wal.exists() else None
    async with holdfast.open(path, serve=False) as hf:
        for number in range(5):
            await hf.submit("nothing", request_id=f"more {number}")
    path.write_bytes(old)
    wal.unlink(missing_ok=True)
    if old_wal is not None:
        wal.write_bytes(old_wal)
    keys = keys_of(path)
    with pytest.raises(JournalOlderCopy):
        await journal_at(file_at(path)).raise_incarnation(to=2, keys=keys, clock=SystemClock())
    restored = await journal_at(file_at(path)).restore(keys=keys, clock=SystemClock(), above=7)
    assert restored.incarnation == journal_at(file_at(path)).incarnation() == 8


def keys_of(path: Path) -> KeyRing:
    from holdfast.core.clock import SystemEntropy
    from holdfast.identity.journal_keys.keyfile import load_or_create

    return load_or_create(path.parent / "keys.json", journal_exists=True, entropy=SystemEntropy())


@dataclass
class Moving:
    until_boot_ms: int
    look_every_s: float = 0.1


@dataclass
class Held:
    deadline_boot_ms: int = 100_000
    ttl_ms: int = 10_000


def test_a_bound_lease_ends_with_whichever_ends_first() -> None:
    clock, right = ManualClock(boot_ms=0), Moving(until_boot_ms=50_000)
    session = cast(Session, Held())
    plain, bound = SessionLease(session, clock), BoundLease(session, clock, right)
    assert (plain.left_ms(), bound.left_ms()) == (100_000, 50_000)
    assert bound.deadline_boot_ms == 50_000
    clock.advance(49_000)
    bound.check()
    assert bound.ok()
    right.until_boot_ms = 90_000  # renewed meanwhile
    clock.advance(2_000)
    bound.check()
    right.until_boot_ms = 0
    assert not bound.ok()
    with pytest.raises(RunFenced):
        bound.check()
    right.until_boot_ms = 90_000
    assert not bound.ok()  # lost once is lost
    with pytest.raises(RunFenced):
        bound.check()
    plain.check()
    clock.advance(60_000)
    with pytest.raises(RunFenced):
        plain.check()
