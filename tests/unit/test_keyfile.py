"""keys.json: made once, never over another's, parsed strictly."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from holdfast.core.clock import SystemEntropy
from holdfast.core.served import ServedJournal, with_journal
from holdfast.errors import KeysMissing, KeysWrong, NotNow
from holdfast.host.private_files import create_durably
from holdfast.identity.journal_keys import keyfile
from holdfast.identity.journal_keys.keyfile import load_or_create, parse
from holdfast.testing.clocks import SeededEntropy

KEY = "ab" * 32
GOOD = {"format": 1, "k_effect": KEY, "current": 1, "journal_keys": [{"id": 1, "key": KEY}]}


def test_keys_are_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = load_or_create(path, journal_exists=False, entropy=SystemEntropy())
    found = load_or_create(path, journal_exists=True, entropy=SystemEntropy())
    assert found.k_effect == made.k_effect
    assert os.listdir(tmp_path) == ["keys.json"]


def test_two_that_start_at_once_get_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has looked before the first wrote: it must not write over what it did not see."""
    path = tmp_path / "keys.json"
    first = load_or_create(path, journal_exists=False, entropy=SeededEntropy(1))
    real, looks = os.path.lexists, iter([False, False])

    def lexists(one: Path) -> bool:
        return next(looks, True) if one == path else real(one)

    monkeypatch.setattr(keyfile.os.path, "lexists", lexists)
    second = load_or_create(path, journal_exists=False, entropy=SeededEntropy(2))
    assert second.k_effect == first.k_effect


def test_of_many_exactly_one_creates(tmp_path: Path) -> None:
    path, won = tmp_path / "file", list[bytes]()
    start = threading.Barrier(8)

    def create(data: bytes) -> None:
        start.wait()
        if create_durably(path, data):
            won.append(data)

    threads = [threading.Thread(target=create, args=(b"%d" % n * 9_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes()] == won
    assert os.listdir(tmp_path) == ["file"]


def test_where_the_file_is_nothing_is_written(tmp_path: Path) -> None:
    """A process that is killed then leaves nothing behind, in a folder that it only had to read."""
    path = tmp_path / "file"
    assert create_durably(path, b"first")
    before = tmp_path.stat()
    assert not create_durably(path, b"second")
    assert tmp_path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_journal_without_keys_gets_no_new_ones(tmp_path: Path) -> None:
    with pytest.raises(KeysMissing):
        load_or_create(tmp_path / "keys.json", journal_exists=True, entropy=SystemEntropy())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"k_effect": "ab"},
        {"k_effect": 1},
        {"k_effect": "zz" * 32},
        {"current": 2},
        {"current": True},
        {"journal_keys": []},
        {"journal_keys": [{"id": 0, "key": KEY}]},
        {"journal_keys": [{"id": 1}]},
        {"journal_keys": 7},
        {"format": 4},
        {"journals": 7},
        {"journals": [7]},
        {"journals": [{"id": "ab" * 8}]},
        {"journals": [{"id": "ab" * 7, "name": "journal.db"}]},
        {"journals": [{"id": "ab" * 8, "name": "../journal.db"}]},
        {"journals": [{"id": "ab" * 8, "name": ".."}]},
        {"journals": [{"id": "ab" * 8, "name": ""}]},
        {"journals": [{"id": "ab" * 8, "name": "journal.db", "more": 1}]},
        {"journals": [{"id": "ab" * 8, "name": "journal.db", "was": ["ab"]}]},
        {"journals": [{"id": "ab" * 8, "name": name} for name in ("a.db", "b.db")]},
        {"journals": [{"id": "ab" * 8, "name": "journal.db", "salt": "ab" * 16}]},
        {"format": 3, "journals": [{"id": "ab" * 8, "name": "journal.db", "salt": "ab" * 15}]},
        {"format": 3, "journals": [{"id": "ab" * 8, "name": "journal.db"}] * 1_001},
    ],
)
def test_malformed_keys_are_refused_without_showing_them(change: dict[str, object]) -> None:
    with pytest.raises(KeysWrong) as caught:
        parse(json.dumps({**GOOD, **change}).encode(), where="keys.json")
    assert KEY not in caught.value.message
    assert parse(json.dumps(GOOD).encode(), where="keys.json").k_effect == bytes.fromhex(KEY)


def test_keys_that_cannot_be_read_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, _: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "keys.json"
    load_or_create(path, journal_exists=False, entropy=SystemEntropy())
    monkeypatch.setattr(keyfile, "read_private", refused)
    with pytest.raises(KeysMissing, match=r"cannot read .*keys\.json: Permission denied") as caught:
        load_or_create(path, journal_exists=True, entropy=SystemEntropy())
    assert "chmod 600" in caught.value.hint


def test_a_ring_reads_back_which_journals_it_serves(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = load_or_create(path, journal_exists=False, entropy=SystemEntropy())
    first = ServedJournal(id="ab" * 8, name="berlin.db", was=("cd" * 8,))
    made.change_journals(lambda served: with_journal(served, first))
    assert json.loads(path.read_text())["format"] == 1
    second = ServedJournal(id="ef" * 8, name="lisbon.db", salt=bytes(range(16)))
    made.change_journals(lambda served: with_journal(served, second))
    assert json.loads(path.read_text())["format"] == 3
    found = load_or_create(path, journal_exists=True, entropy=SystemEntropy())
    assert found.journals == made.journals == (first, second)
    assert (found.k_effect, found.journal_key(1)) == (made.k_effect, made.journal_key(1))
    assert path.stat().st_mode & 0o777 == 0o600
    assert second.salt.hex() not in repr(found.journals)
    with pytest.raises(NotNow):
        parse(path.read_bytes(), where="a copy").change_journals(lambda served: served)
