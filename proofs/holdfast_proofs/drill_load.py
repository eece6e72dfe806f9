"""Recoveries in shadows beside a working agent: it is never evicted, loses no lease, and works as fast as without.

    python -m holdfast_proofs.drill_load --rounds 50

A real worker serves tasks whose effects a far end counts. By turns there is a pause and a `host-loss` drill of the same
agent, as long as each other; the records that the agent commits per second are compared. Its lease is the default one:
a shorter lease would show how busy this machine is. After each drill its report must say that production is unchanged;
at the end the worker has the session that it began with, the arbiter the incarnation that it granted, the witness the
log that it had, and no effect was made twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.downstream.process import start_blocking
from holdfast.drills.probe import APP, TASK, variable
from holdfast.journal.bind import journal_at
from holdfast.layout.settings import IdentitySettings
from holdfast_proofs.drills import Example, make_example
from holdfast_proofs.runner import Proof, Result, at_least_one

HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]
STEPS, TASKS_AT_ONCE, PAUSE_S = 400, 4, 0.1
WANTED = 0.9


class Live:
    """Production at work."""

    def __init__(self, example: Example, url: str) -> None:
        self.example, self.admin = example, journal_at(example.home.journal)
        self.home = ["--home", str(example.home.folder)]
        self.environment = {**os.environ, variable("keyed"): url}
        self.log = example.root / "worker.log"
        with open(self.log, "wb") as log:
            command = [*HOLDFAST, "worker", APP, *self.home, "--concurrency", str(TASKS_AT_ONCE)]
            self.worker = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.submitted = 0

    def feed(self) -> None:
        """Keep more waiting than can run at once."""
        shown = subprocess.run(
            [*HOLDFAST, "task", "list", "--json", "--limit", "10000", *self.home], capture_output=True, check=True
        )
        open_now = [one for one in json.loads(shown.stdout)["tasks"] if one["state"] not in ("succeeded", "failed")]
        for _ in range(2 * TASKS_AT_ONCE - len(open_now)):
            args = json.dumps({"steps": ["keyed"] * STEPS, "pause_s": PAUSE_S})
            words = ["submit", APP, args, "--task", TASK, "--no-follow", "--request-id", f"load-{self.submitted}"]
            subprocess.run([*HOLDFAST, *words, *self.home], env=self.environment, capture_output=True, check=True)
            self.submitted += 1

    def events(self, *names: str) -> list[str]:
        found: list[str] = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and json.loads(line).get("event") in names:
                found.append(line)
        return found

    def drill(self) -> tuple[float, float, dict[str, object]]:
        """Records per second beside a drill, its seconds, and what it reports."""
        reads, writes = os.pipe()
        os.write(writes, self.example.words.encode() + b"\n")
        os.close(writes)
        began, before = time.monotonic(), self.admin.newest_record()
        words = [*HOLDFAST, "drill", "run", "host-loss", *self.home, "--folder", str(self.example.root / "drill")]
        done = subprocess.run(
            [*words, "--words-fd", str(reads), "--json"], pass_fds=(reads,), capture_output=True, text=True
        )
        seconds = time.monotonic() - began
        os.close(reads)
        rate = (self.admin.newest_record() - before) / seconds
        try:
            return rate, seconds, json.loads(done.stdout)["drills"][0]
        except (ValueError, LookupError):
            return rate, seconds, {"verdict": f"exit {done.returncode}", "reason": done.stderr[-300:]}

    def alone(self, seconds: float) -> float:
        began, before = time.monotonic(), self.admin.newest_record()
        time.sleep(seconds)
        return (self.admin.newest_record() - before) / (time.monotonic() - began)


def fixed(example: Example) -> str:
    """A digest over what no drill may change: log, receipts, witness, vault, and what the arbiter granted."""
    seen = hashlib.sha256()
    home = example.home
    for root in (home.log_file, home.receipts_file, home.vault, home.second, example.root / "witness"):
        assert root is not None
        for path in [root] if root.is_file() else sorted(one for one in root.rglob("*") if one.is_file()):
            seen.update(str(path).encode() + path.read_bytes())
    return seen.hexdigest()


def run_all(given: argparse.Namespace) -> Result:
    findings: list[str] = []
    beside: list[float] = []
    alone: list[float] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hf-drill-load-", dir=given.folder) as text, start_blocking("keyed") as end:
        os.environ["HOME"] = text
        example = make_example(Path(text) / "root", lease_s=IdentitySettings().lease_s)
        before = fixed(example)
        live = Live(example, end.url)
        try:
            live.feed()
            end.wait_effects(20, timeout_s=120)
            length = 10.0
            for number in range(given.rounds):
                live.feed()
                alone.append(live.alone(length))
                live.feed()
                rate, length, told = live.drill()
                beside.append(rate)
                seconds.append(length)
                if told["verdict"] not in ("pass", "pass with findings"):
                    findings.append(f"round {number}: {told['verdict']}: {told['reason']}")
                print(f"round {number}: {alone[-1]:.1f} alone, {rate:.1f} beside a drill", file=sys.stderr, flush=True)
            begun = live.events("session-begun")
            lost = live.events("session-failing", "worker-failed", "trouble", "session-ended")
            lost += [line for line in live.events("supervisor") if "started" not in line]
        finally:
            live.worker.terminate()
            live.worker.wait()
        effects = end.ledger().effects
        twice = len(effects) - len({(one.task, one.base) for one in effects})
        if len(begun) != 1 or lost:
            findings.append(f"the worker began {len(begun)} sessions: {lost[:5]}")
        if fixed(example) != before:
            findings.append("log, receipts, witness or keys changed")
        if twice:
            findings.append(f"{twice} effects were made twice")
    ratio = statistics.fmean(beside) / statistics.fmean(alone)
    median = statistics.median(one / other for one, other in zip(beside, alone, strict=True) if other)
    if not given.no_speed and ratio < WANTED:
        findings.append(f"beside drills it works at {ratio:.2f} of its speed; {WANTED} is wanted")
    figures = {
        "rounds": given.rounds,
        "ratio": round(ratio, 3),
        "median_ratio": round(median, 3),
        "records_per_s_alone": round(statistics.fmean(alone), 1),
        "drill_s": round(statistics.fmean(seconds), 1),
        "effects": len(effects),
        "twice": twice,
    }
    summary = f"{given.rounds} recoveries in shadows beside a working agent: {ratio:.2f} of its speed (median "
    summary += f"{median:.2f}), {len(effects)} effects, {twice} twice; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least_one, default=50, help="how many drills (50)")
    parser.add_argument("--no-speed", action="store_true", help="do not judge the speed: this machine is busy")
    parser.add_argument("--folder", default=None, help="where the example agent is made")


PROOF = Proof(name="drill_load", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
