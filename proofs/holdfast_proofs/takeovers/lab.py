"""Where the rounds happen: a server, an agent that is enrolled on several hosts, and what can be done to one of them.

A host is a network namespace and a folder: the agent's home, with an instance key and a vault of its own. The server
and the services are in the middle, which all hosts reach, and so are the relays. The desk is the folder of the people
who submit and decide: the one of the standby, because a folder that is not enrolled may not write.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.app.mail.profile_job import renew_profile
from holdfast.core.journal_address import JournalAddress
from holdfast.demo.machine import Machine, give_identity
from holdfast.host.hardening import die_with_parent
from holdfast.layout.agent_home import load_home
from holdfast.layout.witness_address import WitnessRelay
from holdfast.recovery.copy_journal import copy_journal
from holdfast_proofs.failovers.network import Network, Region, network
from holdfast_proofs.relay_lab.site import find_id
from holdfast_proofs.runner import ProofFailed
from holdfast_proofs.soak.site import Site
from holdfast_proofs.support.command_line import environment
from holdfast_proofs.support.postgres import NEWEST, USER, started
from holdfast_proofs.support.warm_start import begin_again, run_command
from holdfast_proofs.takeovers.app import APP, PLANT
from holdfast_proofs.takeovers.mail import Sender, relays_at

NAMES = ("north", "south", "west")
STANDBY, COPY = "spare", "copy"
CONCURRENCY = 6
STOP_S_MAX = 20.0
COMMAND_S_MAX = 300.0  # for what takes a second on an idle machine


@dataclass(slots=True)
class Instance:
    """One folder of the agent on its host, and the worker there."""

    name: str
    host: Region
    folder: Path
    log: Path
    options: tuple[str, ...]  # of its worker
    given: Mapping[str, str]  # to its environment
    worker: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        own = os.getpid()
        words = ("worker", APP, "--home", str(self.folder), "--name", self.name, *self.options)
        with open(self.log, "ab") as log:
            self.worker = subprocess.Popen(
                (*self.host.inside(), sys.executable, "-P", "-m", "holdfast", *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(self.folder), "HOLDFAST_JOURNAL": "", **self.given},
                process_group=0,
                preexec_fn=lambda: die_with_parent(own),  # noqa: PLW1509 - no thread starts one
            )

    def send(self, number: signal.Signals) -> None:
        """To the worker and the process that supervises it."""
        if self.worker is not None:
            signal_all(self.worker.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.worker is not None:
            self.worker.wait()
            self.worker = None

    def ended(self) -> str:
        """What it said last, where its worker has ended by itself."""
        if self.worker is None or self.worker.poll() is None:
            return ""
        return f"the worker of {self.name} ended with {self.worker.returncode}: {self.said()[-600:]}"

    def said(self, since: int = 0) -> str:
        with suppress(FileNotFoundError), open(self.log, "rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")
        return ""

    def events(self, since: int = 0) -> list[dict[str, Any]]:  # Any: the fields of that event
        lines = (line for line in self.said(since).splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines if line.endswith("}")]


def signal_all(pid: int, number: signal.Signals) -> None:
    """To a `holdfast worker` and the process that works for it."""
    for one in (pid, *_children(pid)):
        with suppress(ProcessLookupError):
            os.kill(one, number)


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@dataclass(slots=True)
class Lab:
    folder: Path
    net: Network
    url: str
    lease_s: float | None  # None: as by default
    plant: str = ""
    relays: tuple[WitnessRelay, ...] = ()
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    others: list[Instance] = field(default_factory=list[Instance])  # that may not act: the standby, the copy
    given: dict[str, str] = field(default_factory=dict[str, str])  # to the environment of all workers
    made: int = 0  # packages
    agent: str = ""  # its id

    @property
    def machine(self) -> Path:
        return self.folder / "machine"

    @property
    def desk(self) -> JournalAddress:
        return JournalAddress(folder=self.folder / STANDBY, url=self.url)

    @property
    def books(self) -> Path:
        return self.folder / "books"

    @property
    def site(self) -> Site:
        return Site(journal=self.desk, hosts=(), services=self.net.world, books=self.books)

    @property
    def sender(self) -> Sender:
        return Sender(self.folder, self.relays, self.agent)

    def make_agent(self, names: tuple[str, ...], *, bare: bool) -> None:
        """The first instance, then the others as their owner enrols them. `bare`: the standby does not run, as one
        that was invited and never started."""
        first = self._add(names[0], self.net.regions[0])
        asyncio.run(self._make_first(first.folder))
        self.books.mkdir(mode=0o700)
        self.agent = find_id(load_home(first.folder))
        for name, host in zip(names[1:], self.net.regions[1:], strict=False):
            self.join(name, host, by=first)
        spare = self.join(STANDBY, self.net.regions[-1], "--standby", by=first, acts=False)
        if bare:
            return
        copy = self._new(COPY, self.net.regions[-1])
        shutil.copytree(first.folder, copy.folder, ignore=shutil.ignore_patterns("instance", "scratch"))
        self.others = [spare, copy]

    async def _make_first(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        async with holdfast.open(folder / "journal.db", serve=False):
            pass
        home, _ = await give_identity(folder, Machine(self.machine), witnesses=self.relays)
        await copy_journal(home.journal, JournalAddress(folder=folder, url=self.url))
        done = await asyncio.to_thread(renew_profile, load_home(folder))
        if failed := [why for why in done.said.values() if why]:
            raise ProofFailed(f"a relay did not take the profile: {failed[0]}")

    def _new(self, name: str, host: Region) -> Instance:
        lease = () if self.lease_s is None else ("--lease-ttl", str(self.lease_s))
        return Instance(
            name=name,
            host=host,
            folder=self.folder / name,
            log=self.folder / f"{name}.log",
            options=(*lease, "--concurrency", str(CONCURRENCY)),
            given=self.given,
        )

    def _add(self, name: str, host: Region) -> Instance:
        self.instances[name] = self._new(name, host)
        return self.instances[name]

    def join(self, name: str, host: Region, *more: str, by: Instance, acts: bool = True) -> Instance:
        """A folder for this host, by the commands that an owner uses."""
        self.made += 1
        package, vault = self.folder / f"{self.made}.invite", self.folder / f"{name}-vault"
        self.command(by, "instance", "invite", name, str(package), "--as", by.name, *more)
        shutil.rmtree(vault, ignore_errors=True)
        shutil.copytree(self.machine / "vault", vault)
        new = self._add(name, host) if acts else self._new(name, host)
        self.command(new, "instance", "join", str(package), "--vault", str(vault))
        return new

    def command(self, at: Instance, *words: str) -> None:
        given = {name: value for name, value in environment(self.folder).items() if name != "HOLDFAST_JOURNAL"}
        done = run_command(
            (*words, "--home", str(at.folder), "--json"), cwd=self.folder, env=given, timeout=COMMAND_S_MAX
        )
        if done.returncode:
            raise ProofFailed(f"holdfast {' '.join(words)} ended with {done.returncode}: {done.stderr[-800:]}")

    def close(self) -> None:
        for one in (*self.instances.values(), *self.others):
            one.send(signal.SIGCONT)
            one.send(signal.SIGTERM)
        until = time.monotonic() + STOP_S_MAX
        for one in (*self.instances.values(), *self.others):
            if one.worker is not None:
                with suppress(subprocess.TimeoutExpired):
                    one.worker.wait(max(until - time.monotonic(), 0.01))
            one.kill()


@contextmanager
def laboratory(
    folder: Path, *, names: tuple[str, ...] = NAMES, lease_s: float | None, plant: str = "", bare: bool = False
) -> Generator[Lab]:
    """An agent with these instances and a server, for the block; no worker runs yet."""
    with ExitStack() as stack:
        stack.callback(begin_again)
        net = stack.enter_context(network(names))
        server = stack.enter_context(started(NEWEST))
        server.configure({"listen_addresses": f"'{net.middle.address}'", "shared_buffers": "'128MB'"})
        with open(server.data / "pg_hba.conf", "a") as rules:
            rules.write("host all all samenet trust\n")
        server.stop()
        server.start()
        relays = stack.enter_context(relays_at(folder, net.world))
        url = f"postgresql://{USER}@{net.middle.address}/postgres?schema=agent"
        lab = Lab(folder, net, url, lease_s, plant, relays, given={PLANT: plant} if plant else {})
        stack.callback(lab.close)
        lab.make_agent(names, bare=bare)
        yield lab
