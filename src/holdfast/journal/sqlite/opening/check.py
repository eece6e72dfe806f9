"""The full check: the file's own structure, every chain, every seal, every head, every row.

Reads with a connection of its own and changes nothing. One line per finding.

A task's row carries no seal: its clear columns are held against what its records say. The chain proves
the records; sequence, head and epoch are compared with it at every claim. The other columns are copies
for quick reading or follow from the records and the inbox. When a row was last changed follows from
nothing, but it cannot be before its newest record; there is no upper bound, because clocks are set back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import apsw

from holdfast.core.ids import task_id_from_bytes
from holdfast.core.rest import Sleep, read_rest
from holdfast.core.step import StepState
from holdfast.errors import HoldfastError, JournalDamaged
from holdfast.host.sqlite import Db, open_to_read
from holdfast.journal.bodies import DecisionGiven
from holdfast.journal.builds import pinned_name
from holdfast.journal.chain import first_link
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import ENDED, Record, RecordKind, TaskState, TaskView, fold
from holdfast.journal.rules import CRASHES_MAX, NEVER_MS, RESTING
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite import totals
from holdfast.journal.sqlite.rows import COLUMNS, open_record, verify_link
from holdfast.journal.sqlite.schema import SCHEMA, check_schema
from holdfast.journal.sqlite.verbs import remarks
from holdfast.journal.sqlite.verbs.inbox import ITEM_COLUMNS, open_item

FINDINGS_MAX = 100
ROW_COLUMNS = "name, state, due_ms, created_ms, changed_ms, crashes, cancel_asked, session"
_STATES = frozenset(state.value for state in TaskState)


def find_damage(path: Path, wraps: KeyWraps, *, put_back: bool = True) -> list[str]:
    """What is wrong with the journal at this path; an empty list when nothing is. `put_back`: rows that were put back
    count too."""
    findings: list[str] = []
    try:
        db = open_to_read(path)
    except apsw.Error as error:
        return [f"the file cannot be opened: {error}"]
    try:
        db.execute("BEGIN")  # one moment for the whole check
        _check_file(db, findings)
        chains = _check_chains(db, wraps, findings)
        _check_rows(db, chains, findings)
        _check_sealed_rows(db, wraps, findings)
        version = cast(int, db.pragma("user_version"))
        if version == SCHEMA:
            check_schema(db)
        if version >= remarks.SINCE:
            findings.extend(remarks.find_damage(db, wraps))
        put_back = put_back and not wraps.reads_only
        if put_back and version >= totals.SINCE and totals.is_put_back(db, totals.running_total(db, wraps)):
            findings.append(totals.PUT_BACK)
    except JournalDamaged as error:
        findings.append(error.message)
    except apsw.Error as error:
        findings.append(f"reading stopped: {error}")
    except (ValueError, TypeError) as error:
        findings.append(f"reading stopped at a row that cannot be understood: {error}")
    finally:
        db.close()
    return findings[:FINDINGS_MAX]


def _check_file(db: Db, findings: list[str]) -> None:
    rows = db.execute(f"PRAGMA integrity_check({FINDINGS_MAX})")
    findings.extend(f"structure: {row[0]}" for row in rows if row[0] != "ok")


@dataclass(slots=True)
class _Chain:
    raw: bytes
    wanted: tuple[int, bytes, int]
    sealer: DataKeySealer
    link: bytes
    view: TaskView
    last: Record | None = None


def _check_chains(db: Db, wraps: KeyWraps, findings: list[str]) -> dict[int, _Chain]:
    """One pass in the order of the numbers: a task's records follow each other in it.
    Returns the chains that are sound, by the number of their task's row."""
    chains: dict[int, _Chain] = {}
    broken: set[int] = set()
    for row in db.execute("SELECT t, task_id, seq, head, epoch, key_id, data_key FROM task WHERE erased_ms IS NULL"):
        t, raw, seq, head, epoch, key_id, data_key = row
        try:
            sealer, view = wraps.open_data_key(key_id, data_key, raw), TaskView(task_id_from_bytes(raw))
            chains[t] = _Chain(raw, (seq, head, epoch), sealer, first_link(raw), view)
        except HoldfastError as error:
            broken.add(t)
            findings.append(f"task row {t}: {error.message}")
    for row in db.execute(f"SELECT {COLUMNS}, t FROM record ORDER BY n"):
        *columns, t = row
        chain = chains.get(t)
        if t in broken:
            continue
        if chain is None:
            findings.append(f"record number {columns[0]} belongs to no task")
            continue
        try:
            chain.link = verify_link(chain.link, tuple(columns), where=f"task {chain.view.task_id}")
            chain.last = open_record(tuple(columns), chain.raw, chain.sealer)
            fold(chain.view, chain.last)
        except (HoldfastError, KeyError, ValueError, TypeError) as error:
            broken.add(t)
            findings.append(str(error))
    for t, chain in chains.items():
        if t not in broken and chain.wanted != (chain.view.seq, chain.link, chain.view.epoch):
            broken.add(t)
            findings.append(f"task {chain.view.task_id}: its row does not match its last record")
    return {t: chain for t, chain in chains.items() if t not in broken}


def _check_rows(db: Db, chains: dict[int, _Chain], findings: list[str]) -> None:
    """Clear columns against what the chain says; the inbox's seals on the way."""
    items = _open_inbox(db, chains, findings)
    for t, *columns in db.execute(f"SELECT t, {ROW_COLUMNS} FROM task WHERE erased_ms IS NULL"):
        chain = chains.get(t)
        if chain is None or chain.last is None:
            continue
        view, inbox = chain.view, items.get(t, [])
        odd = [*find_odd(Row(*columns), view, chain.last, inbox)]
        for item in inbox:
            odd.extend(find_odd_item(item, view))
        findings.extend(f"task {view.task_id}: {finding}" for finding in odd)


def _open_inbox(db: Db, chains: dict[int, _Chain], findings: list[str]) -> dict[int, list[InboxItem]]:
    items: dict[int, list[InboxItem]] = {}
    for t, *columns in db.execute(f"SELECT i.t, {ITEM_COLUMNS} FROM inbox i ORDER BY i.n"):
        chain = chains.get(t)
        if chain is None:
            continue  # erased, or found broken already
        try:
            items.setdefault(t, []).append(open_item(columns, chain.raw, chain.sealer))
        except (HoldfastError, ValueError, TypeError) as error:
            findings.append(f"task {chain.view.task_id}: inbox item {columns[0]}: {error}")
    return items


def _check_sealed_rows(db: Db, wraps: KeyWraps, findings: list[str]) -> None:
    queries = (
        ("blob", "SELECT digest, key_id, body FROM blob"),
        ("notice", "SELECT CAST(notice_id AS BLOB), key_id, body FROM notice"),
    )
    for table, query in queries:
        for row in db.execute(query):
            name, key_id, body = cast("tuple[bytes, int, bytes]", row)
            try:
                wraps.payload(key_id).open(body, table.encode() + b"\0" + name)
            except (JournalDamaged, ValueError, TypeError) as error:
                findings.append(f"{table}: {error}")


class Row(NamedTuple):
    """The columns of ROW_COLUMNS, as they lie in the file."""

    name: object
    state: object
    due_ms: object
    created_ms: object
    changed_ms: object
    crashes: object
    cancel_asked: object
    session: object


def find_odd(row: Row, view: TaskView, last: Record, inbox: Collection[InboxItem]) -> Iterator[str]:
    """What of the row its records contradict, one line each."""
    if row.state not in _STATES:
        yield f"the row has the unknown state {row.state!r}"
        return
    state = TaskState(str(row.state))
    claim = view.claims.get(view.epoch)
    name = pinned_name(view.name, claim.build if claim is not None else "")
    if row.name != name:
        yield f"the row has the name {row.name!r}, but its records have {name!r}"
    if row.created_ms != view.accepted_ms:
        yield f"the row was made at {row.created_ms}, but its first record at {view.accepted_ms}"
    if not _is_between(row.changed_ms, last.at_ms, NEVER_MS):
        yield f"the row changed at {row.changed_ms}, before its newest record ({last.at_ms})"
    if not _is_between(row.crashes, 0, CRASHES_MAX):
        yield f"the row counts {row.crashes} crashes; 0 to {CRASHES_MAX} are possible"
    if state not in _possible(view, last):
        yield f"the row is {state}, which is not possible after its newest record ({last.kind.name.lower()})"
    yield from _odd_due(row, state, view)
    if (row.session is not None) != (state is TaskState.RUNNING):
        yield f"the row is {state}, but its session is {row.session}"
    yield from _odd_cancel(row, inbox)


def find_odd_item(item: InboxItem, view: TaskView) -> Iterator[str]:
    """What of an inbox item the task's records contradict."""
    if item.at_ms < view.accepted_ms:
        yield f"inbox item {item.number} was made at {item.at_ms}, before its task"
    if not item.applied:
        return
    step, note = view.steps.get(item.ordinal), view.notes.get(item.ordinal)
    match item.kind:
        case InboxKind.DECISION:
            parked = step is not None and step.state is StepState.PARKED and step.parked
            if parked and parked[0] == DecisionGiven.read(item.body).epoch:
                yield f"inbox item {item.number} is marked as applied, but its step is still parked"
        case InboxKind.APPROVAL:
            if note is not None and note.what == "approve" and note.answer is None:
                yield f"inbox item {item.number} is marked as applied, but its question is still open"
        case InboxKind.EVIDENCE | InboxKind.CANCEL | InboxKind.RETRY | InboxKind.SAID:
            pass


def _possible(view: TaskView, last: Record) -> frozenset[TaskState]:
    """The states that a row may have behind this newest record."""
    match last.kind:
        case RecordKind.FINISHED:
            ended = view.finished or TaskState.FAILED
            again = (TaskState.QUEUED,) if ended is TaskState.FAILED else ()  # a person's retry
            return frozenset((ended, *again))
        case RecordKind.RESTED:
            rests = (TaskState(view.rest.state),) if view.rest.state else RESTING
            return frozenset((*rests, TaskState.QUEUED))
        case RecordKind.ACCEPTED | RecordKind.RESTORED:
            return frozenset((TaskState.QUEUED, *(ENDED if view.finished else ())))
        case (
            RecordKind.CLAIMED
            | RecordKind.STEP
            | RecordKind.NOTE
            | RecordKind.ANSWER
            | RecordKind.FILES
            | RecordKind.CONTENT
            | RecordKind.REMARK
        ):
            return frozenset((TaskState.RUNNING, TaskState.QUEUED))


def _odd_due(row: Row, state: TaskState, view: TaskView) -> Iterator[str]:
    rest = read_rest(view.rest.why)
    match state:
        case TaskState.SLEEPING:
            if isinstance(rest, Sleep) and row.due_ms != rest.due_ms:
                yield f"the row is due at {row.due_ms}, but its records say {rest.due_ms}"
        case TaskState.QUEUED | TaskState.RUNNING:
            if not isinstance(row.due_ms, int) or row.due_ms < 0:
                yield f"the row is due at {row.due_ms}, which is not a valid time"
            elif state is TaskState.QUEUED and not _is_between(row.changed_ms, row.due_ms, NEVER_MS):
                yield f"the row is queued, but due only at {row.due_ms}, after it was queued"
        case _:
            if row.due_ms != NEVER_MS:
                yield f"the row is {state}, but has the due time {row.due_ms}, which this state cannot have"


def _odd_cancel(row: Row, inbox: Collection[InboxItem]) -> Iterator[str]:
    asked = any(item.kind is InboxKind.CANCEL for item in inbox)
    if row.cancel_asked not in (0, 1):
        yield f"the row's cancel mark is {row.cancel_asked!r}; it must be 0 or 1"
    elif row.cancel_asked and not asked:
        yield "the row says that a cancel was requested, but the inbox has no such request"


def _is_between(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and low <= value <= high
