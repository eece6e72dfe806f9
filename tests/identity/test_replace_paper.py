"""New words: the old paper names the new one, loses its power, and the vault follows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from holdfast.errors import BadPhrase, BadSheet, KeysReplaced, VaultLocked
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.make_agent import open_by
from holdfast.identity.acts.paper_acts import is_under_way, replace_paper
from holdfast.identity.acts.paper_sheets import fit_phrase, open_paper
from holdfast.identity.log.log_state import LogStanding
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, new_phrase, read_phrase
from holdfast.identity.vault.ring import open_escrow, read_escrow
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import Vault
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.agents import ENTROPY, OTHER, SODIUM, UNLOCK, World

NEW, THIRD = new_phrase(SeededEntropy(8)), new_phrase(SeededEntropy(9))


def replaced(world: World, new: Phrase, ways: tuple[UnlockKey, UnlockKey] = (UNLOCK, OTHER)) -> ActResult:
    async def act() -> ActResult:
        session = await open_log_session(world.home(), port=SODIUM)
        with open_by(world.vault, [UNLOCK]) as vault, open_by(world.second, [OTHER]) as second:
            return await replace_paper(
                session,
                PaperKeys(read_phrase(world.words[0])),
                PaperKeys(new),
                vault,
                second,
                ways=[ways[0]],
                second_ways=[ways[1]],
                entropy=ENTROPY,
            )

    with act_lock(world.folder):
        return asyncio.run(act())


def under_way(world: World) -> bool:
    session = asyncio.run(open_log_session(world.home(), port=SODIUM))
    return is_under_way(session, PaperKeys(read_phrase(world.words[0])))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.make()
    return made


def test_the_new_words_have_all_the_power_and_the_old_ones_none(world: World) -> None:
    id_ = world.log().id
    assert not under_way(world)
    done = replaced(world, NEW)
    assert (done.log.id, done.log.standing) == (id_, LogStanding.ACTIVE)
    assert tuple(done.log.position) == (1, 1)
    session = open_paper(world.folder)
    assert fit_phrase(session, " ".join(NEW.words)).phrase == NEW
    with pytest.raises(BadSheet, match="this sheet is no longer valid"):
        fit_phrase(session, world.words[0])
    with open_by(world.vault, [UNLOCK]) as vault:
        kept = read_escrow(vault)
    for place in (world.vault, world.second, world.folder):
        raw = (place / "escrow.age").read_bytes()
        assert open_escrow(raw, PaperKeys(NEW).escrow()) == kept
        with pytest.raises(VaultLocked):
            open_escrow(raw, PaperKeys(read_phrase(world.words[0])).escrow())
    world.rotate()
    elsewhere = World(world.root, home_name="elsewhere")
    elsewhere.recover(" ".join(NEW.words), witnesses=world.witnesses)
    assert elsewhere.log().id == id_


def test_a_run_that_was_cut_short_goes_on_with_the_same_new_words(world: World) -> None:
    with pytest.raises(VaultLocked):
        replaced(world, NEW, (UNLOCK, UNLOCK))
    assert world.log().standing is LogStanding.ACTIVE  # refused before anybody was evicted
    with patch.object(Vault, "exchange_escrow", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        replaced(world, NEW)
    assert world.log().standing is LogStanding.LOCKED
    assert under_way(world)
    thief = World(world.root, home_name="thief")
    with pytest.raises(BadPhrase, match="replaced these words"):
        thief.recover(world.words[0], witnesses=world.witnesses)
    with pytest.raises(BadPhrase, match="already has a new recovery key, and it was made from other words than these"):
        replaced(world, THIRD)
    assert replaced(world, NEW).log.standing is LogStanding.ACTIVE
    again = replaced(world, NEW)
    assert tuple(again.log.position) == (1, 1)


def test_keys_that_somebody_else_installed_are_no_success(world: World) -> None:
    """The new words were stolen too, and used elsewhere, before the run was finished."""
    with patch.object(Vault, "exchange_escrow", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        replaced(world, NEW)
    World(world.root, home_name="elsewhere").recover(" ".join(NEW.words), witnesses=world.witnesses)
    with pytest.raises(KeysReplaced):
        replaced(world, NEW)
