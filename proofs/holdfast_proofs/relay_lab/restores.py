"""An agent's machine is lost while others write to it; it comes back from paper and an old backup, and reads its mail.

    rounds    backup; an hour passes on every clock, and mail of an hour comes; the machine is killed and deleted;
              `holdfast recover` elsewhere, while mail still comes
    drain     many messages wait at the relays when the agent comes back: how long until its journal has them
    relays    all relays are lost for good with mail that waits there; new ones are named

The handler of each message leaves one effect at a service of its own. Red: a message that is not in the agent's journal
at the end, one without an effect, or one with two. The time of the drain is a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import holdfast
from holdfast.app.mail.agent_post import open_agent_mail
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.mail import MailKind
from holdfast.downstream.process import start
from holdfast.errors import HoldfastError
from holdfast.identity.records.ed25519 import Sodium
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.layout.witness_address import WitnessFolder, WitnessRelay
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.channel import RelayChannel
from holdfast.relay.protocol.envelope import Inner, seal_envelope
from holdfast.runtime.task.mail_task import MAIL_NAME
from holdfast_proofs.relay_lab.checker import Verdict
from holdfast_proofs.relay_lab.events import PLANT, RESEND, SEND, SERVICE, WINDOW_S, read_events
from holdfast_proofs.relay_lab.live import Live
from holdfast_proofs.relay_lab.site import LabAgent, Site, now_ns, site
from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.support.relays import RelayProcess
from holdfast_proofs.support.shifted_clock import shift_clock

WATCH_S = 1.0  # held mail is given up as soon as a verified backup and twice this time allow it
SENDERS = 2
EVERY_S = 0.25  # between two messages of one sender
CHUNK = 4
HOUR_S = 3_600  # between the backup and the loss, on the clocks of relays, agents and this process
DAY_S = 24 * HOUR_S
RECOVERIES_A_DAY = 4  # fewer than a witness accepts
THREADS = 20  # of the messages that wait
BATCH = 32
BETWEEN = 200  # messages in that hour, beside the traffic
COMMAND_S = 300.0
PATIENCE_S = 120.0
PLANTED_PATIENCE_S = 15.0  # what is lost does not come
RELAYS_LOST = 20  # messages that wait at relays which are lost
LIMITS = "registrations_an_hour = 1000\nmails_per_s = 100000\nmails_of_agent_per_s = 100000\nmailbox_mails = 100000\n"
DRAIN_ASKED_S = 15.0


@dataclass(eq=False)
class Stage:
    """Senders that keep running, one agent whose machine is lost again and again, and the service of the handlers."""

    site: Site
    live: Live
    service: str
    plant: str = ""
    senders: list[LabAgent] = field(default_factory=list[LabAgent])
    victim: LabAgent = field(default_factory=lambda: LabAgent("v", Path()))
    sent: int = 0  # to the victim
    chunks: int = 0
    filled: int = 0
    ahead_s: int = 0  # of the clocks
    machines: int = 0
    recover_s: list[float] = field(default_factory=list[float])
    published_s: float = 0.0  # that the drain waited for the profile
    figures: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def place(self) -> Path:
        return self.site.root / "place"

    def serve(self, agent: LabAgent) -> None:
        agent.start(events=self.site.events_path, more={SERVICE: self.service, RESEND: "3", PLANT: self.plant})

    async def prepare(self) -> None:
        for number in range(SENDERS):
            self.senders.append(await self.site.make_agent(f"a{number}", self.site.addresses))
        self.victim = await self.site.make_agent("v", self.site.addresses, "machine-0")
        settings = self.victim.folder / "holdfast.toml"
        settings.write_text(settings.read_text().replace("[identity]\n", f"[identity]\nwatch_s = {WATCH_S}\n"))
        self.place.mkdir(mode=0o700)
        await self.command(self.victim, "place", "add", "p", str(self.place))
        for one in (*self.senders, self.victim):
            self.serve(one)
        self.site.events.add("phase", by="warm-up")
        # An agent that the victim has written to is no stranger: more of its mail may wait.
        await self.submit(self.victim, "hello", [one.id for one in self.senders])
        for one in self.senders:
            await self.submit(one, "hello", [self.victim.id])
        await self.until_handled()

    async def command(self, agent: LabAgent, *words: str, typed: str = "") -> str:
        """A command on the agent's machine: a HOME of its own."""
        reader, writer = os.pipe()
        os.write(writer, typed.encode() + b"\n")
        os.close(writer)
        more = ("--words-fd", str(reader)) if typed else ()
        try:
            process = await asyncio.create_subprocess_exec(
                *(*agent.program, *words, "--home", str(agent.folder), *more),
                env={**os.environ, "HOME": str(agent.root)},
                cwd=agent.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(reader,),
            )
        finally:
            os.close(reader)
        async with asyncio.timeout(COMMAND_S):
            out, err = await process.communicate()
        assert process.returncode == 0, (
            f"exit {process.returncode}: {' '.join(words[:2])}: {err.decode()[-2_000:]} {out.decode()[-2_000:]}"
        )
        return out.decode()

    async def submit(self, agent: LabAgent, lane: str, to: Sequence[str], every_s: float = 0.0) -> None:
        async with holdfast.open(agent.home.journal, serve=False) as hf:
            values = {"first": 1, "begin_ns": now_ns(), "every_ns": int(every_s * 1e9)}
            await hf.submit(SEND, request_id=lane, lane=lane, to=list(to), **values)
        self.sent += sum(one == self.victim.id for one in to)

    @asynccontextmanager
    async def traffic(self) -> AsyncGenerator[None]:
        """Every sender writes to the victim, whatever happens to it."""
        over = asyncio.Event()

        async def write(sender: LabAgent) -> None:
            while not over.is_set():
                self.chunks += 1
                await self.submit(sender, f"t{self.chunks}", [self.victim.id] * CHUNK, EVERY_S)
                await asyncio.sleep(CHUNK * EVERY_S)

        async with asyncio.TaskGroup() as group:
            for one in self.senders:
                group.create_task(write(one))
            try:
                yield
            finally:
                over.set()

    async def round(self, number: int, between: int) -> None:
        self.site.events.add("phase", by=f"round {number}")
        await self._begin_day()
        async with self.traffic():
            await asyncio.sleep(1.0)
            await self.command(self.victim, "backup", "now")
            await self.age(HOUR_S)
            await self._until_found()
            await self._fill(between)
            await asyncio.sleep(2.0 + number % 3)  # some of it is handled, some waits; the backup has none of it
            await self.lose()
            await self.recover()
            await asyncio.sleep(1.0)
        await self.until_handled()

    async def _begin_day(self) -> None:
        """Where the witnesses would accept no further recovery."""
        if self.machines and self.machines % RECOVERIES_A_DAY == 0:
            await self.age(DAY_S)

    async def age(self, seconds: int) -> None:
        """Time passes: certificates end, and to every clock the backup is that much older."""
        self.ahead_s += seconds
        shift_clock(seconds)
        agents = [*self.senders, self.victim]
        for one in agents:
            one.stop()
        for one in agents:
            await asyncio.to_thread(one.wait_end)
        for relay in self.site.relays:
            await asyncio.to_thread(relay.stop)
            relay.program = ("-m", "holdfast_proofs.support.shifted_clock", str(self.ahead_s))
            await asyncio.to_thread(relay.start)
        for one in agents:
            one.ahead_s = self.ahead_s
            self.serve(one)
        self.site.events.add("time passes")

    async def lose(self) -> None:
        old = self.victim
        old.kill()
        shutil.rmtree(old.root)
        self.site.events.add("machine-lost", a="v")

    async def recover(self) -> None:
        """On a machine that has nothing but the words and the place."""
        self.machines += 1
        old, root = self.victim, self.site.root / f"machine-{self.machines}"
        root.mkdir(mode=0o700)
        new = self.victim = LabAgent("v", root, old.id, old.words, old.ahead_s)
        self.site.agents[self.site.agents.index(old)] = new
        began = time.monotonic()
        options = {
            "--vault": "vault",
            "--second": "second",
            "--unlock-file": "unlock",
            "--second-unlock-file": "unlock2",
        }
        where = [word for option, name in options.items() for word in (option, str(root / name))]
        again = ("--again",) if self.machines > 1 else ()  # the machine that had the keys since is lost too
        await self.command(
            new, "recover", *again, "--place", str(self.place), *where, "--yes", "--json", typed=new.words
        )
        self.recover_s.append(round(time.monotonic() - began, 2))
        self.site.events.add("restored", a="v")
        self.serve(new)

    async def until_handled(self) -> None:
        """Until the journal that is there now has every message. Gives up when nothing moves."""
        seen, since = -1, time.monotonic()
        async with holdfast.open(self.victim.home.journal, serve=False) as hf:
            while True:
                self.live.read()
                done = frozenset({TaskState.SUCCEEDED})
                rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME, states=done, limit=1_000_000))
                if len(rows) >= self.sent:
                    return
                if len(rows) + self.live.stored != seen:
                    seen, since = len(rows) + self.live.stored, time.monotonic()
                if time.monotonic() - since > (PLANTED_PATIENCE_S if self.plant else PATIENCE_S):
                    return
                await asyncio.sleep(0.1)

    # waiting mail

    async def drain(self, count: int) -> None:
        """So many messages are at two relays each when the agent comes back."""
        self.site.events.add("phase", by="drain")
        await self._begin_day()
        await self.command(self.victim, "backup", "now")
        await self._until_found()
        await self.lose()
        await self._fill(count)
        await self.recover()
        started = now_ns()
        await self.until_handled()
        times = [one.t for one in read_events(self.site.events_path) if one.e == "committed" and one.t > started]
        handled = [one.t for one in read_events(self.site.events_path) if one.e == "handled" and one.t > started]
        if times:
            self.figures = {
                "waiting": count,
                "drained_after_start_s": round((max(times) - started) / 1e9, 2),
                "drained_after_first_s": round((max(times) - min(times)) / 1e9, 2),
                "handled_after_start_s": round((max(handled) - started) / 1e9, 2),
                "asked_s": DRAIN_ASKED_S,
                "profile_waited_s": self.published_s,
            }

    async def _until_found(self) -> None:
        """The relays hold a profile that the keys of the newest recovery signed: without it nobody new can write."""
        began = time.monotonic()
        book = AddressBook(self.senders[0].home.peers_file, lambda: self.site.addresses, Sodium())
        while True:
            try:
                await book.find(self.victim.id, fresh=True)
            except HoldfastError:
                if time.monotonic() - began > PATIENCE_S:
                    raise
                await asyncio.sleep(0.5)
            else:
                self.published_s = round(time.monotonic() - began, 1)
                return

    async def _fill(self, count: int) -> None:
        """Sealed as a sender does, and handed to two relays in lots: the speed of senders is not what is measured."""
        sender = self.senders[0]
        mail = await asyncio.to_thread(open_agent_mail, sender.home)
        peer = await mail.post.book.find(self.victim.id)
        key = peer.newest_key(int(time.time()))
        assert key is not None
        crt = await mail.post.instance.certificate()
        channels = [RelayChannel(one, Sodium()) for one in peer.relays]
        begin, end = self.filled, self.filled + count
        self.filled = end
        for first in range(begin, end, BATCH):
            lot: list[bytes] = []
            for n in range(first, min(first + BATCH, end)):
                raw, thread, number = _key(n), f"w{n % THREADS}", n // THREADS + 1
                name, text = f"{sender.name} {thread} {number}", effect_key_from_bytes(raw)
                inner = Inner(
                    key=raw,
                    body=msgspec.json.encode({"m": name, "n": number}),
                    at_ms=int(time.time() * 1e3),
                    thread=thread,
                    number=number,
                    after=(_key(n - THREADS),) if n >= THREADS else (),
                )
                self.site.events.add("send", a=sender.name, m=name, by=self.victim.id, th=thread, n=number)
                lot.append(
                    seal_envelope(
                        inner,
                        kind=MailKind.MESSAGE,
                        to=peer.id,
                        ttl_s=86_400,
                        key=key,
                        crt=crt,
                        signer=mail.post.instance.key,
                    )
                )
                self.site.events.add("stored", a=sender.name, m=name, k=text)
            at = (first - begin) // BATCH
            for channel in (channels[at % len(channels)], channels[(at + 1) % len(channels)]):
                answer, _ = await channel.submit(peer.id, lot)
                assert all(one.seq for one in answer.items), answer.items[0]
            self.sent += len(lot)
        for channel in channels:
            await channel.close()
        await mail.close()

    # the end

    async def audit(self, log: Path) -> None:
        """What the checker is to know of the journal and of the service's book."""
        self.site.events.add("audited", a="v")
        async with holdfast.open(self.victim.home.journal, serve=False) as hf:
            for row in await hf.journal.list_tasks(Filter(name=MAIL_NAME, limit=1_000_000)):
                if row.state is TaskState.SUCCEEDED:
                    self.site.events.add("kept", a="v", id=row.task_id)
        for line in log.read_text().splitlines() if log.exists() else ():
            body = json.loads(line)["body"]
            self.site.events.add("effect", m=body["m"])


def _key(number: int) -> bytes:
    return (number + 1).to_bytes(16, "big")


async def lose_relays(found: Site, service: str, live: Live) -> None:
    """Two agents with a witness folder; their relays die for good while mail waits there and while more is sent."""
    found.events.add("phase", by="all relays lost")
    old, new = ([RelayProcess(found.root / f"{name}{n}") for n in range(3)] for name in ("old", "new"))
    try:
        for one in old:
            one.start()
        pair = [await found.make_agent(name, [WitnessFolder(found.root / f"witness-{name}")]) for name in ("s", "w")]
        for one in pair:
            await one.use_relays([relay.at for relay in old])
        sender, other = pair
        environment = {SERVICE: service, RESEND: "3"}
        sender.start(events=found.events_path, more=environment)
        await _send(sender, "wait", [other.id] * RELAYS_LOST)
        await _until(lambda: _count(live, "stored", "s wait") == RELAYS_LOST)
        for one in old:
            one.kill()
            shutil.rmtree(one.folder)
        await _send(sender, "later", [other.id] * 5)
        for one in new:
            one.start()
        named: list[WitnessRelay] = [relay.at for relay in new]
        for one in pair:
            await one.use_relays(named)
        other.start(events=found.events_path, more=environment)
        await _until(lambda: _count(live, "handled", "s ") == RELAYS_LOST + 5)
    finally:
        for one in (*old, *new):
            if one.process is not None:
                one.kill()


async def _send(agent: LabAgent, lane: str, to: list[str]) -> None:
    async with holdfast.open(agent.home.journal, serve=False) as hf:
        await hf.submit(SEND, request_id=lane, lane=lane, to=to, first=1, begin_ns=now_ns(), every_ns=0)


def _count(live: Live, kind: str, begin: str) -> int:
    live.read()
    return sum(one.startswith(begin) for one in live.names[kind])


async def _until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done() and time.monotonic() < until:  # noqa: ASYNC110 - other processes do it
        await asyncio.sleep(0.1)


async def run_restores(
    found: Site,
    *,
    rounds: int,
    waiting: int,
    relays_lost: bool,
    between: int = BETWEEN,
    plant: str = "",
    tell: bool = True,
) -> tuple[Verdict, Stage]:
    log = found.root / "effects.jsonl"
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(start("keyed", log=log, window_s=WINDOW_S))
        live = Live(found.events_path)
        stage = Stage(found, live, far.url, plant)
        await stage.prepare()
        for number in range(1, rounds + 1):
            await stage.round(number, between)
            if tell:
                count = f"{stage.sent} messages, recovered in {stage.recover_s[-1]} s"
                print(f"round {number}: {count}", file=sys.stderr, flush=True)
        if waiting:
            await stage.drain(waiting)
        if relays_lost:
            await lose_relays(found, far.url, live)
        await stage.audit(log)
    return Live(found.events_path).verdict(), stage


def _prove(given: argparse.Namespace) -> Result:
    root = Path(tempfile.mkdtemp(prefix="holdfast-relay-restores-", dir=given.folder))
    with site(root, relays=3, seed=given.seed, limits=LIMITS) as found:
        work = run_restores(
            found,
            rounds=given.rounds,
            waiting=given.waiting,
            relays_lost=not given.keep_relays,
            between=given.between,
            plant=given.plant,
        )
        verdict, stage = asyncio.run(work)
    figures = {**verdict.to_json(), "recover_s": stage.recover_s, "drain": stage.figures}
    if verdict.findings or given.keep:
        print(f"events, journals and logs are kept in {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    again = f"--rounds {given.rounds} --between {given.between} --waiting {given.waiting} --seed {given.seed}"
    drained = ""
    if stage.figures:
        seconds = stage.figures["drained_after_start_s"]
        drained = (
            f"; {given.waiting} waiting mails in the journal {seconds} s after the start (asked {DRAIN_ASKED_S:g})"
        )
    counts = f"lost {len(verdict.lost)}, effects twice {len(verdict.effects_twice)}"
    counts = f"{counts}, misordered {verdict.misordered}"
    summary = f"{verdict.messages} messages, {verdict.machines_lost} machines lost; {counts}{drained}"
    return Result(green=not verdict.findings, figures=figures, findings=verdict.findings, again=again, summary=summary)


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rounds", type=at_least_one, default=50, help="machines lost and agents recovered (50)")
    add("--waiting", type=int, default=10_000, help="messages that wait when the agent comes back; 0: no drain (10000)")
    add("--between", type=int, default=BETWEEN, help=f"messages between a backup and the loss ({BETWEEN})")
    add("--keep-relays", action="store_true", help="do not lose all relays at the end")
    add("--plant", choices=("", "no-rewind"), default="", help="plant this fault: the run must be red")
    add("--seed", type=int, default=0, help="of the proxy (0)")
    add("--folder", type=Path, help="make everything in this folder (a temporary one)")
    add("--keep", action="store_true", help="keep the folder also where all is well")


PROOF = Proof(
    name="relay_lab.restores",
    purpose="An agent's machine is lost under traffic; it comes back from paper and an old backup, and loses no mail.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
