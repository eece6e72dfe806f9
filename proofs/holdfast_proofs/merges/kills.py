"""`python -m holdfast_proofs.merges.kills`: a merge pass killed, and failed for want of space, at each of its calls.

Two instances share a folder. One has sent changes, one part of its own and a removal among them; a person has edited
the other's files. Each trial is a fork that runs one pass of the other over a copy of it all, with the crash shim
loaded. Then the files must be whole, with no line lost or doubled. The sender removes one of the lines that it has
sent, and Holdfast adds an entry to the killed folder. The next passes finish it: both have the same bytes, each line
once and the removed ones not at all, nothing is left aside, and the folder has nothing that no envelope names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast.instances.channels import NEWEST, FolderChannel
from holdfast.instances.merging import Merging
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory import lines, projection, sidecar
from holdfast.memory.handoff_writer import write_heartbeat
from holdfast_proofs.instance_worlds.folders import AGENT, KEY, NOW_MS, peers_of
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim
from holdfast_proofs.shim import Mode, Trace, arm

HOSTS = ("ada", "ben")
DAY = "memory/2027-01-16.md"
FILES = ("MEMORY.md", "HEARTBEAT.md", DAY)
SENT = [f"- sent by ben {number:03}, and some words more" for number in range(150)]
REMOVED = "- ben removes this line"
REMOVED_LATER = SENT.pop()
ENTRY = lines.rendered(id=lines.entry_id("after"), at_ms=NOW_MS, text="after the kill", origin="model", timed=False)
BLOCK = b"- [ ] an open task\n"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    calls: int
    trials: dict[str, int]
    wrong: list[str]


def merging(root: Path, host: str) -> Merging:
    peers = peers_of(host)
    peers = type(peers)(
        agent=AGENT, incarnation=1, me=host, keys={name: peers.keys[name] for name in HOSTS}, sign=peers.sign
    )
    channel = FolderChannel(root / "shared", agent=AGENT, instance=host)
    return Merging(MemoryPlace(folder=root / host), channel, peers, KEY)


def settle(root: Path) -> None:
    both = [merging(root, host) for host in HOSTS]
    for at in range(12):
        for one in both:
            now_ms = NOW_MS + at * 700_000
            if one.is_due(now_ms=now_ms):
                one.run(now_ms=now_ms)


def save(root: Path, host: str, file: str, lines: list[str]) -> None:
    path = root / host / file
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)


def lines_of(root: Path, host: str, file: str) -> list[str]:
    path = root / host / file
    return path.read_text().splitlines() if path.exists() else []


def prepare(root: Path) -> None:
    (root / "shared").mkdir(parents=True)
    for host in HOSTS:
        (root / host).mkdir(mode=0o700)
        place = MemoryPlace(folder=root / host)
        write_heartbeat(place.heartbeat_file, BLOCK, asides=place.asides)
    save(root, "ada", "MEMORY.md", ["# Memory", "", "- from before"])
    settle(root)
    before = lines_of(root, "ben", "MEMORY.md")
    save(root, "ben", "MEMORY.md", [*before, REMOVED])
    settle(root)
    save(root, "ben", "MEMORY.md", [*before, *SENT, REMOVED_LATER])
    save(root, "ben", DAY, ["# 2027-01-16", "", "- ben's day"])
    merging(root, "ben").run(now_ms=NOW_MS)
    save(root, "ada", "MEMORY.md", [*lines_of(root, "ada", "MEMORY.md"), "- by hand"])
    save(root, "ada", DAY, ["# 2027-01-16", "", "- ada's day"])
    save(root, "ada", "HEARTBEAT.md", ["by hand, above", *lines_of(root, "ada", "HEARTBEAT.md")])


def check(root: Path, *, done: bool) -> None:
    wanted = {"MEMORY.md": ["- from before", "- by hand"], DAY: ["- ada's day"], "HEARTBEAT.md": ["by hand, above"]}
    for file, own in wanted.items():
        raw = (root / "ada" / file).read_text()
        if not raw.endswith("\n"):
            raise AssertionError(f"{file} is torn")
        counts = Counter(raw.splitlines())
        if lost := [line for line in own if counts[line] != 1]:
            raise AssertionError(f"{file}: {lost} are there {[counts[line] for line in lost]} times")
        if twice := [line for line, count in counts.items() if count > 1 and line.strip()]:
            raise AssertionError(f"{file}: doubled: {twice[:3]}")
        if not done:
            continue
        if lines_of(root, "ben", file) != lines_of(root, "ada", file):
            raise AssertionError(f"{file} differs")
    if done:
        said = {*lines_of(root, "ada", "MEMORY.md"), *lines_of(root, "ada", DAY)}
        if lost := {*SENT, ENTRY, "- ben's day"} - said:
            raise AssertionError(f"lost: {sorted(lost)[:3]}")
        if back := {REMOVED, REMOVED_LATER} & said:
            raise AssertionError(f"back: {sorted(back)}")
        for host in HOSTS:
            left = os.listdir(root / host / ".holdfast" / "aside")
            more = {path.name for path in root.glob(f"shared/*/{host}/*")} - {NEWEST}
            if left or more:
                raise AssertionError(f"{host}: left aside {left}, left in the folder {more}")


def go_on(root: Path) -> None:
    """What happens between the kill and the next pass."""
    save(root, "ben", "MEMORY.md", [line for line in lines_of(root, "ben", "MEMORY.md") if line != REMOVED_LATER])
    merging(root, "ben").run(now_ms=NOW_MS)
    place = MemoryPlace(folder=root / "ada")
    with projection.locked(place):
        projection.write_file(place, place.memory_file, [ENTRY], heading=(), now_ms=NOW_MS)


def trial(base: Path, root: Path, trace: Trace, mode: Mode, at: int) -> tuple[str, int]:
    shutil.copytree(base, root)
    child = os.fork()
    if child == 0:
        os.chdir(root)
        one = merging(root, "ada")
        arm(trace, mode, at=at, root=root)
        try:
            one.run(now_ms=NOW_MS)
        except (HoldfastError, OSError):
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    try:
        check(root, done=False)
        go_on(root)
        settle(root)
        check(root, done=True)
    except (HoldfastError, OSError, AssertionError) as error:
        return f"{type(error).__name__}: {error}", status
    finally:
        shutil.rmtree(root)
    return "", status


def run_trials(folder: Path, *, step: int, lose: bool) -> Outcome:
    """`lose`: a planted fault, the sidecar is written before the file."""
    if lose:
        put = projection._Pass._put

        def too_early(self: projection._Pass, theirs: list[str], merged: list[str]) -> list[str]:
            state = sidecar.State(base=lines.joined(merged), write=self._write + 1)
            sidecar.save_state(self._place.sidecar(self._path), state)
            return put(self, theirs, merged)

        projection._Pass._put = too_early
    base, root = folder / "base", folder / "trial"
    prepare(base)
    trace = Trace.shared()
    wrong, counts = list[str](), dict[str, int]()

    def run(mode: Mode, at: int) -> None:
        said, status = trial(base, root, trace, mode, at)
        calls = trace.calls()
        if said:
            wrong.append(f"{mode.name} at {at} ({calls[-1].name} {calls[-1].where}): {said}")
        if trace.reached:
            counts[mode.name] = counts.get(mode.name, 0) + 1
            if mode.name.startswith("KILL") and not os.WIFSIGNALED(status):
                wrong.append(f"{mode.name} at {at}: not killed")

    run(Mode.TRACE, 0)
    total = trace.count
    for at in range(1, total + 1, step):
        run(Mode.KILL_BEFORE, at)
        run(Mode.FULL_ANY, at)
    run(Mode.KILL_AFTER, total)
    return Outcome(calls=total, trials=counts, wrong=wrong)


def _run(given: argparse.Namespace) -> Result:
    words = ("--inside", "--step", str(given.step), *(("--lose",) if given.lose else ()))
    found = msgspec.json.decode(run_with_shim("merges.kills", *words), type=Outcome)
    return Result(
        green=not found.wrong,
        figures=found,
        findings=found.wrong[:20],
        summary=f"{found.calls} calls of a merge pass, trials {json.dumps(found.trials)}, {len(found.wrong)} wrong",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=at_least_one, default=1, help="every so many calls")
    parser.add_argument("--lose", action="store_true", help="plant a fault: this must end red")


PROOF = Proof(
    name="merges.kills",
    purpose="Kill a merge of memory at each of its calls, and let each call fail for want of space.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    if "--inside" in sys.argv:
        with fast_folder("merge-kills") as inner:
            step = int(sys.argv[sys.argv.index("--step") + 1])
            print(msgspec.json.encode(run_trials(inner, step=step, lose="--lose" in sys.argv)).decode())
        sys.exit(0)
    sys.exit(main())
