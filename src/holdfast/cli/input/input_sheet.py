"""The words of a sheet: typed without showing them, or from a descriptor.

24 words are a phrase, lines of 33 are shares; the text of a sheet's code is either.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field

from holdfast.cli.input.terminal import ask_sheet, read_words
from holdfast.errors import BadInput

CODE = re.compile(r"HF1[RS]:", re.IGNORECASE)
_HEADING = re.compile(r"share [0-9]+ of [0-9]+,")
_PHRASE_WORDS_MAX = 28  # more words than this are shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    words: str = field(default="", repr=False)
    shares: tuple[str, ...] = field(default=(), repr=False)
    passphrase: str = field(default="", repr=False)


def add_words_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--words-fd",
        metavar="N",
        help="read the words, shares (one per line), or the text of a QR code from this descriptor; 0 is "
        "standard input (default: ask, without showing them)",
    )
    parser.add_argument(
        "--sheet-passphrase-fd",
        metavar="N",
        help="read the passphrase of the sheet from this descriptor, if the sheet has one",
    )


def read_given(args: argparse.Namespace) -> Given:
    from holdfast.cli.input.input_slots import read_line

    passphrase = ""
    if args.sheet_passphrase_fd is not None:
        passphrase = read_line("--sheet-passphrase-fd", args.sheet_passphrase_fd)
    if args.words_fd is not None:
        text = read_words(args.words_fd, "--words-fd")
        return sorted_paper(text, passphrase)
    found = sorted_paper(ask_sheet("the 24 words, or the 33 of a share", "--words-fd"), passphrase)
    if not found.shares:
        return found
    return _more_shares(found)


def sorted_paper(text: str, passphrase: str = "") -> Given:
    """Whether these are words or shares. Raises BadInput, BadSheet."""
    from holdfast.identity.paper.paper import read_secret
    from holdfast.identity.paper.phrase import split

    if CODE.search(text):
        codes = {line.strip().upper() for line in text.splitlines() if CODE.search(line)}
        secrets = [read_secret(code) for code in sorted(codes)]
        phrases = [one.phrase for one in secrets if one.phrase is not None]
        if len(phrases) == 1 and len(secrets) == 1:
            return Given(words=" ".join(phrases[0].words), passphrase=passphrase)
        if phrases:
            raise BadInput("Holdfast found several sheets: give one sheet, or only shares of one split")
        shares = [" ".join(one.share.words) for one in secrets if one.share is not None]
        return Given(shares=tuple(shares), passphrase=passphrase)
    if len(split(text)) <= _PHRASE_WORDS_MAX:
        return Given(words=text, passphrase=passphrase)
    return Given(shares=shares_in(text), passphrase=passphrase)


def shares_in(text: str) -> tuple[str, ...]:
    """One in each line; what `holdfast share split` prints can be given back as it is."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(line for line in lines if line and not _HEADING.match(line))


def _more_shares(found: Given) -> Given:
    from holdfast.identity.paper.shares import read_share

    shares = list(found.shares)
    needed = read_share(shares[0]).needed
    while len(shares) < needed:
        shares.append(ask_sheet(f"share {len(shares) + 1} of {needed} needed", "--words-fd"))
    return Given(shares=tuple(shares), passphrase=found.passphrase)
