"""`holdfast worker`: one process supervises, a second one works: one session, one engine.

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
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.app.binder import acting, memory_beside, open_as, open_secrets, scratch_root, watching
from holdfast.app.declared import build_of, check_tools, check_windows
from holdfast.app.handoff import kept_handoff
from holdfast.app.loading import load_app
from holdfast.app.notify import make_notices
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notices
from holdfast.core.ports import KeyRing
from holdfast.core.secret_handles import safe
from holdfast.core.waiting import running_beside
from holdfast.errors import EXIT_RETRY, BadInput, HoldfastError, JournalStopped, Retryable, text_of
from holdfast.host.hardening import harden
from holdfast.host.log import Log, open_log
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.journal_location import journal_address
from holdfast.layout.moved import stopped_when_moved
from holdfast.layout.settings import find_settings
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.engine.supervisor import Warm, say_word, supervise, take_word
from holdfast.runtime.session.deadman import DeadMan

JOBS_AFTER_S = 20.0
CLOSE_S = 10.0  # beyond the calls' grace: for writing what they returned and closing the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker process is to do."""

    app: str
    journal: str
    home: str = ""  # this host's folder of a journal on a server
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


Job = Callable[[JobContext], Awaitable[None]]


def run_worker(order: Order) -> int:
    """Serve until asked to stop; the exit code."""
    log = open_log()
    # Report wrong settings here, once, and not in a worker that would restart.
    address = order.address
    settings = find_settings(address, config=order.config, overrides=order.overrides)
    if order.backup_every:
        from holdfast.backup.upkeep.scheduled import parse_every
        from holdfast.layout.agent_home import load_home

        parse_every(order.backup_every)
        load_home(address.folder)
    journal_at(address)  # loads its code: with a driver that takes as long as all the rest of a worker's start
    text = json.dumps(asdict(order))

    def work() -> int:
        if not sys.flags.safe_path:
            del sys.path[0]  # as with -P: nothing is imported from where we were started
        return main(text)

    return supervise(
        [sys.executable, "-P", "-m", "holdfast.app.worker", text],
        warm=Warm(work),
        grace_s=settings.grace_s,
        close_s=CLOSE_S,
        say=lambda line: log.event("supervisor", text=line),
    )


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
LOG = "kel.jsonl"  # identity.own_log.LOG, whose room is loaded only where there is one


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
        _trace(error)
        return EXIT_DEFECT


async def serve(order: Order, log: Log) -> None:
    """Open everything, serve until asked to stop, close everything."""
    address = order.address
    settings = find_settings(address, config=order.config, overrides=order.overrides)
    app = load_app(order.app)
    build = build_of(app.tasks.values(), order.build, takes_over=order.take_over, drains=order.drain)
    notices = make_notices(settings)
    clock, entropy = SystemClock(), SystemEntropy()
    has_identity = os.path.lexists(address.folder / LOG)
    if has_identity:
        from holdfast.app.eviction import check_at_start  # the rooms of keys: where they are used

        await check_at_start(address, notices=notices, log=log)
    async with AsyncExitStack() as stack:
        lease = await stack.enter_async_context(
            acting(address, clock=clock, entropy=entropy, notices=notices, log=log, patient=True)
        )
        journal, keys = await open_as(
            lease,
            address,
            clock=clock,
            entropy=entropy,
            network_fs=settings.allow_network_fs,
            new_journal=order.new_journal,
        )
        stack.push_async_callback(journal.close)
        used = check_tools(app.tasks.values(), app.tools.values())
        for trouble in await check_windows(used, journal, lease_s=settings.lease_ttl_s):
            log.event("short-window", text=trouble)
        secrets = open_secrets(address, keys=keys, clock=clock, entropy=entropy)
        memory = await stack.enter_async_context(memory_beside(address, journal, secrets=secrets, log=log))
        engine = Engine(
            journal=journal,
            keys=keys,
            clock=clock,
            entropy=entropy,
            tasks=app.tasks.values(),
            tools=app.tools.values(),
            settings=settings,
            notices=notices,
            log=log,
            dead_man=DeadMan.create(),
            secrets=secrets,
            memory=memory,
            scratch_root=scratch_root(address, folder=settings.scratch_folder, journal_id=journal.journal_id),
            right=lease,
            build=build,
        )
        await stack.enter_async_context(watching(lease, journal, log))
        _listen_to_signals(engine, log)
        _report_lost_errors(log)
        if order.health_port is not None:
            # Imported only if asked for: a resuming worker should start at once.
            from holdfast.app.health import Gauges, serve_health

            gauges = Gauges(engine=engine, journal=journal)
            port = await serve_health(order.health_port, gauges, stack)
            log.event("health", port=port, url=f"http://127.0.0.1:{port}/healthz")
        if order.backup_every:
            from holdfast.backup.upkeep.scheduled import kept_backups
            from holdfast.layout.agent_home import load_home

            home = load_home(address.folder)
            await stack.enter_async_context(kept_backups(home, every=order.backup_every, clock=clock, log=log))
        named = {"build": build.name} if build.name else {}
        log.event("serving", journal=str(address), tasks=sorted(app.tasks), pid=os.getpid(), **named)
        async with AsyncExitStack() as watched:
            for one in (
                kept_handoff(address, journal, held=engine.views, log=log),
                stopped_when_moved(address.instance, engine.stop, log),
            ):
                await watched.enter_async_context(one)
            if has_identity:
                from holdfast.app.eviction import stopped_when_evicted

                await watched.enter_async_context(stopped_when_evicted(address, engine.stop, notices=notices, log=log))
            context = JobContext(address=address, journal=journal, keys=keys, notices=notices, log=log)
            for name in order.jobs:
                await watched.enter_async_context(running_beside(_run_job(name, context)))
            _tame_collector()
            await engine.serve()


async def _run_job(name: str, context: JobContext) -> None:
    """Its code is loaded after the tasks of a restarted worker have resumed. A job that fails ends alone."""
    await asyncio.sleep(JOBS_AFTER_S)
    module, _, function = name.partition(":")
    try:
        job: Job = getattr(await asyncio.to_thread(importlib.import_module, module), function)
        await job(context)
    except Exception as error:  # noqa: BLE001 - the worker's tasks go on
        context.log.event("job-failed", job=name, error=f"{type(error).__name__}: {text_of(error)}")


def _tame_collector() -> None:
    """What is loaded by now stays for the life of the process: the garbage collector need not walk it again. Steps make
    many short-lived objects and hardly a cycle, so it looks less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _listen_to_signals(engine: Engine, log: Log) -> None:
    asked = False

    def on_signal(number: int) -> None:
        nonlocal asked
        if asked:
            os.kill(os.getpid(), signal.SIGKILL)  # loses nothing: another session resumes
        asked = True
        log.event("stopping", signal=signal.Signals(number).name)
        engine.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _report_lost_errors(log: Log) -> None:
    """Log errors that no code awaits, instead of letting asyncio print them with secrets."""

    # Any: asyncio's own dictionary of mixed values
    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        shown = "" if error is None else f"{type(error).__name__}: {text_of(error)}"
        log.event("error-lost", message=str(context.get("message", "")), error=shown)

    asyncio.get_running_loop().set_exception_handler(report)


def _explain(error: HoldfastError, log: Log) -> int:
    """Print the error; the exit code says whether to start a new worker."""
    # The next process that opens a stopped journal alone repairs it.
    if isinstance(error, (Retryable, JournalStopped)):
        log.event("worker-failed", code=error.code, error=error.message, hint=error.hint)
        return EXIT_RETRY
    hint = f"hint: {error.hint}\n" if error.hint else ""
    sys.stderr.write(f"error: {safe(error.message)}\n{hint}see: {error.explained_by}\n")
    _trace(error)
    return error.exit_code


def _trace(error: BaseException) -> None:
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
    listener = take_word()
    _end(main(sys.argv[1] if len(sys.argv) == 2 else ""), listener)
