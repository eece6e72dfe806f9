"""I1 to I9 over one task's story: a pure function, values in, breaches out.

| | Holds | Seen here by |
|---|---|---|
| I1 | no step takes effect twice | the books, per base ordinal |
| I2 | recorded succeeded: it took effect | records against books |
| I3 | recorded failed or skipped: it never did | records against books |
| I4 | an effect has an earlier start with its key | the one order |
| I5 | no start while the step before in its chain is open | the records' order |
| I6 | no older write lands after a newer one on a resource | the books' order |
| I7 | closed steps never change; no record is missing | the records folded |
| I8 | epochs only rise, each has one owner | records, workers |
| I9 | one key per slot, one slot and one body per key | records, requests |

Steps are folded with production's own `apply`, which refuses what cannot follow; everything else
is counted here and nowhere else. I5 is not looked for behind a restore, where slots of a lost
timeline come back as suspects. What a person has settled as done rests on the person's word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from holdfast.core.effect import Letter
from holdfast.core.ordinal import sort_key
from holdfast.core.step import CLOSED, Event, Step, StepState, apply
from holdfast.errors import InvariantViolated
from holdfast.journal.records import RecordKind
from holdfast_proofs.history.story import Story, Told, base_of, find_cause, in_one_order

_ONCE: frozenset[Letter] = frozenset(("T", "F", "K", "Q", "N"))


class Breach(msgspec.Struct, frozen=True):
    letter: str
    text: str

    def __str__(self) -> str:
        return f"{self.letter}: {self.text}"


class _Slot:
    """One step's records, folded."""

    def __init__(self, letter: Letter) -> None:
        self.letter: Letter = letter
        self.step: Step | None = None
        self.first_start = 0
        self.closed_by = 0
        self.events: list[Event] = []


def check(story: Story) -> list[Breach]:
    """Every breach that the story holds."""
    slots: dict[str, _Slot] = {}
    found = list(_fold(story, slots))
    found.extend(_epochs(story))
    found.extend(_keys(story))
    found.extend(_chains(story, slots))
    if story.books:
        found.extend(_counts(story, slots))
        found.extend(_causes(story))
        found.extend(_writes(story, slots))
    return found


def _fold(story: Story, slots: dict[str, _Slot]) -> Iterator[Breach]:
    """I7, and the states that the other letters need."""
    before = -1
    for record in sorted(story.records, key=lambda one: one.number):
        if record.seq != before + 1:
            yield Breach("I7", f"record {record.seq} follows {before}")
        before = record.seq
        if record.kind is RecordKind.STEP:
            letter = story.letters.get(record.ordinal, "N")
            yield from _fold_step(slots.setdefault(record.ordinal, _Slot(letter)), record)


def _fold_step(slot: _Slot, record: Told) -> Iterator[Breach]:
    for event in record.events:
        if slot.step is not None and slot.step.state in CLOSED:
            yield Breach(
                "I7", f"record {record.seq}: {event.name.lower()} after step {record.ordinal} was {slot.step.state}"
            )
            return
        try:
            slot.step = apply(slot.step, event, epoch=record.epoch, quiet=record.quiet, letter=slot.letter)
        except InvariantViolated as error:
            yield Breach("I7", f"record {record.seq}, step {record.ordinal}: {error.message}")
            return
        slot.events.append(event)
        if event is Event.START and not slot.first_start:
            slot.first_start = record.number
        if slot.step.state in CLOSED:
            slot.closed_by = record.number


def _epochs(story: Story) -> Iterator[Breach]:
    """I8: by the records' order, and by what the workers say."""
    epoch = 0
    claims = Counter[int]()
    for record in sorted(story.records, key=lambda one: one.number):
        if record.epoch < epoch:
            yield Breach("I8", f"record {record.seq} of epoch {record.epoch} follows {epoch}")
        if record.kind is RecordKind.CLAIMED:
            claims[record.epoch] += 1
            if record.epoch == epoch:
                yield Breach("I8", f"epoch {epoch} was claimed again by record {record.seq}")
        elif record.epoch and record.epoch not in claims:
            yield Breach("I8", f"record {record.seq}: nobody has claimed epoch {record.epoch}")
        epoch = max(epoch, record.epoch)
    owners: dict[int, set[str]] = {}
    for held in story.holders:
        owners.setdefault(held.epoch, set()).add(held.worker)
    for held_epoch, workers in owners.items():
        if len(workers) > 1:
            yield Breach("I8", f"epoch {held_epoch} has owners {sorted(workers)}")
        if held_epoch not in claims:
            yield Breach("I8", f"{sorted(workers)} hold epoch {held_epoch}; it is not recorded")


def _keys(story: Story) -> Iterator[Breach]:
    """I9: slot, key, fingerprint and body belong together, one to one."""
    key_of: dict[str, str] = {}
    slot_of: dict[str, str] = {}
    print_of: dict[str, str] = {}
    for record in story.records:
        if not record.key:
            continue
        if key_of.setdefault(record.ordinal, record.key) != record.key:
            yield Breach("I9", f"step {record.ordinal} has two keys")
        if slot_of.setdefault(record.key, record.ordinal) != record.ordinal:
            yield Breach("I9", f"steps {slot_of[record.key]} and {record.ordinal} share key {record.key}")
        if print_of.setdefault(record.key, record.fingerprint) != record.fingerprint:
            yield Breach("I9", f"key {record.key} stands for two calls")
    body_of: dict[str, str] = {}
    for asked in story.requests:
        wanted = key_of.get(asked.step)
        if asked.key and wanted and asked.key != wanted:
            yield Breach("I9", f"request {asked.n} of step {asked.step} has key {asked.key}")
        if body_of.setdefault(asked.step, asked.body) != asked.body:
            yield Breach("I9", f"request {asked.n} of step {asked.step} has another body")


def _chains(story: Story, slots: dict[str, _Slot]) -> Iterator[Breach]:
    """I5: within one chain a step starts behind the end of the one before."""
    if any(record.kind is RecordKind.RESTORED for record in story.records):
        return
    chains: dict[str, list[str]] = {}
    for ordinal in sorted(slots, key=sort_key):
        head, _, last = ordinal.rpartition(".")
        if last.isdecimal():
            chains.setdefault(head, []).append(ordinal)
    for chain in chains.values():
        for before, after in pairwise(chain):
            start, end = slots[after].first_start, slots[before].closed_by
            if start and (not end or start < end):
                yield Breach("I5", f"step {after} was started while step {before} was open")


def _counts(story: Story, slots: dict[str, _Slot]) -> Iterator[Breach]:
    """I1, I2, I3: how often each step was done against what is recorded of it."""
    done = Counter(base_of(effect.step) for effect in story.effects)
    for ordinal, count in done.items():
        letter = story.letters.get(ordinal)
        if count > 1 and letter in _ONCE:
            yield Breach("I1", f"step {ordinal} took effect {count} times")
    exact = Counter(effect.step for effect in story.effects)
    for ordinal, slot in slots.items():
        state = None if slot.step is None else slot.step.state
        excused = Event.SETTLE_DONE in slot.events or slot.letter in story.unseen
        if state is StepState.SUCCEEDED and not exact[ordinal] and not excused:
            yield Breach("I2", f"step {ordinal} is recorded as succeeded and was never done")
        if state in (StepState.FAILED, StepState.SKIPPED) and exact[ordinal] and slot.letter != "R":
            yield Breach("I3", f"step {ordinal} is recorded as {state} and was done")


def _causes(story: Story) -> Iterator[Breach]:
    """I4: an effect behind a start of its step, under the key that the plan fixed."""
    planned = {record.ordinal: record.key for record in story.records if record.key}
    for effect in story.effects:
        if find_cause(story, effect) is None:
            yield Breach("I4", f"effect {effect.n} of step {effect.step} has no earlier start")
        wanted = planned.get(effect.step)
        if effect.key and wanted and effect.key != wanted:
            yield Breach("I4", f"effect {effect.n} of step {effect.step} has key {effect.key}")


def _writes(story: Story, slots: dict[str, _Slot]) -> Iterator[Breach]:
    """I6: on one resource the causes of the writes never fall back."""
    newest: dict[str, tuple[int, str]] = {}
    for effect in sorted(story.effects, key=lambda one: one.n):
        if effect.resource is None or effect.step not in slots:
            continue
        cause = slots[effect.step].first_start if effect.fence is None else effect.fence
        held, step = newest.get(effect.resource, (0, ""))
        if cause < held and step != effect.step:
            yield Breach(
                "I6", f"effect {effect.n} of step {effect.step} landed on {effect.resource} after that of step {step}"
            )
        newest[effect.resource] = max(newest.get(effect.resource, (0, "")), (cause, effect.step))


def told(story: Story) -> list[str]:
    """The one order in words, for a person."""
    lines: list[str] = []
    for one in in_one_order(story):
        if isinstance(one, Told):
            events = " ".join(event.name.lower() for event in one.events)
            what = f"{one.kind.name.lower()} {one.ordinal} {events}".strip()
            lines.append(f"{one.at_ms} record {one.number} epoch {one.epoch} {what}")
        else:
            lines.append(f"{one.at_ms} EFFECT {one.n} of step {one.step}")
    return lines
