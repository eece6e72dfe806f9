"""Which row belongs to which step, which step waits for which, and when a step is quiet.

Rows are numbered step by step: row `step * width` is the step itself, the ones after it are its
retry slots. "Quiet" is an oracle here: the model sees the whole network and every process. What
production measures instead, a time after the last attempt had ended for certain, is assumed to be
long enough; the simulation and the crash suite look at that assumption, this model does not.
"""

from __future__ import annotations

from itertools import pairwise

from holdfast.core.effect import Letter
from holdfast.core.step import StepState
from holdfast_proofs.explore.rules import NOTHING, Rules
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import At, World

LEFT = (At.SEND, At.MARKED)  # a send is still to come
NOTHING_LEFT = -1
BLOCKED = -2


class Places:
    def __init__(self, setup: Setup, rules: Rules) -> None:
        self._rules = rules
        self.width = setup.slots + 1
        self.steps = len(setup.classes)
        self.count = self.steps * self.width
        self.step_of = tuple(row // self.width for row in range(self.count))
        self.letter_of: tuple[Letter, ...] = tuple(setup.letters[step] for step in self.step_of)
        self.lanes = setup.lanes
        self._opens_slots = setup.opens_slots
        self._same_slot = Rule.SAME_SLOT not in setup.without
        self.before = self._before(joined=True)
        self._waits_for = self._before(joined=Rule.JOIN not in setup.without)

    def row_of(self, world: World, step: int) -> int:
        """The row that stands for the step now: itself, or its newest retry slot."""
        row = step * self.width
        if not self._opens_slots:
            return row
        end = row + self.width - 1
        while row < end and self._opens_next(world.rows[row]):
            row += 1
        return row

    def is_closed(self, world: World, step: int) -> bool:
        return self._rules.closed[world.rows[self.row_of(world, step)]]

    def next_row(self, world: World, lane: int) -> int:
        """What a lane works on next."""
        for step in self.lanes[lane]:
            row = self.row_of(world, step)
            if self._rules.closed[world.rows[row]]:
                continue
            if all(self.is_closed(world, other) for other in self._waits_for[step]):
                return row
            return BLOCKED
        return NOTHING_LEFT

    def previous_closed(self, world: World, row: int) -> bool:
        return all(self.is_closed(world, other) for other in self.before[self.step_of[row]])

    def is_quiet(self, world: World, row: int) -> bool:
        """Nothing of the step, whatever its slot, can still be under way."""
        step_of = self.step_of
        step = step_of[row]
        for request in world.net:
            if step_of[request.row] == step:
                return False
        for run in world.runs:
            for lane in run.lanes:
                if lane.at in LEFT and step_of[lane.row] == step:
                    return False
        return True

    def all_quiet(self, world: World) -> bool:
        return not world.net and not any(lane.at in LEFT for run in world.runs for lane in run.lanes)

    def _opens_next(self, row: int) -> bool:
        state = self._rules.states[row]
        if state is StepState.FAILED:
            return True
        return not self._same_slot and row != NOTHING and state is StepState.UNKNOWN

    def _before(self, *, joined: bool) -> tuple[tuple[int, ...], ...]:
        before: list[tuple[int, ...]] = [()] * self.steps
        for chain in self.lanes:
            for one, two in pairwise(chain):
                before[two] = (one,)
        last = self.steps - 1
        if joined and len(self.lanes) > 1 and before[last]:
            before[last] = tuple(range(last))
        return tuple(before)
