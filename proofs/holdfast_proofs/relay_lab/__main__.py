"""The command line of the relay soak: a steady load, kills, a relay that is cut off, a bad network; then the checker.

    warm-up     every agent writes to every other one
    calm        no faults, at --pace: what the machine can do with time left over
    steady      no faults, at --rate
    kills       a relay is killed every ten seconds, and started again, at --pace
    blackhole   packets to and from one relay vanish, at --pace
    bad net     delays, resets, cut answers, repeated and reordered requests, half-open connections, at --pace
    one way     with --namespaces, in place of the bad net: requests reach one relay, and its answers vanish
    flood       all other messages, as fast as the agents can, while relays are killed

Red: a message that two relays signed for and that was not handled, one that was handled twice, a delivery note for one
that the recipient's journal did not have, a send that never ended. Delays are figures: they depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.app.worker import JOBS_AFTER_S
from holdfast_proofs.failovers.network import Network, network
from holdfast_proofs.relay_lab.checker import Verdict
from holdfast_proofs.relay_lab.events import PLANT, SEND
from holdfast_proofs.relay_lab.live import Live
from holdfast_proofs.relay_lab.proxy import Faults
from holdfast_proofs.relay_lab.site import Site, now_ns, site
from holdfast_proofs.runner import Proof, Result, at_least_one

CHUNK = 40  # messages of one task
LANES = 5  # of each agent
AHEAD_S = 1.5  # a task is submitted so long before its first message is due
DOWN_S = (0.5, 3.0)  # how long a killed relay stays away
TELL_EVERY_S = 10.0
BEGIN_S = 5.0  # of the steady load, before it counts: each agent's first message from another one has its note at once
FIRST_LOOKS_S = 2 * JOBS_AFTER_S + 5.0  # by then each agent has had the first look that is repeated every few minutes
FLOOD = 10_000.0  # messages a second: more than any machine can do
PLANTS = ("forgetful-relays", "handled-twice", "note-first")
BAD_NET = Faults(delay_ms=40.0, reset=0.02, cut=0.02, repeat=0.1)
# Asked for, in ms. A miss is printed; it is not red.
ASKED = {
    "steady": {"p50": 15.0, "p99": 75.0},
    "kills, 3 s after a kill": {"p99": 1_000.0},
    "blackhole": {"p99": 3_000.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    messages: int
    agents: int
    relays: int
    rate: float
    pace: float
    phase_s: float
    kill_every_s: float
    patience_s: float
    backlog: int
    plant: str
    seed: int
    workers: int  # processes that serve the agents
    only_steady: bool = False


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
    figures: dict[str, object] = field(default_factory=dict[str, object])
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the load of this phase is handled
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

    async def load(self, phase: str, messages: int, rate: float) -> None:
        """So many messages at this rate, or as fast as the agents can."""
        self._phase(phase)
        plan, began, before = self.plan, time.monotonic(), self.site.cpu_s()
        lanes = [(agent.name, lane) for agent in self.site.agents for lane in range(LANES)]
        self.rng.shuffle(lanes)
        every_s = len(lanes) / rate
        left = [messages // len(lanes) + (n < messages % len(lanes)) for n in range(len(lanes))]
        due = [began + 0.5 + n * every_s / len(lanes) for n in range(len(lanes))]
        chunk = [self.rng.randint(1, CHUNK) for _ in lanes]  # of the first task: the tasks must not all end at once
        # Whole chunks are submitted: a limit below one for each lane would itself make paced messages late.
        most = plan.backlog if rate >= FLOOD else max(plan.backlog, 2 * CHUNK * len(lanes))
        while any(left):
            now = time.monotonic()
            if self.sent - self.live.handled > most:
                await self._look(0.05)
                continue
            for n, (name, lane) in enumerate(lanes):
                if left[n] and due[n] - AHEAD_S < now:
                    count, begin = min(chunk[n], left[n]), max(due[n], now)
                    chunk[n] = CHUNK
                    left[n] -= count
                    due[n] = begin + count * every_s
                    self.chunks += 1
                    to = self._choose(name, count)
                    every_ns = int(every_s * 1e9) if rate < FLOOD else 0
                    await self._submit(name, f"{lane}-{self.chunks}", to, int(begin * 1e9), every_ns)
            await self._look(0.1)
        await self._until_handled()
        seconds, after = time.monotonic() - began, self.site.cpu_s()
        self.figures[phase] = {
            "messages": messages,
            "seconds": round(seconds, 1),
            "per_s": round(messages / seconds, 1),
            "kept_the_rate": messages / seconds > 0.9 * rate,
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

    async def phase(
        self, name: str, messages: int, rate: float, fault: Callable[[float], Coroutine[object, object, None]]
    ) -> None:
        """A load with a fault beside it, which is over before the next phase begins."""
        if messages <= 0:
            return
        beside = asyncio.create_task(fault(self.plan.phase_s))
        try:
            await self.load(name, messages, rate)
        finally:
            self.over.set()
            await beside
            self.over.clear()

    # faults; each ends soon after `over`

    async def no_fault(self, seconds: float) -> None:
        pass

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()

    async def kill_relays(self, _seconds: float) -> None:
        while True:
            await self._pause(self.plan.kill_every_s * self.rng.uniform(0.9, 1.0))
            if self.over.is_set():
                return
            began = time.monotonic()
            victim = self.rng.choice(self.site.relays)
            self.site.events.add("kill", a=victim.folder.name)
            self.site.kill(victim)
            await self._pause(self.rng.uniform(*DOWN_S))
            await asyncio.to_thread(victim.start)
            self.site.events.add("up", a=victim.folder.name, at=int((time.monotonic() - began) * 1e9))

    async def cut_one(self, seconds: float) -> None:
        front = self.rng.randrange(len(self.site.relays))
        self.site.events.add("cut", a=f"r{front}")
        self.site.cut(front)
        await self._pause(seconds)
        self.site.heal(front)
        self.site.events.add("heal", a=f"r{front}")

    async def lose_answers(self, seconds: float) -> None:
        """One way only: requests reach the relay, and nothing that it says arrives."""
        assert self.site.net is not None
        number = self.rng.randrange(len(self.site.relays))
        self.site.events.add("cut", a=f"r{number}")
        self.site.net.lose(self.site.net.regions[number], to_region=False)
        await self._pause(seconds)
        self.site.heal(number)
        self.site.events.add("heal", a=f"r{number}")

    async def bad_net(self, seconds: float) -> None:
        for front in range(len(self.site.relays)):
            self.site.proxy.set(front, BAD_NET)
        half_open = self.rng.randrange(len(self.site.relays))
        await self._pause(seconds / 2)
        self.site.proxy.set(half_open, Faults(mode="half-open"))
        await self._pause(seconds / 2)
        for front in range(len(self.site.relays)):
            self.site.proxy.set(front, Faults())


async def run_phases(plan: Plan, found: Site) -> Run:
    found.direct = plan.only_steady
    await found.make_agents(plan.agents)
    async with AsyncExitStack() as stack:
        journals = {
            one.name: await stack.enter_async_context(holdfast.open(one.home.journal, serve=False))
            for one in found.agents
        }
        for n, one in enumerate(found.agents[: plan.workers]):
            beside = found.agents[n + plan.workers :: plan.workers]
            one.start(events=found.events_path, more={PLANT: plan.plant}, beside=beside)
        run = Run(plan, found, Live(found.events_path), journals, random.Random(plan.seed))
        began_s = time.monotonic()
        await run.warm_up()
        if plan.only_steady:
            await run.settle()
            await asyncio.sleep(max(0.0, began_s + FIRST_LOOKS_S - time.monotonic()))
        faults: dict[str, Callable[[float], Coroutine[object, object, None]]] = {
            "calm": run.no_fault,
            "steady": run.no_fault,
            "kills": run.kill_relays,
            "blackhole": run.cut_one,
            **({"bad net": run.bad_net} if found.net is None else {"one way": run.lose_answers}),
        }
        if plan.only_steady:
            await run.phase("begin", int(BEGIN_S * plan.rate), plan.rate, run.no_fault)
            faults = {"steady": run.no_fault}
        for phase, fault in faults.items():
            rate = plan.rate if phase == "steady" else plan.pace
            await run.phase(phase, min(int(plan.phase_s * rate), max(0, plan.messages - run.sent)), rate, fault)
        if not plan.only_steady:
            await run.phase("flood", max(0, plan.messages - run.sent), FLOOD, run.kill_relays)
        await run.settle()
    found.events.add("end")
    return run


def _soak(plan: Plan, folder: Path, net: Network | None) -> tuple[Verdict, dict[str, object]]:
    folder.mkdir(mode=0o700)
    program = _program(plan.plant)
    with site(folder, relays=plan.relays, seed=plan.seed, program=program, net=net) as found:
        found.events.add("run", info={"seed": plan.seed, "messages": plan.messages})
        run = asyncio.run(run_phases(plan, found))
    verdict = Live(folder / "events.jsonl").verdict()
    return verdict, {"seed": plan.seed, **verdict.to_json(), "phases": run.figures}


def _program(plant: str) -> tuple[str, ...]:
    return ("-m", "holdfast_proofs.relay_lab.planted", plant) if plant == "forgetful-relays" else ()


def _prove(given: argparse.Namespace) -> Result:
    root = Path(tempfile.mkdtemp(prefix="holdfast-relay-soak-", dir=given.folder))
    findings: list[str] = []
    reports: list[dict[str, object]] = []
    for seed in range(given.seed, given.seed + given.seeds):
        with network([f"r{n}" for n in range(given.relays)]) if given.namespaces else nullcontext() as net:
            verdict, report = _soak(_plan(given, seed), root / f"seed-{seed}", net)
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
        pace=given.pace,
        phase_s=given.phase,
        kill_every_s=given.kill_every,
        patience_s=given.patience,
        backlog=given.backlog,
        plant=given.plant,
        seed=seed,
        workers=given.workers,
        only_steady=given.only_steady,
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
    late = "later than asked: " + "; ".join(missed) if missed else "no delay longer than asked"
    return f"{total('messages')} messages in {len(reports)} runs, {total('kills')} relays killed; {counts}; {late}"


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--messages", type=at_least_one, default=100_000, help="in each run (100000)")
    add("--seeds", type=at_least_one, default=3, help="runs, with seeds that follow each other (3)")
    add("--seed", type=int, default=0, help="of the first run (0)")
    add("--agents", type=int, default=20, help="agents (20)")
    add("--workers", type=at_least_one, default=3, help="processes that serve them, some agents each (3)")
    add("--relays", type=int, default=3, help="relay processes (3)")
    add("--rate", type=float, default=200.0, help="messages a second of all agents, in the steady phase (200)")
    add("--pace", type=float, default=40.0, help="messages a second, in the phases whose delays count (40)")
    add("--phase", type=float, default=60.0, metavar="S", help="seconds of each phase before the flood (60)")
    add(
        "--only-steady",
        action="store_true",
        help="the steady phase alone, once the workers' start is over, and with no proxy before the relays",
    )
    add(
        "--namespaces",
        action="store_true",
        help="each relay in a network namespace, whose link goes down, or loses what it sends; no proxy; as root",
    )
    add("--backlog", type=int, default=2_000, help="messages submitted and not handled, at most (2000)")
    add("--kill-every", type=float, default=10.0, metavar="S", help="seconds between kills (10)")
    add("--patience", type=float, default=120.0, metavar="S", help="given up when nothing moves for so long (120)")
    add("--plant", choices=("", *PLANTS), default="", help="plant this fault: the run must be red")
    add("--folder", type=Path, help="make everything in this folder (a temporary one)")
    add("--keep", action="store_true", help="keep the folder also where all is well")


def _again(given: argparse.Namespace) -> str:
    plant = f" --plant {given.plant}" if given.plant else ""
    plant += " --only-steady" if given.only_steady else ""
    plant += " --namespaces" if given.namespaces else ""
    return (
        f"--messages {given.messages} --seeds {given.seeds} --seed {given.seed} --agents {given.agents} "
        f"--workers {given.workers} "
        f"--relays {given.relays} --rate {given.rate} --pace {given.pace} --phase {given.phase} "
        f"--kill-every {given.kill_every}{plant}"
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
