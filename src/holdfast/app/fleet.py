"""Many agents in one worker process: each has its own engine, journal, keys, lease, memory and notices.

They share the process: its event loop, its app, its connections to a server (journal/postgres/pool.py), its places for
running tasks (runtime/engine/claimer.py) and the timer that kills it if it is stopped (runtime/session/deadman.py).

What ends one agent's work does not touch the others. It is treated as the supervising parent treats the death of a
worker (runtime/engine/supervisor.py), with the same rule: what may pass is tried again, after a pause that grows;
what a restart cannot change leaves the agent out, until the worker is started again. Both are in the log, in /healthz
and in the metrics, and `holdfast doctor` tells of an agent that was left out. When all agents are left out, the worker
ends as if each of them had been served alone.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from holdfast.app.loading import App
from holdfast.app.worker import (
    EXIT_DEFECT,
    Agent,
    Beside,
    Order,
    exit_code_of,
    listen_to_signals,
    open_agent,
    report_lost_errors,
    serve_agent,
    trace,
)
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import INSTANCE, JournalAddress
from holdfast.core.waiting import Pacing, running_beside, wait_event
from holdfast.errors import HoldfastError, text_of
from holdfast.host.hardening import tame_collector
from holdfast.host.log import Log
from holdfast.journal.bind import Connections
from holdfast.journal.builds import Build
from holdfast.journal.contract import Journal
from holdfast.layout.engine_settings import Settings
from holdfast.layout.fleet import LeftOut, forget_left_out, note_left_out
from holdfast.layout.journal_location import journal_in
from holdfast.layout.settings import find_settings, make_settings
from holdfast.runtime.engine.claimer import Room
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.engine.supervisor import DELAY_S_MAX, Restart, Stop, after_exit
from holdfast.runtime.session.deadman import DeadMan, SharedDeadMan

OPENING_MAX = 4  # agents that are opened at the same time
CLAIM_BATCH_MAX = 4  # verifying the tasks of one claim keeps the others waiting
TRIED_S = 300.0
FILES_EACH, FILES_BESIDE = 16, 512  # open files: of an agent; of the process itself


@dataclass(slots=True, eq=False)
class Member:
    """One agent, and how it is with it now."""

    home: str
    engine: Engine | None = None
    journal: Journal | None = None
    trouble: str = ""  # why it is not served
    left_out: HoldfastError | None = None
    tried: bool = False  # once at least
    keeper: asyncio.Task[None] | None = None


async def serve_fleet(order: Order, *, app: App, build: Build, log: Log) -> None:
    """Serve all agents until asked to stop. Raises the first one's error where all were left out."""
    _allow_files(len(order.homes))
    fleet = Fleet(order, app=app, build=build, log=log)
    listen_to_signals(fleet.stop, log)
    report_lost_errors(log)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.connections.close)
        if order.health_port is not None:
            from holdfast.app.fleet_health import FleetGauges
            from holdfast.app.health import open_health

            await open_health(order.health_port, FleetGauges(fleet.members), stack, log)
        async with running_beside(fleet.announce()), asyncio.TaskGroup() as group:
            for member in fleet.members:
                member.keeper = group.create_task(fleet.keep(member), name=f"agent {member.home}")
    left_out = [member.left_out for member in fleet.members if member.left_out is not None]
    if len(left_out) == len(fleet.members):
        raise left_out[0]


class Fleet:
    def __init__(self, order: Order, *, app: App, build: Build, log: Log) -> None:
        self._order, self._app, self._build, self._log = order, app, build, log
        self._stopping, self._all_tried = asyncio.Event(), asyncio.Event()
        self._clock = SystemClock()
        self.members = [Member(home) for home in order.homes]
        self.connections = Connections()
        self._beside = Beside(
            pacing=Pacing(len(self.members)),
            connections=self.connections,
            room=Room(make_settings(order.overrides).concurrency),
            dead_man=SharedDeadMan(DeadMan.create(), self._clock),
            opening=asyncio.Semaphore(OPENING_MAX),
            backing_up=asyncio.Lock(),
        )

    def stop(self) -> None:
        self._stopping.set()
        for member in self.members:
            if member.engine is not None:
                member.engine.stop()
            elif member.keeper is not None:  # it is being opened, or waits
                member.keeper.cancel()

    async def announce(self) -> None:
        """When each agent was tried once, say how many are served. One may wait for its lease for ever."""
        await wait_event(self._all_tried, TRIED_S)
        serving = sum(one.engine is not None for one in self.members)
        self._log.event("fleet", agents=len(self.members), serving=serving)
        tame_collector()

    async def keep(self, member: Member) -> None:
        try:
            await self._keep(member)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise

    async def _keep(self, member: Member) -> None:
        """Serve the agent, again after what may pass, until asked to stop."""
        loop, failures = asyncio.get_running_loop(), 0
        log = self._log.bound(agent=member.home)
        while not self._stopping.is_set():
            began = loop.time()
            try:
                await self._serve(member, log)
                return
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of one agent; the others go on
                found = error
            finally:
                member.engine = member.journal = None
                self._tried(member)
            known = found if isinstance(found, HoldfastError) else None
            member.trouble = f"{type(found).__name__}: {text_of(found)}" if known is None else known.message
            code = EXIT_DEFECT if known is None else exit_code_of(known)
            decision = after_exit(code, loop.time() - began, failures, own=True)
            if known is not None and isinstance(decision, Stop):
                self._leave_out(member, known, log)
                return
            delay_s, failures = decision if isinstance(decision, Restart) else (DELAY_S_MAX, failures)
            told = {"code": "internal"} if known is None else {"code": known.code, "hint": known.hint}
            log.event("agent-failed", error=member.trouble, again_s=delay_s, **told)
            trace(found)
            await wait_event(self._stopping, delay_s)

    async def _serve(self, member: Member, log: Log) -> None:
        address = journal_in(Path(member.home))
        settings = find_settings(address, overrides=self._order.overrides)
        settings = replace(settings, claim_batch=min(settings.claim_batch, CLAIM_BATCH_MAX))
        agent = Agent(
            order=self._order,
            address=address,
            settings=settings,
            app=self._app,
            build=self._build,
            log=log,
            clock=self._clock,
            beside=self._beside,
        )
        async with open_agent(agent) as opened:
            member.engine, member.journal, member.trouble = opened.engine, opened.journal, ""
            forget_left_out(address.instance)
            if self._stopping.is_set():
                opened.engine.stop()
            await serve_agent(agent, opened, ready=partial(self._tried, member))

    def _tried(self, member: Member) -> None:
        member.tried = True
        if all(one.tried for one in self.members):
            self._all_tried.set()

    def _leave_out(self, member: Member, error: HoldfastError, log: Log) -> None:
        member.left_out = error
        log.event("agent-left-out", code=error.code, error=error.message, hint=error.hint)
        why = LeftOut(at_ms=self._clock.wall_ms(), code=error.code, error=error.message, hint=error.hint)
        note_left_out(Path(member.home, INSTANCE), why)


def find_address(home: str) -> JournalAddress | None:
    """Where the agent's journal is; None where its settings do not say: its own start reports that."""
    try:
        return journal_in(Path(home))
    except HoldfastError:
        return None


def grace_s(address: JournalAddress, overrides: Mapping[str, object]) -> float:
    try:
        return find_settings(address, overrides=overrides).grace_s
    except HoldfastError:
        return Settings().grace_s


def _allow_files(agents: int) -> None:
    """The usual limit of a process is enough for some fifty agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_BESIDE + FILES_EACH * agents
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
