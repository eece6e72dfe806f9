"""Reports of drills: every changed byte is found, no report can be dropped or exchanged, a stranger gets its figures.

    python -m holdfast_proofs.drill_reports --flips 2000

An agent works on after its newest snapshot, so that a restore loses something; four drills run. Then the reports alone,
with the public key log, are changed byte by byte, dropped, and given each other's seals: `holdfast drill verify` must
refuse each. A script that imports nothing of ours recomputes recovery time and data loss from the timeline. Every
report is held against the published schema.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import holdfast
from holdfast.cli.main import main
from holdfast_proofs.drills import Example, chat, make_example
from holdfast_proofs.runner import Proof, Result, at_least_one

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "drill-report.schema.json"
DRILLS = ("host-loss", "hand-off", "test-restore", "region-loss")
# Shares no line with Holdfast: what a reader does with the file alone. Prints what it found beside what is reported.
RECOMPUTE = r"""
import json, re, sys
from datetime import datetime
report = json.load(open(sys.argv[1]))["report"]
at, said = {}, {}
for one in report["timeline"]:
    at.setdefault(one["name"], one["at_s"])
    said.setdefault(one["name"], one["evidence"])
found = {"rto_s": None, "rpo_s": None, "records": None}
if "fault_injected" in at and "first_verified_step" in at:
    found["rto_s"] = round(at["first_verified_step"] - at["fault_injected"], 3)
acked = re.search(r"journal at \d+/(\d+) of (\S+)", said.get("baseline_taken", ""))
back = re.search(r"snapshot \d+ of (\S+) from .*journal at \d+/(\d+)", said.get("state_restored", ""))
if acked and back:
    found["records"] = max(0, int(acked[1]) - int(back[2]))
results = report["results"]
snapshot = re.search(r"snapshot \d+ of (\S+) from ", said.get("state_restored", ""))
compared = [one["evidence"] for one in results["invariants"] if one["code"] == "state"]
if snapshot and compared:
    files = re.search(r"the newest of ([^\s;]+)", compared[0])
    newest = ([acked[2]] if acked and found["records"] else []) + ([files[1]] if files else [])
    gaps = [datetime.fromisoformat(one) - datetime.fromisoformat(snapshot[1]) for one in newest]
    found["rpo_s"] = round(max([0.0, *(one.total_seconds() for one in gaps)]), 3)
lost = results["rpo"]["lost_items"]
told = {"rto_s": results["rto"]["actual_s"], "rpo_s": results["rpo"]["actual_s"]}
told["records"] = lost.get("journal records")
assert results["rpo"]["actual_items"] in (None, sum(lost.values()))
print(json.dumps([found, told]))
"""


def recompute(path: Path) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """What the timeline says, and what the report says."""
    words = [sys.executable, "-I", "-S", "-c", RECOMPUTE, str(path)]
    found, told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return found, told


def violations(value: Any, rule: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """What of this value breaks the schema: as much of JSON Schema as ours uses."""
    if "$ref" in rule:
        yield from violations(value, known[rule["$ref"].rpartition("/")[2]], known)
        return
    if "anyOf" in rule:
        if all(list(violations(value, one, known)) for one in rule["anyOf"]):
            yield f"{value!r} fits none of {len(rule['anyOf'])}"
        return
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    kind = rule.get("type")
    if kind == "number":
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            yield f"{value!r} is no number"
    elif kind is not None and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{value!r} is no {kind}"
        return
    if "enum" in rule and value not in rule["enum"]:
        yield f"{value!r} is not one of {rule['enum']}"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        yield from (f"{name} is missing" for name in rule.get("required", ()) if name not in items)
        parts = rule.get("properties", {})
        for name, one in items.items():
            if name in parts:
                yield from violations(one, parts[name], known)
            elif rule.get("additionalProperties") is False:
                yield f"{name} is unknown"
    elif isinstance(value, list) and isinstance(rule.get("items"), dict):
        for one in cast("list[Any]", value):
            yield from violations(one, rule["items"], known)


class Desk:
    """An auditor's: reports and the public key log, nothing else."""

    def __init__(self, folder: Path, example: Example) -> None:
        self.folder = folder
        folder.mkdir()
        for name in (example.home.log_file, example.home.receipts_file):
            shutil.copy(name, folder)
        own = (example.home.folder / "drills").glob("*.json")
        ordered = sorted(own, key=lambda one: int(one.stem.rpartition("-")[2]))
        self.paths = [Path(shutil.copy(one, folder)) for one in ordered]

    def refused(self, paths: list[Path]) -> bool:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            code = main(["drill", "verify", *map(str, paths), "--log", str(self.folder / "kel.jsonl")])
        return code != 0


def flip(desk: Desk, flips: int, rng: random.Random) -> list[str]:
    """Change one byte of one report at a time."""
    findings: list[str] = []
    raws = {path: path.read_bytes() for path in desk.paths}
    for _ in range(flips):
        path = rng.choice(desk.paths)
        at = rng.randrange(len(raws[path]))
        changed = bytearray(raws[path])
        changed[at] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        if not desk.refused([path]):
            findings.append(f"{path.name}: byte {at} was changed, and no one notices")
        path.write_bytes(raws[path])
    return findings


def break_chain(desk: Desk) -> tuple[int, list[str]]:
    """Drop each report between two others; give each the seal of another one; give one twice."""
    findings: list[str] = []
    count = 0
    for number in range(1, len(desk.paths) - 1):
        count += 1
        if not desk.refused([*desk.paths[:number], *desk.paths[number + 1 :]]):
            findings.append(f"{desk.paths[number].name} was dropped, and no one notices")
    for one, other in itertools.permutations(desk.paths, 2):
        count += 1
        raw = one.read_bytes()
        mixed = {**json.loads(raw), "seal": json.loads(other.read_bytes())["seal"]}
        one.write_text(json.dumps(mixed, separators=(",", ":"), sort_keys=True))
        if not desk.refused([one]):
            findings.append(f"{one.name} has the seal of {other.name}, and no one notices")
        one.write_bytes(raw)
    count += 1
    if not desk.refused([desk.paths[0], desk.paths[0], *desk.paths[1:]]):
        findings.append("a report that is there twice is not noticed")
    return count, findings


async def work_on(example: Example) -> None:
    """Something that no snapshot has."""
    async with holdfast.open(example.home.journal, tasks=[chat]) as hf:
        for _ in range(3):
            await (await hf.submit(chat)).result(60)
    (example.home.folder / "notes.txt").write_text("changed after the snapshot\n")


def run_all(given: argparse.Namespace) -> Result:
    findings: list[str] = []
    figures: list[dict[str, object]] = []
    rules = json.loads(SCHEMA.read_text())
    with tempfile.TemporaryDirectory(prefix="hf-reports-", dir=given.folder) as text:
        os.environ["HOME"] = text
        example = make_example(Path(text) / "root")
        asyncio.run(work_on(example))
        for slug in DRILLS:
            done = example.run(slug)
            figures.append({"drill": slug, "verdict": done.report.verdict})
        desk = Desk(Path(text) / "desk", example)
        if desk.refused(desk.paths):
            findings.append("the reports as they are do not verify")
        for path, row in zip(desk.paths, figures, strict=True):
            findings += [
                f"{path.name}: {one}" for one in violations(json.loads(path.read_text()), rules, rules["$defs"])
            ]
            found, told = recompute(path)
            row |= {"recomputed": found, "reported": told}
            told = {name: told[name] for name in found if found[name] is not None or told[name] is not None}
            if {name: found[name] for name in told} != told:
                findings.append(f"{path.name}: recomputed {found}, reported {told}")
        measured = [one["reported"] for one in figures if cast("dict[str, Any]", one["reported"])["records"]]
        if not measured:
            findings.append("no drill lost a record: the data loss was not put to the test")
        changes, broken = break_chain(desk)
        findings += broken + flip(desk, given.flips, random.Random(given.seed))
    summary = f"{len(DRILLS)} reports, {given.flips} changed bytes, {changes} broken chains; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flips", type=at_least_one, default=2000, help="how many bytes are changed (2000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where the example agent is made")


PROOF = Proof(name="drill_reports", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
