"""`python -m holdfast_proofs.decision_races`: many processes decide one doubt at the same instant.

Each round takes a step that waits for a person: parked in doubt, or in need of a yes. Ten processes, each with the
journal open, answer it at once and contradict each other: done, run or skip; granted or refused. One answer must be
recorded and every other one refused, and the task must end as that answer says. In the first half of the rounds no
worker serves the journal, so that all answers meet in the inbox; in the second half one does, and applies an answer
while others still arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import holdfast
from holdfast.errors import HoldfastError, NotNow
from holdfast.journal.contract import DropCheck, InboxItem
from holdfast.journal.records import TaskState
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing.lab import wait_state, wait_until
from holdfast_proofs.runner import Proof, ProofFailed, Result, at_least_one, fast_folder

ROUNDS, DECIDERS = 500, 10
HEAD_START_S = 0.01  # in which every process gets its order before the first one acts
WAIT_S = 120.0
SHOWN_MAX = 20

_FORKED = multiprocessing.get_context("fork")

Answer = Literal["done", "run", "skip", "granted", "refused"]
SETTLEMENTS: tuple[Answer, ...] = ("done", "run", "skip")
APPROVALS: tuple[Answer, ...] = ("granted", "refused")


class Order(NamedTuple):
    """What a decider answers, and when."""

    task_id: str
    answer: Answer
    by: str
    at: float  # time.monotonic, which all processes share


class Round(NamedTuple):
    task_id: str
    served: bool
    recorded: list[Order]
    refused: Counter[str]  # by the code of the error


def make_tasks(folder: Path) -> list[holdfast.TaskType]:
    """Two tasks whose only step waits for a person; once the line is mended the call succeeds."""
    mended = folder / "mended"

    @holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0))
    async def letter(call: holdfast.Call) -> str:
        if not mended.exists():
            raise OSError("the line is dead")
        return "sent"

    @holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0), needs_approval=True)
    async def payment(call: holdfast.Call) -> str:
        return "sent"

    async def outcome(run: holdfast.Run, tool: holdfast.Tool[..., Any]) -> str:
        try:
            return str(await run.call(tool))
        except holdfast.StepSkipped:
            return "skipped"

    @holdfast.task
    async def doubtful(run: holdfast.Run) -> str:
        return await outcome(run, letter)

    @holdfast.task
    async def guarded(run: holdfast.Run) -> str:
        return await outcome(run, payment)

    return [doubtful, guarded]


class Room:
    """One journal and the processes around it."""

    def __init__(self, folder: Path, *, unchecked: bool) -> None:
        self.folder = folder
        self.journal = folder / "journal.db"
        self.tasks = make_tasks(folder)
        self.unchecked = unchecked

    async def prepare(self, pipe: Connection, rounds: int) -> None:
        """Every round's task, brought to where it waits; their ids."""
        async with holdfast.open(self.journal, tasks=self.tasks) as hf:
            handles = [await hf.submit(self.tasks[number % 2]) for number in range(rounds)]
            for number, handle in enumerate(handles):
                wanted = TaskState.WAITING if number % 2 else TaskState.PARKED
                await wait_state(handle, wanted, timeout_s=WAIT_S)
            for handle in handles[::2]:
                await wait_until(partial(_is_quiet, hf, handle))
            pipe.send([str(handle.id) for handle in handles])

    async def decide(self, pipe: Connection) -> None:
        """Answer as ordered, until there is no order."""
        if self.unchecked:
            _take_out_the_check()
        async with holdfast.open(self.journal, serve=False) as hf:
            pipe.send("ready")
            while (order := pipe.recv()) is not None:
                while time.monotonic() < order.at:
                    pass
                pipe.send(await _answer(hf, order))

    async def serve(self, pipe: Connection) -> None:
        async with holdfast.open(self.journal, tasks=self.tasks):
            pipe.send("serving")
            await asyncio.to_thread(pipe.recv)

    async def read(self, pipe: Connection, task_ids: list[str]) -> None:
        """How each task ended."""
        async with holdfast.open(self.journal, serve=False) as hf:
            pipe.send([await hf.task(one).result(WAIT_S) for one in task_ids])


async def _is_quiet(hf: holdfast.Holdfast, handle: holdfast.TaskHandle) -> bool:
    try:
        await hf.check_settle(handle.id, "1", "run")
    except NotNow:
        return False
    return True


async def _answer(hf: holdfast.Holdfast, order: Order) -> str:
    """Empty, or the code of the error."""
    try:
        match order.answer:
            case "granted" | "refused":
                await hf.approve(order.task_id, "1", granted=order.answer == "granted", by=order.by)
            case _:
                await hf.settle(order.task_id, "1", order.answer, result=order.by, by=order.by)
    except HoldfastError as error:
        return error.code
    return ""


def _take_out_the_check() -> None:
    """Answers are looked at before the commit alone, as they once were: this proof must notice."""
    kept = SqliteJournal.drop

    async def drop(self: SqliteJournal, item: InboxItem, *, check: DropCheck | None = None) -> int:
        return await kept(self, item)

    SqliteJournal.drop = drop


def expected(order: Order) -> str:
    """How the task ends where this answer counts."""
    return {"done": order.by, "run": "sent", "granted": "sent"}.get(order.answer, "skipped")


class Processes:
    """Children that run one coroutine each, and are gone at the end."""

    def __init__(self) -> None:
        self._all: list[BaseProcess] = []

    def start(self, work: Any, *words: Any) -> Connection:  # Any: a coroutine function of Room
        ours, theirs = _FORKED.Pipe()
        process = _FORKED.Process(target=_run_child, args=(work, theirs, *words), daemon=True)
        process.start()
        theirs.close()
        self._all.append(process)
        return ours

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.join()


def _run_child(work: Any, pipe: Connection, *words: Any) -> None:  # Any: as above
    asyncio.run(work(pipe, *words))


def _hear(pipe: Connection) -> Any:  # Any: what that child sends
    if not pipe.poll(WAIT_S):
        raise ProofFailed("a process of the proof does not answer", hint="its messages are above")
    try:
        return pipe.recv()
    except EOFError:
        raise ProofFailed("a process of the proof has died", hint="its messages are above") from None


def run_rounds(folder: Path, *, rounds: int, deciders: int, seed: int, unchecked: bool = False) -> list[str]:
    """What is wrong; empty where nothing is."""
    dice, room, processes = random.Random(seed), Room(folder, unchecked=unchecked), Processes()
    try:
        task_ids: list[str] = _hear(processes.start(room.prepare, rounds))
        (folder / "mended").touch()
        pipes = [processes.start(room.decide) for _ in range(deciders)]
        for pipe in pipes:
            _hear(pipe)
        half = rounds // 2
        played = [_play(number, task_ids, pipes, dice, served=False) for number in range(half)]
        worker = processes.start(room.serve)
        _hear(worker)
        played += [_play(number, task_ids, pipes, dice, served=True) for number in range(half, rounds)]
        ends: list[object] = _hear(processes.start(room.read, task_ids))
    finally:
        processes.end()
    return [text for one, end in zip(played, ends, strict=True) for text in wrong(one, end, deciders)]


def _play(number: int, task_ids: list[str], pipes: list[Connection], dice: random.Random, *, served: bool) -> Round:
    choices, at = APPROVALS if number % 2 else SETTLEMENTS, time.monotonic() + HEAD_START_S
    orders = [Order(task_ids[number], dice.choice(choices), f"person {one}", at) for one in range(len(pipes))]
    for pipe, order in zip(pipes, orders, strict=True):
        pipe.send(order)
    codes: list[str] = [_hear(pipe) for pipe in pipes]
    recorded = [order for order, code in zip(orders, codes, strict=True) if not code]
    return Round(task_ids[number], served, recorded, Counter(code for code in codes if code))


def wrong(one: Round, end: object, deciders: int) -> list[str]:
    where = f"task {one.task_id}, {'served' if one.served else 'not served'}"
    if len(one.recorded) != 1:
        answers = ", ".join(f"{order.answer} by {order.by}" for order in one.recorded) or "none"
        return [f"{where}: {len(one.recorded)} answers were recorded: {answers}"]
    strange = one.refused.keys() - {"not-settleable", "approval-not-found"}
    if strange or one.refused.total() != deciders - 1:
        return [f"{where}: the others were refused with {dict(one.refused)}"]
    if end != expected(one.recorded[0]):
        return [f"{where}: {one.recorded[0].answer} was recorded, but the task gave {end!r}"]
    return []


def _run(given: argparse.Namespace) -> Result:
    with fast_folder("decisions") as folder:
        began = time.monotonic()
        found = run_rounds(
            folder, rounds=given.rounds, deciders=given.deciders, seed=given.seed, unchecked=given.unchecked
        )
    seconds = round(time.monotonic() - began, 1)
    figures = {"rounds": given.rounds, "deciders": given.deciders, "breaches": len(found), "seconds": seconds}
    return Result(
        green=not found,
        findings=found[:SHOWN_MAX],
        again=f"--seed {given.seed}",
        figures=figures,
        summary=f"{given.rounds:,} rounds, {given.deciders} processes each: one answer counted and all others were "
        f"refused in {given.rounds - len(found):,}; {seconds} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least_one, default=ROUNDS)
    parser.add_argument("--deciders", type=at_least_one, default=DECIDERS, help="processes that answer at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unchecked", action="store_true", help="without the check in the commit: must be red")


PROOF = Proof(
    name="decision_races",
    purpose="Many processes decide one doubt at once: one decision counts, all others are refused.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
