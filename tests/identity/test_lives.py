"""The life of an identity: made, rotated, robbed, lost, recovered, retired. The id stays."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from itertools import combinations
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import (
    AgentExists,
    BadInput,
    BadPhrase,
    BadShare,
    KeysReplaced,
    LogMissing,
    NotFinal,
    NotNow,
    VaultMissing,
)
from holdfast.identity.acts.make_agent import make_agent, open_by
from holdfast.identity.files.own_log import find_pending
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.vault_keys import read_keys
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.paper.paper import read_card
from holdfast.identity.paper.phrase import read_phrase
from holdfast.identity.paper.shares import split
from holdfast.identity.records.records import Rotation, RotationReason
from holdfast.identity.statements.certificate import find_inactive
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.witness_address import WitnessFolder
from holdfast_proofs.support.agents import ENTROPY, OTHER, SODIUM, UNLOCK, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    tmp_path.chmod(0o700)
    return World(tmp_path)


def speaks(world: World) -> KeyLog:
    """The keys that the log names are in the vaults and work."""
    log = world.log()
    assert find_inactive(log) is None
    assert is_final(log, log.position)
    assert log.operational is not None
    with world.keys() as keys:
        current = keys.current()
        assert keys.find_pending() is None
        with keys.get_op(current.op) as op, keys.get_next(current.next) as following:
            assert op.public in log.operational.members
            assert op.signs_for(current.op)
            assert following.signs_for(current.next)
    shown = read_identity(world.folder / "identity.json")
    assert (shown.id, shown.head.digest, shown.head.final) == (log.id, log.head.digest, True)
    assert find_pending(world.folder) is None
    return log


def test_a_new_agent_is_whole_and_private(world: World) -> None:
    world.names = ("w1", "w2", "w3")
    made = world.make()
    log = speaks(world)
    assert (log.position, log.head.witnesses.needed, made.went_on) == ((0, 0), 2, False)
    for path in (world.root, *world.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    with pytest.raises(AgentExists):
        world.make()
    assert len(world.words) == 1
    assert speaks(world) == log


def test_an_init_that_is_given_up_at_the_words_leaves_nothing(world: World) -> None:
    def gives_up(_: object) -> None:
        raise KeyboardInterrupt

    before = sorted(world.root.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(make_agent(world.plan(), show=gives_up, entropy=ENTROPY, port=SODIUM))
    assert sorted(world.root.rglob("*")) == before
    world.make()
    speaks(world)


@pytest.mark.parametrize("where", ["w1", "home"])
@pytest.mark.parametrize("harm", ["below a file", "a file", "open to others", "damaged"])
def test_what_can_be_refused_is_refused_before_the_words(world: World, where: str, harm: str) -> None:
    """Nobody copies 24 words by hand and learns then that a folder cannot be used."""
    folder = world.folder if where == "home" else world.root / world.names[0]
    match harm:
        case "below a file":
            (world.root / "file").touch(0o600)
            world.home_name, world.names = ("file/x", world.names) if where == "home" else ("home", ("file/x",))
        case "a file":
            folder.touch(0o600)
        case "open to others":
            folder.mkdir(mode=0o755)
        case _:
            folder.mkdir(mode=0o700)
            (folder / ("keys.json" if where == "home" else "witness.seed")).touch(0o600)
    with pytest.raises((holdfast.HoldfastError, OSError)):
        world.make()
    assert world.words == []


async def test_a_journal_that_was_there_goes_on_with_its_keys(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    world = World(tmp_path)
    world.folder.mkdir(0o700)

    @holdfast.task
    async def greet(run: holdfast.Run, name: str) -> str:
        return f"hello {name}"

    async with holdfast.open(world.folder / "journal.db", tasks=[greet]) as hf:
        assert await (await hf.submit(greet, name="ada", request_id="1")).result() == "hello ada"
    before = read_keys(world.folder / "keys.json")
    await asyncio.to_thread(world.make)
    with open_by(world.vault, [UNLOCK]) as vault:
        assert read_escrow(vault).keys == before
        unlock = world.root / "unlock"
        from holdfast.identity.vault.slots import file_key, new_unlock_text
        from holdfast.testing.clocks import SeededEntropy

        unlock.touch(0o600)
        unlock.write_bytes(new_unlock_text(SeededEntropy(5)))
        vault.add_slot(file_key(unlock, unlock.read_bytes()), ENTROPY)
    ring = load_or_create(world.folder / "keys.json", journal_exists=True, entropy=ENTROPY)
    assert ring.k_effect == before.k_effect
    async with holdfast.open(world.folder / "journal.db", tasks=[greet]) as hf:
        again = await hf.submit(greet, name="ada", request_id="1")
        assert await again.result() == "hello ada"


def test_settings_and_comments_of_a_person_stay(world: World) -> None:
    world.folder.mkdir(0o700)
    (world.folder / "holdfast.toml").write_text("# mine\n[worker]\nconcurrency = 3 # few\n")
    world.make()
    text = (world.folder / "holdfast.toml").read_text()
    assert "# mine\n[worker]\nconcurrency = 3 # few\n" in text
    assert world.home().vault == world.vault


def test_rotations_change_keys_and_never_the_id(world: World) -> None:
    world.make()
    first = speaks(world)
    seen = {first.operational}
    for number, why in enumerate((RotationReason.PLANNED, RotationReason.STOLEN, RotationReason.PLANNED), 1):
        done = world.rotate(why)
        log = speaks(world)
        record = log.head.record
        assert isinstance(record, Rotation)
        assert (log.id, log.position, record.why) == (first.id, (0, number), why)
        assert done.receipts == 1
        assert log.operational not in seen
        seen.add(log.operational)


def test_a_rotation_may_name_other_witnesses(world: World) -> None:
    world.make()
    world.rotate(new=("n1", "n2", "n3"))
    log = speaks(world)
    assert len(log.head.witnesses.members) == 3
    names = {Path(str(one)).name for one in world.home().witnesses}
    assert names == {"n1", "n2", "n3", "w1"}  # a recovery still needs the first one
    shutil.rmtree(world.root / "n2")
    world.rotate()
    assert speaks(world).position == (0, 2)
    world.evict(world.words[0])
    assert speaks(world).position == (1, 1)
    assert [Path(str(one)).name for one in world.home().witnesses] == ["w1"]


def test_a_rotation_that_too_few_vouch_for_waits_and_goes_on(world: World) -> None:
    world.names = ("w1", "w2", "w3")
    world.make()
    for name in ("w2", "w3"):
        (world.root / name).rename(world.root / f"{name}.away")
    with pytest.raises(NotFinal, match="1 of 2"):
        world.rotate()
    pending = find_pending(world.folder)
    assert pending is not None
    assert world.log().position == (0, 0)  # the old keys speak until it is final
    with pytest.raises(NotFinal):
        world.rotate(RotationReason.STOLEN)
    (world.root / "w2.away").rename(world.root / "w2")
    world.rotate()
    assert speaks(world).head.digest == pending.digest


def test_a_thief_with_both_keys_is_named_and_evicted_by_paper(world: World) -> None:
    world.make()
    thief = World(world.root, home_name="thief")
    for mine, his in ((world.folder, thief.folder), (world.vault, thief.vault), (world.second, thief.second)):
        shutil.copytree(mine, his)
    thief.rotate()
    thief.rotate()
    with pytest.raises(KeysReplaced):
        world.rotate(RotationReason.STOLEN)
    world.evict(world.words[0])
    log = speaks(world)
    assert log.position == (1, 1)
    assert isinstance(log.head.record, Rotation)
    assert log.head.record.why is RotationReason.STOLEN
    with pytest.raises(KeysReplaced):
        thief.rotate()


def test_lock_only_is_the_panic_button(world: World) -> None:
    world.make()
    world.evict(world.words[0], lock_only=True)
    assert world.log().standing is LogStanding.LOCKED
    assert read_identity(world.folder / "identity.json").standing == "locked"
    with pytest.raises(NotNow, match="locked"):
        world.rotate()
    world.evict(world.words[0], lock_only=True)  # again: the same lock
    assert world.log().position == (1, 0)
    world.evict(world.words[0])
    assert speaks(world).position == (1, 1)


@pytest.mark.parametrize("begun", ["rotate", "evict"])
def test_a_rotation_that_few_witnesses_hold_is_no_evidence_against_the_owner(world: World, begun: str) -> None:
    world.names = ("w1", "w2", "w3")
    world.make()
    if begun == "evict":
        world.evict(world.words[0], lock_only=True)
    for name in ("w1", "w2"):
        (world.root / name).rename(world.root / f"{name}.away")
    with pytest.raises(NotFinal, match="1 of 2"):
        world.rotate() if begun == "rotate" else world.evict(world.words[0])
    for name in ("w1", "w2"):
        (world.root / f"{name}.away").rename(world.root / name)
    world.evict(world.words[0])
    log = speaks(world)
    assert log.evidence == ()
    copies = asyncio.run(witnesses_hold(world))
    assert [copy.records for copy in copies] == [copies[0].records] * 3


@pytest.mark.parametrize("act", ["evict", "retire"])
def test_a_witness_that_was_away_gets_the_last_rotation_before_a_recovery(world: World, act: str) -> None:
    world.names = ("w1", "w2", "w3")
    world.make()
    (world.root / "w1").rename(world.root / "w1.away")
    world.rotate()
    (world.root / "w1.away").rename(world.root / "w1")
    world.evict(world.words[0]) if act == "evict" else world.retire(world.words[0])
    copies = asyncio.run(witnesses_hold(world))
    assert [copy.records for copy in copies] == [copies[0].records] * 3


async def witnesses_hold(world: World) -> list[LogCopy]:
    reached = open_witnesses(world.home().witnesses, port=SODIUM)
    answers = [await one.fetch(world.log().id) for one in reached.by_key.values()]
    return [one for one in answers if isinstance(one, LogCopy)]


def elsewhere(world: World, name: str = "new") -> World:
    """Another machine, which has the same witnesses mounted."""
    return World(world.root, names=world.names, home_name=name)


def test_everything_is_lost_and_the_words_bring_it_back(world: World) -> None:
    world.names = ("w1", "w2", "w3")
    world.make()
    world.rotate()
    id_ = world.log().id
    escrow = (world.folder / "escrow.age").read_bytes()
    with open_by(world.vault, [UNLOCK]) as vault:
        before = read_escrow(vault)
    for path in (world.folder, world.vault, world.second):
        shutil.rmtree(path)
    back = elsewhere(world)
    done = back.recover(world.words[0], escrow=escrow)
    log = speaks(back)
    assert (log.id, log.position, done.kept, done.lost) == (id_, (1, 1), True, ())
    with open_by(back.vault, [UNLOCK]) as vault:
        after = read_escrow(vault)
    assert (after.keys, after.vault_root) == (before.keys, before.vault_root)
    assert after.vault_key != before.vault_key
    again = back.recover(world.words[0])  # run twice: nothing more happens
    assert again.log.position == (1, 1)
    assert speaks(back).head.digest == log.head.digest


def test_a_third_machine_does_not_evict_the_second_by_mistake(world: World) -> None:
    world.make()
    back, third = elsewhere(world), elsewhere(world, "third")
    assert back.recover(world.words[0]).lost
    with pytest.raises(NotNow, match="already recovered"):
        third.recover(world.words[0])
    assert not third.vault.exists()
    third.recover(world.words[0], again=True)
    assert speaks(third).position == (2, 1)
    with pytest.raises(KeysReplaced):
        back.rotate()


def test_words_with_a_mistake_are_repaired_and_wrong_ones_refused(world: World) -> None:
    world.make()
    words = world.words[0].split()
    back = elsewhere(world)
    two = words.copy()
    two[3], two[9] = "zoo", "zebra"
    with pytest.raises(BadPhrase):
        back.recover(" ".join(two))
    other = World(world.root / "o", home_name="other")
    other.root.mkdir(0o700)
    other.make()
    with pytest.raises(BadPhrase):
        back.recover(other.words[0])
    assert not back.folder.exists()
    one = [word[:4] for word in words]
    one[5] = "abandon" if one[5] != "aban" else "zoo"
    assert back.recover(" ".join(one)).change == "word 6 was wrong"
    speaks(back)


def test_every_pair_of_shares_recovers_and_a_single_one_does_not(world: World) -> None:
    world.make()
    shares = [" ".join(one.words) for one in split(read_phrase(world.words[0]), needed=2, total=3)]
    for number, pair in enumerate(combinations(shares, 2), 1):
        back = elsewhere(world, f"m{number}")
        back.recover(shares=pair, again=True)
        assert speaks(back).position == (number, 1)
    last = elsewhere(world, "last")
    for one in shares:
        with pytest.raises(BadShare, match="2 different shares"):
            last.recover(shares=[one], again=True)
    foreign = split(read_phrase(world.words[0]), needed=2, total=3)
    with pytest.raises(BadShare, match="does not belong to the same set"):
        last.recover(shares=[shares[0], " ".join(foreign[1].words)])
    assert not last.folder.exists()


def test_recovery_asks_for_what_it_needs(world: World) -> None:
    world.make()
    back = elsewhere(world)
    with pytest.raises(LogMissing):
        back.recover(world.words[0], witnesses=())
    copy = LogCopy(records=read_card(world.card()), receipts=())
    shutil.rmtree(world.root / "w1")
    with pytest.raises(NotNow, match="0 of the 1"):
        back.recover(world.words[0], copies=(copy,))
    assert not back.folder.exists()
    back.recover(world.words[0], copies=(copy,), new_witnesses=(WitnessFolder(world.root / "n1"),))
    assert speaks(back).position == (1, 1)
    back.rotate()
    assert speaks(back).position == (1, 2)


def test_a_card_that_leaves_out_recoveries_is_completed_by_the_paper(world: World) -> None:
    world.make()
    id_ = world.log().id
    for _ in range(3):
        world.evict(world.words[0])
    records = read_card(world.card())
    assert len(records) == 2
    copy = LogCopy(records=records, receipts=())
    shutil.rmtree(world.root / "w1")
    back = elsewhere(world)
    new = (WitnessFolder(world.root / "n1"),)
    back.recover(world.words[0], witnesses=(), copies=(copy,), new_witnesses=new)
    log = speaks(back)
    assert (log.id, log.position) == (id_, (4, 1))


def test_a_restored_home_needs_its_escrow(world: World) -> None:
    world.make()
    (world.folder / "journal.db").touch(0o600)
    for path in (world.vault, world.second):
        shutil.rmtree(path)
    away = world.folder / "escrow.age"
    raw = away.read_bytes()
    away.unlink()
    with pytest.raises(BadInput, match="escrow"):
        world.recover(world.words[0])
    away.touch(0o600)
    away.write_bytes(raw)
    assert world.recover(world.words[0]).kept
    speaks(world)
    pointer = json.loads((world.folder / "keys.json").read_bytes())
    assert pointer["vault"] == str(world.vault)


def test_a_lost_vault_is_not_made_anew_by_init(world: World) -> None:
    world.make()
    shutil.rmtree(world.vault)
    shutil.rmtree(world.second)
    with pytest.raises((VaultMissing, AgentExists)):
        world.make()
    assert not world.vault.exists()


def test_a_retired_identity_never_acts_again(world: World) -> None:
    world.make()
    world.retire(world.words[0])
    assert world.log().standing is LogStanding.RETIRED
    world.retire(world.words[0]) if find_pending(world.folder) else None
    for act in (world.rotate, lambda: world.evict(world.words[0])):
        with pytest.raises(NotNow, match="retired"):
            act()
    with pytest.raises(NotNow, match="retired"):
        elsewhere(world).recover(world.words[0])


def test_both_vaults_are_opened_by_keys_of_their_own(world: World) -> None:
    world.make()
    from holdfast.errors import VaultLocked

    with pytest.raises(VaultLocked):
        open_by(world.second, [UNLOCK])
    with pytest.raises(VaultLocked):
        open_by(world.vault, [OTHER])
    with world.keys() as keys:
        assert isinstance(keys, KeySet)
    assert not os.path.lexists(world.vault / "next.age")
    assert SODIUM.is_good_key(bytes(32)) is False
