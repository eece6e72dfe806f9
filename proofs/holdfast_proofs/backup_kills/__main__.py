"""The command line: starts the trials with the crash shim loaded, and shows the figures."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast_proofs.backup_kills.trials import ACTS
from holdfast_proofs.shim import build, preloaded
from holdfast_proofs.support.options import at_least_one

BUILD = Path("build")
MOMENTS = 20
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast_proofs.backup_kills")
    parser.add_argument("--points", type=at_least_one, help="of all acts together (default: all)")
    parser.add_argument(
        "--moments",
        type=at_least_one,
        default=MOMENTS,
        metavar="N",
        help=f"times, spread over each act, at which Borg is killed with it ({MOMENTS})",
    )
    parser.add_argument("--act", choices=ACTS, action="append", help="this act alone")
    parser.add_argument("--at", default="", metavar="N,...", help="before these calls alone")
    parser.add_argument("--report", type=Path, default=None)
    given = parser.parse_args(arguments)
    acts = given.act or list(ACTS)
    each = "" if given.points is None else str(max(1, -(-given.points // len(acts))))
    library = build(BUILD / "shim")
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-", dir=memory) as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "holdfast_proofs.backup_kills.trials",
                folder,
                each,
                str(given.moments),
                given.at,
                *acts,
            ],
            env=os.environ | preloaded(library),
            stdout=subprocess.PIPE,
            check=False,
        )
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_bytes(done.stdout)
    print(done.stdout.decode(), end="")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
