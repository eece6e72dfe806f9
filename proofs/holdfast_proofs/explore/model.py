"""One configuration as a machine: its first state, what may follow a state, what must hold."""

from __future__ import annotations

from holdfast.core.step import StepState
from holdfast_proofs.explore.checks import Checks
from holdfast_proofs.explore.lanes import Lanes, Moves
from holdfast_proofs.explore.places import Places
from holdfast_proofs.explore.rules import NOTHING, Rules
from holdfast_proofs.explore.runs import Runs
from holdfast_proofs.explore.setup import Setup
from holdfast_proofs.explore.surroundings import Surroundings
from holdfast_proofs.explore.world import Left, Task, World


class Model:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._rules = Rules(setup)
        self._places = Places(setup, self._rules)
        lanes = Lanes(setup, self._rules, self._places)
        self._runs = Runs(setup, self._rules, self._places, lanes)
        self._surroundings = Surroundings(setup, self._rules, self._places, lanes)
        self._checks = Checks(setup, self._rules, self._places, lanes)

    def first(self) -> World:
        setup, count = self._setup, self._places.count
        left = Left(
            crash=setup.crash,
            loss=setup.loss,
            lapse=setup.lapse,
            restores=setup.restores,
            refusals=setup.refusals,
            unsure=setup.unsure,
            webhook=int(setup.webhook),
            cancel=int(setup.cancel),
        )
        return World(
            rows=(NOTHING,) * count,
            epoch=0,
            task=Task.FREE,
            runs=(),
            net=(),
            effects=(0,) * count,
            keys=0,
            others=0,
            refused=0,
            fence=0,
            last=0,
            evidence=0,
            answer=None,
            clear=(),
            window=True,
            cancelled=False,
            granted=0,
            declined=0,
            restored=0,
            copy=None,
            left=left,
        )

    def moves(self, world: World) -> Moves:
        """Every next state, with the move in words. Raises Finding where a move breaks a rule."""
        yield from self._runs.claim(world)
        yield from self._runs.moves(world)
        yield from self._surroundings.moves(world)

    def check(self, world: World) -> None:
        self._checks.state(world)

    def check_move(self, before: World, after: World) -> None:
        self._checks.move(before, after)

    def is_settled(self, world: World) -> bool:
        """Where L1 wants every state to be able to go: ended, or at rest for a person."""
        if world.task == Task.ENDED:
            return True
        resting = world.task == Task.PARKED and not self._setup.person
        return resting and self.is_parked(world)

    def is_parked(self, world: World) -> bool:
        return any(self._rules.states[number] is StepState.PARKED for number in world.rows)
