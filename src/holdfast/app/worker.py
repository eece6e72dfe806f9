"""`holdfast worker`: one process supervises, a second one works: one session, one engine; of many agents, one each.

The parent opens no journal, no keys and no app, so it has nothing to lose and no tool can kill it; it only has our own
code loaded, so that it can replace a dead worker at once. The worker process gets its order as one JSON text without
secrets; it reads the settings file itself on every start.

The worker process ends with 0 only if it was asked to stop. A lost session or a busy journal ends it with the exit code
for "try again", and the parent starts a new one; what a restart cannot fix (the app, the place, the journal, the keys)
is printed once and ends the parent too. The parent believes an exit code only if the worker process says that it is its
own; a tool that ends the process has killed it. If it is killed, its lease and its file lock end with it, and another
session resumes its tasks.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from holdfast.app.binder import LOG, acting, memory_beside, open_as, open_secrets, scratch_root, watched_files, watching
from holdfast.app.declared import build_of, check_tools, check_windows
from holdfast.app.handoff import kept_handoff
from holdfast.app.instances.shared_roster import WATCH_S, stopped_by_roster
from holdfast.app.loading import App, load_app
from holdfast.app.mail.agent_post import built_in_tasks, posting
from holdfast.app.notify import make_notices
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.mail import Post
from holdfast.core.notices import Notices
from holdfast.core.ports import KeyRing
from holdfast.core.secret_handles import safe
from holdfast.core.waiting import ALONE, Pacing, running_beside
from holdfast.errors import EXIT_RETRY, BadInput, HoldfastError, JournalStopped, Retryable, text_of
from holdfast.host.hardening import IS_LINUX, give_back_memory, harden, tame_collector
from holdfast.host.log import Log, open_log
from holdfast.journal.bind import Connections, journal_at
from holdfast.journal.builds import Build
from holdfast.journal.contract import Journal, Submission, Submitted
from holdfast.layout.engine_settings import Settings
from holdfast.layout.journal_location import journal_address
from holdfast.layout.moved import LOOK_S, stopped_when_moved
from holdfast.layout.settings import find_settings, make_settings
from holdfast.runtime.engine.claimer import Room
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.engine.supervisor import Warm, say_word, supervise, supervise_lean, take_word
from holdfast.runtime.session.deadman import DeadMan, DeadManShare, SharedDeadMan

JOBS_AFTER_S = 20.0  # or up to twice that: not for all agents of a process at one moment
MAIL_JOB, MAIL_AFTER_S = "holdfast.app.mail.mail_job:keep_mail", 0.5
MERGE_JOB, MERGE_AFTER_S = "holdfast.app.instances.merge_job:keep_merged", 2.0
# What an instance that waits needs: loaded before the fork, its pages are shared with the process that supervises.
OF_INSTANCES = (
    "holdfast.app.instances.standing",
    "holdfast.app.instances.merge_job",
    "holdfast.identity.journal_keys.vault_keys",
    "holdfast.instances.merging",
    "holdfast.runtime.tool.called",
    "pyrage",
)
CLOSE_S = 10.0  # beyond the calls' grace: for writing what they returned and closing the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker process is to do."""

    app: str
    journal: str = ""
    home: str = ""  # this host's folder of a journal on a server
    homes: Sequence[str] = ()  # folders of many agents; then `journal` and `home` are empty
    config: str = ""
    overrides: Mapping[str, object] = field(default_factory=dict[str, object])
    health_port: int | None = None
    backup_every: str = ""
    new_journal: bool = False
    build: str = ""
    take_over: Sequence[str] = ()
    drain: bool = False
    jobs: Sequence[str] = ()  # MODULE:FUNCTION of periodic jobs of higher rooms, which this one does not import

    @property
    def address(self) -> JournalAddress:
        return journal_address(self.journal, home=self.home or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a periodic job is given. The job runs while the worker serves, and raises nothing that it can log."""

    address: JournalAddress
    journal: Journal
    keys: KeyRing
    notices: Notices | None
    log: Log
    post: Post | None = None  # of an agent
    submit: Callable[[Submission], Awaitable[Submitted]] | None = None  # to the engine that runs here


Job = Callable[[JobContext], Awaitable[None]]


def run_worker(order: Order) -> int:
    """Serve until asked to stop; the exit code."""
    log = open_log()
    grace_s = _prepared(order) if not order.homes else _prepared_fleet(order)
    text = json.dumps(asdict(order))
    argv = [sys.executable, "-P", "-m", "holdfast.app.worker", text]
    if not order.homes and is_standby(order.address):
        supervise_lean(argv, grace_s=grace_s, close_s=CLOSE_S)

    def work() -> int:
        if not sys.flags.safe_path:
            del sys.path[0]  # as with -P: nothing is imported from where we were started
        return main(text)

    # The worker is forked. Its collector would write to every object that is loaded by now, and so copy their pages.
    gc.collect()
    gc.freeze()
    give_back_memory()
    return supervise(
        argv, warm=Warm(work), grace_s=grace_s, close_s=CLOSE_S, say=lambda line: log.event("supervisor", text=line)
    )


def is_standby(address: JournalAddress) -> bool:
    """Whether this folder will wait, by its own roster. A wrong answer costs memory, or time at a restart. It takes the
    folder's key, of which nothing may stay in this process: a child looks."""
    if not IS_LINUX or not os.path.lexists(address.folder / ROSTER):
        return False
    from holdfast.identity.lease.enrolment import own_role
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.identity.statements.certificate import Role
    from holdfast.layout.agent_home import peek_home

    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    waits = False
    try:  # whatever is wrong, the worker says it
        harden()
        home = peek_home(address.folder)
        role = None if home is None else own_role(home.folder, home.instance, clock=SystemClock(), port=Sodium())
        waits = role is Role.STANDBY
    finally:
        os._exit(not waits)


def _prepared(order: Order) -> float:
    """Report wrong settings here, once, and not in a worker that would restart; how long calls may take to end."""
    address = order.address
    settings = find_settings(address, config=order.config, overrides=order.overrides)
    if order.backup_every:
        from holdfast.backup.upkeep.scheduled import parse_every
        from holdfast.layout.agent_home import load_home

        parse_every(order.backup_every)
        load_home(address.folder)
    journal_at(address)  # loads its code: with a driver that takes as long as all the rest of a worker's start
    if os.path.lexists(address.folder / ROSTER):
        for name in OF_INSTANCES:
            with suppress(ModuleNotFoundError):  # the worker says what is missing
                importlib.import_module(name)
    return settings.grace_s


def _prepared_fleet(order: Order) -> float:
    """The same for many agents: one that is not right does not keep the others from starting."""
    from holdfast.app import fleet  # loads its code

    make_settings(order.overrides)
    if order.backup_every:
        from holdfast.backup.upkeep.scheduled import parse_every

        parse_every(order.backup_every)
    found = [fleet.find_address(home) for home in order.homes]
    for address in {bool(one.url): one for one in found if one is not None}.values():
        journal_at(address, connections=Connections())
    return max((fleet.grace_s(one, order.overrides) for one in found if one is not None), default=Settings().grace_s)


def parse_order(text: str) -> Order:
    """The order as the parent wrote it. Raises BadInput."""
    try:
        return Order(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(
            f"this worker process cannot read its start parameters: {error}",
            hint="start a worker with `holdfast worker APP`",
        ) from error


EXIT_DEFECT = 1
ROSTER = "instances.jsonl"  # identity.files.roster_file.ROSTER, whose room is loaded only where there is one


def main(text: str) -> int:
    """Do what the order says; the exit code."""
    harden()
    log = open_log()
    try:
        # Not asyncio.run: it would wait, perhaps for ever, for a tool that will not be cancelled.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        order = parse_order(text)
        loop.run_until_complete(serve(order, log))
        return 0
    except HoldfastError as error:
        return _explain(error, log)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent starts a new one
        log.event("worker-failed", code="internal", error=f"{type(error).__name__}: {error}")
        trace(error)
        return EXIT_DEFECT


async def serve(order: Order, log: Log) -> None:
    """Open everything, serve until asked to stop, close everything."""
    app = load_app(order.app)
    build = build_of(app.tasks.values(), order.build, takes_over=order.take_over, drains=order.drain)
    if order.homes:
        from holdfast.app.fleet import serve_fleet  # many agents

        await serve_fleet(order, app=app, build=build, log=log)
        return
    settings = find_settings(order.address, config=order.config, overrides=order.overrides)
    agent = Agent(order=order, address=order.address, settings=settings, app=app, build=build, log=log)
    async with open_agent(agent) as opened:
        listen_to_signals(opened.engine.stop, log)
        report_lost_errors(log)
        async with AsyncExitStack() as stack:
            if order.health_port is not None:
                # Imported only if asked for: a resuming worker should start at once.
                from holdfast.app.health import Gauges, open_health

                await open_health(order.health_port, Gauges(engine=opened.engine, journal=opened.journal), stack, log)
            await serve_agent(agent, opened, ready=tame_collector)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What an agent is served with. The defaults: it has the process to itself."""

    order: Order
    address: JournalAddress
    settings: Settings
    app: App
    build: Build
    log: Log
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    beside: Beside | None = None

    @property
    def notices(self) -> Notices | None:
        return make_notices(self.settings)

    @property
    def pacing(self) -> Pacing:
        return ALONE if self.beside is None else self.beside.pacing

    @property
    def has_identity(self) -> bool:
        return os.path.lexists(self.address.folder / LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the agents of one process share."""

    pacing: Pacing
    connections: Connections
    room: Room
    dead_man: SharedDeadMan
    opening: asyncio.Semaphore
    backing_up: asyncio.Lock


class Opened(NamedTuple):
    """An agent that can be served."""

    engine: Engine
    journal: Journal
    keys: KeyRing
    post: Post | None = None


@asynccontextmanager
async def open_agent(agent: Agent) -> AsyncGenerator[Opened]:
    """The agent's engine, ready to serve, for the block."""
    address, settings, log, clock, entropy = agent.address, agent.settings, agent.log, agent.clock, agent.entropy
    beside, notices = agent.beside, agent.notices
    if agent.has_identity:
        from holdfast.app.eviction import check_at_start  # the rooms of keys: where they are used

        await check_at_start(address, notices=notices, log=log)
    async with AsyncExitStack() as stack:
        async with merging_meanwhile(address, log):
            lease = await stack.enter_async_context(
                acting(address, clock=clock, entropy=entropy, notices=notices, log=log, patient=True)
            )
        async with nullcontext() if beside is None else beside.opening:
            journal, keys = await open_as(
                lease,
                address,
                clock=clock,
                entropy=entropy,
                network_fs=settings.allow_network_fs,
                new_journal=agent.order.new_journal,
                connections=None if beside is None else beside.connections,
            )
        stack.push_async_callback(journal.close)
        used = check_tools(agent.app.tasks.values(), agent.app.tools.values())
        for trouble in await check_windows(used, journal, lease_s=settings.lease_ttl_s):
            log.event("short-window", text=trouble)
        secrets = open_secrets(address, keys=keys, clock=clock, entropy=entropy)
        memory = await stack.enter_async_context(
            memory_beside(address, journal, secrets=secrets, log=log, pacing=agent.pacing)
        )

        post = await stack.enter_async_context(posting(address.folder)) if agent.has_identity else None
        tasks = [*agent.app.tasks.values(), *built_in_tasks(post)]

        def give_up() -> None:
            engine.give_up()

        scratch = scratch_root(address, folder=settings.scratch_folder, journal_id=journal.journal_id)
        engine = Engine(
            journal=journal,
            keys=keys,
            clock=clock,
            entropy=entropy,
            tasks=tasks,
            tools=agent.app.tools.values(),
            settings=settings,
            notices=notices,
            log=log,
            dead_man=DeadMan.create() if beside is None else DeadManShare(beside.dead_man, give_up),
            secrets=secrets,
            memory=memory,
            post=post,
            scratch_root=scratch,
            right=lease,
            build=agent.build,
            room=None if beside is None else beside.room,
            pacing=agent.pacing,
            files=watched_files(address, scratch=scratch, log=log),
        )
        await stack.enter_async_context(watching(lease, journal, log))
        yield Opened(engine, journal, keys, post)


@asynccontextmanager
async def merging_meanwhile(address: JournalAddress, log: Log) -> AsyncGenerator[None]:
    """An instance that waits for the lease keeps its memory the same as that of the others."""
    if not os.path.lexists(address.folder / ROSTER):
        yield
        return
    from holdfast.app.instances.merge_job import merge_while_waiting  # the rooms of keys: where they are used

    async with running_beside(merge_while_waiting(address, log)):
        yield


async def serve_agent(agent: Agent, opened: Opened, *, ready: Callable[[], None]) -> None:
    """Serve until the engine is stopped. Raises what ends the agent's work here."""
    address, log, build = agent.address, agent.log, agent.build
    engine, journal = opened.engine, opened.journal
    async with AsyncExitStack() as stack:
        if agent.order.backup_every:
            from holdfast.backup.upkeep.scheduled import kept_backups
            from holdfast.layout.agent_home import load_home

            home, turn = load_home(address.folder), None if agent.beside is None else agent.beside.backing_up
            await stack.enter_async_context(
                kept_backups(home, every=agent.order.backup_every, clock=agent.clock, log=log, turn=turn)
            )
        named = {"build": build.name} if build.name else {}
        log.event("serving", journal=str(address), tasks=sorted(agent.app.tasks), pid=os.getpid(), **named)
        for one in (
            kept_handoff(address, journal, held=engine.views, ended_here=engine.ended, log=log, pacing=agent.pacing),
            stopped_when_moved(address.instance, engine.stop, log, look_s=agent.pacing.look_s(LOOK_S)),
        ):
            await stack.enter_async_context(one)
        if agent.has_identity:
            from holdfast.app.eviction import stopped_when_evicted

            evicted = stopped_when_evicted(address, engine.stop, notices=agent.notices, log=log)
            await stack.enter_async_context(evicted)
            from holdfast.app.instances.standing import kept_enrolled

            await stack.enter_async_context(kept_enrolled(address, journal, engine.stop, log=log, clock=agent.clock))
        elif journal_at(address).hosts:
            await stack.enter_async_context(
                stopped_by_roster(address, engine.stop, log=log, look_s=agent.pacing.idle_s(WATCH_S))
            )
        context = JobContext(
            address=address,
            journal=journal,
            keys=opened.keys,
            notices=agent.notices,
            log=log,
            submit=engine.submit,
            post=opened.post,
        )
        for name in agent.order.jobs:
            job = _run_job(name, context, after_s=JOBS_AFTER_S * random.uniform(1, 2))
            await stack.enter_async_context(running_beside(job))
        if opened.post is not None:
            await stack.enter_async_context(running_beside(_run_job(MAIL_JOB, context, after_s=MAIL_AFTER_S)))
        if agent.has_identity:
            await stack.enter_async_context(running_beside(_run_job(MERGE_JOB, context, after_s=MERGE_AFTER_S)))
        ready()
        await engine.serve()


async def _run_job(name: str, context: JobContext, *, after_s: float) -> None:
    """Its code is loaded after the tasks of a restarted worker have resumed. A job that fails ends alone."""
    await asyncio.sleep(after_s)
    module, _, function = name.partition(":")
    try:
        job: Job = getattr(await asyncio.to_thread(importlib.import_module, module), function)
        await job(context)
    except Exception as error:  # noqa: BLE001 - the worker's tasks go on
        context.log.event("job-failed", job=name, error=f"{type(error).__name__}: {text_of(error)}")


def listen_to_signals(stop: Callable[[], None], log: Log) -> None:
    asked = False

    def on_signal(number: int) -> None:
        nonlocal asked
        if asked:
            os.kill(os.getpid(), signal.SIGKILL)  # loses nothing: another session resumes
        asked = True
        log.event("stopping", signal=signal.Signals(number).name)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)


def report_lost_errors(log: Log) -> None:
    """Log errors that no code awaits, instead of letting asyncio print them with secrets."""

    # Any: asyncio's own dictionary of mixed values
    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        shown = "" if error is None else f"{type(error).__name__}: {text_of(error)}"
        log.event("error-lost", message=str(context.get("message", "")), error=shown)

    asyncio.get_running_loop().set_exception_handler(report)


def _explain(error: HoldfastError, log: Log) -> int:
    """Print the error; the exit code says whether to start a new worker."""
    code = exit_code_of(error)
    if code == EXIT_RETRY:
        log.event("worker-failed", code=error.code, error=error.message, hint=error.hint)
        return code
    hint = f"hint: {error.hint}\n" if error.hint else ""
    sys.stderr.write(f"error: {safe(error.message)}\n{hint}see: {error.explained_by}\n")
    trace(error)
    return code


def exit_code_of(error: HoldfastError) -> int:
    """The next that opens a stopped journal alone repairs it."""
    return EXIT_RETRY if isinstance(error, (Retryable, JournalStopped)) else error.exit_code


def trace(error: BaseException) -> None:
    if os.environ.get("HOLDFAST_TRACE") == "1":
        import traceback

        sys.stderr.write(safe("".join(traceback.format_exception(error))))


def _end(code: int, word: int) -> None:
    """The session has ended and the journal is closed: do not wait for what still runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    say_word(word, code)
    os._exit(code)


if __name__ == "__main__":
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # as `holdfast` has done where a worker is forked
    listener = take_word()
    _end(main(sys.argv[1] if len(sys.argv) == 2 else ""), listener)
