"""The command line of the takeovers."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from holdfast_proofs.runner import Proof, Result
from holdfast_proofs.takeovers.faults import LOST, PARTITIONS, REMOVED
from holdfast_proofs.takeovers.judge import Takeovers, judge
from holdfast_proofs.takeovers.lab import NAMES, laboratory
from holdfast_proofs.takeovers.promotes import Promotes, promote_rounds, summary
from holdfast_proofs.takeovers.rounds import DEFAULT_LEASE_S, Rounds

LEASE_S = 3.0
BACKLOG = 10
PLANTS = {"role": 1, "waiting": 1, "mail-twice": 1, "mail-early": 3}  # by what is taken out: so many instances lost


@dataclass(frozen=True, slots=True)
class Planted:
    """A run with one rule taken out."""

    caught: int
    findings: list[str]


def run(kinds: list[str], given: argparse.Namespace, *, lease_s: float | None, plant: str = "") -> Takeovers:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-takeovers-"))
    names = NAMES[: given.instances]
    try:
        with laboratory(folder, names=names, lease_s=lease_s, plant=plant, bare=given.bare) as lab:

            async def both() -> Takeovers:
                history = await Rounds(lab, random.Random(given.seed), backlog=given.backlog).run(kinds)
                return await judge(lab, history)

            found = asyncio.run(both())
    except BaseException:
        print(f"logs, folders and books: {folder}", file=sys.stderr)
        raise
    if found.findings and (given.plant or not plant):
        found.findings.append(f"logs, folders and books: {folder}")
    else:
        shutil.rmtree(folder)
    return found


def _prove(given: argparse.Namespace) -> Result:
    parts: dict[str, Takeovers | Promotes | Planted] = {}
    if given.plant:
        parts[given.plant] = run(["kill"] * PLANTS[given.plant], given, lease_s=given.lease, plant=given.plant)
    else:
        kinds = given.kind or LOST
        if given.rounds:
            parts["lost"] = run(list(islice(cycle(kinds), given.rounds)), given, lease_s=given.lease)
        if given.partitions:
            broken = list(islice(cycle((*PARTITIONS, REMOVED)), given.partitions))
            parts["partitions"] = run(broken, given, lease_s=given.lease)
        if given.default_timers:
            parts["default timers"] = run(list(islice(cycle(kinds), given.default_timers)), given, lease_s=None)
        for plant, count in PLANTS.items() if given.self_test else ():
            red = run(["kill"] * count, given, lease_s=given.lease, plant=plant)
            caught = red.mail_lost + red.mail_twice if plant.startswith("mail-") else red.strangers
            parts[f"planted: {plant}"] = Planted(
                caught=caught, findings=[] if caught else [f"the rule {plant!r} was taken out, and nothing was found"]
            )
        if given.promotes:
            parts["promotes"] = promote_rounds(given.promotes, given.seed)
    findings = [f"{name}: {text}" for name, part in parts.items() for text in part.findings]
    return Result(
        green=bool(parts) and not findings,
        figures=parts,
        findings=findings,
        again=f"--rounds {given.rounds} --partitions {given.partitions} --default-timers {given.default_timers} "
        f"--promotes {given.promotes} "
        f"--seed {given.seed} --lease {given.lease:g} --instances {given.instances}",
        summary="; ".join(_summary(name, one, given) for name, one in parts.items()) or "nothing was tried",
    )


def _summary(name: str, one: Takeovers | Promotes | Planted, given: argparse.Namespace) -> str:
    if isinstance(one, Promotes):
        return summary(one)
    if isinstance(one, Planted):
        return f"{name}: found {one.caught} times"
    lease_s = DEFAULT_LEASE_S if name == "default timers" else given.lease
    times = sorted(one.first_step_s)
    shown = f"first step after {times[len(times) // 2]:g} s, at most {times[-1]:g} s" if times else "no time measured"
    return (
        f"{name}: {sum(one.rounds.values())} rounds, {one.effects} effects, {one.taken} tasks taken over: duplicates "
        f"{one.duplicates}, lost {one.lost}, silent {one.silent}, breaches {one.breaches}, parked {one.parked} "
        f"(needless {one.needless_parks}), sent after {one.sent_after}, written after {one.written_after}, strangers "
        f"{one.strangers}, memory lines {one.memory_lines}, mail handled once {one.mail} (lost {one.mail_lost}, twice "
        f"{one.mail_twice}); {shown} (wanted {lease_s + 1:g}, later: {one.late})"
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rounds", type=int, default=200, help="instances lost: killed, stopped, cut off, disk deleted (200)")
    add("--partitions", type=int, default=0, metavar="N", help="rounds with other breaks of the network (0)")
    add("--default-timers", type=int, default=0, metavar="N", help=f"rounds with a lease of {DEFAULT_LEASE_S:g} s (0)")
    add("--promotes", type=int, default=0, metavar="N", help="standbys promoted, with journals of their own (0)")
    add("--kind", choices=(*LOST, *PARTITIONS, REMOVED), action="append", help="only these, by turns")
    add("--lease", type=float, default=LEASE_S, help=f"of the workers, in seconds ({LEASE_S:g})")
    add("--instances", type=int, choices=(2, 3), default=3, help="that act (3)")
    add("--backlog", type=int, default=BACKLOG, help=f"unfinished tasks at any time ({BACKLOG})")
    add("--seed", type=int, default=0, help="of the moments")
    add("--bare", action="store_true", help="without the standby and the copy")
    add("--plant", choices=tuple(PLANTS), help="take out one rule: must be red")
    add("--self-test", action="store_true", help="afterwards: with each rule taken out it must be red")


PROOF = Proof(
    name="takeovers",
    purpose="Enrolled instances of one agent are lost one after the other under load; count every effect. Needs root.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
