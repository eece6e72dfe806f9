"""Everything but the runs: requests land or are lost, processes die, leases end, people act.

The far end keeps its contract and nothing more: it knows keys for their window, refuses lower
fences, may refuse anything else. A request lands at any time after it was sent, also after its
sender has died or given up. A restore puts back any earlier state of the journal.
"""

from __future__ import annotations

from holdfast.core.step import StepState
from holdfast_proofs.explore.lanes import Lanes, Moves, woken
from holdfast_proofs.explore.places import Places
from holdfast_proofs.explore.rules import Rules
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import Answer, At, Copy, Finding, Lane, Reply, Request, Run, Task, World


class Surroundings:
    def __init__(self, setup: Setup, rules: Rules, places: Places, lanes: Lanes) -> None:
        self._setup = setup
        self._rules = rules
        self._places = places
        self._lanes = lanes
        self._without = setup.without
        # Where all branches draw one key, the far end takes their calls for repeats of one.
        shared = Rule.OWN_KEYS in setup.without
        self._key_of = tuple(0 if shared else row for row in range(places.count))

        self._windowless = sum(1 << key for key, letter in enumerate(places.letter_of) if letter == "F")

    def moves(self, world: World) -> Moves:
        yield from self._network(world)
        yield from self._crashes(world)
        left = world.left
        if left.lapse and world.task == Task.HELD:
            yield (
                f"the lease of epoch {world.epoch} ends",
                world._replace(task=Task.FREE, left=left._replace(lapse=left.lapse - 1)),
            )
        if self._setup.window_closes and world.window and self._may_close(world):
            kept = self._windowless  # a fenced far end knows its keys for good
            closed = world._replace(
                window=False, keys=world.keys & kept, others=world.others & kept, refused=world.refused & kept
            )
            yield "the key window closes", closed
        if self._setup.person:
            yield from self._person(world)
        if self._setup.approval:
            yield from self._approver(world)
        if left.webhook:
            yield from self._webhook(world)
        if left.cancel and world.task != Task.ENDED:
            asked = world._replace(cancelled=True, left=left._replace(cancel=left.cancel - 1))
            yield "a person cancels the task", woken(asked)
        if left.restores:
            yield from self._restores(world)

    def _may_close(self, world: World) -> bool:
        """Production sends nothing that could arrive later than its window (rule 9)."""
        return self._places.all_quiet(world) or Rule.WINDOW_OUTLIVES in self._without

    # the network and the far end

    def _network(self, world: World) -> Moves:
        before: Request | None = None
        for at, request in enumerate(world.net):
            if request == before:
                continue
            before = request
            net = (*world.net[:at], *world.net[at + 1 :])
            yield from self._lands(world._replace(net=net), request)
            if world.left.loss:
                left = world.left._replace(loss=world.left.loss - 1)
                yield (f"a request of {self._lanes.name(request.row)} is lost", world._replace(net=net, left=left))

    def _lands(self, world: World, request: Request) -> Moves:
        row = request.row
        letter, name = self._places.letter_of[row], self._lanes.name(row)
        bit = 1 << self._key_of[row]
        known = letter in ("K", "F") and world.keys & bit and Rule.KEY not in self._without
        if letter == "R":
            yield f"the far end answers {name}", _reply(world, request, Reply.OK)
        elif letter == "F" and request.epoch < world.fence and Rule.FENCE not in self._without:
            yield f"the far end fences {name} off", _reply(world, request, Reply.FENCED)
        elif known:
            same = bool(world.others & bit) == request.other
            reply = Reply.OK if same else self._other_body()
            yield f"the far end knows the key of {name}", _reply(world, request, reply)
        elif world.refused & bit:
            yield (f"the far end repeats its refusal of {name}", _reply(world, request, Reply.REFUSED))
        else:
            yield f"the far end does {name}", self._done(world, request, letter)
            if world.left.refusals:
                left = world.left._replace(refusals=world.left.refusals - 1)
                kept = world.refused | (bit if self._setup.refusals_stored else 0)
                refused = world._replace(refused=kept, left=left)
                yield f"the far end refuses {name}", _reply(refused, request, Reply.REFUSED)

    def _done(self, world: World, request: Request, letter: str) -> World:
        row = request.row
        if not request.lost and not self._places.previous_closed(world, row):
            raise Finding(f"I5 {self._lanes.name(row)} is done while a step before it is open")
        if self._setup.approval and not request.lost and not world.granted >> row & 1:
            raise Finding(f"T2 {self._lanes.name(row)} is done without the approval it needs")
        bit = 1 << self._key_of[row]
        effects = world.effects
        effects = (*effects[:row], min(effects[row] + 1, 2), *effects[row + 1 :])
        world = world._replace(
            effects=effects,
            keys=world.keys | (bit if letter in ("K", "F") else 0),
            others=world.others | (bit if request.other else 0),
            fence=max(world.fence, request.epoch if letter == "F" else 0),
            last=self._places.step_of[row] if self._setup.same_resource else 0,
        )
        return _reply(world, request, Reply.OK)

    def _other_body(self) -> Reply:
        return Reply.REUSED if self._setup.bodies_compared else Reply.OK_OTHER

    # processes

    def _crashes(self, world: World) -> Moves:
        left = world.left
        if not left.crash:
            return
        for at, run in enumerate(world.runs):
            stale = run.epoch != world.epoch
            if stale and all(lane.at in (At.RUN, At.DONE) for lane in run.lanes):
                continue  # it ends by itself
            dead = world._replace(
                runs=(*world.runs[:at], *world.runs[at + 1 :]),
                net=self._lanes.orphaned(world.net, run.epoch),
                left=left._replace(crash=left.crash - 1),
                clear=tuple(sorted({*world.clear, *self._clear(world, run)})),
            )
            if not stale and world.task == Task.HELD:
                dead = dead._replace(task=Task.FREE)
            yield f"epoch {run.epoch} dies", dead

    def _clear(self, world: World, run: Run) -> list[tuple[int, int]]:
        """Attempts whose page shows that no byte has left."""
        if not self._setup.pages:
            return []
        early = (At.SEND, At.SENT)  # SENT: marked too late
        return [
            (lane.row, run.epoch)
            for lane in run.lanes
            if lane.at in early and self._started(world, lane.row) == run.epoch
        ]

    def _started(self, world: World, row: int) -> int:
        step = self._rules.rows[world.rows[row]].step
        return 0 if step is None else step.epoch

    # people and webhooks

    def _person(self, world: World) -> Moves:
        if world.answer is not None and self._is_live(world, world.answer):
            return
        width = self._places.width
        for row, number in enumerate(world.rows):
            if self._rules.states[number] is not StepState.PARKED:
                continue
            if not (self._places.is_quiet(world, row) or Rule.NOT_BEFORE in self._without):
                continue
            first = self._places.step_of[row] * width
            done = any(world.effects[first : first + width])
            verdicts = ("done",) if done else ("run", "skip") if self._setup.skips else ("run",)
            for verdict in verdicts:
                answer = Answer(row, verdict, self._rules.rows[number].asked)
                yield (
                    f"a person looks and decides about {self._lanes.name(row)}: {verdict}",
                    woken(world._replace(answer=answer)),
                )

    def _approver(self, world: World) -> Moves:
        for row, number in enumerate(world.rows):
            planned = self._rules.states[number] is StepState.PLANNED
            if not planned or (world.granted | world.declined) >> row & 1:
                continue
            name = self._lanes.name(row)
            granted = world._replace(granted=world.granted | 1 << row)
            declined = world._replace(declined=world.declined | 1 << row)
            yield f"a person approves {name}", woken(granted)
            yield f"a person does not approve {name}", woken(declined)

    def _is_live(self, world: World, answer: Answer) -> bool:
        """Whether the question still stands; an answer to an older one is only ballast."""
        number = world.rows[answer.row]
        parked = self._rules.states[number] is StepState.PARKED
        return parked and self._rules.rows[number].asked == answer.asked

    def _webhook(self, world: World) -> Moves:
        receipt = Rule.RECEIPT in self._without
        for row, number in enumerate(world.rows):
            told = world.effects[row] or (receipt and any(one.row == row for one in world.net))
            if not told or world.evidence >> row & 1 or self._rules.closed[number]:
                continue
            left = world.left._replace(webhook=world.left.webhook - 1)
            new = world._replace(evidence=world.evidence | 1 << row, left=left)
            yield f"a webhook says that {self._lanes.name(row)} was done", woken(new)

    # restore

    def _restores(self, world: World) -> Moves:
        if world.copy is None:
            if world.task != Task.ENDED:
                effects = tuple(
                    count if letter == "T" else 0
                    for count, letter in zip(world.effects, self._places.letter_of, strict=True)
                )
                copy = Copy(
                    rows=world.rows,
                    evidence=world.evidence,
                    answer=world.answer,
                    epoch=world.epoch if Rule.INCARNATION in self._without else 0,
                    effects=effects,
                    cancelled=world.cancelled,
                    granted=world.granted,
                    declined=world.declined,
                )
                yield "a copy of the journal is made", world._replace(copy=copy)
            return
        copy = world.copy
        blind = Rule.SUSPECT in self._without
        epoch = copy.epoch if Rule.INCARNATION in self._without else world.epoch + 1
        rows = copy.rows
        if not blind and Rule.SUSPECT_OPEN not in self._without:
            rows = tuple(self._rules.restore(number) for number in rows)
        yield (
            "the journal is lost and its copy restored",
            world._replace(
                rows=rows,
                epoch=epoch,
                task=Task.FREE,
                net=tuple(sorted(one._replace(lost=True) for one in world.net)),
                effects=tuple(
                    old if letter == "T" else now
                    for old, now, letter in zip(copy.effects, world.effects, self._places.letter_of, strict=True)
                ),
                evidence=copy.evidence,
                answer=copy.answer,
                clear=(),
                cancelled=copy.cancelled,
                granted=copy.granted,
                declined=copy.declined,
                restored=0 if blind else epoch,
                copy=None,
                left=world.left._replace(restores=world.left.restores - 1),
            ),
        )


def _reply(world: World, request: Request, reply: Reply) -> World:
    """Hand the answer to whoever waits for it."""
    if not request.awaited:
        return world
    for at, run in enumerate(world.runs):
        if run.epoch != request.epoch:
            continue
        for number, lane in enumerate(run.lanes):
            if lane.at == At.WAIT and lane.row == request.row:
                got = Lane(At.REPLIED, lane.row, reply)
                lanes = (*run.lanes[:number], got, *run.lanes[number + 1 :])
                runs = (*world.runs[:at], Run(run.epoch, lanes), *world.runs[at + 1 :])
                return world._replace(runs=runs)
    return world
