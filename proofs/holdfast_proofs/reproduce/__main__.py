"""`python -m holdfast_proofs.reproduce [NAME ...]`: show again what was once broken.

Without a name all of them run, one after the other, and `--list` only tells. Each is a test of a
clone of the project. Ends with 1 where one is broken again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from holdfast_proofs.reproduce.table import TABLE, Reproduction

QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    chosen = [one for one in TABLE if not given.names or one.name in given.names]
    if given.list:
        _list(chosen, as_json=given.json)
        return 0
    if not Path("tests").is_dir():
        print("error: there are no tests here: run it in a clone of the project", file=sys.stderr)
        return 2
    broken = [one.name for one in chosen if not _holds(one, say=not given.json)]
    if given.json:
        print(json.dumps({"green": not broken, "run": len(chosen), "broken": broken}))
    else:
        for name in broken:
            print(f"again: python -m holdfast_proofs.reproduce {name}")
        print(f"{'RED' if broken else 'green'}: {len(chosen) - len(broken)} of {len(chosen)} hold")
    return 1 if broken else 0


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


def _list(chosen: Sequence[Reproduction], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(one) for one in chosen], indent=1))
        return
    width = max(len(one.name) for one in chosen)
    for one in chosen:
        print(f"{one.name:<{width}}  {one.found_by}: {one.what}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast_proofs.reproduce", description=__doc__)
    names = [one.name for one in TABLE]
    parser.add_argument("names", nargs="*", metavar="NAME", help="see --list")
    parser.add_argument("--list", action="store_true", help="only tell what there is")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"not in the table: {', '.join(unknown)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
