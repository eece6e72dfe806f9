"""What must hold in every state and on every move; the numbers are those of the effect protocol.

I1 to I4 compare the journal with what the far end has really done, I10 asks whether anybody still
looks after what is open. I5 is checked where a request takes effect (surroundings.py), X1 where
production's two functions meet (rules.py), L1 over the whole graph (search.py).
"""

from __future__ import annotations

from holdfast.core.step import StepState
from holdfast_proofs.explore.lanes import Lanes
from holdfast_proofs.explore.places import LEFT, Places
from holdfast_proofs.explore.rules import NOTHING, Rules
from holdfast_proofs.explore.setup import Setup
from holdfast_proofs.explore.world import Finding, Task, World

_OPEN = (StepState.STARTED, StepState.UNKNOWN, StepState.PARKED)


class Checks:
    def __init__(self, setup: Setup, rules: Rules, places: Places, lanes: Lanes) -> None:
        self._setup = setup
        self._rules = rules
        self._places = places
        self._lanes = lanes
        self._seen: set[tuple[tuple[int, ...], tuple[int, ...], bool]] = set()

    def state(self, world: World) -> None:
        key = (world.rows, world.effects, world.restored > 0)
        if key not in self._seen:
            for step in range(self._places.steps):
                self._step(world, step)
            self._seen.add(key)
        self._doubts(world)
        if self._setup.same_resource:
            self._newest_last(world)

    def move(self, before: World, after: World) -> None:
        if after.epoch < before.epoch:
            raise Finding("I8 the epoch went back")
        if before.rows is after.rows or after.left.restores < before.left.restores:
            return
        for old, new in zip(before.rows, after.rows, strict=True):
            if old != new and self._rules.closed[old]:
                raise Finding("I7 a closed step was rewritten")

    def _step(self, world: World, step: int) -> None:
        places, states = self._places, self._rules.states
        letter = self._setup.letters[step]
        if letter == "R":
            return
        first = step * places.width
        slots = range(first, first + places.width)
        total = sum(world.effects[row] for row in slots)
        repeats = letter == "I" or (letter == "N" and self._setup.at_least_once)
        name = f"step {step + 1}"
        if total > 1 and not repeats:
            raise Finding(f"I1 {name} is done twice")
        for row in slots:
            state, done = states[world.rows[row]], world.effects[row] > 0
            if state is StepState.SUCCEEDED and not total:
                raise Finding(f"I2 {name} is recorded as done and was never done")
            if state in (StepState.FAILED, StepState.SKIPPED) and done:
                raise Finding(f"I3 {name} is recorded as {state}, yet done")
            fresh = world.rows[row] == NOTHING and not world.restored
            if done and (fresh or state is StepState.PLANNED):
                raise Finding(f"I4 {name} is done without a durable start")

    def _doubts(self, world: World) -> None:
        task = world.task
        if task == Task.HELD:
            if not any(run.epoch == world.epoch for run in world.runs):
                raise Finding("I10 the task is held by nobody")
        elif task == Task.ENDED:
            if any(self._rules.states[number] in _OPEN for number in world.rows):
                raise Finding("I10 the task has ended with a step in doubt")
        elif task == Task.PARKED:
            asks = (StepState.PARKED, StepState.PLANNED)  # a planned one asks for its approval
            if not any(self._rules.states[number] in asks for number in world.rows):
                raise Finding("I10 the task rests and no step asks anything")
            if self._lanes.pending(world):
                raise Finding("I10 the task rests on an answer that nobody looks at")

    def _newest_last(self, world: World) -> None:
        """I6: once all is done and nothing is under way, the last step has written last."""
        if world.net or any(self._rules.states[n] is not StepState.SUCCEEDED for n in world.rows):
            return
        if any(lane.at in LEFT for run in world.runs for lane in run.lanes):
            return
        if world.last != self._places.steps - 1:
            raise Finding("I6 an older write has landed last")
