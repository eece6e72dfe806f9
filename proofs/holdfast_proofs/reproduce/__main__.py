"""`python -m holdfast_proofs.reproduce [NAME ...]`: show again what was once broken.

Without a name all of them run, one after the other, and `--list` only tells. Each is a test of a
clone of the project. Ends with 1 where one is broken again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from holdfast.errors import BadInput
from holdfast_proofs.reproduce.table import TABLE, Reproduction
from holdfast_proofs.runner import Proof, Result

QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header")


def _holds(one: Reproduction, *, say: bool) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", *QUIET, "-n", "0", one.test]
    done = subprocess.run(command, capture_output=True, text=True)
    if say:
        verdict = "holds" if done.returncode == 0 else "BROKEN"
        print(f"{verdict:<6} {one.name} ({time.monotonic() - began:.1f} s)", flush=True)
        if done.returncode:
            print(done.stdout)
    return done.returncode == 0


def _run(given: argparse.Namespace) -> Result:
    unknown = sorted(set(given.names) - {one.name for one in TABLE})
    if unknown:
        raise BadInput(f"not in the table: {', '.join(unknown)}", hint="--list shows the names")
    chosen = [one for one in TABLE if not given.names or one.name in given.names]
    if given.list:
        lines = [f"{one.name}: {one.found_by}: {one.what}" for one in chosen]
        return Result(green=True, figures=chosen, findings=lines, summary=f"{len(chosen)} reproductions")
    if not Path("tests").is_dir():
        raise BadInput("there are no tests here", hint="run it in a clone of the project")
    broken = [one.name for one in chosen if not _holds(one, say=not given.json)]
    return Result(
        green=bool(chosen) and not broken,
        figures={"green": not broken, "run": len(chosen), "broken": broken},
        findings=broken,
        again="NAME",
        summary=f"{len(chosen) - len(broken)} of {len(chosen)} hold",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="see --list")
    parser.add_argument("--list", action="store_true", help="name the reproductions and stop")


PROOF = Proof(name="reproduce", purpose="Show that what was once broken still holds.", add_options=_options, run=_run)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
