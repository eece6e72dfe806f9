"""The agent's own copy of its log, and identity.json: appended, torn tails, damage, one writer."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, take, vouched

from holdfast.errors import BadInput, LogDamaged, LogMissing, ModeTooWide
from holdfast.identity.files.own_log import (
    LOG,
    RECEIPTS,
    extend_own_log,
    find_own_log,
    read_lines,
    read_own_log,
    rewrite_own_log,
)
from holdfast.identity.files.public_file import change_identity, identity_of, read_identity, with_log, write_identity
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.sheets import PrintedSheet

OWNER = Owner()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir(0o700)
    return made


def grown() -> list[KeyLog]:
    """A log as it grows: begun, vouched for, rotated."""
    begun = OWNER.begun()
    whole = vouched(begun, OWNER.inception(), "w1", "w2")
    rotation = OWNER.rotation(whole, 1)
    return [begun, whole, vouched(take(whole, rotation), rotation, "w2", "w3")]


def test_what_was_written_is_read_again(home: Path) -> None:
    assert find_own_log(home, SODIUM) is None
    with pytest.raises(LogMissing):
        read_own_log(home, SODIUM)
    for log in grown():
        assert extend_own_log(home, log, SODIUM) == log
        assert extend_own_log(home, log, SODIUM) == log
        assert read_own_log(home, SODIUM) == log
    lines = read_lines(home)
    assert (len(lines.records), len(lines.receipts)) == (2, 4)


@pytest.mark.parametrize("name", [LOG, RECEIPTS])
def test_a_torn_tail_says_nothing_and_is_cut_off(home: Path, name: str) -> None:
    begun, whole, rotated = grown()
    extend_own_log(home, whole, SODIUM)
    before = (home / name).read_bytes()
    (home / name).write_bytes(before + b'{"b":{"at":17')
    assert read_own_log(home, SODIUM) == whole
    extend_own_log(home, rotated, SODIUM)
    assert (home / name).read_bytes().startswith(before + b'{"b":{')
    assert read_own_log(home, SODIUM) == rotated
    assert begun.id == rotated.id


def test_damage_is_refused_and_mended(home: Path) -> None:
    log = grown()[-1]
    extend_own_log(home, log, SODIUM)
    records, receipts = (home / LOG).read_bytes(), (home / RECEIPTS).read_bytes()
    first, second = records.splitlines(keepends=True)
    for changed in (records.replace(b'"s":1', b'"s":2', 1), second, first + b"\n" + second, b"{}\n" + records):
        (home / LOG).write_bytes(changed)
        with pytest.raises(LogDamaged):
            read_own_log(home, SODIUM)
    (home / LOG).write_bytes(first)  # rolled back: the receipts know of more
    with pytest.raises(LogDamaged, match="does not belong to any record"):
        read_own_log(home, SODIUM)
    rewrite_own_log(home, log)
    assert read_own_log(home, SODIUM) == log
    assert ((home / LOG).read_bytes(), (home / RECEIPTS).read_bytes()) == (records, receipts)
    (home / LOG).chmod(0o644)
    with pytest.raises(ModeTooWide):
        read_own_log(home, SODIUM)


def test_a_log_of_somebody_else_is_not_appended(home: Path) -> None:
    extend_own_log(home, grown()[-1], SODIUM)
    other = Owner(name="another").begun()
    with pytest.raises(LogDamaged):
        extend_own_log(home, other, SODIUM)


def test_identity_json_shows_the_log_and_keeps_its_own(home: Path) -> None:
    path = home / "identity.json"
    with pytest.raises(LogMissing):
        read_identity(path)
    _, whole, rotated = grown()
    write_identity(path, identity_of(whole, name="ada"))
    sheet = PrintedSheet(number=1, date="2026-11-15", generation=0)
    change_identity(path, lambda one: msgspec.structs.replace(one, paper=one.paper.printed(sheet)))
    change_identity(path, lambda one: with_log(one, rotated))
    found = read_identity(path)
    assert (found.id, found.head.s, found.head.final) == (whole.id, 1, True)
    assert found.paper.sheets == (sheet,)
    with pytest.raises(LogDamaged):
        change_identity(path, lambda one: with_log(one, Owner(name="another").begun()))
    assert read_identity(path) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format": 1,\n "name"', b'"format": 2,\n "name"'),
        (b'"active"', b'"asleep"'),
        (b'"id": "hf1', b'"id": "hf2'),
        (b'"name"', b'"nick"'),
        (b"{", b"["),
    ],
)
def test_a_malformed_identity_json_is_refused(home: Path, old: bytes, new: bytes) -> None:
    path = home / "identity.json"
    write_identity(path, identity_of(grown()[1], name="ada"))
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new, 1))
    with pytest.raises((LogDamaged, BadInput)):
        read_identity(path)
