"""The demo's fifth scene: mail comes for an agent whose machine is lost, and a relay is lost too.

Ben asks Bea for trips by mail. She books each, pays and answers. The first request is in her only backup; the second
came after it; then her machine is lost. A relay is killed, and its disk is lost. Ben asks for a third trip, and the two
other relays hold the message. Bea comes back from her words and the backup. The relays still hold what the backup
lacks, so she reads the second and the third message: the second payment is repeated under its key, the first request is
not handled again, and Ben has one answer to each.

    bea/, ben/              the agents; bea/ is lost
    bea-machine/, ...       vault, second key, arbiter of each; bea-machine/ is lost
    place-bea/              her backup
    relay-1/, -2/, -3/      the relays; relay-1/ is lost

`python -m holdfast.demo.relays PARENT FOLDER` is a relay process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.app.holdfast import Holdfast
from holdfast.app.mail.profile_job import renew_profile
from holdfast.app.open import open as open_holdfast
from holdfast.app.worker import Order
from holdfast.backup.backups import open_backups
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.demo.machine import Machine, bring_back, find_engine_trouble, give_identity, lose
from holdfast.demo.stage import LOOK_EVERY_S, PATIENCE_S, Stage, now_ms
from holdfast.demo.workers import DemoFailed, Worker, end, start_worker
from holdfast.errors import HoldfastError
from holdfast.host.hardening import die_with_parent
from holdfast.host.private_files import ensure_private_folder
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address
from holdfast.runtime.task.mail_task import MAIL_NAME, letter_of

APP = "holdfast.demo.correspondence:tasks"
RELAYS = 3
REQUESTS = FIRST, SECOND, THIRD = "LIS to OSL", "OSL to ROM", "ROM to BER"
PLACE = "place-bea"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The correspondence after the loss; with `missing` the scene was skipped."""

    task_ids: tuple[str, ...] = ()  # of the requests, at the agent that came back
    mail_lost: int | None = None  # requests that got no answer
    mail_twice: int | None = None  # requests that were handled, or answered, more than once
    relays_lost: int | None = None
    missing: str = ""


async def lose_relay(stage: Stage) -> Answered:
    stage.teller.scene("5  Mail for an agent whose machine is lost; a relay is lost too")
    trouble = await find_engine_trouble(stage.folder / "borg")
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            trouble = f"the package {name} is missing (pip install 'holdfast[relay]')"
    if trouble:
        stage.tell("relays", f"this scene is skipped: {trouble}")
        return Answered(missing=trouble)
    async with contextlib.AsyncExitStack() as stack:
        return await _play(stage, stack)


async def _play(stage: Stage, stack: contextlib.AsyncExitStack) -> Answered:
    relays = [await stack.enter_async_context(_relay(stage.folder / f"relay-{n + 1}")) for n in range(RELAYS)]
    addresses = tuple([await one.answers() for one in relays])
    stage.tell("relays", f"{RELAYS} processes, each with a key and a disk of its own; they witness, and hold mail")
    bea, words = await _register(stage, "bea", addresses)
    ben, _ = await _register(stage, "ben", addresses)
    her_id = (await asyncio.to_thread(read_own_log, bea.folder, Sodium())).id
    bens = await stack.enter_async_context(open_holdfast(ben.journal, serve=False))
    his_worker = await stack.enter_async_context(_worker(stage, ben))
    her_worker = await stack.enter_async_context(_worker(stage, bea))
    await _ask(stage, bens, her_id, FIRST)
    await _wait(his_worker, lambda: _has_answers(bens, 1))
    stage.tell("bea", f"pays, and answers: {FIRST} is booked")
    await _back_up(stage, bea)
    await _ask(stage, bens, her_id, SECOND)
    await _wait(his_worker, lambda: _has_answers(bens, 2))
    stage.tell("bea", f"pays, and answers: {SECOND} is booked; the backup does not have this")
    await her_worker.kill()
    stage.kills += 1
    lose(bea.folder, stage.folder / "bea-machine")
    stage.tell("kill -9", "the machine of bea is lost, with folder, journal and vault")
    await relays[0].lose()
    stage.tell("kill -9", "relay 1 is lost, with its disk")
    await _ask(stage, bens, her_id, THIRD)
    machine = Machine(stage.folder / "bea-new-machine")
    back = await bring_back(bea.folder, words, stage.folder / PLACE, machine)
    stage.tell("recover", f"bea is back from 24 words and the backup, as {back.log.id}")
    her_worker = await stack.enter_async_context(_worker(stage, back.home))
    beas = await stack.enter_async_context(open_holdfast(back.home.journal, serve=False))
    await _wait(her_worker, lambda: _has_read(beas, len(REQUESTS)))
    await _wait(his_worker, lambda: _has_answers(bens, len(REQUESTS)))
    return await _count(stage, bens, beas, lost=1)


async def _register(stage: Stage, name: str, relays: tuple[WitnessRelay, ...]) -> tuple[AgentHome, str]:
    machine = Machine(stage.folder / f"{name}-machine")
    home, words = await give_identity(stage.folder / name, machine, name=name, witnesses=relays)
    done = await asyncio.to_thread(renew_profile, home)
    failed = [why for why in done.said.values() if why]
    if failed:
        raise DemoFailed(f"a relay did not take the profile of {name}: {failed[0]}")
    stage.tell(name, f"is registered at {len(done.said)} relays, with keys for mail")
    return home, words


async def _back_up(stage: Stage, home: AgentHome) -> None:
    ensure_private_folder(stage.folder / PLACE)
    await (await open_places(home)).add(PlaceRequest(name=PLACE, address=str(stage.folder / PLACE)))
    made = await (await open_backups(home)).now()
    stage.tell("backup", f"of bea: snapshot {made.snapshot.seq}, {made.snapshot.files} files")


async def _ask(stage: Stage, bens: Holdfast, to: str, request: str) -> None:
    task = await bens.submit("ask_for_trip", to=to, request=request)
    try:
        sent: Any = await task.result(PATIENCE_S)  # Any: JSON of a sent message
    except HoldfastError as error:
        raise DemoFailed(f"Ben's message was not sent: {error}") from error
    stage.tell("ben", f"writes to bea: {request}; {len(sent['relays'])} relays have signed that they hold it")


async def _letters(hf: Holdfast, state: TaskState) -> list[tuple[str, Any]]:  # Any: JSON
    """Id and body of each message whose task is in this state."""
    rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME, states=frozenset([state])))
    return [(str(one.task_id), letter_of((await hf.journal.read_task(one.task_id)).args).body) for one in rows]


async def _has_answers(hf: Holdfast, count: int) -> bool:
    return len([body for _, body in await _letters(hf, TaskState.SUCCEEDED) if "booked" in body]) >= count


async def _has_read(hf: Holdfast, count: int) -> bool:
    return len(await _letters(hf, TaskState.SUCCEEDED)) >= count


async def _count(stage: Stage, bens: Holdfast, beas: Holdfast, *, lost: int) -> Answered:
    """What Ben has got, and what the payment service did for it."""
    handled = await _letters(beas, TaskState.SUCCEEDED)
    answers = Counter(body["booked"] for _, body in await _letters(bens, TaskState.SUCCEEDED) if "booked" in body)
    asked = Counter(body["request"] for _, body in handled)
    ids = tuple(task_id for task_id, _ in handled)
    for seen in (await stage.far_ends["payment"].ledger()).requests[-2:]:
        again = "it knows this key" if seen.outcome == "replayed" else "charged"
        stage.tell("payment", f"{seen.status} {seen.outcome}: {again}", at_ms=seen.at_ms)
    stage.tell("ben", "answers to each request: " + ", ".join(f"{one} {answers[one]}" for one in REQUESTS))
    return Answered(
        task_ids=ids,
        mail_lost=sum(not answers[one] for one in REQUESTS),
        mail_twice=sum(answers[one] > 1 or asked[one] > 1 for one in REQUESTS),
        relays_lost=lost,
    )


def _worker(stage: Stage, home: AgentHome) -> contextlib.AbstractAsyncContextManager[Worker]:
    order = Order(app=APP, journal=str(home.journal.path))
    log = stage.folder / f"worker-{home.folder.name}-{now_ms()}.log"
    return start_worker(order, log=log, environment=stage.environment())


async def _wait(worker: Worker, look: Callable[[], Awaitable[bool]]) -> None:
    end = now_ms() + PATIENCE_S * 1000
    while not await look():
        worker.check_alive()
        if now_ms() > end:
            raise DemoFailed(f"worker {worker.pid} made no progress within {PATIENCE_S:g} s")
        await asyncio.sleep(LOOK_EVERY_S / 10)


# relays


class _Relay:
    def __init__(self, process: Process, folder: Path) -> None:
        self._process, self._folder = process, folder

    async def answers(self) -> WitnessRelay:
        """Its address, as soon as it answers."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DemoFailed(f"a relay did not start: {_log_of(self._folder).read_text(errors='replace')[-600:]}")
        return parse_relay_address(json.loads(line)["address"])

    async def lose(self) -> None:
        """SIGKILL, and its disk is gone."""
        await self.end()
        shutil.rmtree(self._folder)

    async def end(self) -> None:
        await end(self._process, signal.SIGKILL)


def _log_of(folder: Path) -> Path:
    return folder.with_suffix(".log")


@contextlib.asynccontextmanager
async def _relay(folder: Path) -> AsyncGenerator[_Relay]:
    ensure_private_folder(folder)
    with open(_log_of(folder), "wb") as written:  # noqa: ASYNC230 - a new file of ours
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast.demo.relays", str(os.getpid()), str(folder)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=written,
            process_group=0,  # Ctrl-C reaches the demo alone
        )
    relay = _Relay(process, folder)
    try:
        yield relay
    finally:
        await relay.end()


def _serve(folder: Path) -> None:
    from holdfast.host.log import open_log
    from holdfast.relay.server.serve import RunningRelay, serve
    from holdfast.relay.server.settings import read_relay_settings

    settings = read_relay_settings(folder, listen="127.0.0.1:0", registration="open")

    def started(relay: RunningRelay) -> None:
        sys.stdout.write(json.dumps({"address": relay.address}) + "\n")
        sys.stdout.flush()

    serve(folder, settings, log=open_log(), started=started)


if __name__ == "__main__":
    _, parent, at = sys.argv
    die_with_parent(int(parent))
    _serve(Path(at))
