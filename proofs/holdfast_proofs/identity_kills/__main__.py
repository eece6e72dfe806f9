"""`python -m holdfast_proofs.identity_kills`: cut an identity's life short at every call.

Ends with 1 where something was left that must not be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast_proofs.identity_kills.lives import LIVES
from holdfast_proofs.shim import build, preloaded
from holdfast_proofs.support.options import at_least_one

FAST = Path("/dev") / "shm"  # a sync there costs nothing; what is tried is the order of calls


def sweep(life: str, *, points: int = 0, folder: Path | None = None) -> dict[str, Any]:
    """All trials of a life, or so many of each kind, in a process with the shim."""
    place = folder or (FAST if FAST.is_dir() else None)
    made = Path(tempfile.mkdtemp(dir=place))
    try:
        library = build(made / "shim")
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_proofs.identity_kills.trials", life, str(made), str(points)],
            env=os.environ | preloaded(library),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"life": life, "wrong": [done.stderr[-2_000:]], "trials": {}, "calls": 0}
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.identity_kills",
        description="Kill and fail every act of an identity's life at every call.",
    )
    parser.add_argument("--life", choices=tuple(LIVES), action="append", help="only these")
    parser.add_argument("--points", type=at_least_one, help="so many points of each kind")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args(arguments)
    reports: list[dict[str, Any]] = []
    for life in options.life or LIVES:
        report = sweep(life, points=options.points or 0)
        reports.append(report)
        print(f"{life}: {report['calls']} calls, trials {report['trials']}", flush=True)
        for one in report["wrong"]:
            print(f"red: {life}: {one}", file=sys.stderr)
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(reports, indent=1) + "\n")
    return 1 if any(report["wrong"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
