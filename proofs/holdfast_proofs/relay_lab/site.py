"""Relays, the proxy in front of them, and agents: made as `holdfast init` makes them, each served by a worker.

The relays are the agents' witnesses too, reached through the proxy, so an agent's first profile lists them. Instead of
the proxy there can be a network namespace for each relay, whose link to the agents goes down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from holdfast.app.mail.profile_job import renew_profile
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.host.hardening import die_with_parent
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import parse_key
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.statements.statements import Relay
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessAddress, WitnessRelay
from holdfast.relay.client.profile import PublishedProfile, publish_profile
from holdfast_proofs.failovers.network import Network, Region
from holdfast_proofs.relay_lab.events import AGENT, FILE, EventFile
from holdfast_proofs.relay_lab.proxy import Faults, Proxy
from holdfast_proofs.support.relays import RelayProcess, relay_with_tls, trusting

APP = "holdfast_proofs.relay_lab.app:app"
STOP_S_MAX = 30.0
CONCURRENCY = 16
ENTROPY = SystemEntropy()
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class LabAgent:
    name: str
    root: Path
    id: str = ""
    words: str = ""
    ahead_s: int = 0  # of its clock
    worker: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.root / "home"

    @property
    def home(self) -> AgentHome:
        return load_home(self.folder)

    @property
    def program(self) -> tuple[str, ...]:
        """`holdfast`, with the agent's clock."""
        module = ("holdfast_proofs.support.shifted_clock", str(self.ahead_s)) if self.ahead_s else ("holdfast",)
        return (sys.executable, "-P", "-m", *module)

    async def make(self, witnesses: Sequence[WitnessAddress]) -> None:
        """Where the witnesses are relays, they are in its first profile."""
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
            witnesses=tuple(witnesses),
            keys=keys[:1],
            second_keys=keys[1:],
        )

        def show(phrase: Phrase) -> None:
            self.words = " ".join(phrase.words)

        made = await make_agent(plan, show=show, entropy=ENTROPY, port=Sodium())
        self.id = find_id(made.home)
        done = await asyncio.to_thread(renew_profile, made.home)
        assert not any(done.said.values()), done.said

    async def use_relays(self, relays: Sequence[WitnessRelay]) -> None:
        """Its profile names these relays from now on, and no others."""
        listed = tuple(
            Relay(url=one.url, wit=parse_key(one.key), prio=n, domain=f"o{n}") for n, one in enumerate(relays)
        )
        home = self.home

        def publish() -> PublishedProfile:
            with act_lock(home.folder):
                speaker = open_speaker(home, SystemClock())
                change = partial(replace, relays=listed, left=())
                now = int(time.time())
                return asyncio.run(
                    publish_profile(home, speaker, now=now, port=Sodium(), change=change, more=tuple(relays))
                )

        done = await asyncio.to_thread(publish)
        urls = {one.url for one in relays}
        assert not any(why for url, why in done.said.items() if url in urls), done.said

    def start(self, *, events: Path, more: Mapping[str, str], beside: Sequence[LabAgent] = ()) -> None:
        """`more`: environment of the app. `beside`: other agents that the same worker serves."""
        driver = os.getpid()
        homes = [word for one in (self, *beside) for word in ("--home", str(one.folder))]
        words = ["worker", APP, *homes, "--concurrency", str(CONCURRENCY * (1 + len(beside)))]
        with (self.root / "worker.log").open("ab") as output:
            self.worker = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, FILE: str(events), AGENT: "" if beside else self.name, **more},
                process_group=0,
                preexec_fn=lambda: die_with_parent(driver),  # noqa: PLW1509 - no thread starts one
            )

    def cpu_s(self) -> float:
        if self.worker is None:
            return 0.0
        return cpu_s(self.worker.pid) + sum(map(cpu_s, _children(self.worker.pid)))

    def kill(self) -> None:
        """The worker's process ends with the one that supervises it."""
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()
        self.worker = None

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
    net: Network | None = None  # a region of it for each relay, and no proxy
    direct: bool = False  # agents reach the relays without the proxy
    agents: list[LabAgent] = field(default_factory=list[LabAgent])
    _killed_s: float = 0.0  # processor time of relays that were killed

    @property
    def events_path(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def addresses(self) -> list[WitnessRelay]:
        """Of the relays, as agents reach them."""
        if self.direct or self.net:
            return [one.at for one in self.relays]
        return [
            WitnessRelay(f"http://127.0.0.1:{port}", one.at.key)
            for one, port in zip(self.relays, self.proxy.ports, strict=True)
        ]

    async def make_agents(self, count: int) -> None:
        for number in range(count):
            await self.make_agent(f"a{number:02}", self.addresses)

    async def make_agent(self, name: str, witnesses: Sequence[WitnessAddress], folder: str = "") -> LabAgent:
        agent = LabAgent(name, self.root / (folder or name))
        await agent.make(witnesses)
        self.events.add("agent", a=agent.name, by=agent.id)
        self.agents.append(agent)
        return agent

    def kill(self, relay: RelayProcess) -> None:
        assert relay.process is not None
        self._killed_s += cpu_s(relay.process.pid)
        relay.kill()

    def cut(self, number: int) -> None:
        """From here on packets to and from this relay vanish."""
        if self.net is None:
            self.proxy.set(number, Faults(mode="blackhole"))
        else:
            self.net.cut(self.net.regions[number], from_world=True)

    def heal(self, number: int) -> None:
        if self.net is None:
            self.proxy.set(number, Faults())
        else:
            self.net.heal(self.net.regions[number])

    def cpu_s(self) -> dict[str, float]:
        """Processor time so far."""
        running = sum(cpu_s(one.process.pid) for one in self.relays if one.process is not None)
        return {
            "agents": sum(one.cpu_s() for one in self.agents),
            "relays": self._killed_s + running,
            "proxy": cpu_s(self.proxy.pid),
        }


@contextmanager
def site(
    root: Path,
    *,
    relays: int,
    seed: int,
    program: Sequence[str] = (),
    liar: Sequence[str] = (),
    limits: str = "",
    net: Network | None = None,
) -> Generator[Site]:
    """`program`: what is started in place of `holdfast relay serve`; `liar`: in place of the first one only; `limits`:
    relay.toml; `net`: each relay runs in a region of it."""
    with ExitStack() as stack:
        if net is None:
            made = [RelayProcess(root / f"r{number}") for number in range(relays)]
        else:
            made = [_far_relay(root, region) for region in net.regions]
            stack.enter_context(trusting(*(one.folder.parent / "server.pem" for one in made)))
        for one in made:
            if limits:
                one.folder.mkdir(mode=0o700)
                (one.folder / "relay.toml").write_text(limits)
            if program or (liar and one is made[0]):
                one.program = tuple(program or liar)
            one.begin()
            stack.callback(_end, one)
        for one in made:
            one.ready()
        proxy = Proxy([] if net else [one.port for one in made], seed=seed, log=root / "proxy.log")
        stack.callback(proxy.close)
        events = EventFile(root / "events.jsonl")
        stack.callback(events.close)
        found = Site(root, made, proxy, events, net)
        stack.callback(_stop_agents, found)
        yield found


def _far_relay(root: Path, region: Region) -> RelayProcess:
    (root / f"host-{region.name}").mkdir()
    address = Network.world_address(region)
    return relay_with_tls(root / f"host-{region.name}" / region.name, address, inside=region.inside())


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


def find_id(home: AgentHome) -> str:
    log = find_own_log(home.folder, Sodium())
    assert log is not None
    return log.id


def now_ns() -> int:
    return time.monotonic_ns()
