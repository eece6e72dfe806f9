"""`python -m holdfast_proofs.identity_schedules`: the log's rules under random schedules.

Ends with 1 where a promise broke, and prints the seed that shows it; with `--self-test` where a
rule that was taken out went unnoticed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast_proofs.identity_schedules.campaign import find_breach, find_weakness, run
from holdfast_proofs.identity_schedules.weakened import WEAKENED
from holdfast_proofs.support.options import at_least_one

TELL_EVERY = 10_000
SELF_TEST_SCHEDULES = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.self_test:
        return _self_test()
    if options.seed is not None:
        why = find_breach(options.seed)
        print(why or "holds")
        return 1 if why else 0
    campaign = run(range(options.first, options.first + options.schedules), _tell)
    report = campaign.to_json()
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if options.json else _shown(report))
    for seed, why in campaign.broken.items():
        print(f"red: {why}; again with --seed {seed}", file=sys.stderr)
    return 1 if campaign.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.identity_schedules",
        description="Try the rules of the identity log under random schedules.",
    )
    parser.add_argument("--schedules", type=at_least_one, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one schedule")
    parser.add_argument("--self-test", action="store_true", help="notice every rule taken out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--report", type=Path, help="write the JSON object to this file too")
    return parser


def _self_test() -> int:
    missed = 0
    for name in WEAKENED:
        found = find_weakness(name, schedules_max=SELF_TEST_SCHEDULES)
        print(f"{name}: {'NOT NOTICED' if found is None else f'seed {found[0]}: {found[1]}'}")
        missed += found is None
    return 1 if missed else 0


def _tell(done: int) -> None:
    if done % TELL_EVERY == 0:
        print(f"{done:,} schedules", file=sys.stderr, flush=True)


def _shown(report: dict[str, object]) -> str:
    acts = report["acts"]
    lines = [f"{report['schedules']:,} schedules, {report['cpu_s']} s of one core"]
    if isinstance(acts, dict):
        lines += [f"  {count:>9,}  {act}" for act, count in acts.items()]  # pyright: ignore[reportUnknownVariableType]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
