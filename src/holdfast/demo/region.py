"""The demo's fourth scene: two hosts share one journal, and the first is cut off inside a payment.

The payment has happened, and its answer cannot reach the host that asked for it. That host is cut off, not stopped. The
second one waits for the end of the first one's lease, continues the task, and repeats the payment under its effect key.
The first one ends itself when its lease is over. When the cable is mended, what it had sent before arrives, and changes
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.app.handle import TaskHandle
from holdfast.app.open import open as open_holdfast
from holdfast.app.worker import Order
from holdfast.demo.hosts import Host, NoNetwork, port_of, start_host
from holdfast.demo.scenes import REQUEST, trip_of
from holdfast.demo.server import USER
from holdfast.demo.stage import APP, LOOK_EVERY_S, PATIENCE_S, Stage, is_parked, now_ms
from holdfast.demo.trip import variable
from holdfast.demo.workers import DemoFailed

LEASE_S = 2.0  # short, so that the demo need not wait long; the default is 10
ARRIVE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The task after the cut; with `missing` the scene was skipped."""

    task_id: str = ""
    parked: int = 0
    resume_s: float | None = None  # from the cut to the commit that starts the next step elsewhere
    old_host_wrote: bool | None = None
    missing: str = ""


async def cut_off_host(stage: Stage) -> Continued:
    stage.teller.scene("4  A host is cut off inside the payment: another host continues")
    server, missing = await stage.servers.find()
    if server is None:
        return _left_out(stage, missing)
    try:
        return await _play(stage, server)
    except NoNetwork as error:
        return _left_out(stage, error.message)


def _left_out(stage: Stage, why: str) -> Continued:
    stage.tell("hosts", f"this scene is skipped: {why}")
    return Continued(missing=why)


async def _play(stage: Stage, server: Path) -> Continued:
    homes = stage.folder / "host-1", stage.folder / "host-2"
    for home in homes:
        home.mkdir(mode=0o700)
    url = f"postgresql://{USER}@/postgres?host={server.parent}"
    async with contextlib.AsyncExitStack() as stack:
        hf = await stack.enter_async_context(open_holdfast(url, home=homes[0], serve=False))
        shutil.copy2(homes[0] / "keys.json", homes[1] / "keys.json")
        stage.tell("hosts", "two hosts, each with a network of its own; one journal, in PostgreSQL")
        await stage.hold_next("payment")
        task = await hf.submit("book_trip", request=REQUEST, request_id="order-79")
        stage.tell("journal", f"task {task.id} accepted: book_trip {REQUEST!r}")
        first = await stack.enter_async_context(_host(stage, homes[0], server))
        await stage.wait_inside("payment", first.worker)
        second = await stack.enter_async_context(_host(stage, homes[1], server))
        await _wait_event(second, "serving")
        first.cable.cut()
        cut_ms = now_ms()
        await stage.far_ends["payment"].release()  # the answer does not arrive
        await _tell_cut(stage, task, first, cut_ms)
        parked = await is_parked(task, second.worker)
        next_ms = await _tell_resume(stage, task, second)
        before = (await task.view()).seq
        await _wait_ended(stage, first)
        first.cable.mend()
        await asyncio.sleep(ARRIVE_S)
        wrote = (await task.view()).seq != before
        what = "CHANGES the task" if wrote else "changes nothing"
        stage.tell("cable", f"host 1 is connected again: what was under way arrives and {what}")
    return Continued(task_id=task.id, parked=int(parked), resume_s=(next_ms - cut_ms) / 1000, old_host_wrote=wrote)


def _host(stage: Stage, home: Path, server: Path) -> contextlib.AbstractAsyncContextManager[Host]:
    far_ends = {name: one.port for name, one in stage.far_ends.items()}
    reached = [
        partial(asyncio.open_unix_connection, server),
        *(partial(asyncio.open_connection, "127.0.0.1", port) for port in far_ends.values()),
    ]
    environment = {variable(name): f"http://127.0.0.1:{port_of(number)}" for number, name in enumerate(far_ends, 1)}
    order = Order(
        app=APP,
        journal=f"postgresql://{USER}@127.0.0.1:{port_of(0)}/postgres",
        home=str(home),
        overrides={"lease_ttl_s": LEASE_S},
    )
    log = stage.folder / f"worker-{home.name}.log"
    return start_host(order, reached, log=log, environment=environment)


async def _tell_cut(stage: Stage, task: TaskHandle, host: Host, cut_ms: int) -> None:
    done = await stage.get_payment(task.id)
    stage.tell("payment", f"{done.id}: charged", at_ms=done.at_ms)
    stage.tell("cable", f"host 1 (worker {host.worker.pid}) is cut off: the answer does not reach it", at_ms=cut_ms)


async def _tell_resume(stage: Stage, task: TaskHandle, host: Host) -> int:
    """When the second host began the next step."""
    view, charge, mail = await trip_of(task)
    who = f"worker {host.worker.pid}"
    taken_ms = max(claim.at_ms for claim in view.claims.values())
    stage.tell(who, f"on host 2: the lease of host 1 ({LEASE_S:g} s) is over; it takes the task", at_ms=taken_ms)
    stage.tell(who, "step 2 charge: sent again, same effect key", at_ms=charge.attempts[-1].at_ms)
    stage.tell(who, f"step 3 send_mail: {mail.state}", at_ms=mail.closed_ms)
    stage.tell("journal", f"task {task.id} {view.finished}", at_ms=view.ended_ms)
    return mail.planned_ms


async def _wait_ended(stage: Stage, host: Host) -> None:
    """A worker that cannot renew its lease ends itself, in time: it must not act beside another one."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await host.worker.wait_ended()
    except TimeoutError:
        raise DemoFailed(f"worker {host.worker.pid} still lives, long after its lease was over") from None
    stage.tell(f"worker {host.worker.pid}", "on host 1 has ended itself: its lease was over")


async def _wait_event(host: Host, name: str) -> None:
    """Until the worker's log has this event."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if any(event.get("event") == name for event in await asyncio.to_thread(host.worker.events)):
            return
        host.worker.check_alive()
        await asyncio.sleep(LOOK_EVERY_S / 5)
    raise DemoFailed(f"worker {host.worker.pid} did not say {name!r} within {PATIENCE_S:g} s")
