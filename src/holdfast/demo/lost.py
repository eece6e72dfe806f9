"""The demo's third scene: the machine is lost, and the agent returns from paper and one backup.

The snapshot is made before a second trip is paid. Then the payment is sent, and the machine is lost
before the answer is recorded anywhere. The restored agent does not know of that payment; it must
not pay again, and it must not leave the trip unfinished.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from holdfast.app.memory import add_line
from holdfast.core.ids import effect_key_from_bytes
from holdfast.demo.machine import (
    AGENT,
    Machine,
    answers_as,
    back_up,
    bring_back,
    find_engine_trouble,
    give_identity,
    knows,
    lose,
)
from holdfast.demo.scenes import CHARGE, MAIL, REQUEST
from holdfast.demo.stage import Stage, is_parked, now_ms
from holdfast.demo.workers import DemoFailed
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium

FACT = "Ada wants an aisle seat"
WORDS_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The agent after the loss; with `missing` the scene was skipped."""

    task_id: str = ""
    parked: int = 0
    identity_same: bool | None = None
    memory_kept: bool | None = None
    restore_s: float | None = None  # from the words to a folder that can run
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a person has after the loss: paper, one place, and what others remember of the agent."""

    words: str
    log: KeyLog
    task_id: str


async def lose_machine(stage: Stage) -> Return:
    stage.scene("3  The machine is lost: paper and one backup")
    trouble = await find_engine_trouble(stage.folder / "borg")
    if trouble:
        stage.tell("backup", f"this scene is skipped: {trouble}")
        return Return(missing=trouble)
    remains = await _live_and_die(stage)
    return await _come_back(stage, remains)


async def _live_and_die(stage: Stage) -> Remains:
    machine = Machine(stage.folder / "machine")
    if stage.worker is not None:
        await stage.worker.stop()
    await stage.close_journal()
    home, words = await give_identity(stage.home, machine)
    log = await asyncio.to_thread(read_own_log, home.folder, Sodium())
    stage.tell("init", f"{AGENT} is {log.id}")
    stage.tell("paper", f"24 words: {' '.join(words.split()[:WORDS_SHOWN])} ...")
    await add_line(home, text=FACT, to="MEMORY", origin="user")
    stage.tell("memory", f"remembers: {FACT}")
    hf = await stage.open_journal()
    task = await hf.submit("book_trip", request=REQUEST, request_id="order-78")
    stage.tell("journal", f"task {task.id} accepted: book_trip {REQUEST!r}")
    made = await back_up(home, stage.places)
    for one in made.places:
        verdict = "equal" if one.verified else f"NOT equal: {one.message}"
        text = f"snapshot {made.snapshot.seq}: {made.snapshot.files} files, restored for a test"
        stage.tell(one.place, f"{text}: {verdict}")
    await stage.hold_next("payment")
    worker = await stage.start_worker()
    lost_ms = await stage.kill_inside("payment", worker)
    key = effect_key_from_bytes((await task.view()).steps[CHARGE].effect_key)
    done = await stage.find_done("payment", task.id)
    if done is None:
        raise DemoFailed("the payment service held a request back without having charged")
    stage.tell("payment", f"{done.id}: charged, effect key {key}", at_ms=done.at_ms)
    await stage.close_journal()
    lose(home.folder, machine.folder, stage.places[0])
    text = "the machine is lost, with folder, journal, vault, witness and place-1"
    stage.tell("kill -9", text, at_ms=lost_ms)
    return Remains(words=words, log=log, task_id=task.id)


async def _come_back(stage: Stage, remains: Remains) -> Return:
    stage.tell("recover", "on a new machine, with the 24 words and place-2")
    began = time.monotonic()
    machine = Machine(stage.folder / "new-machine")
    back = await bring_back(stage.home, remains.words, stage.places[1], machine)
    restore_s = time.monotonic() - began
    suspect = 0 if back.journal is None else back.journal.open_tasks
    stage.tell("recover", f"restored in {restore_s:.1f} s; open tasks in doubt: {suspect}")
    same = await asyncio.to_thread(answers_as, back.home, remains.log)
    stage.tell("identity", "answers a challenge under " + ("the same id" if same else "ANOTHER id"))
    kept = await asyncio.to_thread(knows, back.home, FACT)
    stage.tell("memory", f"remembers: {FACT}" if kept else "has FORGOTTEN it")
    task = (await stage.open_journal()).task(remains.task_id)
    worker = await stage.start_worker()
    parked = await is_parked(task, worker)
    view = await task.view()
    mail = view.steps.get(MAIL)
    for seen in (await stage.far_ends["payment"].ledger()).requests[-1:]:
        stage.tell("payment", f"{seen.status} {seen.outcome}: it knows this key", at_ms=seen.at_ms)
    if mail is not None:
        stage.tell(f"worker {worker.pid}", f"step 3 send_mail: {mail.state}", at_ms=mail.closed_ms)
    ended_ms = view.ended_ms or now_ms()
    stage.tell("journal", f"task {task.id} {view.finished}", at_ms=ended_ms)
    return Return(
        task_id=task.id, parked=int(parked), identity_same=same, memory_kept=kept, restore_s=round(restore_s, 3)
    )
