"""Drills of an agent at work: its worker is killed, it restarts and remembers nothing, a second copy of it starts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.downstream.faults import Fault, FaultKind
from holdfast.drills.host_loss import describe, measure_effects
from holdfast.drills.probe import ERRAND
from holdfast.drills.production import gone_with_journal
from holdfast.drills.run import LOOK_S, WAIT_S, DrillFailed, DrillRun, Worker
from holdfast.host.shadow import Shadow
from holdfast.surfaces import report as out

POINTS = (("keyed", "after"), ("keyed", "before"), ("queryable", "after"), ("queryable", "before"))
RANDOM_KILLS = 2
RANDOM_S = 0.3  # a probe of several steps takes about so long
LONG = ("keyed",) * 6
COPY_LOOK_S = 2.0  # how long a second copy is watched after the first one has finished
BOTH = ("unrepeatable", "keyed")


def process_kill(run: DrillRun) -> None:
    """The worker is killed inside each kind of call, before and after the effect, and at random moments."""
    with run.running_copy():
        worker = run.start_worker()
        worker.wait_serving()
        run.event("baseline_taken", describe(run))
        tasks = [_killed_inside(run, worker, kind, when, number) for number, (kind, when) in enumerate(POINTS)]
        tasks += [_killed_at_random(run, worker) for _ in range(RANDOM_KILLS)]
        states = {task: run.wait_task(task)["state"] for task in tasks}
        run.event("steady_state", f"{len(tasks)} tasks")
        wrong = [f"{task} {state}" for task, state in states.items() if state != "succeeded"]
        text = "; ".join(wrong) or f"{len(tasks)} tasks succeeded after {len(POINTS) + RANDOM_KILLS} kills"
        run.check("L1", not wrong, text)
        measure_effects(run, tasks, before=len(POINTS), expected=2 * len(POINTS) + RANDOM_KILLS * len(LONG))
        no_loss(run)
        run.act("see what waits for a person", must=False)


def _killed_inside(run: DrillRun, worker: Worker, kind: str, when: str, number: int) -> str:
    """Kill it while its request is inside the far end. The first time is the one that is measured."""
    end = run.far_end("queryable" if kind == "queryable" else "keyed")
    end.faults(Fault(kind=FaultKind.HOLD, when="after" if when == "after" else "before"))
    task = run.submit([kind, "keyed"])
    end.wait_inside()
    if number == 0:
        run.fault("SIGKILL of the worker process", how=f"inside a {kind} call, {when} its effect", target="worker")
    served = len(worker.serving())  # one more than the kills, or more: on a busy machine a lease may run out too
    killed_ms = run.kill_worker(worker)
    end.release()
    end.faults()
    worker.wait_serving(served + 1)
    if number == 0:
        _note_restart(run, worker, killed_ms)
        run.verify_step(task, after_ms=killed_ms)
    else:
        run.event("killed_again", f"inside a {kind} call, {when} its effect", actor="drill", at_ms=killed_ms)
    run.wait_task(task)  # a task that is killed three times without progress is parked
    return task


def _note_restart(run: DrillRun, worker: Worker, killed_ms: int) -> None:
    """What the worker's own log says of it, at the times that it says."""
    said = (
        ("detected", "supervisor", "worker ended", "the supervising parent sees the end"),
        ("recovery_started", "supervisor", "worker ", "it starts a worker process again"),
        ("connectivity_restored", "serving", "", "the new worker process serves"),
    )
    at_ms: int | None = killed_ms
    for name, event, text, evidence in said:
        at_ms = worker.when(event, text, after_ms=at_ms)
        if at_ms is None:
            raise DrillFailed(f"the worker's log does not say when: {evidence}")
        run.event(name, evidence, at_ms=at_ms)


def _killed_at_random(run: DrillRun, worker: Worker) -> str:
    task = run.submit(LONG)
    time.sleep(run.rng.uniform(0, RANDOM_S))
    served = len(worker.serving())
    killed_ms = run.kill_worker(worker)
    run.event("killed_again", "at a random moment", actor="drill", at_ms=killed_ms)
    worker.wait_serving(served + 1)
    run.wait_task(task)
    return task


def no_loss(run: DrillRun) -> None:
    """Nothing was put back to an older state: what the far ends lack is all that could be lost."""
    lost = 0 if run.effects is None else run.effects.lost
    run.rpo = replace(out.NOT_MEASURED, actual_s=0.0, actual_items=lost, lost_items={"steps": lost})


def hand_off(run: DrillRun) -> None:
    """The machine dies and the journal is gone: handoff.md alone must answer the four questions."""
    mark = secrets.token_hex(6)
    question = f"may drill {mark} go on?"
    with run.running_copy() as machine:
        run.start_worker().wait_serving()
        task = run.submit([], task=ERRAND, question=question)
        _wait_question(run, task, question)
        asked = run.good("approval", "list", "--json", "--home", run.values["home"]).json()["approvals"]
        approval = next(one["approval"] for one in asked if one["task_id"] == task)
        run.good("approval", "grant", approval, "--by", f"drill {mark}", "--home", run.values["home"])
        _wait_question(run, task, f"{question} (again)")
        effects = run.effects_of(task)
        run.event("baseline_taken", f"task {task}: two steps done, one question answered, one open")
        run.fault("restart with nothing in mind", how="every process dies; the journal is gone", target="the agent")
        machine.kill()
    run.event("recovery_started", "from files alone")
    with run.machine(gone=gone_with_journal(run.production.home)):
        done = run.act("read where the agent was", "--json", why="its JSON is read").json()
        run.require("from files", done["source"] == "file", f"source: {done['source']}")
        answers = {
            "where": any(task in line for line in done["where"]),
            "pending": any(f"{question} (again)" in line for line in done["pending"]),
            "decided": any(mark in line for line in done["decided"]),
            "changed": sum(task in line and "drill_keyed" in line for line in done["changed"]) >= len(effects),
        }
        for name, good in answers.items():
            run.check(f"hand-off: {name}", good, "; ".join(done[name][:3]) or "nothing")
        text = f"{sum(answers.values())} of 4 questions are answered from handoff.md alone"
        run.event("first_verified_step", text)
    run.state = replace(
        out.NOT_COMPARED, files_compared=1, questions_asked=len(answers), questions_answered=sum(answers.values())
    )


def _wait_question(run: DrillRun, task: str, question: str) -> None:
    """Until the task asks this, and the hand-off says so."""
    path = run.own_shadow().outside(run.production.home.folder) / "handoff.md"
    otherwise = f"task {task} does not ask {question!r}, or handoff.md does not say so"
    wait_until(lambda: path.exists() and question in path.read_text(), otherwise)


def wait_until(met: Callable[[], object], otherwise: str) -> None:
    end = time.monotonic() + WAIT_S
    while not met():
        if time.monotonic() > end:
            raise DrillFailed(otherwise)
        time.sleep(LOOK_S)


def two_alive(run: DrillRun, prepare: Callable[[Shadow], None] | None = None) -> None:
    """A copy of the agent's folder is started beside the agent: one of them acts, the other one waits and says why.
    `prepare` makes the journal one that both share."""
    home = run.production.home.folder
    copy = home.with_name(f"{home.name}-copy")
    with run.running_copy() as machine:
        if prepare is not None:
            prepare(machine)
        run.start_worker().wait_serving()
        run.run(("cp", "-a", str(home), str(copy)))
        run.event("baseline_taken", "one worker serves")
        run.fault("a second copy of the agent starts", how=f"the folder is copied to {copy.name}", target="the agent")
        second = run.start_worker(home=copy)
        why = _wait_reason(second)
        run.event("detected", why or "the copy says nothing")
        run.check("tells why", bool(why), why or "the copy does not say why it waits")
        mine, other = (run.submit(BOTH, request="drill-twice", home=str(one)) for one in (home, copy))
        run.event("recovery_started", f"task {mine} is submitted to both copies")
        run.verify_step(mine)
        run.wait_task(mine)
        time.sleep(COPY_LOOK_S)
        steps = () if other == mine else run.task(other, home=str(copy))["steps"]
        waits = not second.serving() and not steps
        run.check("one acts", waits, "the copy begins no step" if waits else f"the copy acts too: {len(steps)} steps")
        measure_effects(run, [mine], before=0, expected=len(BOTH))
        run.event("steady_state", f"{len(run.effects_of(mine))} effects")
        run.act("see what is left to do", must=False)
        no_loss(run)


def _wait_reason(worker: Worker) -> str:
    """What a worker says that has no lease, or is not enrolled; empty where it serves, or says nothing for long."""
    end = time.monotonic() + 60
    while time.monotonic() < end and not worker.serving() and worker.process.poll() is None:
        for one in worker.events():
            said = str(one.get("text") or one.get("error") or "")
            if "lease" in said or "not enrolled" in said:
                return said
        time.sleep(0.05)
    return ""
