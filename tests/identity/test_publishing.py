"""A record at all witnesses: receipts, rounds, those who are behind, down, or hold another one."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import NOW, SODIUM, Owner, take

from holdfast.errors import LogDamaged
from holdfast.identity.files.own_log import clear_pending, find_pending, write_pending
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.records.records import Keys, Record, RotationReason
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.open_witnesses import (
    OpenWitnesses,
    Published,
    ask_witnesses,
    majority_of,
    open_witnesses,
    publish,
)
from holdfast.layout.witness_address import WitnessFolder


class Places:
    """Witnesses by name, in folders. The suite is run over relays too (test_relay_publishing.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = "owner"

    def reached(self, *names: str, make: bool = False) -> OpenWitnesses:
        found = [WitnessFolder(self.folder / name) for name in names]
        return open_witnesses(found, port=SODIUM, clock=lambda: NOW, make=make)

    def lose(self, name: str) -> str:
        """Returns a part of what is said of it from then on."""
        shutil.rmtree(self.folder / name)
        return "there is no file witness.seed in this folder: is the disk mounted, and the path right?"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def published(log: KeyLog, signed: Signed[Record], found: OpenWitnesses) -> Published:
    return asyncio.run(publish(log, signed, found.by_key, port=SODIUM))


def test_how_many_must_vouch() -> None:
    assert [majority_of(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_every_witness_ends_with_all_receipts_and_one_that_is_down_is_named(places: Places) -> None:
    found = places.reached("a", "b", "c", make=True)
    owner = Owner(name=places.owner, wit=found.keys())
    done = published(owner.begun(), owner.inception(), found)
    assert (done.final, done.receipts, done.refused) == (True, 3, {})
    for key in found.by_key:
        alone = {key: found.by_key[key]}
        log, silent = asyncio.run(ask_witnesses(None, done.log.id, alone, port=SODIUM))
        assert log is not None
        assert set(log.head.receipts) == set(done.log.head.receipts)
        assert not silent
    why = places.lose("c")
    fewer = places.reached("a", "b", "c")
    rotation = owner.rotation(done.log, 1)
    after = published(take(done.log, rotation), rotation, fewer)
    assert (after.final, after.receipts) == (True, 2)
    (said,) = (*fewer.unreachable.values(), *after.refused.values())
    assert why in said
    again = published(after.log, rotation, fewer)
    assert again.log == after.log


def test_a_witness_that_is_behind_gets_the_earlier_records_first(places: Places) -> None:
    found = places.reached("a", "b", "c", make=True)
    owner = Owner(name=places.owner, wit=found.keys())
    some = places.reached("a", "b")
    log = published(owner.begun(), owner.inception(), some).log
    rotation = owner.rotation(log, 1)
    done = published(take(log, rotation), rotation, found)
    assert (done.receipts, done.refused) == (3, {})


def test_new_witnesses_sign_in_the_second_round(places: Places) -> None:
    old = places.reached("a", make=True)
    owner = Owner(name=places.owner, wit=old.keys())
    log = published(owner.begun(), owner.inception(), old).log
    fresh = places.reached("b", "c", "d", make=True)
    both = places.reached("a", "b", "c", "d")
    rotation = owner.rotation(log, 1, wit=fresh.keys())
    done = published(take(log, rotation), rotation, both)
    assert (done.final, done.receipts, done.refused) == (True, 4, {})
    without = published(take(log, rotation), rotation, fresh)
    assert without.final  # they were told by the round before


def test_a_thief_who_was_first_is_seen(places: Places) -> None:
    found = places.reached("a", make=True)
    owner, thief = Owner(name=places.owner, wit=found.keys()), Owner(name=f"{places.owner} thief", wit=found.keys())
    log = published(owner.begun(), owner.inception(), found).log
    his = thief.rotation(log, 1, by=owner.next(1))
    published(take(log, his), his, found)
    mine = owner.rotation(log, 1, why=RotationReason.STOLEN)
    done = published(take(log, mine), mine, found)
    assert not done.final
    assert "the witness saw another record at this position first" in next(iter(done.refused.values()))
    assert done.log.head.digest == his.digest
    assert is_final(done.log, his.record.position)
    assert done.log.standing is LogStanding.ACTIVE


def test_nobody_is_asked_forever(tmp_path: Path) -> None:
    found = Places(tmp_path).reached("a", make=True)
    (tmp_path / "a" / "lock").touch(0o600)
    (tmp_path / "a" / "lock").chmod(0o644)
    owner = Owner(wit=Keys(tuple(found.by_key), 1))
    done = published(owner.begun(), owner.inception(), found)
    assert (done.final, done.receipts) == (False, 0)
    assert "other users can read or change" in next(iter(done.refused.values()))


def test_a_pending_record_is_kept_until_it_is_cleared(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner = Owner()
    assert find_pending(tmp_path) is None
    clear_pending(tmp_path)
    write_pending(tmp_path, owner.inception())
    assert find_pending(tmp_path) == owner.inception()
    (tmp_path / "pending.jsonl").write_bytes(b"{}\n")
    with pytest.raises(LogDamaged):
        find_pending(tmp_path)
    clear_pending(tmp_path)
    assert find_pending(tmp_path) is None
