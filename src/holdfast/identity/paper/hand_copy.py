"""Copying the words by hand, for those who trust no printer: shown one by one, then asked back.

A copy counts after four words at random places were right, and then all of them typed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.clock import Entropy
from holdfast.identity.paper.words import WordList

ASKED = 4


def places_to_ask(count: int, entropy: Entropy) -> list[int]:
    """Four different places among so many words, from 1, in rising order."""
    chosen: set[int] = set()
    while len(chosen) < min(ASKED, count):
        # Of 65,536 values no place gets more than one in a thousand too many.
        chosen.add(int.from_bytes(entropy.bytes(2), "big") % count + 1)
    return sorted(chosen)


def wrong_places(words: Sequence[str], answers: Mapping[int, str], listed: WordList) -> list[int]:
    """The places at which the answer is not the word; empty where all are right."""
    return [
        place
        for place, answer in answers.items()
        if listed.find(answer.strip().lower()) != listed.find(words[place - 1])
    ]


def retyped_wrong(words: Sequence[str], text: str, listed: WordList) -> list[int]:
    """The places at which the whole text, typed again, differs; [0] where its length does."""
    typed = listed.read(text)
    if len(typed) != len(words):
        return [0]
    return [
        place for place, (number, word) in enumerate(zip(typed, words, strict=True), 1) if number != listed.find(word)
    ]
