"""The judge: what the far end counted against what the journal says.

* duplicate: a step took effect more than once (for Idempotent: in a way that shows);
* lost: recorded as succeeded and never done, or a task that neither ended nor was parked;
* silent: a step in doubt that nobody holds, nobody can claim and nobody was asked about;
* needless park: a person is asked although nothing can have been sent, or a result was recorded;
* breach: the journal tells two stories: an effect without intent, a failure that took place, and
  whatever else breaks I1 to I9 in the one order of its records and the far end's books (history/).

The far end's books are the only witness of effects; what had been sent and recorded when a
program was killed is read from the shim's trace, not from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core.effect import Letter
from holdfast.core.step import CLOSED, Event, StepState
from holdfast.downstream.ledger import Done, Page, Seen, count_duplicates
from holdfast.journal.records import ENDED, TaskState
from holdfast.journal.rules import POISON_QUESTION
from holdfast_proofs.crash.found import Found
from holdfast_proofs.crash.subjects import Subject
from holdfast_proofs.history.check import check
from holdfast_proofs.history.reading import make_story
from holdfast_proofs.history.story import Landed, Story
from holdfast_proofs.shim import Made

_ENDS = {state.value for state in ENDED}
_CLOSED = {state.value for state in CLOSED}
_COUNTED = frozenset(("I1", "I2", "I3", "I4"))


@dataclass(slots=True, kw_only=True)
class Verdict:
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: bool = False
    poisoned: bool = False  # its programs lost their lease too often: a busy machine, visibly
    letters: Counter[str] = field(default_factory=Counter[str])  # of broken invariants
    findings: list[str] = field(default_factory=list[str])

    @property
    def green(self) -> bool:
        return not (self.duplicates or self.lost or self.silent or self.breaches)


class Books:
    """The far end's books, by task."""

    def __init__(self, page: Page | None) -> None:
        self._effects: dict[str, list[Done]] = {}
        self._reads: Counter[str] = Counter()
        for effect in page.effects if page else ():
            self._effects.setdefault(effect.task or "", []).append(effect)
        self._requests: dict[str, list[Seen]] = {}
        for seen in page.requests if page else ():
            self._requests.setdefault(seen.task or "", []).append(seen)
            if seen.outcome == "read":
                self._reads[f"{seen.task}/{seen.step}"] += 1

    def effects(self, task_id: str) -> list[Done]:
        return self._effects.get(task_id, [])

    def requests(self, task_id: str) -> list[Seen]:
        return self._requests.get(task_id, [])

    def reads(self, task_id: str, ordinal: str) -> int:
        return self._reads[f"{task_id}/{ordinal}"]


def judge(subject: Subject, found: Found, books: Books) -> Verdict:
    """Everything that can be said without knowing where a program was killed."""
    verdict = Verdict()
    if found.error:
        verdict.lost += 1
        verdict.findings.append(found.error)
        return verdict
    if found.damage:
        _breach(verdict, found.damage)
        _judge_history(verdict, subject, found, books)
        return verdict
    done = _done(subject, found, books)
    _judge_effects(verdict, subject, found, books, done)
    _judge_end(verdict, subject, found)
    _judge_history(verdict, subject, found, books)
    verdict.poisoned = _is_poisoned(found)
    verdict.parked = found.state == TaskState.PARKED and not verdict.poisoned
    return verdict


def _done(subject: Subject, found: Found, books: Books) -> dict[str, int]:
    """How often each step was done, as the far end counts."""
    if subject.name == "transactional":
        return found.rows
    if subject.name == "read":
        return {step: books.reads(found.task_id, step) for step in found.steps}
    return dict(Counter(effect.base or "" for effect in books.effects(found.task_id)))


def _judge_effects(verdict: Verdict, subject: Subject, found: Found, books: Books, done: dict[str, int]) -> None:
    effects = books.effects(found.task_id)
    match subject.name:
        case "read":
            twice = 0
        case "transactional":
            twice = sum(count - 1 for count in done.values())
        case name:
            twice = count_duplicates(effects, repeats_allowed=name == "idempotent")
            twice = max(twice, 0 if name == "idempotent" else _by_number(effects))
    if twice:
        verdict.duplicates += twice
        verdict.findings.append(f"done more than once: {done}")
    for ordinal, step in found.steps.items():
        count = done.get(ordinal, 0)
        if step.state == StepState.SUCCEEDED and not count:
            verdict.lost += 1
            verdict.findings.append(f"step {ordinal} is recorded as succeeded and was never done")
        if step.state in (StepState.FAILED, StepState.SKIPPED) and count:
            verdict.breaches += 1
            verdict.findings.append(f"step {ordinal} is recorded as {step.state} and was done")
    for ordinal in done.keys() - found.steps.keys():
        verdict.breaches += 1
        verdict.findings.append(f"step {ordinal} was done without a record of its intent")


def _by_number(effects: Sequence[Done]) -> int:
    """Repeats by what was asked for, whatever the request said about its step."""
    numbers = Counter(str(effect.body) for effect in effects)
    return sum(count - 1 for count in numbers.values())


def _judge_end(verdict: Verdict, subject: Subject, found: Found) -> None:
    succeeded = sum(step.state == StepState.SUCCEEDED for step in found.steps.values())
    if found.state == TaskState.SUCCEEDED and succeeded != subject.steps:
        verdict.lost += 1
        verdict.findings.append(f"the task succeeded with {succeeded} steps of {subject.steps}")
    if found.state in (TaskState.FAILED, TaskState.CANCELLED):
        verdict.lost += 1
        verdict.findings.append(f"the task {found.state}")
    if found.state not in _ENDS and found.state != TaskState.PARKED:
        verdict.lost += 1
        verdict.findings.append(f"the task is {found.state}: neither ended nor parked")
    if found.state == TaskState.PARKED and not found.question:
        verdict.silent += 1
        verdict.findings.append("the task is parked and nothing is asked")
    if _is_poisoned(found):
        return  # a person is asked about the task as a whole
    for ordinal, step in found.steps.items():
        asked = step.state == StepState.PARKED and step.question and step.evidence
        if step.state not in _CLOSED and not (found.state == TaskState.PARKED and asked):
            verdict.silent += 1
            verdict.findings.append(f"step {ordinal} is {step.state} and nobody is asked")


def _is_poisoned(found: Found) -> bool:
    return found.state == TaskState.PARKED and found.question == POISON_QUESTION


def _judge_history(verdict: Verdict, subject: Subject, found: Found, books: Books) -> None:
    """I1 to I9 over the one order of records, requests and effects.

    What the counts above have seen already is told again, not counted again.
    """
    counted = frozenset[str]() if verdict.green else _COUNTED
    for breach in check(_story(subject, found, books)):
        verdict.letters[breach.letter] += 1
        verdict.breaches += breach.letter not in counted
        verdict.findings.append(str(breach))


def _story(subject: Subject, found: Found, books: Books) -> Story:
    letters: dict[str, Letter] = {ordinal: step.letter for ordinal, step in found.steps.items()}
    story = make_story(
        found.task_id,
        found.records,
        letters,
        effects=books.effects(found.task_id),
        requests=books.requests(found.task_id),
        books=not found.damage,
    )
    if subject.name != "transactional":
        return story
    rows = [step for step, count in found.rows.items() for _ in range(count)]
    inside = tuple(Landed(n=n, step=step) for n, step in enumerate(rows, 1))
    return msgspec.structs.replace(story, effects=inside)


def _breach(verdict: Verdict, text: str) -> None:
    verdict.breaches += 1
    verdict.findings.append(text)


def in_doubt(calls: Iterable[Made]) -> bool:
    """Whether a send had begun and no result was recorded when these calls ended.

    Begun: the one-byte mark in the session page, which lies right before the first byte (and is
    all that a killed program can leave of "about to send"). Recorded: a commit of the journal
    after the answer came, complete once the last page of its last frame is written; SQLite
    names that frame in its header.
    """
    begun = answered = closing = False
    for call in calls:
        if not call.done:
            continue
        if call.is_mark:
            begun, answered = True, False
        elif call.name == "recv":
            answered = True
        elif call.is_logged:
            if closing and begun and answered:
                begun = False
            closing = call.length == 24 and call.head[4:8] != b"\0\0\0\0"
    return begun


def left_open(found: Found, pid: int, calls: Iterable[Made], *, seen: bool) -> bool:
    """The same of a program with this pid whose journal is on a server, where no call of its own says what was
    committed: a start of its epochs is recorded, and no end. Another host does not see the mark in the session page
    (`seen`): to it every recorded start may have been sent."""
    epochs = {epoch for epoch, owner in found.owners.items() if owner == str(pid)}
    own = [record for record in found.records if record.epoch in epochs and record.ordinal]
    ended = {record.ordinal for record in own if Event.SUCCEED in record.events}
    starts = [record.ordinal for record in own if Event.START in record.events]
    marks = sum(call.is_mark and call.done for call in calls)
    return any(one not in ended for one in starts) and (not seen or marks >= len(starts))
