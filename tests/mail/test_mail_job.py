"""Who takes mail in, when held mail is asked for again, and which snapshot covers a message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import make_correspondent

from holdfast.app.mail import mail_job
from holdfast.app.mail.mail_job import REWIND_FOR_S, find_covered, is_rewind_due
from holdfast.backup.chain.heads import HeadFile, Held
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import made, verified
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, JournalMark
from holdfast.layout.agent_home import load_home


def test_held_mail_is_asked_for_after_a_restore_and_for_a_day(tmp_path: Path) -> None:
    instance = tmp_path / "instance"
    assert is_rewind_due(instance, 3, now=1_000)
    assert is_rewind_due(instance, 3, now=1_000 + REWIND_FOR_S - 1)
    assert not is_rewind_due(instance, 3, now=1_000 + REWIND_FOR_S)
    assert is_rewind_due(instance, 4, now=2_000 + REWIND_FOR_S)
    (instance / "mail.json").write_text("{")
    assert is_rewind_due(instance, 4, now=9_000 + 9 * REWIND_FOR_S)


def test_one_process_of_a_folder_takes_mail_in(tmp_path: Path) -> None:
    locked = mail_job._locked_now
    with locked(tmp_path / "instance") as first, locked(tmp_path / "instance") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "instance") as later:
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
