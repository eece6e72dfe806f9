"""The command line of the relay soak: a steady load, kills, a relay that is cut off, a bad network; then the checker.

    warm-up     every agent writes to every other one
    steady      no faults
    kills       a relay is killed every ten seconds, and started again
    blackhole   packets to and from one relay vanish
    bad net     delays, resets, cut answers, repeated and reordered requests, half-open connections

Red: a message that two relays signed for and that was not handled, one that was handled twice, a delivery note for one
that the recipient's journal did not have, a send that never ended. Delays are figures: they depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast_proofs.relay_lab.app import SEND
from holdfast_proofs.relay_lab.checker import Verdict
from holdfast_proofs.relay_lab.live import Live
from holdfast_proofs.relay_lab.proxy import Faults
from holdfast_proofs.relay_lab.site import Site, now_ns, site
from holdfast_proofs.runner import Proof, Result, at_least_one

CHUNK = 40  # messages of one task
LANES = 5  # of each agent
AHEAD_S = 1.5  # a task is submitted so long before its first message is due
DOWN_S = (0.5, 3.0)  # how long a killed relay stays away
TELL_EVERY_S = 10.0
PLANTS = ("forgetful-relays", "handled-twice", "note-first")
BAD_NET = Faults(delay_ms=40.0, reset=0.02, cut=0.02, repeat=0.1)
# Asked for, in ms. A miss is printed; it is not red.
ASKED = {
    "phase steady": {"p50": 15.0, "p99": 75.0},
    "3 s after a kill": {"p99": 1_000.0},
    "phase blackhole": {"p99": 3_000.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    messages: int
    agents: int
    relays: int
    rate: float
    kill_every_s: float
    steady_s: float
    blackhole_s: float
    bad_net_s: float
    patience_s: float
    backlog: int
    plant: str
    seed: int


@dataclass(eq=False)
class Run:
    """One run of all phases."""

    plan: Plan
    site: Site
    live: Live
    journals: dict[str, Holdfast]
    rng: random.Random
    sent: int = 0  # messages that tasks were submitted for
    chunks: int = 0
    late: bool = False  # the agents did not keep up with the rate
    figures: dict[str, object] = field(default_factory=dict[str, object])
    _told: float = 0.0

    async def warm_up(self) -> None:
        self._phase("warm-up")
        ids = {one.name: one.id for one in self.site.agents}
        await asyncio.gather(
            *(
                self._submit(name, f"warm-{name}", [id_ for other, id_ in ids.items() if other != name], now_ns(), 0)
                for name in ids
            )
        )
        await self._until_handled()

    async def load(self, phase: str, messages: int) -> None:
        """So many messages at the rate of the plan, or as fast as the agents can."""
        self._phase(phase)
        plan, began, before = self.plan, time.monotonic(), self.site.cpu_s()
        lanes = [(agent.name, lane) for agent in self.site.agents for lane in range(LANES)]
        self.rng.shuffle(lanes)
        every_s = len(lanes) / plan.rate
        left = [messages // len(lanes) + (n < messages % len(lanes)) for n in range(len(lanes))]
        due = [began + 0.5 + n * every_s / len(lanes) for n in range(len(lanes))]
        while any(left):
            now = time.monotonic()
            if self.live.pending > plan.backlog:
                self.late = True
                await self._look(0.05)
                continue
            for n, (name, lane) in enumerate(lanes):
                if left[n] and due[n] - AHEAD_S < now:
                    count, begin = min(CHUNK, left[n]), max(due[n], now)
                    left[n] -= count
                    due[n] = begin + count * every_s
                    self.chunks += 1
                    to = self._choose(name, count)
                    await self._submit(name, f"{lane}-{self.chunks}", to, int(begin * 1e9), int(every_s * 1e9))
            await self._look(0.1)
        await self._until_handled()
        seconds, after = time.monotonic() - began, self.site.cpu_s()
        self.figures[phase] = {
            "messages": messages,
            "seconds": round(seconds, 1),
            "per_s": round(messages / seconds, 1),
            "cpu_ms_per_message": {name: round((after[name] - before[name]) * 1e3 / messages, 2) for name in after},
        }

    def _phase(self, name: str) -> None:
        self.site.events.add("phase", by=name)

    def _choose(self, name: str, count: int) -> list[str]:
        others = [one.id for one in self.site.agents if one.name != name]
        return self.rng.choices(others, k=count)

    async def _submit(self, name: str, lane: str, to: list[str], begin_ns: int, every_ns: int) -> None:
        self.sent += len(to)
        values = {"lane": lane, "to": to, "first": 1, "begin_ns": begin_ns, "every_ns": every_ns}
        await self.journals[name].submit(SEND, request_id=lane, **values)

    async def _look(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self.live.read()
        if time.monotonic() - self._told > TELL_EVERY_S:
            self._told = time.monotonic()
            count = f"{self.live.handled} of {self.sent} messages handled, {self.live.kills} kills"
            print(f"seed {self.plan.seed}: {count}", file=sys.stderr, flush=True)

    async def _until_handled(self) -> None:
        """Gives up when nothing moves: the checker says what is missing."""
        seen, since = -1, time.monotonic()
        while self.live.handled < self.sent or self.live.stored < self.sent:
            moved = self.live.handled + self.live.stored
            if moved != seen:
                seen, since = moved, time.monotonic()
            if time.monotonic() - since > self.plan.patience_s:
                return
            await self._look(0.05)

    async def settle(self) -> None:
        """For the delivery notes that are on their way, and for copies that a handler must not see."""
        until = time.monotonic() + min(10.0, self.plan.patience_s)
        while self.live.delivered < self.sent and time.monotonic() < until:
            await self._look(0.1)
        await self._look(1.0)

    # faults

    async def kill_relays(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.plan.kill_every_s * self.rng.uniform(0.9, 1.0))
            began = time.monotonic()
            victim = self.rng.choice(self.site.relays)
            self.site.events.add("kill", a=victim.folder.name)
            victim.kill()
            await asyncio.sleep(self.rng.uniform(*DOWN_S))
            await asyncio.shield(asyncio.to_thread(victim.start))
            self.site.events.add("up", a=victim.folder.name, at=int((time.monotonic() - began) * 1e9))

    async def cut_one(self, seconds: float) -> None:
        front = self.rng.randrange(len(self.site.relays))
        self.site.events.add("cut", a=f"r{front}")
        self.site.proxy.set(front, Faults(mode="blackhole"))
        await asyncio.sleep(seconds)
        self.site.proxy.set(front, Faults())
        self.site.events.add("heal", a=f"r{front}")

    async def bad_net(self, seconds: float) -> None:
        for front in range(len(self.site.relays)):
            self.site.proxy.set(front, BAD_NET)
        half_open = self.rng.randrange(len(self.site.relays))
        await asyncio.sleep(seconds / 2)
        self.site.proxy.set(half_open, Faults(mode="half-open"))
        await asyncio.sleep(seconds / 2)
        for front in range(len(self.site.relays)):
            self.site.proxy.set(front, Faults())


async def run_phases(plan: Plan, found: Site) -> Run:
    await found.make_agents(plan.agents)
    async with AsyncExitStack() as stack:
        journals = {
            one.name: await stack.enter_async_context(holdfast.open(one.home.journal, serve=False))
            for one in found.agents
        }
        for one in found.agents:
            one.start(events=found.events_path, plant=plan.plant)
        run = Run(plan, found, Live(found.events_path), journals, random.Random(plan.seed))
        await run.warm_up()
        left = max(0, plan.messages - run.sent)
        timed = {"steady": plan.steady_s, "blackhole": plan.blackhole_s, "bad net": plan.bad_net_s}
        sizes = {name: min(int(seconds * plan.rate), left // 5) for name, seconds in timed.items()}
        if sizes["steady"]:
            await run.load("steady", sizes["steady"])
        killing = asyncio.create_task(run.kill_relays())
        await run.load("kills", left - sum(sizes.values()))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        for one in found.relays:
            if one.process is None:
                await asyncio.to_thread(one.start)
        for name, fault in (("blackhole", run.cut_one), ("bad net", run.bad_net)):
            if sizes[name]:
                beside = asyncio.create_task(fault(timed[name]))
                await run.load(name, sizes[name])
                await beside
        await run.settle()
    found.events.add("end")
    return run


def _soak(plan: Plan, folder: Path) -> tuple[Verdict, dict[str, object]]:
    folder.mkdir(mode=0o700)
    program = _program(plan.plant)
    with site(folder, relays=plan.relays, seed=plan.seed, program=program) as found:
        found.events.add("run", info={"seed": plan.seed, "messages": plan.messages})
        run = asyncio.run(run_phases(plan, found))
    verdict = Live(folder / "events.jsonl").verdict()
    return verdict, {"seed": plan.seed, **verdict.to_json(), "phases": run.figures, "kept_the_rate": not run.late}


def _program(plant: str) -> tuple[str, ...]:
    return ("-m", "holdfast_proofs.relay_lab.planted", plant) if plant == "forgetful-relays" else ()


def _prove(given: argparse.Namespace) -> Result:
    root = Path(tempfile.mkdtemp(prefix="holdfast-relay-soak-", dir=given.folder))
    findings: list[str] = []
    reports: list[dict[str, object]] = []
    for seed in range(given.seed, given.seed + given.seeds):
        verdict, report = _soak(_plan(given, seed), root / f"seed-{seed}")
        findings += [f"seed {seed}: {one}" for one in verdict.findings]
        reports.append(report)
        if not verdict.findings and not given.keep:
            shutil.rmtree(root / f"seed-{seed}")
    if findings or given.keep:
        print(f"events, journals and logs are kept in {root}", file=sys.stderr)
    else:
        root.rmdir()
    figures = {"runs": reports, "asked_ms": ASKED, "missed": _missed(reports)}
    return Result(
        green=not findings, figures=figures, findings=findings, again=_again(given), summary=_summary(reports)
    )


def _plan(given: argparse.Namespace, seed: int) -> Plan:
    return Plan(
        messages=given.messages,
        agents=max(2, given.agents),
        relays=given.relays,
        rate=given.rate,
        kill_every_s=given.kill_every,
        steady_s=given.steady,
        blackhole_s=given.blackhole,
        bad_net_s=given.bad_net,
        patience_s=given.patience,
        backlog=given.backlog,
        plant=given.plant,
        seed=seed,
    )


def _missed(reports: list[dict[str, object]]) -> list[str]:
    """What took longer than is asked for."""
    missed: list[str] = []
    for report in reports:
        delays = report["delays_ms"]
        assert isinstance(delays, dict)
        for name, asked in ASKED.items():
            for figure, most in asked.items():
                found = delays.get(name, {}).get(figure, 0.0)  # type: ignore[union-attr]
                if found > most:
                    missed.append(f"seed {report['seed']}: {name}, {figure} {found:,.0f} ms (asked {most:,.0f})")
    return missed


def _summary(reports: list[dict[str, object]]) -> str:
    def total(name: str) -> int:
        return sum(int(str(one[name])) for one in reports)

    counts = ", ".join(
        f"{name.replace('_', ' ')} {total(name)}"
        for name in ("lost", "duplicated", "false_delivered", "unfinished", "misordered")
    )
    missed = _missed(reports)
    late = "all delays as asked" if not missed else "later than asked: " + "; ".join(missed)
    return f"{total('messages')} messages in {len(reports)} runs, {total('kills')} relays killed; {counts}; {late}"


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--messages", type=at_least_one, default=100_000, help="in each run (100000)")
    add("--seeds", type=at_least_one, default=3, help="runs, with seeds that follow each other (3)")
    add("--seed", type=int, default=0, help="of the first run (0)")
    add("--agents", type=int, default=20, help="each with a worker of its own (20)")
    add("--relays", type=int, default=3, help="relay processes (3)")
    add("--rate", type=float, default=200.0, help="messages a second, of all agents together (200)")
    add("--backlog", type=int, default=400, help="messages under way at most: then the rate falls (400)")
    add("--kill-every", type=float, default=10.0, metavar="S", help="seconds between kills (10)")
    add("--steady", type=float, default=30.0, metavar="S", help="seconds without faults (30)")
    add("--blackhole", type=float, default=20.0, metavar="S", help="seconds with one relay cut off (20)")
    add("--bad-net", type=float, default=20.0, metavar="S", help="seconds with a bad network (20)")
    add("--patience", type=float, default=120.0, metavar="S", help="given up when nothing moves for so long (120)")
    add("--plant", choices=("", *PLANTS), default="", help="plant this fault: the run must be red")
    add("--folder", type=Path, help="make everything in this folder (a temporary one)")
    add("--keep", action="store_true", help="keep the folder also where all is well")


def _again(given: argparse.Namespace) -> str:
    plant = f" --plant {given.plant}" if given.plant else ""
    return (
        f"--messages {given.messages} --seeds {given.seeds} --seed {given.seed} --agents {given.agents} "
        f"--relays {given.relays} --rate {given.rate} --kill-every {given.kill_every}{plant}"
    )


PROOF = Proof(
    name="relay_lab",
    purpose="Mail between agents over relays that are killed, cut off and disturbed; then every message is counted.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
