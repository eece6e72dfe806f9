"""Lanes of runs: how they move on, leave, rest and end, and what that makes of the task.

A run has one lane, or one for each branch of a gather. It is one process under one epoch: it dies
as a whole, and it ends when its last lane has.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.step import Event, StepState
from holdfast_proofs.explore.places import BLOCKED, Places
from holdfast_proofs.explore.rules import Rules
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import At, Lane, Reply, Request, Run, Task, World

Moves = Iterator[tuple[str, World]]
Place = tuple[int, int]  # of a lane: number of the run, number in the run

READY = Lane(At.RUN, 0, Reply.NONE)
DONE = Lane(At.DONE, 0, Reply.NONE)
REST = Lane(At.REST, 0, Reply.NONE)


class Lanes:
    def __init__(self, setup: Setup, rules: Rules, places: Places) -> None:
        self._setup = setup
        self._rules = rules
        self._places = places
        self._without = setup.without
        self.unfenced = bool(setup.without & {Rule.EPOCH, Rule.EPOCH_NOT_STATE})
        self._names = tuple(_name(row, places.width) for row in range(places.count))
        self._fresh = ("R", "T", "F") if Rule.SUSPECT_FENCED in setup.without else ("R", "T")

    def is_fenced(self, world: World, run: Run) -> bool:
        return run.epoch != world.epoch and not self.unfenced

    def open_row(self, world: World, run: Run, row: int) -> int:
        letter = self._places.letter_of[row]
        suspect = world.restored and letter not in self._fresh
        closed = self._places.previous_closed(world, row) or Rule.JOIN in self._without
        return self._rules.open(
            letter,
            Event.RESTORE if suspect else Event.PLAN,
            run.epoch,
            previous_closed=closed,
            other=bool(world.restored) and self._setup.other_arguments,
        )

    def moved(self, world: World, place: Place, lane: Lane) -> World:
        at, number = place
        run = world.runs[at]
        lanes = (*run.lanes[:number], lane, *run.lanes[number + 1 :])
        runs = (*world.runs[:at], Run(run.epoch, lanes), *world.runs[at + 1 :])
        return world._replace(runs=runs)

    def leave(self, world: World, place: Place) -> World:
        """A fenced lane ends; its run is gone with its last lane."""
        at, number = place
        run, lane = world.runs[at], world.runs[at].lanes[number]
        if lane.at in (At.WAIT, At.SENT):
            world = world._replace(net=self.orphaned(world.net, run.epoch, lane.row))
        world = self.moved(world, place, DONE)
        if any(one.at != At.DONE for one in world.runs[at].lanes):
            return world
        return world._replace(runs=(*world.runs[:at], *world.runs[at + 1 :]))

    def settle(self, world: World, place: Place, lane: Lane) -> World:
        """The lane has ended; with the last one the run ends, as finished or at rest."""
        world = self.moved(world, place, lane)
        lanes = world.runs[place[0]].lanes
        if not all(self._is_over(world, number, one) for number, one in enumerate(lanes)):
            return world
        resting = any(one.at == At.REST for one in lanes)
        return self.end(world, place[0], Task.PARKED if resting else Task.ENDED)

    def _is_over(self, world: World, number: int, lane: Lane) -> bool:
        if lane.at in (At.DONE, At.REST):
            return True
        return lane.at == At.RUN and self._places.next_row(world, number) == BLOCKED

    def end(self, world: World, at: int, task: Task) -> World:
        runs = (*world.runs[:at], *world.runs[at + 1 :])
        if task is Task.PARKED and self.pending(world) and Rule.ROUSED not in self._without:
            task = Task.FREE
        return world._replace(runs=runs, task=task)

    def orphaned(self, net: tuple[Request, ...], epoch: int, row: int = -1) -> tuple[Request, ...]:
        """The requests after this run has stopped waiting for them."""
        found = False
        requests: list[Request] = []
        for one in net:
            if one.awaited and one.epoch == epoch and row in (-1, one.row):
                found = True
                kept = epoch if self._places.letter_of[one.row] == "F" else 0
                one = one._replace(awaited=False, epoch=kept)  # noqa: PLW2901 - the request, changed
            requests.append(one)
        return tuple(sorted(requests)) if found else net

    def pending(self, world: World) -> bool:
        """Whether the inbox holds what would move a parked step."""
        return any(self._is_pending(world, row) for row in range(len(world.rows)))

    def _is_pending(self, world: World, row: int) -> bool:
        state = self._rules.states[world.rows[row]]
        told = bool(world.evidence >> row & 1)
        if state is StepState.PARKED:
            return told or self.answers(world, row)
        if state is StepState.PLANNED and self._setup.approval:
            return told or bool((world.granted | world.declined) >> row & 1)
        return False

    def answers(self, world: World, row: int) -> bool:
        answer = world.answer
        if answer is None or answer.row != row:
            return False
        asked = self._rules.rows[world.rows[row]].asked
        return answer.asked == asked or Rule.ANSWERS_BOUND in self._without

    def name(self, row: int) -> str:
        return self._names[row]


def woken(world: World) -> World:
    """The inbox has something new: a resting task is claimable again."""
    return world._replace(task=Task.FREE) if world.task == Task.PARKED else world


def _name(row: int, width: int) -> str:
    step, slot = divmod(row, width)
    return f"step {step + 1}.r{slot}" if slot else f"step {step + 1}"


def put(rows: tuple[int, ...], at: int, number: int) -> tuple[int, ...]:
    return (*rows[:at], number, *rows[at + 1 :])


def more(effects: tuple[int, ...], row: int) -> tuple[int, ...]:
    return put(effects, row, min(effects[row] + 1, 2))
