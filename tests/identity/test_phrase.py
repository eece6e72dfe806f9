"""Words in, the same secret out; one mistake is repaired, two never become another identity."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadPhrase
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import (
    Phrase,
    english,
    find_secret,
    new_phrase,
    read_phrase,
    repair,
    seed_of,
    words_of,
)
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.vectors import vectors

BIP39: list[list[str]] = json.loads((vectors("bip39") / "english.json").read_text())


@pytest.mark.parametrize("row", BIP39, ids=lambda row: row[0][:8] + f"-{len(row[0]) * 4}")
def test_bip39_vectors(row: list[str]) -> None:
    secret, words, seed, _ = row
    assert words_of(bytes.fromhex(secret)) == words.split()
    numbers = [english().find(word) for word in words.split()]
    assert find_secret([one for one in numbers if one is not None]) == bytes.fromhex(secret)
    assert seed_of(words.split(), "TREZOR").hex() == seed


@given(st.binary(min_size=32, max_size=32))
def test_every_secret_comes_back_from_its_words(secret: bytes) -> None:
    phrase = Phrase(secret)
    assert len(phrase.words) == 24
    assert read_phrase(" ".join(phrase.words)) == phrase


def test_a_phrase_is_read_as_people_write_it(phrase: Phrase) -> None:
    words = phrase.words
    numbered = "\n".join(f"{n:2}. {word.upper()}" for n, word in enumerate(words, 1))
    for text in (
        " ".join(word[:4] for word in words),
        "  " + ",\t".join(words) + "\r\n",
        numbered,
        " ".join(f"{n}){word.title()}" for n, word in enumerate(words, 1)),
        unicodedata.normalize("NFKC", " ".join(words)).translate({ord("a") + n: 0xFF41 + n for n in range(26)}),
    ):
        assert read_phrase(text) == phrase


def test_what_is_no_phrase_is_refused_by_place_and_never_shown(phrase: Phrase) -> None:
    words = list(phrase.words)
    for typed, said in (
        (words[:23], "you gave 23"),
        ([*words, "zoo"], "you gave 25"),
        ([*words[:4], "qqqq", *words[5:]], "word 5 is not in the word list"),
        ([words[0][:3] + "zz", *words[1:22], "?", "xyzzy"], "words 1, 23, 24 are not"),
        ([words[0], *words[:0:-1]], "one word is wrong, or two are swapped"),
    ):
        with pytest.raises(BadPhrase, match=said) as caught:
            read_phrase(" ".join(typed))
        shown = set(str(caught.value).split())
        assert not {word for word in typed if len(word) > 4} & shown


def test_four_letters_name_one_word() -> None:
    assert len({word[:4] for word in english().words}) == 2048


@pytest.fixture(scope="module")
def known() -> tuple[Phrase, bytes]:
    phrase = new_phrase(SeededEntropy(24))
    return phrase, PaperKeys(phrase).recovery(1).public_bytes


def _recovery_key(phrase: Phrase) -> bytes:
    return PaperKeys(phrase).recovery(1).public_bytes


def test_one_wrong_word_is_found_wherever_it_is(known: tuple[Phrase, bytes]) -> None:
    """The candidate is confirmed by its words here; by its derived key in the next test."""
    phrase, _ = known
    for place in (0, 7, 23):
        words = list(phrase.words)
        words[place] = "zoo" if words[place] != "zoo" else "zone"
        found = repair(" ".join(words), lambda one: one == phrase)
        assert (found.phrase, found.change) == (phrase, f"word {place + 1} was wrong")


def test_mistakes_are_repaired_by_the_key_behind_the_words(known: tuple[Phrase, bytes]) -> None:
    phrase, public = known
    words = list(phrase.words)
    swapped = [*words[:2], words[9], *words[3:9], words[2], *words[10:]]
    for typed, change in (
        (words, ""),
        ([*words[:6], "zoo", *words[7:]], "word 7 was wrong"),
        ([*words[:6], "?", *words[7:]], "word 7 was wrong"),
        ([*words[:6], *words[7:]], "word 7 was missing"),
        (swapped, "words 3 and 10 were swapped"),
    ):
        found = repair(" ".join(typed), lambda one: _recovery_key(one) == public)
        assert (found.phrase, found.change) == (phrase, change)


@pytest.mark.parametrize("places", [(0, 1), (5, 17), (22, 23)])
def test_two_wrong_words_are_refused_never_another_phrase(places: tuple[int, int]) -> None:
    phrase = new_phrase(SeededEntropy(24))
    public = PaperKeys(phrase).recovery(1).public_bytes
    words = list(phrase.words)
    for place in places:
        words[place] = "zoo"
    with pytest.raises(BadPhrase, match="do not belong to this agent, and correcting one word does not help"):
        repair(" ".join(words), lambda one: _recovery_key(one) == public)


def test_a_repair_that_fits_twice_is_refused(phrase: Phrase) -> None:
    words = [*phrase.words[:6], "zoo", *phrase.words[7:]]
    with pytest.raises(BadPhrase, match="different corrections are possible"):
        repair(" ".join(words), lambda _: True)


def test_two_unreadable_words_are_refused(phrase: Phrase) -> None:
    with pytest.raises(BadPhrase, match="2 words are unreadable"):
        repair(" ".join(["?", "?", *phrase.words[2:]]), lambda _: True)


def test_a_phrase_shows_nothing_and_is_gone_when_wiped(phrase: Phrase) -> None:
    shown = repr(phrase) + repr(PaperKeys(phrase)) + repr(phrase.seed())
    assert not any(word in shown for word in phrase.words if len(word) > 4)
    phrase.wipe()
    with pytest.raises(ValueError, match="wiped"):
        _ = phrase.words
