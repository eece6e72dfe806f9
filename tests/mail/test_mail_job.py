"""Who takes mail in, when held mail is asked for again, and which snapshot covers a message."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import make_correspondent

from holdfast.app.mail import mail_job
from holdfast.app.mail.mail_job import AGAIN_S, AGAIN_S_MAX, find_covered, next_pause_s
from holdfast.backup.chain.heads import HeadFile, Held
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import made, verified
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.host.private_files import locked_now
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, JournalMark
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import load_home
from holdfast.testing.lab import Lab


async def test_a_host_that_waits_for_the_turn_takes_it_soon_after_the_other_one_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn ends by itself after TURN_S, and is looked for again after one pause."""
    pauses: list[float] = []

    class Over(BaseException): ...

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise Over

    @asynccontextmanager
    async def not_mine(home: object) -> AsyncGenerator[bool]:
        yield False

    async def nothing(*_: object) -> None: ...

    def found(_: object) -> SimpleNamespace:
        return SimpleNamespace(record=SimpleNamespace(relays=("r",), left=()))

    monkeypatch.setattr(mail_job, "_my_turn", not_mine)
    monkeypatch.setattr(mail_job, "_publish_when_due", nothing)
    monkeypatch.setattr(mail_job, "find_home", found)
    monkeypatch.setattr(mail_job, "find_own_profile", found)
    monkeypatch.setattr(mail_job, "AgentPost", object)
    monkeypatch.setattr(mail_job.asyncio, "sleep", sleep)
    context: Any = SimpleNamespace(address=SimpleNamespace(folder=tmp_path), post=object())
    with pytest.raises(Over):
        await mail_job.keep_mail(context)
    assert mail_job.EXTEND_S * 3 < mail_job.TURN_S
    assert mail_job.TURN_S + pauses[0] <= 20


def test_a_failure_after_a_long_success_is_a_first_failure() -> None:
    pauses = [0.0]
    for _ in range(9):
        pauses.append(next_pause_s(pauses[-1], lasted_s=1.0))
    assert (pauses[1:4], pauses[-1]) == ([AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S], AGAIN_S_MAX)
    assert next_pause_s(pauses[-1], lasted_s=AGAIN_S_MAX + 1) == AGAIN_S


def test_one_process_of_a_folder_takes_mail_in(tmp_path: Path) -> None:
    lock = tmp_path / "instance" / mail_job.LOCK
    with locked_now(lock) as first, locked_now(lock) as second:
        assert (first, second) == (True, False)
    with locked_now(lock) as later:
        assert later


async def test_only_a_verified_snapshot_of_this_life_of_the_journal_covers_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = load_home(make_correspondent(tmp_path / "ada").folder)
    assert find_covered(home) is None
    async with Lab(home.folder).open():
        pass
    admin = journal_at(home.journal)
    held: list[Signed[Head]] = []

    def places(_file: Path) -> tuple[str]:
        return ("a place",)

    def heads(_file: HeadFile) -> Held:
        return Held(heads=tuple(held))

    def add(seq: int, sequence: int, journal: str = "") -> None:
        mark = JournalMark(id=journal or admin.peek(), sequence=sequence, incarnation=admin.incarnation())
        held.append(_head(seq, mark))

    def verify(seq: int) -> None:
        states_of(home).change("disk", lambda state: verified(state, now_ms=1, snapshot=f"a{seq}"))

    monkeypatch.setattr(mail_job, "read_places", places)
    monkeypatch.setattr(HeadFile, "read", heads)
    for seq in (1, 2, 3):
        add(seq, 10 * seq)
    assert find_covered(home) == 0
    states_of(home).change("disk", lambda state: made(state, now_ms=1, snapshot="a3"))
    assert find_covered(home) == 0
    verify(2)
    assert find_covered(home) == 20
    assert find_covered(home, shared=True) == 19

    keys = load_or_create(home.keys_file, journal_exists=True, entropy=SystemEntropy())
    await admin.restore(keys=keys, clock=SystemClock())
    assert find_covered(home) == 0  # its record 20 is another one now
    add(4, 15)
    verify(4)
    assert find_covered(home) == 15
    add(5, 40, journal="b" * 32)
    verify(5)
    assert find_covered(home) == 0


def _head(seq: int, mark: JournalMark) -> Signed[Head]:
    place: dict[str, Any] = {"id": "hf1", "g": 0, "s": 0, "e": 1, "at": seq, "manifest": "", "bytes": 0, "files": 0}
    record = Head(**place, seq=seq, archive=f"a{seq}", journal=mark)
    return Signed(record=record, body=b"", digest=Digest(""), signatures=())
