"""Shares of the phrase's secret by SLIP-39: any M of N sheets together, fewer tell nothing.

The shares split the same 32 bytes that the 24 words hold, so one sheet can become 2 of 3 and back
without any change of keys. The arithmetic is shamir-mnemonic's, whose authors call it a
reference that is not hardened against side channels: it is used only here, by the commands that a
person runs off line, never by a running agent.

Every refusal names the share by its place among those given, and never a word of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from holdfast.errors import BadInput, BadShare
from holdfast.identity.paper.phrase import Phrase, WordList, places_text

SHARE_WORDS = 33  # of 32 bytes
TOTAL_MAX = 16
EXPONENT_MAX = 8  # of the rounds of PBKDF2: a false share with 15 would keep a machine for hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One share. `document` is the same on all shares of one split, and not secret."""

    words: tuple[str, ...]
    number: int  # from 1
    needed: int
    document: str

    def __repr__(self) -> str:
        return f"Share({self.number}, {self.needed} needed, document {self.document})"


def split(phrase: Phrase, *, needed: int, total: int) -> list[Share]:
    """New shares of the phrase; shares of an earlier split stay valid among themselves."""
    if not 2 <= needed <= total <= TOTAL_MAX:
        raise BadInput(
            f"a phrase cannot be split into {total} shares of which {needed} are needed",
            hint=f"choose 2 to {TOTAL_MAX} shares in all; 2 or more of them must be needed",
        )
    made: list[str] = _slip39().generate_mnemonics(1, [(needed, total)], phrase.secret)[0]
    return [read_share(one, number=number) for number, one in enumerate(made, 1)]


def combine(texts: Sequence[str]) -> Phrase:
    """The phrase behind these shares. Raises BadShare."""
    secret = combine_secret(texts)
    if len(secret) != 32:
        raise BadShare(
            f"these shares give {len(secret)} bytes instead of 32: they are not shares of a recovery phrase",
            reason="other",
        )
    return Phrase(secret)


def read_share(text: str, *, number: int = 1) -> Share:
    """One share as typed or scanned, checked by its own checksum. Raises BadShare."""
    parsed = _parsed(text, number)
    return Share(
        words=tuple(parsed.words()),
        number=parsed.index + 1,
        needed=parsed.member_threshold,
        document=f"{parsed.identifier:04x}",
    )


def combine_secret(texts: Sequence[str], passphrase: bytes = b"") -> bytes:
    """SLIP-39 as it stands: any length of secret, groups, passphrase. Raises BadShare.

    More shares than are needed may be given; each of them must then agree with the others.
    """
    if not texts:
        raise BadShare("no share was given", reason="few")
    parsed = [_parsed(text, number) for number, text in enumerate(texts, 1)]
    _check_one_set(parsed)
    groups = _groups(parsed)
    first = parsed[0]
    whole = {at: found for at, found in groups.items() if len(found) >= found[0].member_threshold}
    if len(whole) < first.group_threshold:
        _refuse_few(groups, first.group_threshold)
    chosen = list(whole)[: first.group_threshold]
    return _recovered({at: whole[at] for at in chosen}, passphrase)


def _recovered(groups: dict[int, list[Any]], passphrase: bytes) -> bytes:
    extra = max(len(found) - found[0].member_threshold for found in groups.values())
    secrets: set[bytes] = set()
    for skipped in range(extra + 1):
        used = [
            one.mnemonic()
            for found in groups.values()
            for one in found[min(skipped, len(found) - found[0].member_threshold) :][: found[0].member_threshold]
        ]
        try:
            secrets.add(_slip39().combine_mnemonics(used, passphrase))
        except _slip39().MnemonicError:
            raise BadShare("the shares do not belong together: at least one is wrong", reason="damaged") from None
    if len(secrets) != 1:
        raise BadShare("the shares give different secrets: at least one is wrong", reason="damaged")
    return secrets.pop()


def _parsed(text: str, number: int) -> Any:
    """A share of shamir-mnemonic."""
    numbers = slip39_words().read(text)
    unknown = [place for place, word in enumerate(numbers, 1) if word is None]
    if unknown:
        raise BadShare(f"share {number}: {places_text(unknown)} not in the word list", reason="damaged", number=number)
    listed = slip39_words().words
    plain = " ".join(listed[word] for word in numbers if word is not None)
    try:
        share = import_module("shamir_mnemonic.share").Share.from_mnemonic(plain)
    except _slip39().MnemonicError:
        count = f"; it has {len(numbers)} words instead of {SHARE_WORDS}" if len(numbers) != SHARE_WORDS else ""
        raise BadShare(f"share {number}: a word is wrong or missing{count}", reason="damaged", number=number) from None
    if share.iteration_exponent > EXPONENT_MAX:
        raise BadShare(
            f"share {number} has an iteration exponent of {share.iteration_exponent}; Holdfast accepts at most "
            f"{EXPONENT_MAX}. Holdfast did not make this share",
            reason="other",
            number=number,
        )
    return share


def _check_one_set(parsed: Sequence[Any]) -> None:
    for number, one in enumerate(parsed[1:], 2):
        if one.common_parameters() != parsed[0].common_parameters():
            raise BadShare(
                f"share {number} (document {one.identifier:04x}) does not belong to the same set as the "
                f"first one (document {parsed[0].identifier:04x})",
                reason="mixed",
                number=number,
                hint='give shares of one set: their sheets have the same four characters after "document"',
            )


def _groups(parsed: Sequence[Any]) -> dict[int, list[Any]]:
    """By group, each share once."""
    groups: dict[int, list[Any]] = {}
    for number, one in enumerate(parsed, 1):
        found = groups.setdefault(one.group_index, [])
        if one in found:
            continue
        odd = found and one.group_parameters() != found[0].group_parameters()
        if odd or any(one.index == other.index for other in found):
            raise BadShare(
                f"share {number} has the same number as another share, but other words", reason="mixed", number=number
            )
        if found and len(one.value) != len(found[0].value):
            raise BadShare(f"share {number} is longer or shorter than the other shares", reason="mixed", number=number)
        found.append(one)
    return groups


def _refuse_few(groups: dict[int, list[Any]], group_threshold: int) -> None:
    if group_threshold > 1:
        raise BadShare(
            f"these shares are in groups, so Holdfast did not make them: give enough of {group_threshold} groups",
            reason="few",
        )
    best = max(groups.values(), key=len)
    needed, given = best[0].member_threshold, len(best)
    raise BadShare(
        f"{needed} different shares are needed; you gave {given}",
        reason="few",
        hint=f'find more sheets with the text "document {best[0].identifier:04x}"',
    )


@functools.cache
def slip39_words() -> WordList:
    return WordList(import_module("shamir_mnemonic.wordlist").WORDLIST)


def _slip39() -> Any:  # Any: the package has no types
    return import_module("shamir_mnemonic")
