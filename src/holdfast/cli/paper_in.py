"""Paper as it comes back: typed, from a descriptor, or scanned; words, or the text of a code.

A whole phrase is 24 words, a share 33. Shares are asked for until there are enough; from a
descriptor each is a line of its own, and what `holdfast share split` prints is taken as it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.app.paper import PaperDesk, Words, check_same_agent, fit_phrase, fit_shares
from holdfast.cli.words_in import ask_words, read_words
from holdfast.errors import BadInput, BadShare
from holdfast.identity.paper import Secret, read_secret
from holdfast.identity.phrase import WORDS
from holdfast.identity.shares import SHARE_WORDS, Share, read_share
from holdfast.identity.words import split

TRIES = 5  # at one share, before the person is sent away to look again
_CODE = re.compile(r"HF1[RS]:", re.I)
_HEADING = re.compile(r"share [0-9]+ of [0-9]+,")
_BETWEEN = (WORDS + SHARE_WORDS) // 2  # so many words or fewer are meant as a phrase


def read_passphrase(args: argparse.Namespace) -> str:
    """The passphrase of the words; empty where they have none."""
    if args.passphrase_fd is not None:
        return read_words(args.passphrase_fd, "--passphrase-fd").removesuffix("\n")
    return ask_words("passphrase of the words", "--passphrase-fd") if args.passphrase else ""


def read_paper(desk: PaperDesk, args: argparse.Namespace, passphrase: str) -> Words:
    """Words that fit this agent. Raises BadInput, BadPhrase, BadShare, BadSheet."""
    if args.scan and args.words_fd is not None:
        raise BadInput("--scan and --words-fd: one of them")
    if args.scan:
        from holdfast.app.scan import scan

        texts = [scan(Path(file)) for file in args.scan]
        return _fit_codes(desk, "\n".join(texts), passphrase)
    if args.words_fd is not None:
        return fit_text(desk, read_words(args.words_fd, "--words-fd"), passphrase)
    return _typed(desk, passphrase)


def fit_text(desk: PaperDesk, text: str, passphrase: str = "") -> Words:
    """A phrase, shares in lines, or the texts of codes."""
    if _CODE.search(text):
        return _fit_codes(desk, text, passphrase)
    if len(split(text)) <= _BETWEEN:
        return fit_phrase(desk, text, passphrase)
    lines = [line.strip() for line in text.splitlines()]
    given = [line for line in lines if line and not _HEADING.match(line)]
    return fit_shares(desk, [read_share(one, number=at) for at, one in enumerate(given, 1)],
                      passphrase)  # fmt: skip


def _fit_codes(desk: PaperDesk, text: str, passphrase: str) -> Words:
    """The codes in these lines; the same one twice counts once."""
    codes = {line.strip(): None for line in text.splitlines() if _CODE.search(line)}
    if len(codes) <= 1:
        secrets = [read_secret(text.upper())]
    else:
        secrets = [read_secret(code.upper()) for code in codes]
    for one in secrets:
        check_same_agent(desk, one)
    return _fit_secrets(desk, secrets, passphrase)


def _fit_secrets(desk: PaperDesk, secrets: Sequence[Secret], passphrase: str) -> Words:
    phrases = [one.phrase for one in secrets if one.phrase is not None]
    shares = [one.share for one in secrets if one.share is not None]
    if phrases and (shares or len(phrases) > 1):
        raise BadInput("several sheets at once: read back one sheet, or shares of one split")
    if phrases:
        return fit_phrase(desk, " ".join(phrases[0].words), passphrase)
    return fit_shares(desk, shares, passphrase)


def _typed(desk: PaperDesk, passphrase: str) -> Words:
    text = ask_words(f"the {WORDS} words, or the {SHARE_WORDS} of a share", "--words-fd")
    if _CODE.search(text) or len(split(text)) <= _BETWEEN:
        return fit_text(desk, text, passphrase)
    return fit_shares(
        desk, ask_shares(lambda what: ask_words(what, "--words-fd"), text), passphrase
    )


def ask_shares(ask: Callable[[str], str], first: str = "") -> list[Share]:
    """Shares from a person until there are enough; one that is damaged is asked for again."""
    kept: dict[int, Share] = {}
    needed, tries = 0, 0
    while not needed or len(kept) < needed:
        number = len(kept) + 1
        text = first or ask(f"share {number}" + (f" of {needed} needed" if needed else ""))
        first = ""
        try:
            share = read_share(text, number=number)
        except BadShare as error:
            tries += 1
            if tries == TRIES:
                raise
            print(f"{error}; once more", file=sys.stderr)
            continue
        needed, tries = share.needed, 0
        if share.number in kept:
            print(f"share {share.number} was given before", file=sys.stderr)
        kept[share.number] = share
    return list(kept.values())
