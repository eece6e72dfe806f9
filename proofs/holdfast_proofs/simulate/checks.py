"""What must be true of every world when it ends: the journal's story against the far end's.

The far end is the judge: what it did is what happened. The letters are those of the invariants
in docs/formats/effect-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.ids import TaskId
from holdfast.core.ordinal import base
from holdfast.core.step import StepState
from holdfast.errors import HoldfastError
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.runtime.task.task import SCOPE_NAME
from holdfast_proofs.memory_journal.contents import TaskCell
from holdfast_proofs.simulate.faults import DELAY_S, LEASE_TTL_S, TIMEOUT_S, WINDOW_S
from holdfast_proofs.simulate.parts.gated import limit_breaches
from holdfast_proofs.simulate.parts.tools import TOOLS
from holdfast_proofs.simulate.workload import recorded_result, recorded_results, work
from holdfast_proofs.simulate.world import World

REPEATABLE = ("R", "I")  # doing it again is no harm by contract


def final_breaches(world: World) -> list[str]:
    """Everything that is wrong now that nothing can happen any more."""
    found: list[str] = []
    for cell in world.store.tasks.values():
        try:
            view = world.store.view(cell)
        except HoldfastError as error:
            found.append(f"I11: {cell.task_id}: {error.message}")
            continue
        for step in view.steps.values():
            found.extend(_step_breaches(world, cell, step))
        found.extend(_twice(world, cell, view))
        found.extend(_told_otherwise(cell, view))
        found.extend(_silent(world, cell, view))
        if not world.restores:  # what the lost timeline has done may be above any limit
            found.extend(limit_breaches(view, world.granted))
    found.extend(_foreign_breaches(world))
    known = {(cell.task_id, o) for cell in world.store.tasks.values() for o in _rows(world, cell)}
    found.extend(
        f"I4: {task_id}/{ordinal}: took effect without a record"
        for task_id, ordinal in world.far_end.done
        if (task_id, base(ordinal)) not in known and not _in_lost_timeline(world, task_id)
    )
    return found


def happened(world: World, task_id: str, step: StepView) -> int:
    """How often the step took effect."""
    if step.letter == "T":
        return world.store.count_effects(task_id, step.ordinal)
    return world.far_end.count(task_id, step.ordinal)


def _rows(world: World, cell: TaskCell) -> list[str]:
    return [*world.ledger.rows.get(cell.task_id, {})]


def _step_breaches(world: World, cell: TaskCell, step: StepView) -> Iterator[str]:
    if step.letter == "R":
        return
    where, count = (f"{cell.task_id}/{step.ordinal} ({step.tool})", happened(world, cell.task_id, step))
    match step.state:
        case StepState.SUCCEEDED:
            # In a lost timeline it may have been done in a retry slot of the same step.
            results = world.results(cell.task_id, step.ordinal)
            if not count and not (results and world.restores):
                yield f"I2: {where} is recorded as succeeded and never happened"
            if results and step.result not in results:
                yield f"I2: {where} is recorded with {step.result!r}, the far end has {results!r}"
        case StepState.FAILED | StepState.SKIPPED:
            if count:
                yield f"I3: {where} is recorded as {step.state} and happened"
        case StepState.PLANNED:
            if count:
                yield f"I4: {where} is recorded as not started and happened"
        case StepState.PARKED:
            if not (step.question and step.evidence and step.not_before_ms):
                yield f"I10: {where} is parked without question, evidence or time"
        case _:
            pass


def _twice(world: World, cell: TaskCell, view: TaskView) -> Iterator[str]:
    """Once is counted per base ordinal: a retry slot is the same step."""
    counts: dict[str, int] = {}
    for step in view.steps.values():
        if step.letter not in REPEATABLE and step.tool != "at_least_once":
            slot = base(step.ordinal)
            counts[slot] = counts.get(slot, 0) + happened(world, cell.task_id, step)
    for slot, count in counts.items():
        if count > 1:
            yield f"I1: {cell.task_id}/{slot} ({view.steps[slot].tool}) happened {count} times"


def _silent(world: World, cell: TaskCell, view: TaskView) -> Iterator[str]:
    """No doubt is silent: an open step is held, claimable or parked with a question."""
    open_steps = [s for s in view.steps.values() if not s.closed and s.step and s.step.maybe_sent]
    if cell.state in ENDED and open_steps:
        yield f"I10: {cell.task_id} is {cell.state} while {open_steps[0].ordinal} is open"
    if cell.state is TaskState.PARKED:
        told = [n for n, _ in world.store.notices.values() if n.task_id == cell.task_id]
        if not told:
            yield f"I10: {cell.task_id} is parked and nobody was told"
        if not view.rest.question:
            yield f"I10: {cell.task_id} is parked without a question"
    doubtful = [step for step in open_steps if step.state is not StepState.PARKED]
    if view.rest.why == "poison":
        return  # the question is about the task; its steps wait for the answer
    if cell.state in (TaskState.SLEEPING, TaskState.WAITING, TaskState.PARKED) and doubtful:
        yield f"I10: {cell.task_id} is {cell.state} while {doubtful[0].ordinal} is in doubt"


def needless_parks(world: World) -> list[str]:
    """Parked steps that a machine could have settled."""
    found: list[str] = []
    for cell in world.store.tasks.values():
        try:
            view = world.store.view(cell)
        except HoldfastError:
            continue  # a breach that `final_breaches` tells
        for step in view.steps.values():
            if step.state is StepState.PARKED and _needless(world, cell, step):
                found.append(f"needless: {cell.task_id}/{step.ordinal} ({step.tool}) is parked")
    return found


def _needless(world: World, cell: TaskCell, step: StepView) -> bool:
    if step.letter != "N":
        # Where only processes die every other class has a safe move, while its key is known.
        return world.profile.crashes_only and not (step.letter == "K" and _window_closed(step))
    # The page of a dead process says whether a byte can have left. That of a machine that has
    # restarted, or of a living process (paused, or one that has lost sight of its run), does not.
    profile = world.profile
    alive = world.pauses or profile.freeze_every_s or profile.commit_unknown
    unknown = alive or world.reboots or world.restores
    never_sent = not world.requests.get((cell.task_id, step.ordinal))
    return not unknown and never_sent and TOOLS[step.tool].marks_itself


def _window_closed(step: StepView) -> bool:
    """Whether a keyed step was open for so long that it might not be sent again any more."""
    if step.parked is None or not step.attempts:
        return False
    _, parked_boot_ms, _ = step.parked
    open_ms = parked_boot_ms - step.attempts[0].boot_ms
    return open_ms >= (WINDOW_S - DELAY_S - TIMEOUT_S - LEASE_TTL_S) * 1000


def _told_otherwise(cell: TaskCell, view: TaskView) -> Iterator[str]:
    """What the code was given, in whichever run, must be what is recorded."""
    if cell.state is not TaskState.SUCCEEDED or cell.name != work.name:
        return
    plan, given = view.accepted["args"]["plan"], view.outcome["result"]
    recorded = recorded_results(plan, view)
    if given != recorded:
        yield f"I2: {cell.task_id}: the code was given {given!r}, recorded is {recorded!r}"


def _foreign_breaches(world: World) -> Iterator[str]:
    """What a scope has given to code outside is recorded, and happened."""
    if world.foreign is None or world.restores:
        return
    scopes = [cell for cell in world.store.tasks.values() if cell.name == SCOPE_NAME]
    views = [world.store.view(cell) for cell in scopes]
    for slot, given in world.foreign.given.items():
        recorded = [recorded_result(view, f"@{slot}") for view in views]
        if given not in recorded:
            yield f"I2: scope slot {slot} was given {given!r}, recorded is {recorded!r}"


def _in_lost_timeline(world: World, task_id: str) -> bool:
    """Whether the task may not have come to that step again since the journal was restored."""
    cell = world.store.tasks.get(TaskId(task_id))
    return world.restores > 0 and (cell is None or cell.state is not TaskState.SUCCEEDED)
