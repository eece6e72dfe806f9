"""`python -m holdfast_proofs.support.shifted_clock SECONDS ...`: `holdfast relay serve ...` with a wrong clock."""

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

    sys.exit(main(["relay", "serve", *sys.argv[2:]]))
