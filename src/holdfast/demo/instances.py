"""The demo's sixth scene: two instances of one agent share a journal, and the first is killed inside a payment.

Each instance is a folder with a key of its own that the agent's owner has enrolled. What a person wrote into the memory
of the first is in the memory of the second before the kill. The payment has happened; the second one waits for the end
of the first one's lease, continues the task, and repeats the payment under its effect key.

    cleo/, cleo-2/              the instances; cleo/ is lost
    cleo-machine/, cleo-2-vault/  what they have apart from their folders; all is on one disk, because this is a demo
"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec

from holdfast.app.instances.roster_change import RosterChange
from holdfast.app.open import open as open_holdfast
from holdfast.app.worker import Order
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.demo.machine import Machine, give_identity, knows, lose
from holdfast.demo.region import LEASE_S
from holdfast.demo.scenes import REQUEST, trip_of
from holdfast.demo.server import USER
from holdfast.demo.stage import APP, LOOK_EVERY_S, PATIENCE_S, Stage, is_parked
from holdfast.demo.workers import Worker, start_worker
from holdfast.host.private_files import write_atomically
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.certificate import Role
from holdfast.identity.vault.vault import open_vault
from holdfast.layout.agent_home import BY_JOURNAL, AgentHome, load_home
from holdfast.layout.settings import NAME, write_journal_url
from holdfast.recovery.invite import Joining, invite
from holdfast.recovery.move_in import HostPaths
from holdfast.recovery.move_lease import MoveMeans

AGENT = "cleo"
FIRST, SECOND = "north", "south"
FACT = "Cleo wants a window seat"
SCHEMA = "cleo"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The task after the kill; with `missing` the scene was skipped."""

    task_id: str = ""
    parked: int = 0
    takeover_s: float | None = None  # from the kill to the first step of the other instance in that task
    memory_merged: bool | None = None  # None: the library that merges is not installed
    missing: str = ""


async def lose_instance(stage: Stage) -> TakenOver:
    stage.teller.scene("6  Two instances of one agent: one is killed inside the payment")
    server, missing = await stage.servers.find()
    if server is None:
        stage.tell("instances", f"this scene is skipped: {missing}")
        return TakenOver(missing=missing)
    url = f"postgresql://{USER}@/postgres?host={server.parent}&schema={SCHEMA}"
    first = await _make_agent(stage, url)
    second = await asyncio.to_thread(_enrol, stage, first)
    stage.tell("instances", f"{AGENT} is enrolled on two hosts, {FIRST} and {SECOND}; one journal, in PostgreSQL")
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(open_holdfast(url, home=second.folder, serve=False))
        await asyncio.to_thread(_write, first)
        await stage.hold_next("payment")
        task = await hf.submit("book_trip", request=REQUEST, request_id="order-80")
        stage.tell("journal", f"task {task.id} accepted: book_trip {REQUEST!r}")
        lost = await stack.enter_async_context(_worker(stage, first, url))
        await stage.wait_inside("payment", lost)
        other = await stack.enter_async_context(_worker(stage, second, url))
        merged = await _merged(stage, second, other)
        killed_ms = await stage.kill_inside("payment", lost)
        stage.tell("kill -9", f"worker {lost.pid} on {FIRST} is killed inside the payment", at_ms=killed_ms)
        lose(first.folder, stage.folder / f"{AGENT}-machine")
        stage.tell("kill -9", f"and the disk of {FIRST} is lost, with folder and vault")
        parked = await is_parked(task, other)
        view, charge, mail = await trip_of(task)
        again_ms, who = charge.attempts[-1].at_ms, f"worker {other.pid}"
        stage.tell(who, f"on {SECOND}: the lease of {FIRST} ({LEASE_S:g} s) is over; it takes the task", at_ms=again_ms)
        stage.tell(who, "step 2 charge: sent again, same effect key", at_ms=again_ms)
        stage.tell(who, f"step 3 send_mail: {mail.state}", at_ms=mail.closed_ms)
        stage.tell("journal", f"task {task.id} {view.finished}", at_ms=view.ended_ms)
        if merged is not None:
            merged = await asyncio.to_thread(knows, second, FACT)
            stage.tell("memory", f"{SECOND} " + (f"remembers: {FACT}" if merged else "has FORGOTTEN it"))
    takeover_s = (again_ms - killed_ms) / 1000
    return TakenOver(task_id=task.id, parked=int(parked), takeover_s=takeover_s, memory_merged=merged)


async def _make_agent(stage: Stage, url: str) -> AgentHome:
    folder = stage.folder / AGENT
    folder.mkdir(mode=0o700)
    write_journal_url(folder / NAME, url)
    async with open_holdfast(url, home=folder, serve=False):
        pass
    home, _ = await give_identity(folder, Machine(stage.folder / f"{AGENT}-machine"), name=AGENT, arbiter=BY_JOURNAL)
    return home


def _enrol(stage: Stage, first: AgentHome) -> AgentHome:
    """What `holdfast instance invite` and `join` do."""
    machine, package = stage.folder / f"{AGENT}-machine", stage.folder / f"{SECOND}.invite"
    vault, folder = stage.folder / f"{AGENT}-2-vault", stage.folder / f"{AGENT}-2"
    clock, entropy, port = SystemClock(), SystemEntropy(), Sodium()
    with open_vault(machine / "vault") as keys, act_lock(first.folder):
        change = RosterChange.at(first, keys, clock=clock, entropy=entropy, port=port)
        change.enrol_here(FIRST)
        invite(change, package, name=SECOND, role=Role.PRIMARY, host=SECOND)
    shutil.copytree(machine / "vault", vault)
    with open_vault(vault) as keys:
        means = MoveMeans(vault=keys, clock=clock, entropy=entropy, port=port)
        asyncio.run(Joining(package, folder, means, HostPaths()).run())
    return load_home(folder)


def _worker(stage: Stage, home: AgentHome, url: str) -> AbstractAsyncContextManager[Worker]:
    order = Order(app=APP, journal=url, home=str(home.folder), overrides={"lease_ttl_s": LEASE_S})
    log = stage.folder / f"worker-{home.folder.name}.log"
    return start_worker(order, log=log, environment=stage.environment())


def _write(home: AgentHome) -> None:
    """As a person does, with an editor: Holdfast merges what it finds in the file."""
    old = home.memory_file.read_text() if home.memory_file.exists() else ""
    write_atomically(home.memory_file, f"{old}- {FACT}\n".encode())


async def _merged(stage: Stage, home: AgentHome, worker: Worker) -> bool | None:
    """Wait until the second instance has what a person wrote on the first; None where nothing merges here."""
    if find_spec("loro") is None:
        stage.tell("memory", "is not merged: the package loro is missing (pip install 'holdfast[instances]')")
        return None
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if await asyncio.to_thread(knows, home, FACT):
            stage.tell("memory", f"a person wrote on {FIRST}: {FACT}; {SECOND} has it")
            return True
        worker.check_alive()
        await asyncio.sleep(LOOK_EVERY_S / 5)
    return False
