"""`python -m holdfast_proofs.support.shifted_clock SECONDS WORDS`: `holdfast WORDS` with a wrong clock; options without
a command are those of `relay serve`."""

from __future__ import annotations

import sys
import time


def shift_clock(seconds: int) -> None:
    """From now on this process reads a wall clock that is so many seconds ahead. SQLite's own clock is not changed."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + seconds * 1_000_000_000


if __name__ == "__main__":
    shift_clock(int(sys.argv[1]))
    from holdfast.cli.main import main  # defaults that name time.time must name the changed one

    words = sys.argv[2:]
    sys.exit(main(["relay", "serve", *words] if words[0].startswith("--") else words))
