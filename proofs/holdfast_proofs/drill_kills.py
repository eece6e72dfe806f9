"""SIGKILL of `holdfast drill run` at random moments of every drill: nothing is left but the drill's own folder.

    python -m holdfast_proofs.drill_kills --kills 100

Each round runs all drills, as `--all` does, but begins with another one, and is killed within the time that one takes.
Afterwards no process of it is alive, no mount and no new folder is left outside the drill's own, and every file of the
agent, its leases too, is as it was. The next round must say what the last one left, and clear it. At the end all drills
run to their end.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.drills.catalogue import DRILLS
from holdfast.drills.own_folder import MARKER
from holdfast.drills.production import Marks, mark_all
from holdfast_proofs.drills import Example, make_example
from holdfast_proofs.runner import Proof, ProofFailed, Result, at_least_one

SAID = b"the last drill was killed"
MARK = "HOLDFAST_PROOF_MARK"
GONE_S = 30.0
READ = ("-wal", "-shm", "/stamp.json", "/drills.json")
OUTSIDE = ("/dev/shm", "/run", "/srv")  # noqa: S108 - looked at, never written to
SHARED = ("region-loss", "store-failover")  # the example's journal is a file: they do not apply


class Kills:
    def __init__(self, example: Example, rng: random.Random) -> None:
        self.example, self.rng = example, rng
        self.folder = example.root / "drill"
        self.mark = f"{os.getpid()}-{rng.random()}"
        self.seconds: dict[str, float] = {}
        self.findings: list[str] = []
        self.said = self.left = 0
        self.marks = _marks(example)
        self.seen = _entries(example.root)

    def start(self, drills: list[str]) -> subprocess.Popen[bytes]:
        reads, writes = os.pipe()
        os.write(writes, self.example.words.encode() + b"\n")
        os.close(writes)
        words = ["drill", "run", *drills, "--home", str(self.example.home.folder), "--folder", str(self.folder)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast", *words, "--words-fd", str(reads)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
            pass_fds=(reads,),
        )
        os.close(reads)
        return process

    def measure(self) -> None:
        """How long each drill takes alone."""
        for one in DRILLS:
            began = time.monotonic()
            process = self.start([one.slug])
            process.communicate()
            self.seconds[one.slug] = time.monotonic() - began

    def kill(self, number: int) -> None:
        slugs = [one.slug for one in DRILLS if one.slug not in SHARED]
        at = number % len(slugs)
        first = slugs[at]
        left = (self.folder / MARKER).exists() and (self.folder / MARKER).stat().st_size > 0
        process = self.start(slugs[at:] + slugs[:at])
        time.sleep(self.rng.uniform(0.1, self.seconds[first]))
        process.kill()
        _, said = process.communicate()
        if left and b"seed" in said:
            self.left += 1
            self.said += SAID in said
            if b"baseline taken" in said and SAID not in said:
                self.findings.append(f"kill {number}: the run before left its folder, and this one does not say so")
        self.look(f"kill {number}, {first}")

    def look(self, what: str) -> None:
        end = time.monotonic() + GONE_S
        while (alive := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)
        if alive:
            self.findings.append(f"{what}: processes are left: {alive[:3]}")
        if str(self.folder) in Path("/proc/self/mountinfo").read_text():
            self.findings.append(f"{what}: a mount is left")
        new = sorted(_entries(self.example.root) - self.seen)
        if new:
            self.findings.append(f"{what}: left outside the drill's folder: {new[:5]}")
            self.seen |= set(new)
        marks = _marks(self.example)
        changed = [path for path in self.marks.keys() | marks.keys() if self.marks.get(path) != marks.get(path)]
        if changed:
            self.findings.append(f"{what}: files of the agent changed: {changed[:5]}")
            self.marks = marks

    def alive(self) -> list[str]:
        found: list[str] = []
        for one in Path("/proc").iterdir():
            try:
                line = (one / "cmdline").read_bytes() if one.name.isdigit() else b""
                ours = str(self.example.root).encode() in line or self.mark.encode() in (one / "environ").read_bytes()
            except OSError:
                continue
            if line and ours and one.name != str(os.getpid()):
                found.append(line.replace(b"\0", b" ").decode(errors="replace")[:120])
        return found


def _marks(example: Example) -> Marks:
    """Of every file of the agent. A reader of the journal makes these again; they hold nothing of their own."""
    return {path: one for path, one in mark_all(example.home).items() if not path.endswith(READ)}


def _entries(root: Path) -> set[str]:
    """Names in the folders that programs use for what is temporary, and in the agent's user's home."""
    folders = [*OUTSIDE, os.environ["TMPDIR"], str(root), str(root.parent)]
    found = {f"{one}/{name}" for one in folders if os.path.isdir(one) for name in os.listdir(one)}
    return found - {f"{root}/drill"}


def _be_alone() -> None:
    """Other programs of this machine write to these folders: get some for this proof."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, ctypes.c_ulong((1 << 18) | 16384), None):
        raise ProofFailed("no mounts of its own", hint="run it as root")
    for folder in OUTSIDE:
        if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(0), None):
            raise ProofFailed(f"no {folder} of its own", hint="run it as root")


def _be_patient(example: Example) -> None:
    """How fast the agent recovers is not what is looked at here, and this machine may have other work."""
    words = ["target", "set", "--restart", "1m", "--rto", "1h", "--home", str(example.home.folder)]
    subprocess.run([sys.executable, "-P", "-m", "holdfast", *words], stdout=subprocess.DEVNULL, check=True)


def run_all(given: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="hf-drill-kills-", dir=given.folder) as text:
        _be_alone()
        os.environ |= {"HOME": text, "TMPDIR": f"{text}/temporary"}
        os.mkdir(f"{text}/temporary", 0o700)
        tempfile.tempdir = None
        example = make_example(Path(text) / "root")
        _be_patient(example)
        kills = Kills(example, random.Random(given.seed))
        kills.measure()
        kills.look("measured")
        print(f"all drills: {sum(kills.seconds.values()):.0f} s", file=sys.stderr)
        for number in range(given.kills):
            before = len(kills.findings)
            kills.kill(number)
            for one in kills.findings[before:]:
                print(one, file=sys.stderr, flush=True)
        slugs = [one.slug for one in DRILLS]
        process = kills.start(slugs)
        _, said = process.communicate()
        if process.returncode or kills.folder.exists():
            failed = [
                line for line in said.decode().splitlines() if line.startswith(tuple(f"{s}: fail" for s in slugs))
            ]
            kills.findings.append(f"all drills after the kills: exit {process.returncode}: {failed or said[-800:]}")
        kills.look("after all")
    figures = {
        "kills": given.kills,
        "left": kills.left,
        "said": kills.said,
        "seconds": {name: round(value, 1) for name, value in kills.seconds.items()},
    }
    summary = f"{given.kills} kills; {kills.said} of {kills.left} times the next run said what was left; "
    summary += f"{len(kills.findings)} findings"
    return Result(green=not kills.findings, summary=summary, figures=figures, findings=kills.findings)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=at_least_one, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where the example agent is made")


PROOF = Proof(name="drill_kills", purpose=__doc__ or "", add_options=add_options, run=run_all)

if __name__ == "__main__":
    sys.exit(PROOF.main())
