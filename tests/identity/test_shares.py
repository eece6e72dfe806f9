"""Shares: every pair of 2 of 3 gives the phrase, every single one nothing; mistakes are named."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from holdfast.errors import BadInput, BadShare
from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast.identity.paper.shares import Share, combine, combine_secret, read_share, slip39_words, split
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.vectors import vectors

SLIP39: list[list[object]] = json.loads((vectors("slip39") / "vectors.json").read_text())


@pytest.fixture(scope="module")
def shares() -> list[Share]:
    return split(new_phrase(SeededEntropy(24)), needed=2, total=3)


def texts(*shares: Share) -> list[str]:
    return [" ".join(one.words) for one in shares]


@pytest.mark.parametrize("row", SLIP39, ids=lambda row: row[0])
def test_slip39_vectors(row: list[object]) -> None:
    """An empty secret in the suite means: these shares must be refused."""
    _, shares, secret, _ = row
    assert isinstance(shares, list)
    try:
        found = combine_secret([str(one) for one in shares], b"TREZOR").hex()  # pyright: ignore
    except BadShare:
        found = ""
    assert found == secret


def test_every_pair_gives_the_phrase_and_so_do_all_three(shares: list[Share], phrase: Phrase) -> None:
    for pair in combinations(shares, 2):
        assert combine(texts(*pair)) == phrase
        assert combine(texts(*reversed(pair))) == phrase
    assert combine(texts(*shares)) == phrase
    assert [(one.number, one.needed, len(one.words)) for one in shares] == [(1, 2, 33), (2, 2, 33), (3, 2, 33)]
    assert len({one.document for one in shares}) == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_single_share_is_not_enough_nor_is_it_twice(shares: list[Share], number: int) -> None:
    for given in (texts(shares[number]), texts(shares[number]) * 2):
        with pytest.raises(BadShare, match="2 different shares are needed; you gave 1") as caught:
            combine(given)
        assert caught.value.reason == "few"


def test_a_share_of_another_set_is_named(shares: list[Share], phrase: Phrase) -> None:
    other = split(phrase, needed=2, total=3)
    with pytest.raises(BadShare, match=r"share 2 .* does not belong to the same set") as caught:
        combine(texts(shares[0], other[1]))
    assert (caught.value.reason, caught.value.number) == ("mixed", 2)


def test_a_damaged_share_is_named_by_its_place_and_never_shown(shares: list[Share]) -> None:
    words = list(shares[1].words)
    for word in range(0, 33, 4):
        wrong = "academic" if words[word] != "academic" else "acid"
        damaged = " ".join([*words[:word], wrong, *words[word + 1 :]])
        with pytest.raises(BadShare, match="share 2: a word is wrong") as caught:
            combine([*texts(shares[0]), damaged])
        assert caught.value.reason == "damaged"
    with pytest.raises(BadShare, match=r"share 1: word 3 is not in the word list"):
        combine([" ".join([*words[:2], "qqqq", *words[3:]])])
    with pytest.raises(BadShare, match="it has 32 words instead of 33"):
        combine([" ".join(words[:-1])])


def test_shares_are_read_as_people_write_them(shares: list[Share], phrase: Phrase) -> None:
    short = " ".join(word[:4].upper() for word in shares[0].words)
    numbered = "\n".join(f"{n}. {word}" for n, word in enumerate(shares[2].words, 1))
    assert combine([short, numbered]) == phrase
    assert read_share(short) == shares[0]
    assert len({word[:4] for word in slip39_words().words}) == 1024


def test_a_share_that_asks_for_hours_of_work_is_refused() -> None:
    from shamir_mnemonic.share import Share as Raw  # pyright: ignore

    asking = Raw(1, True, 15, 0, 1, 1, 0, 1, bytes(32)).mnemonic()
    with pytest.raises(BadShare, match="has an iteration exponent of 15; Holdfast accepts at most 8"):
        combine([asking])


@pytest.mark.parametrize(("needed", "total"), [(1, 3), (3, 2), (2, 17), (0, 0)])
def test_splits_that_make_no_sense_are_refused(phrase: Phrase, needed: int, total: int) -> None:
    with pytest.raises(BadInput):
        split(phrase, needed=needed, total=total)


def test_a_share_shows_no_word(shares: list[Share]) -> None:
    assert repr(shares[0]) == f"Share(1, 2 needed, document {shares[0].document})"
