"""Words of a sheet for `holdfast paper`: typed, from a descriptor, or scanned.

More than input_sheet.py, which all commands share: it scans pages, checks that a code belongs to
this agent, and asks again for a share that was mistyped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from holdfast.cli.input.input_sheet import CODE, sorted_paper
from holdfast.cli.input.input_slots import read_line
from holdfast.cli.input.terminal import ask_sheet, ask_words, read_words
from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput, BadShare
from holdfast.identity.acts.paper_sheets import FittedWords, PaperSession, check_same_agent, fit_phrase, fit_shares
from holdfast.identity.paper.paper import read_secret
from holdfast.identity.paper.phrase import WORDS
from holdfast.identity.paper.shares import SHARE_WORDS, Share, read_share

TRIES = 5  # per share


def read_passphrase(args: argparse.Namespace) -> str:
    """The passphrase of the words; empty if they have none."""
    option = "--sheet-passphrase-fd"
    if args.sheet_passphrase_fd is not None:
        return read_line(option, args.sheet_passphrase_fd)
    return ask_words("passphrase of the sheet", option) if args.sheet_passphrase else ""


def read_paper(session: PaperSession, args: argparse.Namespace, passphrase: str) -> FittedWords:
    """Words that fit this agent. Raises BadInput, BadPhrase, BadShare, BadSheet."""
    if args.scan and args.words_fd is not None:
        raise BadInput("give only one of --scan and --words-fd")
    if args.scan:
        from holdfast.identity.paper.scan import scan

        return fit_text(session, "\n".join(scan(Path(file)) for file in args.scan), passphrase)
    if args.words_fd is not None:
        return fit_text(session, read_words(args.words_fd, "--words-fd"), passphrase)
    return _typed(session, passphrase)


def fit_text(session: PaperSession, text: str, passphrase: str) -> FittedWords:
    """A phrase, shares in lines, or the texts of codes."""
    for line in text.splitlines():
        if CODE.search(line):
            check_same_agent(session, read_secret(line.upper()))
    given = sorted_paper(text)
    if not given.shares:
        return fit_phrase(session, given.words, passphrase)
    shares = [read_share(one, number=at) for at, one in enumerate(given.shares, 1)]
    return fit_shares(session, shares, passphrase)


def _typed(session: PaperSession, passphrase: str) -> FittedWords:
    def ask(what: str) -> str:
        return ask_sheet(what, "--words-fd")

    text = ask(f"the {WORDS} words, or the {SHARE_WORDS} of a share")
    if CODE.search(text) or not sorted_paper(text).shares:
        return fit_text(session, text, passphrase)
    return fit_shares(session, ask_shares(ask, text), passphrase)


def ask_shares(ask: Callable[[str], str], first: str = "") -> list[Share]:
    """Ask for shares until there are enough; ask again for a damaged one."""
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
            talk(f"{error}; try again")
            continue
        needed, tries = share.needed, 0
        if share.number in kept:
            talk(f"share {share.number} was already given; give another one")
        kept[share.number] = share
    return list(kept.values())
