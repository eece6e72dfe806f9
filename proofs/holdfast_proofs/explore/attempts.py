"""Attempts: a lane sends, waits, and writes what came of it.

The order is that of runtime/step/sending.py: the start is durable, the page is marked, the first byte
leaves, the outcome is written. A stale run writes nothing and leaves what it saw as evidence.
"""

from __future__ import annotations

from holdfast.core.step import Event, StepState
from holdfast_proofs.explore.lanes import READY, Lanes, Moves, Place, more, put, woken
from holdfast_proofs.explore.places import BLOCKED, Places
from holdfast_proofs.explore.rules import NOTHING, Rules
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import At, Finding, Lane, Reply, Request, Run, World


class Attempts:
    def __init__(self, setup: Setup, rules: Rules, places: Places, lanes: Lanes) -> None:
        self._setup = setup
        self._rules = rules
        self._places = places
        self._lanes = lanes
        self._without = setup.without

    def send(self, world: World, place: Place, run: Run, lane: Lane) -> Moves:
        who, row, name = f"epoch {run.epoch}", lane.row, self._lanes.name(lane.row)
        letter = self._places.letter_of[row]
        if letter == "T":
            moved = self._lanes.moved(world, place, Lane(At.REPLIED, row, Reply.OK))
            if Rule.ONE_COMMIT in self._without:
                moved = moved._replace(effects=more(world.effects, row))
            yield f"{who} calls the tool of {name}", moved
            return
        if lane.at == At.SENT or (lane.at == At.SEND and self._setup.pages and Rule.MARK_FIRST not in self._without):
            at = At.WAIT if lane.at == At.SENT else At.MARKED
            yield (f"{who} marks the send of {name}", self._lanes.moved(world, place, lane._replace(at=at)))
            return
        late = self._setup.pages and Rule.MARK_FIRST in self._without
        moved = self._lanes.moved(world, place, Lane(At.SENT if late else At.WAIT, row, Reply.NONE))
        lost = run.epoch < world.restored
        other = not lost and self._rules.rows[world.rows[row]].other
        request = Request(row, run.epoch, True, lost, other)
        yield f"{who} sends {name}", moved._replace(net=tuple(sorted((*world.net, request))))

    def wait(self, world: World, place: Place, run: Run, lane: Lane) -> Moves:
        under_way = any(one.awaited and one.epoch == run.epoch and one.row == lane.row for one in world.net)
        if under_way and not world.left.loss:
            return
        if under_way:
            world = world._replace(left=world.left._replace(loss=world.left.loss - 1))
        yield from self._give_up(world, place, run, lane, f"epoch {run.epoch} waits no longer")

    def _give_up(self, world: World, place: Place, run: Run, lane: Lane, how: str) -> Moves:
        """No outcome is known: doubt, never failure. A Read or Transactional one runs again."""
        name, number = self._lanes.name(lane.row), world.rows[lane.row]
        if self._lanes.is_fenced(world, run):
            yield f"{how}, and is fenced", self._lanes.leave(world, place)
            return
        ready = self._lanes.moved(world, place, READY)
        ready = ready._replace(net=self._lanes.orphaned(ready.net, run.epoch, lane.row))
        if number == NOTHING:
            yield how, ready  # it has written no start either
            return
        harmless = self._places.letter_of[lane.row] in ("R", "T")
        events = (Event.RETRY, Event.FAIL) if harmless else (Event.DOUBT,)
        if Rule.TIMEOUT in self._without:
            events = (Event.REFUSE,)
        for event in events:
            if self._refused_weakly(number, event, run.epoch):
                late = ready if run.epoch == world.epoch else self._lanes.leave(world, place)
                yield f"{how}, too late", late
                continue
            rows = put(world.rows, lane.row, self._rules.record(number, event, run.epoch))
            state = self._rules.states[rows[lane.row]]
            yield f"{how}; writes: {name} {state}", ready._replace(rows=rows)

    def conclude(self, world: World, place: Place, run: Run, lane: Lane) -> Moves:
        """The answer is there: it is recorded, or it is lost on its last inch."""
        who, row, number = f"epoch {run.epoch}", lane.row, world.rows[lane.row]
        name = self._lanes.name(row)
        if self._lanes.is_fenced(world, run):
            yield from self._fenced_answer(world, place, run, lane)
            return
        if world.left.loss and self._places.letter_of[row] != "T":
            left = world.left._replace(loss=world.left.loss - 1)
            lost = world._replace(left=left)
            yield from self._give_up(lost, place, run, lane, f"{who} loses the answer")
        ready = self._lanes.moved(world, place, READY)
        for event in self._outcomes(number, lane.reply, run.epoch):
            if self._refused_weakly(number, event, run.epoch):
                if run.epoch == world.epoch:
                    yield f"{who} finds {name} written by another", ready
                else:
                    yield from self._fenced_answer(world, place, run, lane)
                continue
            after = self._rules.record(number, event, run.epoch)
            if lane.reply == Reply.REUSED:
                after = self._rules.with_reuse(after)
            new = ready._replace(rows=put(world.rows, row, after))
            if event is not Event.SUCCEED:
                yield f"{who} writes: {name} {self._rules.states[after]}", new
                continue
            if lane.reply == Reply.OK_OTHER:
                raise Finding(f"I2 {name} is recorded as done; what was done has another body")
            if self._places.letter_of[row] == "T" and Rule.ONE_COMMIT not in self._without:
                new = new._replace(effects=more(world.effects, row))
            yield from self._merged(new, place, run, row)

    def _merged(self, new: World, place: Place, run: Run, row: int) -> Moves:
        who, name = f"epoch {run.epoch}", self._lanes.name(row)
        merges = self._setup.merged and not self._setup.approval
        following = self._places.next_row(new, place[1]) if merges else BLOCKED
        if following >= 0 and new.rows[following] == NOTHING and not new.cancelled:
            number = self._lanes.open_row(new, run, following)
            if self._rules.states[number] is StepState.PLANNED:
                number = self._rules.start_new(number, run.epoch)
                sending = self._lanes.moved(new, place, Lane(At.SEND, following, Reply.NONE))
                yield (
                    f"{who} writes: {name} succeeded, and {self._lanes.name(following)} started",
                    sending._replace(rows=put(new.rows, following, number)),
                )
                return
        yield f"{who} writes: {name} succeeded", new

    def _outcomes(self, number: int, reply: int, epoch: int) -> tuple[Event, ...]:
        match reply:
            case Reply.OK | Reply.OK_OTHER:
                if Rule.INTENT in self._without:
                    return ()
                return (Event.SUCCEED,)
            case Reply.REFUSED:
                again = self._setup.retries and self._rules.allows(number, Event.RETRY, epoch)
                return (Event.REFUSE, Event.RETRY) if again else (Event.REFUSE,)
            case _:
                return (Event.DOUBT,)

    def _fenced_answer(self, world: World, place: Place, run: Run, lane: Lane) -> Moves:
        """A stale run writes nothing; what it saw succeed it leaves as evidence."""
        who, row = f"epoch {run.epoch}", lane.row
        gone = self._lanes.leave(world, place)
        silent = self._places.letter_of[row] in ("R", "T") or (
            # Its journal is not the restored one, and its arguments may be others.
            self._setup.other_arguments and run.epoch < world.restored
        )
        if lane.reply != Reply.OK or silent or self._rules.closed[world.rows[row]]:
            yield f"{who} is fenced", gone
            return
        told = gone._replace(evidence=world.evidence | 1 << row)
        yield f"{who} is fenced and leaves evidence of {self._lanes.name(row)}", woken(told)

    def _refused_weakly(self, number: int, event: Event, epoch: int) -> bool:
        """Without the epoch check a stale record meets a row that has moved on."""
        if not self._lanes.unfenced or self._rules.allows(number, event, epoch):
            return False
        if Rule.EPOCH in self._without:
            state = self._rules.states[number]
            raise Finding(f"I7 a stale run writes {event.name.lower()} over a step that is {state}")
        return True
