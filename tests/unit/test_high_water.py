"""The high-water mark survives its sessions and is never folded away."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from holdfast.errors import HighWaterDamaged, InvariantViolated
from holdfast.journal.sqlite.host import high_water as module
from holdfast.journal.sqlite.host.high_water import HighWater, fold_marks, high_water, raise_stored, stored_mark
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.page_reader import page_ids, page_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "journal"


def _page(folder: Path, session_id: str, mark: int, *, incarnation: int = 1) -> SessionPage:
    page = SessionPage.create(folder, session_id, boot_id="boot", incarnation=incarnation)
    page.raise_mark(mark)
    return page


def test_the_highest_of_all_pages_and_the_file_counts(folder: Path) -> None:
    assert high_water(folder) == HighWater(0, 0)
    alive, dead = _page(folder, "alive", 10), _page(folder, "dead", 20)
    dead.close(delete=False)
    assert high_water(folder) == HighWater(1, 20)
    assert fold_marks(folder, set(), at_ms=77) == ["dead"]
    assert high_water(folder) == HighWater(1, 20)
    alive.raise_mark(30)
    assert high_water(folder) == HighWater(1, 30)
    alive.close(delete=True)
    assert list(page_ids(folder)) == []
    assert high_water(folder) == HighWater(1, 30)


def test_the_file_holds_what_the_format_says(folder: Path) -> None:
    _page(folder, "s", 20).close(delete=True, at_ms=77)
    path = folder / "high-water.json"
    assert json.loads(path.read_bytes()) == {
        "format": 1,
        "journal_id": "journal",
        "incarnation": 1,
        "sequence": 20,
        "at": 77,
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_living_and_kept_pages_stay(folder: Path) -> None:
    alive, kept, dead = (_page(folder, name, 5) for name in ("alive", "kept", "dead"))
    kept.close(delete=False)
    dead.close(delete=False)
    assert fold_marks(folder, {"kept"}, at_ms=0) == ["dead"]
    assert list(page_ids(folder)) == ["alive", "kept"]
    alive.close(delete=True)
    assert list(page_ids(folder)) == ["kept"]


def test_a_restore_outranks_every_number_of_the_older_timeline(folder: Path) -> None:
    old = _page(folder, "old", 900)
    assert raise_stored(folder, HighWater(2, 4), at_ms=0)
    old.raise_mark(901)
    assert high_water(folder) == HighWater(2, 4)
    old.close(delete=True)
    assert stored_mark(folder) == HighWater(2, 4)
    assert raise_stored(folder, HighWater(1, 1_000), at_ms=0)  # never lowers
    assert stored_mark(folder) == HighWater(2, 4)


def test_folding_is_one_process_at_a_time_and_nobody_waits(folder: Path) -> None:
    _page(folder, "dead", 8).close(delete=False)
    with open(folder / "fold.lock", "wb") as other:
        os.fchmod(other.fileno(), 0o600)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert fold_marks(folder, set(), at_ms=0) == []
        assert not raise_stored(folder, HighWater(9, 9), at_ms=0)
        assert high_water(folder) == HighWater(1, 8)
    assert fold_marks(folder, set(), at_ms=0) == ["dead"]


def test_a_crash_between_fold_and_delete_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _page(folder, "dead", 8).close(delete=False)

    class Crash(BaseException):
        pass

    def crash(self: Path, missing_ok: bool = False) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", crash)
        with pytest.raises(Crash):
            fold_marks(folder, set(), at_ms=0)
    assert stored_mark(folder) == HighWater(1, 8)  # the file came first
    assert high_water(folder) == HighWater(1, 8)
    assert fold_marks(folder, set(), at_ms=0) == ["dead"]
    assert high_water(folder) == HighWater(1, 8)


def test_a_failed_write_of_the_file_deletes_no_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _page(folder, "dead", 8).close(delete=False)

    def fails(path: Path, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "write_atomically", fails)
    with pytest.raises(OSError, match="Input/output"):
        fold_marks(folder, set(), at_ms=0)
    assert list(page_ids(folder)) == ["dead"]


def test_a_reader_that_loses_a_page_under_its_eyes_finds_the_mark_in_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _page(folder, "dead", 8).close(delete=False)
    plain, folded = module.find_mark, list[str]()

    def folded_meanwhile(place: Path, session_id: str) -> HighWater | None:
        monkeypatch.setattr(module, "find_mark", plain)
        folded.extend(fold_marks(place, set(), at_ms=0))
        return plain(place, session_id)

    monkeypatch.setattr(module, "find_mark", folded_meanwhile)
    assert high_water(folder) == HighWater(1, 8)
    assert folded == ["dead"]


def test_a_torn_page_is_folded_without_a_mark(folder: Path) -> None:
    _page(folder, "good", 8).close(delete=False)
    _page(folder, "torn", 99).close(delete=False)
    page_path(folder, "torn").write_bytes(b"\xff" * 100)
    assert fold_marks(folder, set(), at_ms=0) == ["good", "torn"]
    assert high_water(folder) == HighWater(1, 8)


def test_the_page_of_a_newer_holdfast_is_left_alone(folder: Path) -> None:
    _page(folder, "newer", 8).close(delete=False)
    path = page_path(folder, "newer")
    raw = bytearray(path.read_bytes())
    raw[8] = 2
    path.write_bytes(raw)
    assert fold_marks(folder, set(), at_ms=0) == []
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format":2,"journal_id":"journal","incarnation":1,"sequence":1,"at":0}',
        '{"format":1,"journal_id":"other","incarnation":1,"sequence":1,"at":0}',
        '{"format":1,"journal_id":"journal","incarnation":1,"sequence":"1","at":0}',
        '{"format":1,"journal_id":"journal","incarnation":1,"sequence":true,"at":0}',
        '{"format":1,"journal_id":"journal","incarnation":1,"sequence":-1,"at":0}',
        '{"format":1,"journal_id":"journal","incarnation":1,"sequence":1e99,"at":0}',
        '{"format":1,"journal_id":"journal","incarnation":1,"sequence":1099511627776,"at":0}',
    ],
)
def test_a_damaged_file_is_an_error_not_a_zero(folder: Path, text: str) -> None:
    page = _page(folder, "s", 5)
    path = folder / "high-water.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(HighWaterDamaged):
        high_water(folder)
    with pytest.raises(HighWaterDamaged):
        page.close(delete=True)
    assert list(page_ids(folder)) == ["s"]


def test_leftovers_of_killed_writers_are_removed_when_old(folder: Path) -> None:
    _page(folder, "s", 5).close(delete=False)
    old, young = folder / ".high-water.json.0.new", folder / "sessions" / ".s2.1.new"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1, 1))
    fold_marks(folder, set(), at_ms=0)
    assert not old.exists()
    assert young.exists()


def test_marks_are_compared_incarnation_first() -> None:
    assert HighWater(2, 0) > HighWater(1, 999)
    with pytest.raises(InvariantViolated):
        HighWater(-1, 0)
