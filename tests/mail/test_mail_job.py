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
from holdfast.host.private_files import locked_now
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, JournalMark
from holdfast.layout.agent_home import load_home


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


def test_only_a_verified_snapshot_covers_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = load_home(make_correspondent(tmp_path / "ada").folder)
    assert find_covered(home) is None

    def head(seq: int, sequence: int) -> Signed[Head]:
        mark = JournalMark(id="j", sequence=sequence, incarnation=1)
        values: dict[str, Any] = {
            "id": "hf1",
            "g": 0,
            "s": 0,
            "e": 1,
            "at": seq,
            "manifest": "",
            "bytes": 0,
            "files": 0,
        }
        record = Head(**values, seq=seq, archive=f"a{seq}", journal=mark)
        return Signed(record=record, body=b"", digest=Digest(""), signatures=())

    def places(_file: Path) -> tuple[str]:
        return ("a place",)

    def heads(_file: HeadFile) -> Held:
        return Held(heads=(head(1, 10), head(2, 20), head(3, 30)))

    monkeypatch.setattr(mail_job, "read_places", places)
    monkeypatch.setattr(HeadFile, "read", heads)
    assert find_covered(home) == 0
    states = states_of(home)
    states.change("disk", lambda state: made(state, now_ms=1, snapshot="a3"))
    assert find_covered(home) == 0
    states.change("disk", lambda state: verified(state, now_ms=1, snapshot="a2"))
    assert find_covered(home) == 20
    assert find_covered(home, shared=True) == 19
