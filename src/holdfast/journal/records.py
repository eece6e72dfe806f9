"""What a journal keeps about a task: records, and the view that folding them gives.

A task's life is a list of records, each appended once and never changed. The view (steps with their payloads and
times) is what reading them in order gives; a worker that owns the task keeps its view by folding the same records as it
writes them, so memory and journal cannot differ. Bodies are kept as they were read, for showing; properties give their
reading (`bodies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.decoding import convert
from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.core.step import CLOSED, Event, Step, StepState, apply, apply_all
from holdfast.core.values import decode
from holdfast.errors import InvariantViolated, JournalDamaged
from holdfast.journal import bodies
from holdfast.journal.bodies import Body, FoundAt, PlanItem, Planned, Rested, StepFailure, TaskEnd

FORMAT = 1
REMARK = "remark"  # what a note in the view is that came from a record of that kind
FAILURES_MAX = 20  # of a step that are shown
RECORDS_MAX = 1_000_000  # per task; below the 2^20 rows that one data key may seal


class RecordKind(IntEnum):
    """What a record is about. The numbers are stored: they never change meaning."""

    ACCEPTED = 1
    CLAIMED = 2
    STEP = 3
    NOTE = 4  # a value that replay must see again: now, random, uuid, gather, sleep, question
    ANSWER = 5  # what a note was waiting for: woken, granted, refused
    RESTED = 6  # the run ended for now: sleeping, waiting, parked, queued
    FINISHED = 7
    RESTORED = 8
    FILES = 9  # what the scratch folder held: a manifest's digest
    CONTENT = 10  # a value that later records name by its digest: a message, a model's head
    REMARK = 11  # a line for the agent's memory files; the journal adds it to the remarks


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset((TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED))


class NewRecord(msgspec.Struct, kw_only=True, gc=False):
    """A record about to be appended. The journal adds number, sequence, times and hash."""

    kind: RecordKind
    ordinal: str = ""
    events: tuple[Event, ...] = ()
    body: Body
    effect_key: bytes = b""
    fingerprint: bytes = b""
    slot: int = -1
    quiet: bool = False


class Record(msgspec.Struct, gc=False):
    """A record as it was kept."""

    number: int  # journal-wide, only rises; an attempt's fence is made from it
    seq: int
    kind: RecordKind
    ordinal: str
    events: tuple[Event, ...]
    epoch: int
    at_ms: int
    boot_ms: int
    effect_key: bytes
    fingerprint: bytes
    slot: int
    quiet: bool
    body: Body

    @property
    def rest(self) -> Rested:
        return convert(self.body, Rested)

    @property
    def end(self) -> TaskEnd:
        return convert(self.body, TaskEnd)


def as_kept(entry: NewRecord, *, number: int, seq: int, epoch: int, at_ms: int, boot_ms: int) -> Record:
    """The record that an entry becomes."""
    return Record(
        number,
        seq,
        entry.kind,
        entry.ordinal,
        entry.events,
        epoch,
        at_ms,
        boot_ms,
        entry.effect_key,
        entry.fingerprint,
        entry.slot,
        entry.quiet,
        entry.body,
    )


class Claim(NamedTuple):
    """Who held the task under an epoch, and since when on which boot of the machine."""

    epoch: int
    session_id: str
    boot_id: str
    boot_ms: int
    at_ms: int
    worker: str
    host_id: str = ""  # of a journal that several hosts share: another boot may be another machine's
    build: str = ""  # of a task that is pinned to it


class Attempt(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    number: int
    at_ms: int
    boot_ms: int
    slot: int
    fence: int


class Failure(NamedTuple):
    """How an attempt ended without a result."""

    number: int  # of the attempt
    at_ms: int
    body: Body


class StepView(msgspec.Struct, gc=False, eq=False):
    """One step with everything the journal knows of it. JSON has no cycles: the garbage collector may skip it."""

    ordinal: str
    letter: Letter
    step: Step | None = None
    tool: str = ""
    body: Body = {}
    effect_key: bytes = b""
    fingerprint: bytes = b""
    attempts: tuple[Attempt, ...] = ()
    earlier: tuple[Attempt, ...] = ()  # before a person's decision; shown, and of no weight for what may follow
    failures: tuple[Failure, ...] = ()  # the newest ones
    ended: tuple[int, int] | None = None  # (epoch, boot ms) at which the newest ended
    doubt: str = ""
    result: object = None
    error: Body = {}
    question: str = ""
    evidence: Sequence[Body] = ()
    not_before_ms: int = 0
    parked: tuple[int, int, int] | None = None  # (epoch, boot ms, ms until quiet)
    note: str = ""
    planned_ms: int = 0
    closed_ms: int = 0
    restored_ms: int = 0
    lost_ms: int = 0  # since when a lost timeline may have sent its key; 0 where a person has answered that
    spared: int = 0  # attempts that were not sent or met a busy far end
    unkept: str = ""  # why the result of a success could not be kept
    ending: Event | None = None  # the event that closed it
    by: str = ""  # who said so, where that was not its own call
    found: Body = {}  # where, and with which arguments, a lost timeline had done it

    @property
    def state(self) -> StepState:
        if self.step is None:
            raise InvariantViolated("I4", f"step {self.ordinal} has no record")
        return self.step.state

    @property
    def closed(self) -> bool:
        return self.step is not None and self.step.state in CLOSED

    @property
    def args(self) -> object:
        """The arguments that it was planned with; nobody else holds them where the plan has them as JSON."""
        args = self.body["args"]
        return decode(bytes(args)) if isinstance(args, msgspec.Raw) else args

    @property
    def planned(self) -> Planned:
        return convert(self.body, Planned)

    @property
    def failure(self) -> StepFailure:
        return convert(self.error, StepFailure)

    @property
    def found_at(self) -> FoundAt | None:
        return convert(self.found, FoundAt) if self.found else None


class Note(NamedTuple):
    what: str
    body: Body
    answer: Body | None
    at_ms: int
    answered_ms: int = 0


class KeptFiles(NamedTuple):
    """FILES: what the scratch folder held, by the manifest; or why there is none."""

    seq: int
    manifest: str
    unkept: str = ""


class Files(msgspec.Struct, eq=False):
    """What the scratch folder held before and after each step; of tasks that use it."""

    before: dict[str, KeptFiles] = {}
    after: dict[str, KeptFiles] = {}
    end: KeptFiles | None = None

    @property
    def newest(self) -> str:
        """The digest of the newest manifest; empty where none was kept."""
        every = (*self.before.values(), *self.after.values(), *((self.end,) if self.end else ()))
        return max((one for one in every if one.manifest), default=KeptFiles(-1, "")).manifest

    def newest_below(self, prefix: str) -> KeptFiles | None:
        """The newest manifest of a step whose ordinal begins so."""
        every = (*self.before.items(), *self.after.items())
        return max((one for at, one in every if at.startswith(prefix) and one.manifest), default=None)


class TaskView(msgspec.Struct, eq=False):
    """A task and its records, folded."""

    task_id: TaskId
    name: str = ""
    request_id: str = ""
    accepted: Body = {}
    accepted_ms: int = 0
    claims: dict[int, Claim] = {}
    epoch: int = 0  # of the newest claim
    lost: dict[int, int] = {}  # claims without a last record -> epoch that took over
    steps: dict[str, StepView] = {}
    notes: dict[str, Note] = {}
    contents: dict[str, object] = {}  # by digest
    rested: Body = {}
    finished: TaskState | None = None
    outcome: Body = {}
    ended_ms: int = 0
    files: Files | None = None
    seq: int = -1
    progress_epoch: int = 0
    restored_ms: int = 0

    @property
    def args(self) -> object:
        return self.accepted.get("args")

    @property
    def rest(self) -> Rested:
        return convert(self.rested, Rested)

    @property
    def end(self) -> TaskEnd:
        return convert(self.outcome, TaskEnd)

    @property
    def plan(self) -> list[PlanItem]:
        """The plan as it is now, in the order of its items; each note has those that changed."""
        notes = [bodies.PlanNote.read(note.body) for note in self.notes.values() if note.what == "plan"]
        items = {item.number: item for note in notes for item in note.items}
        return [items[number] for number in sorted(items)]


def fold(view: TaskView, record: Record) -> None:
    """Take one record into the view, in the order of its sequence.
    Raises JournalDamaged or InvariantViolated for what no owner can have written; do not use the view then."""
    if record.seq != view.seq + 1:
        raise JournalDamaged(f"task {view.task_id}: record {record.seq} follows record {view.seq}: a record is missing")
    view.seq = record.seq
    try:
        if record.kind is RecordKind.STEP and record.epoch == view.epoch:
            _fold_step(view, record)
        else:
            _fold(view, record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalDamaged(f"task {view.task_id}: record {record.seq} is malformed: {error!r}") from error


def _fold(view: TaskView, record: Record) -> None:
    if record.kind is not RecordKind.CLAIMED and record.epoch != view.epoch:
        raise JournalDamaged(
            f"task {view.task_id}: record {record.seq} has epoch {record.epoch}, but the newest claim has {view.epoch}"
        )
    match record.kind:
        case RecordKind.STEP:
            _fold_step(view, record)
        case RecordKind.NOTE:
            _fold_note(view, record)
        case RecordKind.ANSWER:
            note = view.notes[record.ordinal]
            view.notes[record.ordinal] = note._replace(answer=record.body, answered_ms=record.at_ms)
        case RecordKind.CLAIMED:
            _fold_claim(view, record)
        case RecordKind.ACCEPTED:
            if record.seq:
                raise JournalDamaged(f"task {view.task_id}: it has a second record `accepted`")
            view.accepted, view.accepted_ms = record.body, record.at_ms
            view.name, view.request_id = record.body["name"], record.body.get("request_id") or ""
        case RecordKind.RESTED:
            view.rested = record.body
        case RecordKind.FINISHED:
            view.finished = TaskState(record.body["state"])
            view.outcome, view.ended_ms = record.body, record.at_ms
        case RecordKind.RESTORED:
            _fold_restore(view, record)
        case RecordKind.FILES:
            _fold_files(view, record)
        case RecordKind.CONTENT:
            content = bodies.ContentKept.read(record.body)
            view.contents[content.digest] = content.value
        case RecordKind.REMARK:
            view.notes[record.ordinal] = Note(REMARK, record.body, None, record.at_ms)


def _fold_note(view: TaskView, record: Record) -> None:
    body = record.body
    if body["what"] == "version":  # the code that a planned step would call now
        step = view.steps[record.ordinal]
        step.body = {**step.body, "v": body["v"]}
    else:
        view.notes[record.ordinal] = Note(str(body["what"]), body, None, record.at_ms)


def _fold_claim(view: TaskView, record: Record) -> None:
    if record.epoch <= view.epoch:
        raise JournalDamaged(
            f"task {view.task_id}: epoch {record.epoch} follows epoch {view.epoch}, which is not lower"
        )
    by = bodies.ClaimedBy.read(record.body)
    when = (record.boot_ms, record.at_ms)
    view.claims[record.epoch] = Claim(
        record.epoch, by.session, by.boot, *when, by.worker, by.host or "", by.build or ""
    )
    if view.epoch and not view.rested and view.finished is None:
        view.lost[view.epoch] = record.epoch
    view.epoch = record.epoch
    view.rested, view.finished, view.outcome = {}, None, {}


def _fold_restore(view: TaskView, record: Record) -> None:
    """What was open may have gone on in the timeline that is lost."""
    view.restored_ms = bodies.RestoredFrom.read(record.body).earliest(view.restored_ms)
    for step in view.steps.values():
        if step.step is not None and step.step.state not in CLOSED:
            step.step = apply(step.step, Event.RESTORE, epoch=record.epoch, quiet=False, letter=step.letter)
            _take_restore(step, record)


def _fold_files(view: TaskView, record: Record) -> None:
    body = record.body
    kept = KeptFiles(record.seq, str(body.get("manifest", "")), str(body.get("unkept", "")))
    files = view.files = view.files or Files()
    match body["at"]:
        case "before":
            files.before[record.ordinal] = kept
        case "after":
            files.after[record.ordinal] = kept
        case "end":
            files.end = kept
        case other:
            raise ValueError(f"files at {other!r}")


def _fold_step(view: TaskView, record: Record) -> None:
    step = view.steps.get(record.ordinal)
    if step is None:
        step = view.steps[record.ordinal] = StepView(record.ordinal, record.body["letter"])
        step.effect_key = record.effect_key
        step.fingerprint = record.fingerprint
    row = step.step = apply_all(step.step, record.events, record.epoch, record.quiet, step.letter)
    for event in record.events:
        _TAKE[event](step, record)
    if row is not None and row.state in CLOSED:
        step.closed_ms = record.at_ms
        step.ending = record.events[-1]
        view.progress_epoch = record.epoch


def _take_plan(step: StepView, record: Record) -> None:
    body = record.body
    step.body = body
    step.tool, _ = body["tool"], body["args"]
    step.planned_ms = record.at_ms


def fence_of(epoch: int, number: int) -> int:
    return epoch >> 32 << 40 | number


def _take_start(step: StepView, record: Record) -> None:
    fence = fence_of(record.epoch, record.number)
    step.attempts += (Attempt(record.epoch, record.number, record.at_ms, record.boot_ms, record.slot, fence),)
    step.ended = None


def take_success(step: StepView, record: Record | NewRecord) -> None:
    body = record.body
    step.result = body.get("result")
    step.note = body.get("note", "")
    step.unkept = body.get("unkept", "")
    step.by = body.get("by", "")
    step.found = body.get("found", {})


def _take_failure(step: StepView, record: Record) -> None:
    _take_end(step, record)
    step.doubt = record.body.get("reason", "")


def _take_end(step: StepView, record: Record) -> None:
    step.error = record.body
    step.ended = (record.epoch, record.boot_ms)
    number = step.attempts[-1].number if step.attempts else 0
    step.failures = (*step.failures[1 - FAILURES_MAX :], Failure(number, record.at_ms, record.body))


def _take_doubt(step: StepView, record: Record) -> None:
    _take_end(step, record)
    step.doubt = record.body["reason"]
    if step.doubt == "busy":
        step.spared += 1


def _take_unsent(step: StepView, record: Record) -> None:
    _take_end(step, record)
    step.doubt = record.body.get("reason", "not sent")
    if Event.UNSENT in record.events or step.doubt == "busy":
        step.spared += 1


def _take_park(step: StepView, record: Record) -> None:
    body = record.body
    step.question = body["question"]
    step.evidence = body["evidence"]
    step.not_before_ms = body["not_before_ms"]
    step.parked = (record.epoch, record.boot_ms, int(body.get("quiet_in_ms") or 0))


def _take_settlement(step: StepView, record: Record) -> None:
    step.note = record.body.get("note", "")
    step.by = record.body.get("by", "")
    if "result" in record.body:
        step.result = record.body["result"]
    step.earlier += step.attempts
    step.attempts, step.spared, step.lost_ms = (), 0, 0


def _take_restore(step: StepView, record: Record) -> None:
    if not step.tool:
        _take_plan(step, record)
    said = bodies.RestoredFrom.read(record.body)
    step.restored_ms, step.lost_ms = said.earliest(step.restored_ms), said.earliest(step.lost_ms)
    step.doubt, step.ended, step.spared = "restored", None, 0  # the lost timeline may have sent again since


_TAKE = {
    Event.PLAN: _take_plan,
    Event.START: _take_start,
    Event.SUCCEED: take_success,
    Event.REFUSE: _take_failure,
    Event.DOUBT: _take_doubt,
    Event.UNSENT: _take_unsent,
    Event.FAIL: _take_failure,
    Event.RETRY: _take_unsent,
    Event.FIND: take_success,
    Event.ADOPT: take_success,
    Event.PARK: _take_park,
    Event.SETTLE_DONE: _take_settlement,
    Event.SETTLE_RUN: _take_settlement,
    Event.SETTLE_SKIP: _take_settlement,
    Event.SKIP: _take_settlement,
    Event.RESTORE: _take_restore,
}

Kind, Entry = RecordKind, NewRecord  # their names in 0.1
