"""What agents that wait cost a relay, how soon all of them wait again after a restart, and what a stalled reader costs.

One relay process with the settings that every relay has, and agents with keys of their own that log in and ask for mail
with a long poll, as the client does. They are all behind one address. Memory is the resident set of the relay's
process. The stalled reader has a full mailbox; it asks for it over many connections and reads no answer.

Goals: 100 KiB for an agent; all back 60 s after a restart; 50 MiB for the stalled reader.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError, RelayBusy, RelayUnreachable
from holdfast.identity.witness.witness_folder import WitnessService, witness_signer
from holdfast.relay.client.channel import RelayChannel, SessionOver
from holdfast.relay.client.health import backoff_s, poll_s
from holdfast.relay.protocol.envelope import parse_envelope
from holdfast.relay.server import mail
from holdfast.relay.server.logs import AdmittingLogs, KeyLogs
from holdfast.relay.server.store import Store
from holdfast.testing.lab import wait_until
from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.support.relay_agents import PORT, RelayAgent
from holdfast_proofs.support.relays import RelayProcess

KIB, MIB = 1024, 1024 * 1024
AGENT_KIB_MAX = 100.0
BACK_S_MAX = 60.0
STALLED_MIB_MAX = 50.0
GIVE_UP_S = 600.0
QUIET_S = 3.0
STALLED_S = 5.0
CONNECTIONS, ASKED = 128, 24  # of the stalled reader, and requests on each: more than the kernel keeps for it
ASK_S = 0.1  # between two connections: at once, most of its requests would be refused
FILES_AT_START = 1_024  # what most systems let a process open
ACTS = 500  # mails in one transaction


@dataclass
class Report:
    agents: int
    mails: int
    agent_kib: float = 0.0
    all_waiting_s: float = 0.0
    back_s: float = 0.0
    stalled_mib: float = 0.0
    findings: list[str] = field(default_factory=list[str])


class Crowd:
    """Agents that wait for mail at one relay, and come back when it was away."""

    def __init__(self, relay: RelayProcess, agents: Sequence[RelayAgent]) -> None:
        self.relay, self.agents = relay, agents
        self.waiting: set[int] = set()
        self.restarts = 0  # of the relay

    async def all_wait(self, within_s: float) -> float:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await wait_until(self._all_wait, timeout_s=within_s)
        return time.monotonic() - began

    async def _all_wait(self) -> bool:
        return len(self.waiting) == len(self.agents)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        tasks = [asyncio.create_task(self._wait(n)) for n in range(len(self.agents))]
        try:
            yield
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def restarted(self) -> None:
        """Nobody waits at the relay any more."""
        self.restarts += 1
        self.waiting.clear()

    async def _wait(self, number: int) -> None:
        agent, channel, tries, token = self.agents[number], RelayChannel(self.relay.at, PORT), 0, ""
        await asyncio.sleep(backoff_s(4))
        while True:
            restarts = self.restarts
            try:
                if not token:
                    login, _ = await channel.login(agent.certificate(), agent.key)
                    token = login.token
                    self._waits(number, restarts)
                await channel.take(agent.id, token, after=0, wait_s=poll_s())
                self._waits(number, restarts)
                tries = 0
            except SessionOver:
                token = ""
                self.waiting.discard(number)
            except RelayBusy:
                tries += 1
                await asyncio.sleep(backoff_s(tries))
            except (HoldfastError, OSError) as error:
                token = token if isinstance(error, RelayUnreachable) else ""
                self.waiting.discard(number)
                tries += 1
                await asyncio.sleep(backoff_s(tries))

    def _waits(self, number: int, restarts: int) -> None:
        if restarts == self.restarts:
            self.waiting.add(number)


def resident(relay: RelayProcess) -> int:
    assert relay.process is not None
    status = Path(f"/proc/{relay.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * KIB


def register(folder: Path, agents: Sequence[RelayAgent]) -> None:
    """Into the store of a relay that does not run: over the network it would be a matter of its limits."""

    async def all_of_them() -> None:
        for one in agents:
            logs = AdmittingLogs(KeyLogs(store, port=PORT), lambda _db, _id: "")
            await WitnessService(logs, signer, port=PORT, clock=lambda: int(time.time())).submit(
                one.records[0].line(), ()
            )

    signer = witness_signer(folder)
    store = Store(folder)
    try:
        asyncio.run(all_of_them())
    finally:
        store.close()


async def idle(relay: RelayProcess, agents: Sequence[RelayAgent], report: Report) -> None:
    async with Crowd(relay, agents[:1]).running():
        await asyncio.sleep(QUIET_S)
    before = resident(relay)
    crowd = Crowd(relay, agents)
    async with crowd.running():
        report.all_waiting_s = round(await crowd.all_wait(GIVE_UP_S), 1)
        await asyncio.sleep(QUIET_S)
        report.agent_kib = round((resident(relay) - before) / KIB / len(agents), 1)
        await asyncio.to_thread(relay.stop)
        crowd.restarted()
        await asyncio.to_thread(relay.start)
        report.back_s = round(await crowd.all_wait(GIVE_UP_S), 1)
        if len(crowd.waiting) < len(agents):
            report.findings.append(f"only {len(crowd.waiting)} of {len(agents)} agents came back")


def fill(folder: Path, sender: RelayAgent, to: RelayAgent, count: int) -> None:
    envelope = parse_envelope(sender.envelope(to, 1))
    quota = mail.Quota(mails=count, bytes=1 << 40, share=1)
    store = Store(folder)

    def offered(number: int) -> mail.Offered:
        mk = number.to_bytes(32, "big")
        outer = msgspec.structs.replace(envelope.outer, mk=mk)
        return mail.Offered(replace(envelope, id=mk, outer=outer), strange=False)

    try:
        for first in range(0, count, ACTS):
            part = [offered(number) for number in range(first, min(count, first + ACTS))]
            store.write(lambda db, part=part: mail.put_mail(db, to.id, part, now=int(time.time()), quota=quota))
    finally:
        store.close()


async def stall(relay: RelayProcess, reader: RelayAgent, report: Report, *, connections: int) -> None:
    channel = RelayChannel(relay.at, PORT)
    login, _ = await channel.login(reader.certificate(), reader.key)
    page, _ = await channel.take(reader.id, login.token, after=0, wait_s=0)
    report.mails = page.last
    before = resident(relay)
    request = (
        f"GET /v1/mailbox/{reader.id}?after=0&wait=0 HTTP/1.1\r\nhost: x\r\nholdfast-session: {login.token}\r\n\r\n"
    ).encode()
    sockets: list[socket.socket] = []
    most = 0
    try:
        for _ in range(connections):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            one.connect(("127.0.0.1", relay.port))
            one.sendall(request * ASKED)
            sockets.append(one)
            await asyncio.sleep(ASK_S)
            most = max(most, resident(relay))
        ends = time.monotonic() + STALLED_S
        while time.monotonic() < ends:
            await asyncio.sleep(0.1)
            most = max(most, resident(relay))
        report.stalled_mib = round((most - before) / MIB, 1)
        again, _ = await channel.login(reader.certificate(), reader.key)
        answered, _ = await channel.take(reader.id, again.token, after=page.last - 1, wait_s=0)
        if not answered.items:
            report.findings.append("an honest reader of the same mailbox gets nothing")
    finally:
        for one in sockets:
            one.close()
        await channel.close()


def run(*, agents: int, mails: int, folder: Path, connections: int = CONNECTIONS) -> Report:
    report = Report(agents=agents, mails=mails)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    crowd = [RelayAgent() for _ in range(agents)]
    relay = RelayProcess(folder / "relay")
    relay.folder.mkdir(mode=0o700)
    register(relay.folder, crowd)
    fill(relay.folder, crowd[0], crowd[-1], mails)
    waiting = crowd[:-1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_AT_START, soft), hard))
        relay.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        asyncio.run(stall(relay, crowd[-1], report, connections=connections))
        relay.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_AT_START, soft), hard))
        relay.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        asyncio.run(idle(relay, waiting, report))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if relay.process is not None:
            relay.kill()
    if report.stalled_mib > STALLED_MIB_MAX:
        report.findings.append(f"a stalled reader costs {report.stalled_mib} MiB")
    return report


def _run(given: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        report = run(agents=given.agents, mails=given.mails, folder=Path(folder))
    if report.agent_kib > AGENT_KIB_MAX:
        report.findings.append(f"an agent that waits costs {report.agent_kib} KiB")
    if report.back_s > BACK_S_MAX:
        report.findings.append(f"all agents were back only after {report.back_s} s")
    return Result(
        green=not report.findings,
        figures=asdict(report),
        findings=report.findings,
        summary=f"{report.agents - 1:,} agents wait: {report.agent_kib} KiB each, all back {report.back_s} s after a "
        f"restart; a stalled reader of {report.mails:,} mails: {report.stalled_mib} MiB",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=at_least_one, default=2_001, help="one of them stalls (2001)")
    parser.add_argument("--mails", type=at_least_one, default=100_000, help="in its mailbox (100000)")


PROOF = Proof(
    name="relay_idle",
    purpose="2,000 agents wait at one relay, it restarts, one reader stalls.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
