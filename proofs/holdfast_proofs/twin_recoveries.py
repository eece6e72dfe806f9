"""One paper, two bare machines: both recover the agent, at once and one after the other; and the old one goes on.

    twins   two machines recover from one place, or from two; then both try to back up
    old     the old machine's worker runs while a bare one recovers, and shares nothing with it but a folder place

True of every round of `twins`: one machine has the agent. The other ended with `keys-replaced` or `too-early`, has no
vault that acts, and makes no backup; at the places there is one chain of heads. Of `old`: the worker ends by itself
within `watch_s` and the slack for its last calls, and its machine's backup is refused.

A machine is a HOME of its own and an empty environment. Where the system allows it, each runs in a mount namespace
that hides the other machines; where not, their witnesses can be reached too, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import holdfast

COMMAND = (sys.executable, "-P", "-m", "holdfast")
WATCH_S = 2.0
SLACK_S = 20.0  # for the calls under way and a loaded machine; what was measured is in the report
COMMAND_S = 180.0
REFUSED = ("keys-replaced", "too-early")
APP = """import holdfast

@holdfast.task
async def t(run: holdfast.Run) -> int:
    await run.sleep(600)
    return 1

tasks = [t]
"""


@dataclass(frozen=True)
class Host:
    root: Path
    hidden: tuple[Path, ...] = ()  # folders of other machines

    def start(self, *words: str, typed: str = "", option: str = "--words-fd") -> subprocess.Popen[str]:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        reader, writer = os.pipe()
        os.write(writer, typed.encode() + b"\n")
        os.close(writer)
        command = [*COMMAND, *words, *((option, str(reader)) if typed else ())]
        if self.hidden and namespaces():
            cover = " && ".join(f"mount -t tmpfs -o size=4k none {one}" for one in self.hidden if one.is_dir())
            command = [*namespaces(), "sh", "-c", f'{cover or "true"} && exec "$@"', "sh", *command]
        env = {
            "HOME": str(self.root),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
            "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
            "LANG": "C.UTF-8",
        }
        try:
            return subprocess.Popen(
                command,
                env=env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(reader,),
                text=True,
                start_new_session=True,
            )
        finally:
            os.close(reader)

    def run(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return finished(self.start(*words, typed=typed))

    def recover(self, places: Sequence[Path], words: str, *more: str) -> subprocess.Popen[str]:
        named = [word for place in places for word in ("--place", str(place))]
        return self.start("recover", *named, *self.slots(), "--yes", "--json", *more, typed=words)

    def slots(self) -> tuple[str, ...]:
        folders = {"--home": "ada", "--second": "second", "--unlock-file": "unlock", "--second-unlock-file": "unlock2"}
        return tuple(word for option, name in folders.items() for word in (option, str(self.root / name)))


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@cache
def namespaces() -> tuple[str, ...]:
    """The command that gives a process mounts of its own; empty where the system refuses."""
    for command in (("unshare", "-m"), ("unshare", "-Urm")):
        try:
            done = subprocess.run([*command, "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return command
    return ()


@dataclass
class Agent:
    """An agent with one backup at each of its places, before its machine was lost."""

    root: Path
    words: str
    places: int

    @classmethod
    def live(cls, root: Path, *, places: int) -> Agent:
        machine = Host(root / "old")
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [*COMMAND, "init", "ada", *machine.slots(), "--words-fd", str(writer)],
            env={"HOME": str(machine.root), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            cwd=_made(machine.root),
            pass_fds=(writer,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writer)
        with open(reader, encoding="utf-8") as pipe:
            words = pipe.read().strip()
        done = finished(process)
        assert done.returncode == 0, done.stderr
        made = cls(root, words, places)
        home = str(machine.root / "ada")
        for number in range(places):
            place = _made(root / f"place-{number}")
            _good(machine.run("place", "add", f"p{number}", str(place), "--home", home))
        memory = machine.root / "ada" / "MEMORY.md"
        memory.touch(0o600)
        memory.write_text("- pays on Fridays\n")
        (machine.root / "app.py").write_text(APP)
        _good(machine.run("submit", f"{machine.root / 'app.py'}:tasks", "{}", "--no-follow", "--home", home))
        _good(machine.run("backup", "now", "--home", home))
        return made

    def copy(self, root: Path, *, machine: bool) -> list[Path]:
        """The places for one round, and with `machine` the old host, at the paths that they know."""
        for name in ("old", *(f"place-{number}" for number in range(self.places))):
            shutil.rmtree(root / name, ignore_errors=True)
            if machine or name != "old":
                shutil.copytree(self.root / name, root / name, symlinks=True)
        return [root / f"place-{number}" for number in range(self.places)]


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _good(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr


@dataclass
class Report:
    rounds: int = 0
    ended: dict[str, int] = field(default_factory=dict[str, int])
    stopped_s: list[float] = field(default_factory=list[float])
    hidden: bool = False
    findings: list[str] = field(default_factory=list[str])


def twins(agent: Agent, root: Path, *, apart_s: float | None, report: Report) -> None:
    """One round. `apart_s`: how much later the second begins; None: after the first has ended."""
    places = agent.copy(root, machine=False)
    hosts = [Host(root / name, hidden=(root / other,)) for name, other in (("n1", "n2"), ("n2", "n1"))]
    for host in hosts:
        shutil.rmtree(host.root, ignore_errors=True)
        _made(host.root)
    first = hosts[0].recover(places, agent.words)
    if apart_s is None:
        done = [finished(first), finished(hosts[1].recover(places, agent.words))]
    else:
        time.sleep(apart_s)
        second = hosts[1].recover(places, agent.words)
        done = [finished(first), finished(second)]
    how = "one after the other" if apart_s is None else f"{apart_s:.1f} s apart"
    codes = [_code(one) for one in done]
    report.rounds += 1
    key = " / ".join(sorted(codes))
    report.ended[key] = report.ended.get(key, 0) + 1
    print(f"{how}, {len(places)} places: {' / '.join(codes)}", flush=True)
    if codes.count("ok") != 1 or not all(one == "ok" or one in REFUSED for one in codes):
        said = [one.stderr[-600:] for one in done]
        report.findings.append(f"{how}: {codes}: {said}")
        return
    backups = [host.run("backup", "now", "--json", "--home", str(host.root / "ada")) for host in hosts]
    for code, backup in zip(codes, backups, strict=True):
        if (code == "ok") != (backup.returncode == 0):
            report.findings.append(f"{how}: recover {code}, but backup now: {backup.returncode} {backup.stderr[-600:]}")
    for place in places:
        heads = [json.loads(line)["b"] for line in (place / "ada" / "heads.jsonl").read_text().splitlines()]
        numbers = [(one["seq"]) for one in heads]
        if len(set(numbers)) != len(numbers):
            report.findings.append(f"{how}: two heads with one number at {place}: {numbers}")


def old_worker(agent: Agent, root: Path, report: Report) -> None:
    places = agent.copy(root, machine=True)
    old, new = Host(root / "old"), Host(root / "n1", hidden=(root / "old",))
    shutil.rmtree(new.root, ignore_errors=True)
    _made(new.root)
    settings = old.root / "ada" / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", f"[identity]\nwatch_s = {WATCH_S}\n"))
    worker = old.start("worker", f"{old.root / 'app.py'}:tasks", "--home", str(old.root / "ada"))
    try:
        time.sleep(2 * WATCH_S)  # it has looked at least once, and found nothing
        report.rounds += 1
        if worker.poll() is not None:
            report.findings.append(f"the worker ended before the recovery: {finished(worker).stderr[-600:]}")
            return
        done = finished(new.recover(places, agent.words))
        began = time.monotonic()
        if done.returncode != 0:
            report.findings.append(f"the recovery failed: {done.stderr[-600:]}")
            return
        while worker.poll() is None and time.monotonic() - began < WATCH_S + SLACK_S:
            time.sleep(0.05)
        report.stopped_s.append(round(time.monotonic() - began, 2))
        print(f"the old worker ended {report.stopped_s[-1]} s after the recovery", flush=True)
        if worker.poll() is None:
            report.findings.append(f"the old worker still runs {WATCH_S + SLACK_S:.0f} s after the recovery")
        backup = old.run("backup", "now", "--json", "--home", str(old.root / "ada"))
        if "keys-replaced" not in backup.stderr:
            report.findings.append(f"the backup of the evicted machine: {backup.returncode} {backup.stderr[-600:]}")
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()


def _code(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 0:
        return "ok"
    return next((one for one in REFUSED if one in done.stderr), f"exit {done.returncode}")


def run(*, rounds: int, workers: int, seed: int, folder: Path) -> Report:
    report, rng = Report(hidden=bool(namespaces())), random.Random(seed)
    # The copies are at the paths that the agent knows: its machine is lost, its places stay where they were.
    for number in range(rounds):
        root = folder / f"twins-{1 + number % 2}"
        agent = _agent(root, places=1 + number % 2)
        apart = (0.0, None, rng.uniform(0.0, 6.0))[number % 3]
        twins(agent, root, apart_s=apart, report=report)
    for _ in range(workers):
        root = folder / "twins-1"
        old_worker(_agent(root, places=1), root, report)
    return report


_AGENTS: dict[Path, Agent] = {}


def _agent(root: Path, *, places: int) -> Agent:
    """Made once in `root`, and kept aside for the rounds."""
    if root not in _AGENTS:
        agent = Agent.live(_made(root), places=places)
        kept = _made(root / "kept")
        for one in ("old", *(f"place-{number}" for number in range(places))):
            shutil.copytree(root / one, kept / one, symlinks=True)
        _AGENTS[root] = Agent(kept, agent.words, places)
    return _AGENTS[root]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast_proofs.twin_recoveries", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="of two machines (default: 50)")
    parser.add_argument("--workers", type=int, default=20, help="old workers (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="twins-") as folder:
        report = run(rounds=given.rounds, workers=given.workers, seed=given.seed, folder=Path(folder))
    shown = json.dumps({**vars(report), "seed": given.seed}, indent=1)
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(shown + "\n")
    for one in report.findings:
        print("FINDING", one)
    slowest = max(report.stopped_s, default=0.0)
    hidden = "hidden from each other" if report.hidden else "not hidden from each other"
    print(
        f"{report.rounds} rounds, machines {hidden}: {report.ended}; old workers stopped after at most {slowest:g} s "
        f"(watch_s {WATCH_S:g}); {len(report.findings)} findings"
    )
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
