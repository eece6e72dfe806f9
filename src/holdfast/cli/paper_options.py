"""The options that say where the words of a sheet come from."""

from __future__ import annotations

import argparse


def add_paper_options(parser: argparse.ArgumentParser) -> None:
    """Read by paper_in.py; without them the words are typed, unseen."""
    parser.add_argument(
        "--words-fd", metavar="N",
        help="read words, shares or the text of a code from this open descriptor; 0 is a pipe",
    )  # fmt: skip
    parser.add_argument(
        "--scan", metavar="FILE", action="append", default=[],
        help="a scanned page, picture or PDF; repeat it for shares (needs zbarimg)",
    )  # fmt: skip
    parser.add_argument(
        "--passphrase", action="store_true", help="the words have a passphrase: ask for it"
    )
    parser.add_argument(
        "--passphrase-fd", metavar="N", help="read that passphrase from this open descriptor"
    )
