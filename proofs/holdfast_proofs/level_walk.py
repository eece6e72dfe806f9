"""From nothing to level 3 proven, by the printed next actions alone; then the clock moves and the proof expires.

    python -m holdfast_proofs.level_walk          as root: two disks are loop devices, in a mount namespace of their own

A person's part is played at a real terminal: passphrases and words are typed. After each command `holdfast level show`
is read again, and the command after `next:` is run as it is printed; words in capitals are filled in. The same with
both places on one disk must stay unproven. Then the same command runs with a clock of 25 hours, 91 and 400 days later.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast_proofs.runner import BUILD, Proof, Result

COMMAND_S_MAX = 120.0
QUIET_S = 0.4  # a prompt is answered when the screen has not changed for so long
STEPS_MAX = 20
DISK_MB = 96
AGENT = "ada"
WANTED = "level 3, proven"
HOURS = {"25 h": 25, "91 days": 91 * 24, "400 days": 400 * 24}
# Which proof gates of level 2 and 3 must have fallen by then; the level itself stays.
FALLEN = {
    "25 h": ["rpo"],
    "91 days": ["read-back", "restore-drill", "rpo"],
    "400 days": ["read-back", "restore-drill", "rpo"],
}
LATER = """
import sys, time
real, moved = time.time_ns, int(sys.argv.pop(1)) * 3600 * 10**9
time.time_ns = lambda: real() + moved
time.time = lambda: time.time_ns() / 10**9
from holdfast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
Json = dict[str, Any]  # Any: what a command printed with --json
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class WalkFailed(HoldfastError):
    """The walk cannot go on."""

    code = "walk-failed"


@dataclass(slots=True)
class Person:
    """Who types: two passphrases, and the words as they were copied from the screen."""

    words: dict[int, str] = field(default_factory=dict[int, str])
    typed: str = ""  # the last passphrase

    def answer(self, screen: str) -> str | None:
        """What to type at the prompt with which this screen ends; None: nothing is asked."""
        shown = " ".join(screen.split())
        if found := re.search(r"word (\d+) of 24: ([a-z]+) \[Enter\]$", shown):
            self.words[int(found[1])] = found[2]
            return ""
        if re.search(r"(second place|address of a relay) \[[^]]*\]:$", shown):
            return ""
        if re.search(r"passphrase (for|of) the second place( \(not shown\))?:$", shown):
            return self._passphrase("second")
        if re.search(r"passphrase (for|of) the vault( \(not shown\))?:$", shown):
            return self._passphrase("vault")
        if shown.endswith("once more:"):
            return self.typed
        if found := re.search(r"word (\d+) \(not shown\):$", shown):
            return self.words[int(found[1])]
        if re.search(r"24 words[^?]*\(not shown\):$", shown):
            return " ".join(self.words[number] for number in range(1, 25))
        return None

    def _passphrase(self, name: str) -> str:
        self.typed = f"a long passphrase of the {name}"
        return self.typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    level: str
    next: str
    code: int


@dataclass(slots=True)
class Walk:
    root: Path
    disks: list[Path]  # for place 1, 2, ...; the last one is used again and again
    person: Person = field(default_factory=Person)
    steps: list[Step] = field(default_factory=list[Step])
    places: int = 0

    @property
    def home(self) -> Path:
        return self.root / AGENT

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            "HOME": str(self.root),
            "PATH": path,
            "HOLDFAST_HOME": str(self.home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
        }

    def show(self, *, hours: int = 0) -> Json:
        words = [sys.executable, "-P", "-c", LATER, str(hours), "level", "show", "--json"]
        done = subprocess.run(
            words, env=self.environment(), cwd=self.root, capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise WalkFailed(f"level show: exit {done.returncode}: {done.stderr[-300:]}")
        return json.loads(done.stdout)

    def printed(self) -> tuple[str, str]:
        """The first line of `holdfast level show`, and the command after `next:`."""
        words = [sys.executable, "-P", "-m", "holdfast", "level", "show"]
        done = subprocess.run(
            words, env=self.environment(), cwd=self.root, capture_output=True, text=True, check=False, timeout=120
        )
        lines = done.stdout.splitlines()
        following = next((line.removeprefix("next: ") for line in lines if line.startswith("next: ")), "")
        return (lines[0] if lines else done.stderr[-300:]), following

    def go(self, *, until: Callable[[Walk, str], bool]) -> str:
        """Run what is printed until the goal is reached; the last first line."""
        for _ in range(STEPS_MAX):
            text, following = self.printed()
            if until(self, text):
                return text
            if not following:
                raise WalkFailed(f"no next action is printed at: {text}")
            code, screen = self.at_terminal(self.filled(following))
            self.steps.append(Step(level=text, next=following, code=code))
            print(json.dumps({"level": text, "next": following, "exit": code}), file=sys.stderr, flush=True)
            if code != 0:
                raise WalkFailed(f"{following}: exit {code}: {screen[-600:]}")
        raise WalkFailed(f"not there after {STEPS_MAX} commands; the last one: {self.steps[-1]}")

    def filled(self, command: str) -> str:
        """The command with the words in capitals filled in, as a person does it."""
        values = {"FOLDER": str(self.home), "TEXT": "'likes tea'", "NAME": AGENT}
        if " place add " in command:
            disk = self.disks[min(self.places, len(self.disks) - 1)]
            self.places += 1
            address = disk / f"{self.root.name}-{self.places}"
            values |= {"NAME": f"place-{self.places}", "ADDRESS": str(address), "DOMAIN": f"domain-{self.places}"}
            address.mkdir(mode=0o700)
        words = [values.get(word, word) for word in command.split()]
        paper = " | cat > sheet.pdf" if command == "holdfast paper print" else ""  # in place of a printer
        return " ".join(words) + paper

    def at_terminal(self, command: str) -> tuple[int, str]:
        """Run it in a shell at a terminal; the person answers what is asked. Exit code and screen."""
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(self.root)
            os.execvpe("bash", ["bash", "-o", "pipefail", "-c", command], self.environment())
        seen, answered, end = "", 0, time.monotonic() + COMMAND_S_MAX
        while time.monotonic() < end:
            if select.select([fd], [], [], QUIET_S)[0]:
                try:
                    piece = os.read(fd, 1 << 16)
                except OSError:  # the other end is closed
                    break
                seen += piece.decode(errors="replace")
                continue
            screen = _ESCAPES.sub("", seen[answered:]).replace("\r", "")
            typed = self.person.answer(screen) if screen.strip() else None
            if typed is not None:
                answered = len(seen)
                os.write(fd, f"{typed}\n".encode())
        else:
            os.kill(pid, signal.SIGKILL)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), _ESCAPES.sub("", seen)


def fallen(shown: Json) -> list[str]:
    return sorted(one["id"] for one in shown["gates"] if not one["ok"] and one["proof"] and one["level"] in (2, 3))


def walk_on_two_disks(root: Path, disks: list[Path], findings: list[str]) -> dict[str, object]:
    walk = Walk(root, disks)
    first = walk.show()
    if first["level"] not in (0, 1) or not first["next"]:
        findings.append(f"an agent with nothing: {first['text']}")
    last = walk.go(until=lambda _, text: text.startswith(WANTED))
    later: dict[str, object] = {}
    for name, hours in HOURS.items():
        shown = walk.show(hours=hours)
        later[name] = {"text": shown["text"], "fallen": fallen(shown), "next": shown["next"]}
        if fallen(shown) != FALLEN[name]:
            findings.append(f"{name} later: fallen are {fallen(shown)}, not {FALLEN[name]}")
        if (shown["level"], shown["proven"]) != (3, False):
            findings.append(f"{name} later: {shown['text']}")
    again = walk.show()
    if not again["proven"]:
        findings.append(f"looking from the future changed the present: {again['text']}")
    return {"first": first["text"], "steps": walk.steps, "last": last, "later": later}


def walk_on_one_disk(root: Path, disk: Path, findings: list[str]) -> dict[str, object]:
    """Until a third place would be asked for: there is no other disk, whatever the labels say."""
    walk = Walk(root, [disk])
    last = walk.go(until=lambda one, text: "on one device" in text and one.places == 2)
    shown = walk.show()
    if shown["proven"] or "domains" not in fallen(shown):
        findings.append(f"both places are on one disk, and: {shown['text']}")
    return {"steps": walk.steps, "last": last}


def make_disk(folder: Path, name: str) -> Path:
    """A disk of its own: a file with a file system, mounted by a loop device."""
    image, at = folder / f"{name}.img", folder / name
    with open(image, "wb") as file:
        file.truncate(DISK_MB << 20)
    at.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    return at


def run_walk(given: argparse.Namespace) -> Result:
    if not given.inside:
        return _in_namespace(given)
    findings: list[str] = []
    figures: dict[str, object] = {}
    folder = Path(given.folder)
    disks = [make_disk(folder, name) for name in ("disk-1", "disk-2")]
    for name in ("two disks", "one disk"):
        root = folder / name.replace(" ", "-")
        root.mkdir(mode=0o700)
        try:
            if name == "two disks":
                figures[name] = walk_on_two_disks(root, disks, findings)
            else:
                figures[name] = walk_on_one_disk(root, disks[0], findings)
        except WalkFailed as error:
            findings.append(f"{name}: {error.message}")
    summary = f"two walks by the printed next actions; {len(findings)} findings"
    return Result(green=not findings, summary=summary, figures=figures, findings=findings)


def _in_namespace(given: argparse.Namespace) -> Result:
    """The same in a mount namespace of its own: a kill leaves no mount."""
    if os.geteuid() != 0:
        raise WalkFailed("only root can mount the disks of this proof", hint="run it as root")
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="level-walk-", dir=given.folder or BUILD.resolve()) as folder:
        report = Path(folder) / "report.json"
        words = ["unshare", "--mount", "--kill-child", "--fork", sys.executable, "-m", "holdfast_proofs.level_walk"]
        done = subprocess.run([*words, "--inside", "--folder", folder, "--report", str(report)], check=False)
        if not report.exists():
            raise WalkFailed(f"the walk ended with {done.returncode}: {shlex.join(words)}")
        figures = json.loads(report.read_bytes())
    walked = {name: len(one["steps"]) for name, one in figures.items()}
    return Result(green=done.returncode == 0, summary=f"commands: {walked}", figures=figures)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default=None, help="where the agents and disks are made; on a disk, not in memory")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)


PROOF = Proof(name="level_walk", purpose=__doc__ or "", add_options=add_options, run=run_walk)

if __name__ == "__main__":
    sys.exit(PROOF.main())
