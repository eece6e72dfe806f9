"""`holdfast share`: split a recovery phrase into shares, and combine them again."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, new_noun, new_verb
from holdfast.cli.input.terminal import ask_sheet, read_words
from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "share").help("""
        Shares of a recovery phrase (SLIP-39): enough of them together give the phrase, fewer reveal nothing. Run it
        on a machine without a network. The output is secret: Holdfast writes it to a terminal, a pipe or a private
        file in memory, and refuses a file on a disk. It stores nothing.
        examples:
          holdfast share split --needed 2 --total 3
          holdfast share combine
        """)
    split = new_verb(verbs, "split", run_split).help("""split a phrase into shares

        Split a recovery phrase into shares. Holdfast asks for the 24 words without showing them, or reads them from
        a descriptor. The phrase stays valid: destroy its sheet if only the shares should count. Shares of different
        splits cannot be combined.
        examples:
          holdfast share split --needed 2 --total 3
          gpg -d words.gpg | holdfast share split --needed 3 --total 5 --from-fd 0
        """)
    split.add_argument("--needed", metavar="M", required=True, help="how many shares are needed to get the words back")
    split.add_argument("--total", metavar="N", required=True, help="how many shares to make, at most 16")
    combine = new_verb(verbs, "combine", run_combine).help("""get the phrase back from enough shares

        Print the recovery phrase from enough shares. Holdfast asks for them one by one without showing them, or
        reads them from a descriptor, one per line. Four letters of each word are enough.
        examples:
          holdfast share combine
          holdfast share combine --from-fd 3 3< shares
        """)
    for one in (split, combine):
        one.add_argument("--from-fd", metavar="N", help="read the words from this open descriptor; 0 is standard input")


def run_split(args: argparse.Namespace) -> int:
    from holdfast.cli.screen.output_paper import check_way_out
    from holdfast.identity.paper.phrase import read_phrase
    from holdfast.identity.paper.shares import split

    check_way_out(None, text=True)
    needed, total = _number("--needed", args.needed), _number("--total", args.total)
    text = read_words(args.from_fd) if args.from_fd is not None else ask_sheet("the 24 words")
    with read_phrase(text) as phrase:
        for share in split(phrase, needed=needed, total=total):
            print(f"share {share.number} of {total}, any {needed} needed, document {share.document}")
            print(" ".join(share.words))
            print()
    talk("secret: write each share on its own sheet, and never keep two in one place")
    return 0


def run_combine(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_paper import ask_shares
    from holdfast.cli.input.input_sheet import shares_in
    from holdfast.cli.screen.output_paper import check_way_out
    from holdfast.identity.paper.shares import combine

    check_way_out(None, text=True)
    if args.from_fd is not None:
        shares = shares_in(read_words(args.from_fd))
    else:
        shares = tuple(" ".join(one.words) for one in ask_shares(ask_sheet))
    with combine(shares) as phrase:
        print(" ".join(phrase.words))
    talk("secret: these are all the words; if this machine has a network, run `holdfast paper replace` soon")
    return 0


def _number(option: str, word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise BadInput(f"{option}: {word!r} is not a number")
    return int(word[:9])
