"""Sheet and public card bring the identity back after any life: the card holds every recovery."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from holdfast.cli.input.agent_places import read_card_files
from holdfast.errors import BadSheet
from holdfast.identity.acts.paper_sheets import make_card, open_paper
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.pages import card_pdf, card_text
from holdfast.identity.paper.paper import Card, read_card
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.witness_address import WitnessFolder
from holdfast_proofs.support.agents import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    tmp_path.chmod(0o700)
    made = World(tmp_path)
    made.make()
    return made


def elsewhere(world: World, name: str) -> World:
    return World(world.root, names=(), home_name=name)


def speaks(world: World) -> KeyLog:
    """The key that the log names is in the vault."""
    log = world.log()
    assert log.operational is not None
    with world.keys() as keys, keys.get_op(keys.current().op) as op:
        assert op.public in log.operational.members
    return log


def card_of(world: World) -> Card:
    return make_card(open_paper(world.folder), date="2026-11-15")


def lose_witnesses(root: Path) -> None:
    for folder in root.glob("[wn][0-9]*"):
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "acts",
    ["", "e", "eee", "r", "er", "re", "rr", "ere", "rer", "b", "bb", "bbr", "rbb", "erbrb"],
    ids=lambda acts: acts or "fresh",
)
def test_after_any_life(world: World, acts: str) -> None:
    """e: evicted by paper; r: paper replaced; b: recovered on a bare machine, with a new witness."""
    id_, now = world.log().id, world
    for number, act in enumerate(acts):
        words = now.words[-1]
        if act == "e":
            now.evict(words)
        elif act == "r":
            now.replace(words)
        else:
            copy = LogCopy(records=read_card(card_text(card_of(now))), receipts=())
            lose_witnesses(world.root)
            there = World(world.root, names=(f"n{number}",), home_name=f"m{number}", words=[words])
            new = (WitnessFolder(world.root / f"n{number}"),)
            there.recover(words, witnesses=(), copies=(copy,), new_witnesses=new, again=True)
            now = there
    generations = len(now.log().generations)
    copy = LogCopy(records=read_card(card_text(card_of(now))), receipts=())
    lose_witnesses(world.root)
    back = elsewhere(world, "back")
    back.recover(now.words[-1], witnesses=(), copies=(copy,), new_witnesses=(WitnessFolder(world.root / "n99"),))
    log = speaks(back)
    assert (log.id, log.position) == (id_, (generations, 1))


def recovered_often(world: World, times: int) -> World:
    """On bare machines, each time with three new witnesses."""
    now = world
    for number in range(1, times + 1):
        copies = (LogCopy(records=tuple(one.tier.signed.line() for one in now.log().generations), receipts=()),)
        names = tuple(f"n{number}{one}" for one in "abc")
        there = World(world.root, names=names, home_name=f"m{number}")
        new = tuple(WitnessFolder(world.root / name) for name in names)
        there.recover(world.words[0], witnesses=(), copies=copies, new_witnesses=new, again=True)
        now = there
    return now


def test_a_card_of_twelve_generations_is_printed_scanned_and_recovered(world: World, tmp_path: Path) -> None:
    now = recovered_often(world, 12)
    card = card_of(now)
    assert len(card.records) == 13
    assert 3 < len(card.codes) <= 7
    page = tmp_path / "card.pdf"
    page.write_bytes(card_pdf(card))
    copies = read_card_files([str(page)])
    assert copies[0].records == read_card("\n".join(card.codes))
    back = elsewhere(world, "back")
    new = tuple(WitnessFolder(tmp_path / f"fresh{one}") for one in "abc")
    back.recover(world.words[0], witnesses=(), copies=copies, new_witnesses=new)
    log = speaks(back)
    assert (log.id, log.position) == (world.log().id, (13, 1))


def test_codes_are_read_in_any_order_and_none_may_be_missing(world: World, tmp_path: Path) -> None:
    codes = card_of(recovered_often(world, 5)).codes
    assert len(codes) > 1
    whole = read_card("\n".join(codes))
    assert read_card("\n".join((*reversed(codes), codes[0]))) == whole
    files = [_written(tmp_path / f"page{number}.txt", code) for number, code in enumerate(reversed(codes))]
    assert read_card_files(files)[0].records == whole
    for number in range(len(codes)):
        with pytest.raises(BadSheet, match=f"missing: {number + 1}"):
            read_card("\n".join(codes[:number] + codes[number + 1 :]))
    with pytest.raises(BadSheet, match="two different QR codes"):
        read_card("\n".join(codes), codes[0][:-8] + "AAAAAAAA")


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_card_with_one_code_is_the_one_that_was_printed_before(world: World) -> None:
    world.evict(world.words[0])
    (code,) = card_of(world).codes
    assert code == world.card()
    assert code.startswith("HF1C:")


def test_a_life_that_fits_on_no_card_is_refused() -> None:
    lines = tuple(hashlib.shake_128(bytes([at])).hexdigest(1_000).encode() for at in range(100))
    with pytest.raises(BadSheet, match="at most 64"):
        _ = Card(name="ada", agent_id="", date="", generation=1, records=lines).codes
