"""The command line of the fuzzers."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from holdfast_proofs.fuzz.campaign import Report, find_engine, run_campaign
from holdfast_proofs.fuzz.targets import TARGETS
from holdfast_proofs.fuzz.watch import Watch


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.input is not None:
        return _run_one(options)
    report = run_campaign(
        options.target or TARGETS,
        runs=options.runs,
        seed=options.seed,
        engine=options.engine or find_engine(),
        each=_progress,
    )
    _tell(report, options)
    return 1 if report.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.fuzz", description="Give every border what nobody would send on purpose."
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions in all (1000000)")
    parser.add_argument(
        "--target",
        action="append",
        choices=[*TARGETS],
        metavar="NAME",
        help=f"only this border, may be repeated: {', '.join(TARGETS)}",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument(
        "--engine",
        choices=("atheris", "mutations"),
        help="atheris follows the branches, where it is installed; else our own mutations",
    )
    parser.add_argument("--input", metavar="HEX", help="one input, as a finding shows it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--report", type=Path, help="write the JSON object to this file too")
    return parser


def _run_one(options: argparse.Namespace) -> int:
    if not options.target or len(options.target) != 1:
        raise SystemExit("--input goes with one --target")
    watch = Watch(TARGETS[options.target[0]])
    print(watch.run(bytes.fromhex(options.input)))
    for finding in watch.findings.values():
        print(f"{finding.kind}: {finding.what} at {finding.where}")
    return 1 if watch.findings else 0


def _progress(found: dict[str, Any]) -> None:
    print(
        f"{found['target']:<12} {found['executions']:>8} executions in {found['seconds']:>6} s, "
        f"{found['accepted']} accepted, slowest {found['slowest_ms']} ms, "
        f"{found['memory_mib']} MiB",
        file=sys.stderr,
    )


def _tell(report: Report, options: argparse.Namespace) -> None:
    shown = report.to_json()
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(shown, indent=2) + "\n")
    for one in report.findings:
        print(f"{one.target}: {one.kind}: {one.what} {one.where}\n  {one.command}", file=sys.stderr)
    if options.json:
        print(json.dumps(shown))
        return
    print(
        f"{shown['executions']} executions of {len(report.targets)} borders in {shown['seconds']} "
        f"s by {report.engine} ({shown['executions_per_s']} per second), slowest "
        f"{shown['slowest_ms']} ms, at most {shown['memory_mib']} MiB: "
        f"{len(report.findings)} findings"
    )


if __name__ == "__main__":
    sys.exit(main())
