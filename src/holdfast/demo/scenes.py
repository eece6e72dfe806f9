"""The demo's first two scenes. What they report as done is read from the far ends' ledgers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.app.handle import TaskHandle
from holdfast.core.ids import effect_key_from_bytes
from holdfast.demo.stage import Stage, is_parked
from holdfast.demo.workers import DemoFailed, Worker
from holdfast.journal.records import StepView, TaskView

REQUEST = "LIS to BER"
SEARCH, CHARGE, MAIL = "1", "2", "3"  # ordinals of book_trip
LETTER = "1"  # of confirm_visa


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    task_id: str
    parked: int
    takeover_s: float  # from the kill to the second worker's claim
    resume_s: float  # from the kill to the commit that starts the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    task_id: str
    parked: int
    settled: int = 0


async def kill_inside_payment(stage: Stage) -> Trip:
    """A keyed step in doubt is settled by the machine alone."""
    stage.teller.scene("1  Killed inside the payment")
    stage.tell("far ends", "payment, mail and print shop: separate processes with their own ledgers")
    await stage.hold_next("payment")
    task = await stage.hf.submit("book_trip", request=REQUEST, request_id="order-77")
    stage.tell("journal", f"task {task.id} accepted: book_trip {REQUEST!r}")
    first = await stage.start_worker()
    killed_ms = await stage.kill_inside("payment", first)
    await _tell_kill(stage, task, first, killed_ms)
    second = await stage.start_worker()
    parked = await is_parked(task, second)
    taken_ms, next_ms = await _tell_resume(stage, task, second)
    return Trip(
        task_id=task.id,
        parked=int(parked),
        takeover_s=(taken_ms - killed_ms) / 1000,
        resume_s=(next_ms - killed_ms) / 1000,
    )


async def _tell_kill(stage: Stage, task: TaskHandle, worker: Worker, killed_ms: int) -> None:
    steps = (await task.view()).steps
    search, charge = steps[SEARCH], steps[CHARGE]
    flights: Any = search.result  # Any: JSON that trip.py has made
    flight = flights[0]
    done = await stage.get_payment(task.id)
    who, key = f"worker {worker.pid}", effect_key_from_bytes(charge.effect_key)
    price = f"{flight['cents'] / 100:.2f} EUR"
    stage.tell(who, f"step 1 search_flights: {flight['flight']}", at_ms=search.closed_ms)
    stage.tell(who, f"step 2 charge {price}, effect key {key}", at_ms=charge.planned_ms)
    stage.tell("payment", f"{done.id}: charged; it holds its answer back", at_ms=done.at_ms)
    stage.tell("kill -9", f"worker {worker.pid} is killed inside the payment", at_ms=killed_ms)
    stage.tell("journal", f"step 2 charge is {charge.state} without a result: outcome unknown")


async def _tell_resume(stage: Stage, task: TaskHandle, worker: Worker) -> tuple[int, int]:
    """When the second worker had claimed the task, and when it had begun the next step."""
    view, charge, mail = await trip_of(task)
    who = f"worker {worker.pid}"
    taken_ms = max(claim.at_ms for claim in view.claims.values())
    stage.tell(who, "takes over at once: the kernel freed the dead worker's lock", at_ms=taken_ms)
    stage.tell(who, "step 2 charge: sent again, same effect key", at_ms=charge.attempts[-1].at_ms)
    for seen in (await stage.far_ends["payment"].ledger()).requests:
        if seen.outcome == "replayed":
            stage.tell("payment", f"{seen.status}: it knows this key, and repeats the first answer", at_ms=seen.at_ms)
    stage.tell(who, f"step 3 send_mail: {mail.state}", at_ms=mail.closed_ms)
    stage.tell("journal", f"task {task.id} {view.finished}", at_ms=view.ended_ms)
    return taken_ms, mail.planned_ms


async def trip_of(task: TaskHandle) -> tuple[TaskView, StepView, StepView]:
    """A booked trip: the task, its payment and its mail. Raises DemoFailed."""
    view = await task.view()
    if MAIL not in view.steps:
        raise DemoFailed(f"task {task.id} did not reach its mail step")
    return view, view.steps[CHARGE], view.steps[MAIL]


async def kill_inside_letter(stage: Stage) -> Letter:
    """Without key, lookup or fence the outcome cannot be known, so a person is asked."""
    stage.teller.scene("2  Killed inside a paper letter: no key, no lookup")
    await stage.hold_next("letter")
    task = await stage.hf.submit("confirm_visa", name="Ada")
    stage.tell("journal", f"task {task.id} accepted: confirm_visa")
    worker = stage.worker or await stage.start_worker()
    killed_ms = await stage.kill_inside("letter", worker)
    stage.tell("kill -9", f"worker {worker.pid} is killed inside post_letter", at_ms=killed_ms)
    third = await stage.start_worker()
    if not await is_parked(task, third):
        return Letter(task_id=task.id, parked=0)
    step = (await task.view()).steps[LETTER]
    stage.tell(f"worker {third.pid}", f"does not guess: {task.id}/{LETTER} is {step.state}")
    _tell_question(stage, step)
    await _decide(stage, task, step)
    settled = not await is_parked(task, third)
    view = await task.view()
    stage.tell("journal", f"task {task.id} {view.finished}", at_ms=view.ended_ms)
    return Letter(task_id=task.id, parked=1, settled=int(settled))


def _tell_question(stage: Stage, step: StepView) -> None:
    stage.tell("question", step.question)
    for fact in step.evidence:
        if "attempt" in fact:
            began = f"{stage.seconds(int(fact['started_ms'])):.2f} s"
            stage.tell("evidence", f"attempt {fact['attempt']} started at {began}, no end recorded")


async def _decide(stage: Stage, task: TaskHandle, step: StepView) -> None:
    """What a person would do: wait until nothing is in flight, ask the print shop, decide."""
    wait_s = (step.not_before_ms - stage.hf.journal.now_ms()) / 1000
    await asyncio.sleep(max(wait_s, 0.0) + 0.05)  # a moment more: clocks count in milliseconds
    done = await stage.find_done("letter", task.id)
    if done is None:
        stage.tell("person", "asks the print shop: it has no such letter; decides `run`")
        await stage.hf.settle(task.id, LETTER, "run", by="demo", note="not in the shop's ledger")
        return
    stage.tell("person", f"asks the print shop: {done.id} was posted; decides `done`")
    await stage.hf.settle(task.id, LETTER, "done", result={"letter": done.id}, by="demo", note="in the shop's ledger")
