"""Mail keys outlive the machine that made them: in copies of the escrow, at places of backups, after a recovery."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import PORT, make_correspondent

from holdfast.backup.places.companion_files import FoundPlace, FoundPlaces
from holdfast.core.clock import SystemEntropy
from holdfast.errors import HoldfastError
from holdfast.host.private_files import write_atomically
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.vault.age import seal
from holdfast.identity.vault.mail_keys import (
    RENEW_S,
    USE_S,
    MailKey,
    are_due,
    joined,
    mail_keys_in,
    published,
    renewed_mail_keys,
)
from holdfast.identity.vault.ring import ESCROW, Escrow, VaultRing, change, contents_of, read_escrow, with_place
from holdfast.identity.vault.vault import FORMAT
from holdfast.layout.agent_home import load_home
from holdfast.recovery.survey import _open_escrow
from holdfast.relay.client.status import find_stale_profile

NOW, DAY_S = 1_800_000_000, 86_400
ENTROPY = SystemEntropy()


def weekly(folder: Path, weeks: int) -> list[Escrow]:
    """The escrow of one agent in each week."""
    vault, found = make_correspondent(folder).vault(), list[Escrow]()
    for week in range(weeks):
        renewed_mail_keys(vault, ENTROPY, now=NOW + week * (RENEW_S + 1))
        found.append(read_escrow(vault))
    return found


# of several escrows


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_keys_of_all_escrows_that_the_paper_opens_are_kept(tmp_path: Path, newest_first: bool) -> None:
    weeks = weekly(tmp_path, 10)
    old, new = weeks[-3], weeks[-1]
    assert len(old.others) == len(new.others), "old keys are forgotten: the number of entries says nothing"
    old = replace(old, others=old.others | {"rescue/revoked": "{}"})
    given = (new, old) if newest_first else (old, new)
    found = _opened(*given)
    kids = [one.kid for one in mail_keys_in(found)]
    assert kids[: len(new.others)] == [one.kid for one in mail_keys_in(new)]
    assert set(kids) == {one.kid for escrow in (old, new) for one in mail_keys_in(escrow)}
    assert "rescue/revoked" not in found.others


def test_journal_keys_are_joined_and_those_of_another_vault_are_not(tmp_path: Path) -> None:
    (one,) = weekly(tmp_path / "one", 1)
    (stranger,) = weekly(tmp_path / "two", 1)
    later = replace(one, keys=replace(one.keys, current=3, journal_keys={1: one.keys.journal_keys[1], 3: bytes(32)}))
    between = replace(one, keys=replace(one.keys, current=2, journal_keys={1: bytes(32), 2: bytes(range(32))}))
    found = joined([between, stranger, later])
    assert found.keys == replace(
        later.keys, journal_keys={1: one.keys.journal_keys[1], 2: bytes(range(32)), 3: bytes(32)}
    )
    assert found.others == one.others


def _opened(*escrows: Escrow) -> Escrow:
    """As `recover` finds them at places, with the paper."""
    log = cast(Any, SimpleNamespace(id="hf1"))
    with Phrase(ENTROPY.bytes(32)) as phrase, PaperKeys(phrase) as paper:
        recipient = paper.recipient
        found = tuple(
            FoundPlace(place=cast(Any, None), files={"escrow.age": _sealed(one, recipient)}) for one in escrows
        )
        return _open_escrow(FoundPlaces(found=found, failed={}), log, paper)


def _sealed(escrow: Escrow, recipient: str) -> bytes:
    whole = {"format": FORMAT, "vault": "", "file": ESCROW, **contents_of(escrow)}
    return seal(json.dumps(whole).encode(), [recipient])


# made although a place is away


def test_a_mail_key_is_made_although_a_removable_place_is_away(tmp_path: Path) -> None:
    agent = make_correspondent(tmp_path)
    vault, home, disk = agent.vault(), tmp_path / "copies", tmp_path / "disk"
    disk.mkdir(mode=0o700)
    change(vault, lambda escrow: with_place(escrow, disk))
    (first,) = renewed_mail_keys(vault, ENTROPY, now=NOW)
    disk.rename(tmp_path / "drawer")
    keys = renewed_mail_keys(vault, ENTROPY, now=NOW + RENEW_S + 1)
    assert keys[1:] == (first,)
    assert (home / "escrow.age").read_bytes() == (agent.vault_folder / "escrow.age").read_bytes()
    home.rename(tmp_path / "gone")
    with pytest.raises((HoldfastError, OSError)):
        renewed_mail_keys(vault, ENTROPY, now=NOW + 2 * RENEW_S + 2)
    assert mail_keys_in(read_escrow(vault)) == keys, "without any copy there is no new key"
    (tmp_path / "gone").rename(home)
    with pytest.raises((HoldfastError, OSError)):
        VaultRing(vault).add_journal_key(ENTROPY)  # a journal key is in use at once: all copies are needed


@pytest.mark.parametrize(("left_s", "warned"), [(8 * DAY_S, False), (6 * DAY_S, True), (-1, True)])
def test_doctor_warns_before_no_mail_key_is_valid(tmp_path: Path, left_s: int, warned: bool) -> None:
    agent = make_correspondent(tmp_path)
    now = int(time.time())
    renewed_mail_keys(agent.vault(), ENTROPY, now=now + left_s - USE_S)
    enc = tuple(one.public() for one in mail_keys_in(read_escrow(agent.vault())))
    line = agent.speaker().profile(ver=1, life_s=30 * DAY_S, relays=(), handles=(), enc=enc, left=()).line()
    write_atomically(agent.folder / "profile.json", line + b"\n")
    assert ("newest mail key" in find_stale_profile(load_home(agent.folder), port=PORT)) is warned


# which ones a profile names


def mail_key(days: int, *, copied: bool) -> MailKey:
    return MailKey(kid=str(days), private=bytes(range(1, 33)), exp=NOW + days * DAY_S, copied=copied)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ([mail_key(21, copied=False)], ["21"]),
        ([mail_key(21, copied=True), mail_key(14, copied=True), mail_key(7, copied=True)], ["21", "14"]),
        ([mail_key(21, copied=False), mail_key(14, copied=True), mail_key(7, copied=True)], ["14", "7"]),
        ([mail_key(21, copied=False), mail_key(11, copied=False)], ["11"]),
        ([mail_key(18, copied=False), mail_key(10, copied=True)], ["18", "10"]),
        ([mail_key(21, copied=False), mail_key(14, copied=False), mail_key(7, copied=True)], ["14", "7"]),
        ([mail_key(21, copied=False), mail_key(-1, copied=True)], ["21"]),
        ([mail_key(-1, copied=True)], []),
    ],
)
def test_a_key_that_no_place_has_is_named_when_the_one_before_ends_soon(keys: list[MailKey], named: list[str]) -> None:
    assert [one.kid for one in published(keys, now=NOW)] == named


@pytest.mark.parametrize(
    ("days", "copied", "due"),
    [(14, None, False), (13, None, True), (14, 14, False), (11, 11, False), (11, 18, True), (9, 0, True), (9, 9, True)],
)
def test_a_profile_is_due_when_it_would_name_other_keys(days: int, copied: int | None, due: bool) -> None:
    enc = [mail_key(days, copied=True).public(), mail_key(days - 7, copied=True).public()]
    assert are_due(enc, now=NOW, copied=None if copied is None else NOW + copied * DAY_S) is due
