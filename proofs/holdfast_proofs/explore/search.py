"""Breadth first over every state that a configuration can reach.

The first breach found has the shortest way to it. Where none is found, every state must still be
able to reach a settled one (L1): the edges are kept as two arrays of numbers and walked backwards
from the settled states until nothing changes.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast_proofs.explore.model import Model
from holdfast_proofs.explore.setup import Setup
from holdfast_proofs.explore.world import Finding, World

STATES_MAX = 4_000_000  # a configuration that grows beyond this is cut down, not waited for
PROGRESS_EVERY = 50_000


@dataclass(slots=True)
class Result:
    states: int
    edges: int
    seconds: float
    parked: int = 0  # states with a parked step
    finding: str = ""
    trace: list[str] = field(default_factory=list[str])


def explore(setup: Setup, *, tell: Callable[[int], None] | None = None) -> Result:
    """Every reachable state, or the shortest way to the first breach."""
    began = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples without a cycle
    try:
        return _Search(Model(setup), tell).run(began)
    finally:
        if collecting:
            gc.enable()


class _Search:
    def __init__(self, model: Model, tell: Callable[[int], None] | None) -> None:
        self._model = model
        self._tell = tell
        self._numbers: dict[World, int] = {}
        self._worlds: list[World] = []
        self._parents = array("i")
        self._from = array("i")
        self._to = array("i")

    def run(self, began: float) -> Result:
        finding, at = self._walk()
        trace: list[str] = []
        if not finding:
            finding, at = self._stuck()
        if finding:
            trace = self._trace(at, finding)
        return Result(
            states=len(self._worlds),
            edges=len(self._from),
            seconds=time.perf_counter() - began,
            finding=finding,
            trace=trace,
            parked=sum(map(self._model.is_parked, self._worlds)),
        )

    def _walk(self) -> tuple[str, int]:
        model, numbers, worlds = self._model, self._numbers, self._worlds
        sources, targets = self._from, self._to
        self._add(model.first(), -1)
        at = 0
        while at < len(worlds):
            world = worlds[at]
            try:
                model.check(world)
                for _, after in model.moves(world):
                    model.check_move(world, after)
                    number = numbers.get(after)
                    if number is None:
                        number = self._add(after, at)
                    sources.append(at)
                    targets.append(number)
            except Finding as finding:
                return str(finding), at
            at += 1
            if at > STATES_MAX:
                return f"LIMIT more than {STATES_MAX:,} states", at - 1
            if self._tell is not None and at % PROGRESS_EVERY == 0:
                self._tell(at)
        return "", 0

    def _add(self, world: World, parent: int) -> int:
        number = self._numbers[world] = len(self._worlds)
        self._worlds.append(world)
        self._parents.append(parent)
        return number

    def _stuck(self) -> tuple[str, int]:
        good = bytearray(map(self._model.is_settled, self._worlds))
        changed = True
        while changed:
            changed = False
            for at in range(len(self._from) - 1, -1, -1):
                if good[self._to[at]] and not good[self._from[at]]:
                    good[self._from[at]] = 1
                    changed = True
        stuck = good.find(0)
        return ("", 0) if stuck < 0 else ("L1 the task can neither end nor be parked", stuck)

    def _trace(self, at: int, finding: str) -> list[str]:
        path = [at]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        path.reverse()
        lines = [self._label(one, self._worlds[two]) for one, two in pairwise(path)]
        return [*lines, *self._last_move(at, finding)]

    def _label(self, at: int, after: World) -> str:
        return next(label for label, world in self._model.moves(self._worlds[at]) if world == after)

    def _last_move(self, at: int, finding: str) -> list[str]:
        """The move that breaks the rule, where it is a move and not the state itself."""
        world = self._worlds[at]
        try:
            self._model.check(world)
            for label, after in self._model.moves(world):
                try:
                    self._model.check_move(world, after)
                except Finding:
                    return [label]
        except Finding:
            return []
        return []
