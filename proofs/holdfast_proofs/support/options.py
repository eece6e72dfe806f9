"""What the command lines of several suites read in the same way."""

from __future__ import annotations

import argparse


def at_least_one(text: str) -> int:
    """How many trials: none would be green and show nothing."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1: nothing tried is nothing shown")
    return count
