"""Relays, the proxy in front of them, and agents: made as `holdfast init` makes them, each served by a worker.

The relays are the agents' witnesses too, reached through the proxy, so an agent's first profile lists them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.app.profile_job import renew_profile
from holdfast.core.clock import SystemEntropy
from holdfast.host.hardening import die_with_parent
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessRelay
from holdfast_proofs.relay_lab.events import AGENT, FILE, PLANT, EventFile
from holdfast_proofs.relay_lab.proxy import Proxy
from holdfast_proofs.support.relays import RelayProcess

APP = "holdfast_proofs.relay_lab.app:app"
STOP_S_MAX = 30.0
ENTROPY = SystemEntropy()
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class LabAgent:
    name: str
    root: Path
    id: str = ""
    words: str = ""
    worker: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.root / "home"

    @property
    def home(self) -> AgentHome:
        return load_home(self.folder)

    async def make(self, relays: Sequence[WitnessRelay]) -> None:
        self.root.mkdir(mode=0o700)
        keys: list[UnlockKey] = []
        for name in ("unlock", "unlock2"):
            text = new_unlock_text(ENTROPY)
            (self.root / name).touch(0o600)
            (self.root / name).write_bytes(text)
            keys.append(file_key(self.root / name, text))
        plan = AgentPlan(
            name=self.name,
            folder=self.folder,
            vault=self.root / "vault",
            second=self.root / "second",
            witnesses=tuple(relays),
            keys=keys[:1],
            second_keys=keys[1:],
        )

        def show(phrase: Phrase) -> None:
            self.words = " ".join(phrase.words)

        made = await make_agent(plan, show=show, entropy=ENTROPY, port=Sodium())
        done = await asyncio.to_thread(renew_profile, made.home)
        assert done.signed is not None, done
        assert not any(done.said.values()), done.said
        self.id = done.signed.record.id

    def start(self, *, events: Path, plant: str = "", concurrency: int = 16) -> None:
        driver = os.getpid()
        words = ["-P", "-m", "holdfast", "worker", APP, "--home", str(self.folder), "--concurrency", str(concurrency)]
        with (self.root / "worker.log").open("ab") as output:
            self.worker = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, FILE: str(events), AGENT: self.name, PLANT: plant},
                process_group=0,
                preexec_fn=lambda: die_with_parent(driver),  # noqa: PLW1509 - no thread starts one
            )

    def cpu_s(self) -> float:
        if self.worker is None:
            return 0.0
        return cpu_s(self.worker.pid) + sum(map(cpu_s, _children(self.worker.pid)))

    def stop(self) -> None:
        if self.worker is not None and self.worker.poll() is None:
            self.worker.terminate()

    def wait_end(self) -> None:
        if self.worker is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.worker.wait(STOP_S_MAX)
            self.worker.kill()
            self.worker.wait()


@dataclass(eq=False)
class Site:
    root: Path
    relays: list[RelayProcess]
    proxy: Proxy
    events: EventFile
    agents: list[LabAgent] = field(default_factory=list[LabAgent])
    _killed_s: float = 0.0  # processor time of relays that were killed

    @property
    def events_path(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def addresses(self) -> list[WitnessRelay]:
        """Of the relays, as agents reach them."""
        return [
            WitnessRelay(f"http://127.0.0.1:{port}", one.at.key)
            for one, port in zip(self.relays, self.proxy.ports, strict=True)
        ]

    async def make_agents(self, count: int) -> None:
        for number in range(count):
            agent = LabAgent(f"a{number:02}", self.root / f"a{number:02}")
            await agent.make(self.addresses)
            self.events.add("agent", a=agent.name, by=agent.id)
            self.agents.append(agent)

    def kill(self, relay: RelayProcess) -> None:
        assert relay.process is not None
        self._killed_s += cpu_s(relay.process.pid)
        relay.kill()

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far."""
        running = sum(cpu_s(one.process.pid) for one in self.relays if one.process is not None)
        return {
            "agents": sum(one.cpu_s() for one in self.agents),
            "relays": self._killed_s + running,
            "proxy": cpu_s(self.proxy.pid),
        }


@contextmanager
def site(root: Path, *, relays: int, seed: int, program: Sequence[str] = ()) -> Generator[Site]:
    """`program`: what is started in place of `holdfast relay serve`."""
    with ExitStack() as stack:
        made = [RelayProcess(root / f"r{number}") for number in range(relays)]
        for one in made:
            if program:
                one.program = tuple(program)
            one.begin()
            stack.callback(_end, one)
        for one in made:
            one.ready()
        proxy = Proxy([one.port for one in made], seed=seed, log=root / "proxy.log")
        stack.callback(proxy.close)
        events = EventFile(root / "events.jsonl")
        stack.callback(events.close)
        found = Site(root, made, proxy, events)
        stack.callback(_stop_agents, found)
        yield found


def _stop_agents(found: Site) -> None:
    for one in found.agents:
        one.stop()
    for one in found.agents:
        one.wait_end()


def _end(relay: RelayProcess) -> None:
    if relay.process is not None:
        relay.kill()


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def now_ns() -> int:
    return time.monotonic_ns()
