"""What a run does: the runtime's driver, one durable write or one send at a time.

Between any two moves the process may die, pause for ever, or lose its lease: every move here is
one commit, one send, or one thing learnt. The order is that of runtime/step/steps.py and reconcile.py;
what is proposed and what is allowed comes from production (rules.py). Nobody looks at a lease
before sending: a process that does may still be paused between the look and the send.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.resume import Move
from holdfast.core.step import Event, StepState
from holdfast_proofs.explore.attempts import Attempts
from holdfast_proofs.explore.lanes import DONE, READY, REST, Lanes, Moves, Place, put
from holdfast_proofs.explore.places import BLOCKED, NOTHING_LEFT, Places
from holdfast_proofs.explore.rules import NOTHING, Rules, Situation
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import At, Lane, Reply, Run, Task, World

_SETTLE = {"done": Event.SETTLE_DONE, "run": Event.SETTLE_RUN, "skip": Event.SETTLE_SKIP}


class Runs:
    def __init__(self, setup: Setup, rules: Rules, places: Places, lanes: Lanes) -> None:
        self._setup = setup
        self._rules = rules
        self._places = places
        self._lanes = lanes
        attempts = Attempts(setup, rules, places, lanes)
        self._from: dict[int, Callable[[World, Place, Run, Lane], Moves]] = {
            At.RUN: self._go_on,
            At.ASKED: self._go_on,
            At.SEND: attempts.send,
            At.MARKED: attempts.send,
            At.SENT: attempts.send,
            At.WAIT: attempts.wait,
            At.REPLIED: attempts.conclude,
        }
        self._without = setup.without

    def claim(self, world: World) -> Moves:
        if world.task == Task.FREE and len(world.runs) < self._setup.processes:
            epoch = world.epoch + 1
            run = Run(epoch, (READY,) * len(self._places.lanes))
            yield (
                f"a worker claims the task: epoch {epoch}",
                world._replace(epoch=epoch, task=Task.HELD, runs=(*world.runs, run)),
            )

    def moves(self, world: World) -> Moves:
        for at, run in enumerate(world.runs):
            for number, lane in enumerate(run.lanes):
                go_on = self._from.get(lane.at)
                if go_on is not None:
                    yield from go_on(world, (at, number), run, lane)

    # deciding

    def _go_on(self, world: World, place: Place, run: Run, lane: Lane) -> Moves:
        who = f"epoch {run.epoch}"
        if self._lanes.is_fenced(world, run):
            yield f"{who} is fenced", self._lanes.leave(world, place)
            return
        row = lane.row if lane.at == At.ASKED else self._places.next_row(world, place[1])
        if row == NOTHING_LEFT:
            yield f"{who} has nothing left to do", self._lanes.settle(world, place, DONE)
        elif row == BLOCKED:
            others = [one for i, one in enumerate(run.lanes) if i != place[1]]
            if any(one.at == At.REST for one in others):
                yield f"{who} rests", self._lanes.settle(world, place, REST)
        elif world.cancelled and Rule.CANCEL_SETTLES in self._without:
            yield f"{who} ends the cancelled task", self._lanes.end(world, place[0], Task.ENDED)
        elif world.rows[row] == NOTHING:
            yield from self._open(world, place, run, row)
        else:
            yield from self._reconcile(world, place, run, lane, row)

    def _open(self, world: World, place: Place, run: Run, row: int) -> Moves:
        who, name = f"epoch {run.epoch}", self._lanes.name(row)
        if world.cancelled:
            yield f"{who} begins no {name}: cancelled", self._lanes.settle(world, place, DONE)
            return
        number = self._lanes.open_row(world, run, row)
        rows = put(world.rows, row, number)
        if self._rules.states[number] is StepState.UNKNOWN:
            yield f"{who} opens the suspect {name}", world._replace(rows=rows)
            return
        if self._setup.approval:
            yield f"{who} writes: {name} planned", world._replace(rows=rows)
            return
        lane = Lane(At.SEND, row, Reply.NONE)
        moved = self._lanes.moved(world, place, lane)
        if Rule.INTENT in self._without:
            yield f"{who} begins {name} and writes nothing", moved
            return
        rows = put(rows, row, self._rules.start_new(number, run.epoch))
        yield f"{who} writes: {name} planned and started", moved._replace(rows=rows)

    def _reconcile(self, world: World, place: Place, run: Run, lane: Lane, row: int) -> Moves:
        who, name, number = f"epoch {run.epoch}", self._lanes.name(row), world.rows[row]
        state = self._rules.states[number]
        if world.cancelled and state is StepState.PLANNED:
            rows = put(world.rows, row, self._rules.record(number, Event.SKIP, run.epoch))
            yield f"{who} writes: {name} skipped, cancelled", world._replace(rows=rows)
            return
        if world.cancelled and Rule.SKIP_UNSENT in self._without:
            rows = put(world.rows, row, self._rules.forced(number, StepState.SKIPPED))
            yield f"{who} writes: {name} skipped, in doubt", world._replace(rows=rows)
            return
        quiet = self._places.is_quiet(world, row)
        evidence = bool(world.evidence >> row & 1)
        if self._setup.approval and state is StepState.PLANNED and not evidence:
            if world.declined >> row & 1:
                rows = put(world.rows, row, self._rules.record(number, Event.SKIP, run.epoch))
                yield f"{who} writes: {name} skipped, not approved", world._replace(rows=rows)
                return
            if not world.granted >> row & 1:
                yield f"{who} rests for an approval", self._lanes.settle(world, place, REST)
                return
        if state is StepState.PARKED and not evidence and self._lanes.answers(world, row):
            yield from self._take_answer(world, run, row, quiet=quiet)
            return
        step = self._rules.rows[number].step
        started = 0 if step is None else step.epoch
        situation = Situation(
            row=number,
            epoch=run.epoch,
            quiet=quiet,
            window=world.window,
            lookup=lane.reply,
            unsent=self._unsent(world, row, started, run.epoch),
            evidence=evidence,
            approved=not self._setup.approval or bool(world.granted >> row & 1),
        )
        move, after = self._rules.move(situation)
        ready = self._lanes.moved(world, place, READY)
        rows = put(world.rows, row, after)
        match move:
            case Move.REST:
                yield f"{who} rests", self._lanes.settle(world, place, REST)
            case Move.ADOPT:
                left = world.evidence & ~(1 << row)
                yield (f"{who} writes: {name} succeeded, by evidence", ready._replace(rows=rows, evidence=left))
            case Move.UNSEND:
                clear = tuple(one for one in world.clear if one[0] != row)
                yield (f"{who} writes: {name} was not sent, its page shows", ready._replace(rows=rows, clear=clear))
            case Move.START:
                sending = self._lanes.moved(world, place, Lane(At.SEND, row, Reply.NONE))
                yield f"{who} writes: {name} started again", sending._replace(rows=rows)
            case Move.ASK:
                yield from self._ask(world, place, run, row)
            case Move.FIND:
                yield f"{who} writes: {name} succeeded, found", ready._replace(rows=rows)
            case Move.PARK:
                yield f"{who} writes: {name} parked", ready._replace(rows=rows)
            case Move.USE | Move.WAIT:
                return

    def _ask(self, world: World, place: Place, run: Run, row: int) -> Moves:
        answer = self._looked_up(world, row)
        asked = self._lanes.moved(world, place, Lane(At.ASKED, row, answer))
        name = self._lanes.name(row)
        yield f"epoch {run.epoch} asks about {name}: {answer.name.lower()}", asked
        if world.left.unsure:
            unsure = self._lanes.moved(world, place, Lane(At.ASKED, row, Reply.UNSURE))
            left = world.left._replace(unsure=world.left.unsure - 1)
            yield f"epoch {run.epoch} asks about {name}: unsure", unsure._replace(left=left)

    def _looked_up(self, world: World, row: int) -> Reply:
        """What the lookup says; of a suspect slot also the retry slots that may follow it."""
        mine = self._rules.rows[world.rows[row]]
        rows = [row]
        width = self._places.width
        if mine.restored and self._setup.opens_slots and Rule.SLOTS_ASKED not in self._without:
            first = row % width == 0
            if first or Rule.LATER_SLOTS_ASKED not in self._without:
                rows = [*range(row + 1, (row // width + 1) * width), row]
        for one in rows:
            if world.effects[one]:
                return Reply.FOUND if bool(world.others >> one & 1) == mine.other else Reply.OTHER
        return Reply.ABSENT

    def _unsent(self, world: World, row: int, started: int, epoch: int) -> bool:
        if not self._setup.pages or not started or started == epoch:
            return False
        if Rule.DEAD_PAGE in self._without and any(
            run.epoch == started and lane.at == At.SEND and lane.row == row for run in world.runs for lane in run.lanes
        ):
            return True
        return (row, started) in world.clear

    # people's decisions

    def _take_answer(self, world: World, run: Run, row: int, *, quiet: bool) -> Moves:
        answer = world.answer
        if answer is None or not (quiet or Rule.SETTLE_IN_QUIET in self._without):
            return
        event = _SETTLE[answer.verdict]
        number = self._rules.record(world.rows[row], event, run.epoch, quiet=quiet)
        yield (
            f"epoch {run.epoch} writes: {self._lanes.name(row)} settled, {answer.verdict}",
            world._replace(rows=put(world.rows, row, number), answer=None),
        )
