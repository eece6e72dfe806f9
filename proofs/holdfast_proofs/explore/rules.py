"""The bridge to production: every row of the model is made by `next_step`, every move by `decide`.

Nothing of the protocol is written down here a second time. This module works out the facts, asks
`decide`, has the proposed event checked by `next_step`, and remembers the answer, because the
same question comes up in thousands of states. A proposal that is refused is a finding of its own
(X1): the two production functions would contradict each other.

A row is a number. Behind it stands the production `Step` with what the journal's view adds to it
(was it restored, was anything tried, is its key known with another body). Fields that no rule
reads in a given state are set to one value, so that they do not multiply states: the epoch and
`alone` outside `started`, counters of closed steps, attempts beyond the limit that is asked for.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import msgspec

from holdfast.core.effect import Letter
from holdfast.core.resume import Move, decide
from holdfast.core.step import CLOSED, Event, Facts, Lookup, NotAllowed, Step, StepState, next_step
from holdfast_proofs.explore.setup import Rule, Setup
from holdfast_proofs.explore.world import Finding, Reply

NOTHING = 0  # the number of the row that is not there

_EVENTS: dict[Move, Event] = {
    Move.ADOPT: Event.ADOPT,
    Move.UNSEND: Event.UNSENT,
    Move.START: Event.START,
    Move.FIND: Event.FIND,
    Move.PARK: Event.PARK,
}
_LOOKUPS = {
    Reply.NONE: Lookup.NONE,
    Reply.FOUND: Lookup.FOUND,
    Reply.ABSENT: Lookup.ABSENT,
    Reply.UNSURE: Lookup.UNSURE,
    Reply.OTHER: Lookup.OTHER,
}


class Row(NamedTuple):
    step: Step | None
    restored: bool = False  # its slot may have been used in a lost timeline
    tried: bool = False  # the view holds an attempt
    reused: bool = False  # the far end knows its key with another body
    asked: int = 0  # the epoch under which it was parked
    other: bool = False  # its arguments are not those of the lost timeline


class Situation(NamedTuple):
    """All that a run knows when it decides about an open row."""

    row: int
    epoch: int
    quiet: bool
    window: bool
    lookup: int
    unsent: bool
    evidence: bool
    approved: bool


class Rules:
    """The production functions, remembered; with the rule of the setup taken out."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.rows: list[Row] = []
        self.states: list[StepState | None] = []
        self.closed: list[bool] = []
        self._numbers: dict[Row, int] = {}
        self._moves: dict[Situation, tuple[Move, int]] = {}
        self._records: dict[tuple[int, Event, int, bool], int] = {}
        self._opened: dict[tuple[Letter, Event, int, bool, bool], int] = {}
        self._restored: dict[int, int] = {}
        self._number(Row(None))

    def move(self, situation: Situation) -> tuple[Move, int]:
        """What `decide` proposes, and the row after it where it is written at once."""
        known = self._moves.get(situation)
        if known is None:
            known = self._moves[situation] = self._decided(situation)
        return known

    def record(self, row: int, event: Event, epoch: int, *, quiet: bool = False) -> int:
        """The row after an outcome or a decision was written; a Finding where it is refused."""
        key = (row, event, epoch, quiet)
        known = self._records.get(key)
        if known is None:
            old = self.rows[row]
            known = self._records[key] = self._written(old, event, self._outcome_facts(*key))
        return known

    def allows(self, row: int, event: Event, epoch: int) -> bool:
        """Whether `next_step` lets this outcome be written."""
        old = self.rows[row]
        if old.step is None:
            return False
        facts = self._outcome_facts(row, event, epoch, quiet=False)
        return not isinstance(next_step(old.step, event, facts, letter=old.step.letter), NotAllowed)

    def open(self, letter: Letter, event: Event, epoch: int, *, previous_closed: bool, other: bool) -> int:
        """The row of a slot that is planned, or opened as suspect."""
        key = (letter, event, epoch, previous_closed, other)
        known = self._opened.get(key)
        if known is None:
            facts = Facts(epoch=epoch, owner=True, previous_closed=previous_closed, quiet=True)
            new = self._written(Row(None, other=other), event, facts, letter=letter)
            known = self._opened[key] = new
        return known

    def start_new(self, row: int, epoch: int) -> int:
        """The start that shares its commit with the plan."""
        return self.record(row, Event.START, epoch, quiet=True)

    def restore(self, row: int) -> int:
        """What a restore makes of a row that the copy holds (T14)."""
        known = self._restored.get(row)
        if known is None:
            old = self.rows[row]
            known = row
            if old.step is not None and not self.closed[row]:
                facts = Facts(owner=True)
                known = self._written(old, Event.RESTORE, facts)
            self._restored[row] = known
        return known

    def with_reuse(self, row: int) -> int:
        """The row of an attempt that met its key under another body."""
        return self._number(self.rows[row]._replace(reused=True))

    def forced(self, row: int, state: StepState) -> int:
        """A row that no rule allows: for drivers that do without one."""
        step = self.rows[row].step
        if step is None:
            raise Finding("X1 there is no row to force")
        return self._number(Row(msgspec.structs.replace(step, state=state)))

    def _decided(self, situation: Situation) -> tuple[Move, int]:
        row = self.rows[situation.row]
        if row.step is None:
            raise Finding("X1 there is no row to decide about")
        facts = self._facts(row, row.step, situation)
        move = decide(row.step, facts)
        match move:
            case Move.USE | Move.REST | Move.WAIT | Move.ASK:
                return move, situation.row
            case Move.ADOPT | Move.UNSEND | Move.START | Move.FIND | Move.PARK:
                return move, self._written(row, _EVENTS[move], facts)
            case _:
                assert_never(move)

    def _facts(self, row: Row, step: Step, now: Situation) -> Facts:
        setup = self.setup
        without = setup.without
        keyed = step.letter == "K"
        window = now.window or Rule.WINDOW in without
        return Facts(
            epoch=now.epoch,
            owner=True,
            previous_closed=True,
            approved=now.approved or Rule.APPROVAL in without,
            lease_ok=True,  # the worst case: whoever starts may be late
            quiet=now.quiet or Rule.ASK_IN_QUIET in without,
            in_window=keyed and window and not self._must_ask_first(row),
            attempts_left=setup.attempts == 0 or step.attempts < setup.attempts,
            lookup=_LOOKUPS[Reply(now.lookup)],
            has_lookup=step.letter == "Q" or (keyed and setup.lookup),
            unsent=now.unsent,
            evidence=now.evidence,
            key_reused=row.reused,
            at_least_once=setup.at_least_once or Rule.AT_MOST_ONCE in without,
            refusals_stored=setup.refusals_stored,
        )

    def _must_ask_first(self, row: Row) -> bool:
        """As runtime/step/reconcile.py has it: what a lost timeline may have used is not just sent."""
        setup = self.setup
        if not row.restored or row.tried:
            return False
        ignored = not setup.bodies_compared and Rule.BODY_COMPARED not in setup.without
        return ignored or setup.lookup or setup.opens_slots

    def _outcome_facts(self, row: int, event: Event, epoch: int, quiet: bool) -> Facts:
        step = self.rows[row].step
        if step is not None and event not in (Event.START, Event.PLAN):
            weak = self.setup.without & {Rule.EPOCH, Rule.EPOCH_NOT_STATE}
            epoch = step.epoch if weak else epoch
            quiet = quiet or Rule.SETTLE_IN_QUIET in self.setup.without
        return Facts(
            epoch=epoch,
            owner=True,
            previous_closed=True,
            lease_ok=True,
            quiet=quiet,
            refusals_stored=self.setup.refusals_stored,
        )

    def _written(self, old: Row, event: Event, facts: Facts, letter: Letter | None = None) -> int:
        step = old.step
        without = self.setup.without
        if step is not None and event is Event.REFUSE and Rule.ALONE in without:
            step = msgspec.structs.replace(step, alone=True)
        kind = letter if step is None else step.letter
        if kind is None:
            raise Finding(f"X1 {event.name.lower()} of a row that is not there")
        new = next_step(step, event, facts, letter=kind)
        if isinstance(new, NotAllowed):
            before = "nothing" if step is None else step.state
            raise Finding(f"X1 {event.name.lower()} of a step that is {before}: {new.why}")
        if event is Event.START and Rule.FORGETFUL in without:
            new = msgspec.structs.replace(new, alone=new.alone or facts.quiet)
        return self._number(_viewed(old, new, event, facts))

    def _number(self, row: Row) -> int:
        row = self._plain(row)
        number = self._numbers.get(row)
        if number is None:
            number = self._numbers[row] = len(self.rows)
            self.rows.append(row)
            state = None if row.step is None else row.step.state
            self.states.append(state)
            self.closed.append(state in CLOSED)
        return number

    def _plain(self, row: Row) -> Row:
        """The row with every field that no rule reads any more set to one value."""
        step = row.step
        if step is None:
            return row
        started = step.state is StepState.STARTED
        sent = step.maybe_sent if self.setup.pages else min(step.maybe_sent, 2)
        if step.state in CLOSED:
            return Row(Step(letter=step.letter, state=step.state))
        plain = Step(
            letter=step.letter,
            state=step.state,
            attempts=min(step.attempts, self.setup.attempts or 1),
            maybe_sent=1 if step.state is StepState.PARKED else sent,
            epoch=step.epoch if started else 0,
            alone=step.alone and started,
        )
        parked = step.state is StepState.PARKED and self.setup.person
        return row._replace(step=plain, tried=row.tried and self.setup.restores > 0, asked=row.asked if parked else 0)


def _viewed(old: Row, step: Step, event: Event, facts: Facts) -> Row:
    """What the journal's view keeps beside the step, as journal/records.py folds it."""
    row = old._replace(step=step)
    match event:
        case Event.START:
            return row._replace(tried=True)
        case Event.DOUBT | Event.UNSENT | Event.RETRY | Event.REFUSE:
            return row._replace(reused=False)
        case Event.PARK:
            return row._replace(asked=facts.epoch)
        case Event.SETTLE_DONE | Event.SETTLE_RUN | Event.SETTLE_SKIP | Event.SKIP:
            return row._replace(tried=False)
        case Event.RESTORE:
            return row._replace(restored=True, reused=False)
        case Event.PLAN | Event.SUCCEED | Event.FAIL | Event.FIND | Event.ADOPT:
            return row
        case _:
            assert_never(event)
