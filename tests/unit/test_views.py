"""What a record makes of the view, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.core.step import Event, Step, StepState
from holdfast.errors import InvariantViolated, JournalDamaged
from holdfast.journal import records
from holdfast.journal.own_view import BEGIN, SUCCESS, fold_own
from holdfast.journal.records import (
    ENDED,
    Attempt,
    Claim,
    Files,
    KeptFiles,
    NewRecord,
    Note,
    Record,
    RecordKind,
    StepView,
    TaskState,
    TaskView,
    fold,
)

TASK = TaskId("01J9ZK3V5T8Q2M4N6P7R8S9T0V")
EPOCH = 3 << 32 | 1
PLAN: dict[str, Any] = {"letter": "K", "tool": "charge", "args": {"cents": 42}, "v": "v1"}


class Told:
    """A view and the records that made it; times are the sequence, so that each is known."""

    def __init__(self) -> None:
        self.view = TaskView(TASK)

    def add(self, kind: RecordKind, body: dict[str, Any], **more: Any) -> None:
        seq = self.view.seq + 1
        values: dict[str, Any] = {
            "number": 100 + seq,
            "seq": seq,
            "kind": kind,
            "ordinal": "",
            "events": (),
            "epoch": self.view.epoch,
            "at_ms": 1_000 + seq,
            "boot_ms": 50 + seq,
            "effect_key": b"",
            "fingerprint": b"",
            "slot": -1,
            "quiet": False,
            "body": body,
            **more,
        }
        fold(self.view, Record(**values))

    def accept(self) -> Told:
        self.add(RecordKind.ACCEPTED, {"name": "trip", "request_id": "o-77", "args": {}})
        return self

    def claim(self, epoch: int = EPOCH) -> Told:
        self.add(RecordKind.CLAIMED, {"session": "s", "boot": "b", "worker": "w"}, epoch=epoch)
        return self

    def step(self, *events: Event, ordinal: str = "1", **body: Any) -> StepView:
        self.add(RecordKind.STEP, body, ordinal=ordinal, events=events, slot=7, quiet=True)
        return self.view.steps[ordinal]


def started(letter: Letter = "K") -> Told:
    """Accepted (0), claimed (1), planned and started (2)."""
    told = Told().accept().claim()
    told.add(
        RecordKind.STEP,
        {**PLAN, "letter": letter},
        ordinal="1",
        events=(Event.PLAN, Event.START),
        effect_key=b"k" * 16,
        fingerprint=b"f" * 16,
        slot=5,
        quiet=True,
    )
    return told


def parked() -> Told:
    told = started("N")
    told.step(Event.DOUBT, reason="timeout")
    told.step(Event.PARK, question="was it done?", evidence=[{"attempt": 1}], not_before_ms=9, quiet_in_ms=4)
    return told


def test_the_numbers_of_kinds_are_stored_and_never_change() -> None:
    names = [(kind.name, int(kind)) for kind in RecordKind]
    assert names == [
        ("ACCEPTED", 1),
        ("CLAIMED", 2),
        ("STEP", 3),
        ("NOTE", 4),
        ("ANSWER", 5),
        ("RESTED", 6),
        ("FINISHED", 7),
        ("RESTORED", 8),
        ("FILES", 9),
        ("CONTENT", 10),
        ("REMARK", 11),
    ]
    assert records.FORMAT == 1
    assert records.RECORDS_MAX == 1_000_000 < 2**20  # what one data key may seal
    assert {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED} == ENDED


def test_an_entry_says_nothing_that_it_is_not_told() -> None:
    entry = NewRecord(kind=RecordKind.NOTE, body={})
    assert (entry.ordinal, entry.events, entry.effect_key, entry.fingerprint) == ("", (), b"", b"")
    assert entry.slot == -1
    assert entry.quiet is False


def test_a_new_step_knows_nothing() -> None:
    step = StepView("1", "K")
    shown = {name: getattr(step, name) for name in StepView.__struct_fields__}
    assert shown == {
        "ordinal": "1",
        "letter": "K",
        "step": None,
        "tool": "",
        "body": {},
        "effect_key": b"",
        "fingerprint": b"",
        "attempts": (),
        "earlier": (),
        "failures": (),
        "ended": None,
        "doubt": "",
        "result": None,
        "error": {},
        "question": "",
        "evidence": (),
        "not_before_ms": 0,
        "parked": None,
        "note": "",
        "planned_ms": 0,
        "closed_ms": 0,
        "restored_ms": 0,
        "lost_ms": 0,
        "spared": 0,
        "unkept": "",
        "ending": None,
        "by": "",
        "found": {},
    }
    assert step.closed is False
    with pytest.raises(InvariantViolated):
        _ = step.state


def test_a_new_task_knows_nothing() -> None:
    view = TaskView(TASK)
    shown = {name: getattr(view, name) for name in TaskView.__struct_fields__}
    assert shown == {
        "task_id": TASK,
        "name": "",
        "request_id": "",
        "accepted": {},
        "accepted_ms": 0,
        "claims": {},
        "epoch": 0,
        "steps": {},
        "notes": {},
        "rested": {},
        "finished": None,
        "outcome": {},
        "ended_ms": 0,
        "seq": -1,
        "progress_epoch": 0,
        "restored_ms": 0,
        "files": None,
        "contents": {},
        "lost": {},
    }


def test_accepting_and_claiming() -> None:
    view = Told().accept().claim().view
    assert (view.name, view.request_id, view.accepted_ms) == ("trip", "o-77", 1_000)
    assert view.accepted["args"] == {}
    assert view.claims == {EPOCH: Claim(EPOCH, "s", "b", 51, 1_001, "w")}
    assert view.epoch == EPOCH


@pytest.mark.parametrize("request_id", [None, ""])
def test_a_task_without_a_request_id(request_id: str | None) -> None:
    told = Told()
    told.add(RecordKind.ACCEPTED, {"name": "trip", "request_id": request_id})
    assert told.view.request_id == ""


def test_a_start_adds_an_attempt_with_its_fence() -> None:
    told = started()
    step = told.view.steps["1"]
    assert (step.tool, step.args, step.body) == ("charge", {"cents": 42}, PLAN)
    assert (step.effect_key, step.fingerprint) == (b"k" * 16, b"f" * 16)
    assert step.planned_ms == 1_002
    assert step.attempts == (Attempt(EPOCH, 102, 1_002, 52, 5, 3 << 40 | 102),)
    assert step.state is StepState.STARTED
    assert not step.closed
    assert step.ended is None
    assert told.view.progress_epoch == 0


def test_a_success_closes_and_is_progress() -> None:
    told = started()
    step = told.step(Event.SUCCEED, result={"id": 1}, note="n", unkept="too large")
    assert (step.result, step.note, step.unkept) == ({"id": 1}, "n", "too large")
    assert step.closed
    assert step.closed_ms == 1_003
    assert told.view.progress_epoch == EPOCH


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.ADOPT, Event.FIND])
def test_a_success_that_says_little(event: Event) -> None:
    told = started()
    if event is not Event.SUCCEED:
        told.claim(EPOCH + 1)
    step = told.step(event)
    assert (step.result, step.note, step.unkept) == (None, "", "")
    assert step.state is StepState.SUCCEEDED


def test_a_refusal_is_kept_with_its_reason() -> None:
    step = started().step(Event.REFUSE, proof={"status": 402}, reason="refused")
    assert step.error == {"proof": {"status": 402}, "reason": "refused"}
    assert step.ended == (EPOCH, 53)
    assert step.doubt == "refused"
    assert step.state is StepState.FAILED
    assert started("R").step(Event.FAIL, kind="KeyError").doubt == ""


@pytest.mark.parametrize(("reason", "spared"), [("timeout", 0), ("busy", 1)])
def test_a_doubt_spares_an_attempt_where_the_far_end_was_busy(reason: str, spared: int) -> None:
    step = started().step(Event.DOUBT, reason=reason, retry_after_s=2)
    assert step.doubt == reason
    assert step.ended == (EPOCH, 53)
    assert step.error == {"reason": reason, "retry_after_s": 2}
    assert step.spared == spared
    assert step.state is StepState.UNKNOWN


def test_a_second_start_is_under_way_again() -> None:
    told = started()
    told.step(Event.DOUBT, reason="busy")
    step = told.step(Event.START)
    assert step.ended is None
    assert [one.slot for one in step.attempts] == [5, 7]
    told.step(Event.DOUBT, reason="busy")
    assert step.spared == 2


def test_what_was_not_sent_spares_an_attempt_and_a_retry_does_not() -> None:
    step = started().step(Event.UNSENT)
    assert (step.doubt, step.ended, step.error) == ("not sent", (EPOCH, 53), {})
    assert step.spared == 1
    assert step.state is StepState.PLANNED
    again = started().step(Event.RETRY, reason="refused", proof=1)
    assert (again.doubt, again.error) == ("refused", {"reason": "refused", "proof": 1})
    assert again.spared == 0
    twice = started()
    twice.step(Event.UNSENT)
    twice.step(Event.START)
    assert twice.step(Event.UNSENT).spared == 2


def test_a_park_keeps_its_question() -> None:
    step = parked().view.steps["1"]
    assert (step.question, step.evidence) == ("was it done?", [{"attempt": 1}])
    assert step.not_before_ms == 9
    assert step.parked == (EPOCH, 54, 4)
    assert step.state is StepState.PARKED


@pytest.mark.parametrize("quiet_in_ms", [None, 0])
def test_a_park_of_what_is_quiet_can_be_decided_at_once(quiet_in_ms: int | None) -> None:
    told = started("N")
    told.step(Event.DOUBT, reason="timeout")
    body: dict[str, Any] = {"question": "?", "evidence": [], "not_before_ms": 0}
    if quiet_in_ms is not None:
        body["quiet_in_ms"] = quiet_in_ms
    assert told.step(Event.PARK, **body).parked == (EPOCH, 54, 0)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Event.SETTLE_DONE, StepState.SUCCEEDED),
        (Event.SETTLE_RUN, StepState.PLANNED),
        (Event.SETTLE_SKIP, StepState.SKIPPED),
    ],
)
def test_a_settlement_forgets_the_attempts(event: Event, state: StepState) -> None:
    told = parked()
    told.view.steps["1"].spared = 3
    step = told.step(event, note="by hand")
    assert (step.note, step.attempts, step.spared) == ("by hand", (), 0)
    assert step.result is None
    assert step.state is state
    again = parked().step(event, result=None)
    assert again.note == ""
    assert parked().step(Event.SETTLE_DONE, result=[1]).result == [1]


def test_a_skip_is_a_settlement() -> None:
    told = Told().accept().claim()
    told.step(Event.PLAN, **PLAN)
    assert told.step(Event.SKIP, note="cancelled").note == "cancelled"


def test_notes_and_answers() -> None:
    told = Told().accept().claim()
    told.add(RecordKind.NOTE, {"what": "sleep", "until": 5}, ordinal="2")
    assert told.view.notes == {"2": Note("sleep", {"what": "sleep", "until": 5}, None, 1_002)}
    told.add(RecordKind.ANSWER, {"woken": True}, ordinal="2")
    assert told.view.notes["2"].answer == {"woken": True}
    assert told.view.notes["2"].what == "sleep"


def test_a_version_note_changes_the_plan_alone() -> None:
    told = started()
    told.add(RecordKind.NOTE, {"what": "version", "v": "v2"}, ordinal="1")
    assert told.view.steps["1"].body == {**PLAN, "v": "v2"}
    assert told.view.notes == {}


def test_resting_and_finishing_and_a_new_claim() -> None:
    told = Told().accept().claim()
    told.add(RecordKind.RESTED, {"state": "parked", "question": "?"})
    assert told.view.rested == {"state": "parked", "question": "?"}
    told.add(RecordKind.FINISHED, {"state": "failed", "text": "x"})
    assert told.view.finished is TaskState.FAILED
    assert told.view.outcome == {"state": "failed", "text": "x"}
    assert told.view.ended_ms == 1_003
    told.claim(EPOCH + 1)
    assert (told.view.rested, told.view.finished, told.view.outcome) == ({}, None, {})
    assert told.view.epoch == EPOCH + 1


def test_a_restore_puts_every_open_step_in_doubt() -> None:
    told = started()
    told.step(Event.SUCCEED, result=1)
    told.step(Event.PLAN, Event.START, ordinal="2", **PLAN)
    told.step(Event.DOUBT, ordinal="2", reason="busy")
    told.add(RecordKind.RESTORED, {"lost_after_ms": 77})
    view = told.view
    assert view.restored_ms == 77
    assert view.steps["1"].state is StepState.SUCCEEDED
    assert view.steps["1"].restored_ms == 0
    second = view.steps["2"]
    assert second.step == Step(letter="K", state=StepState.UNKNOWN, maybe_sent=1)
    assert (second.restored_ms, second.doubt) == (77, "restored")
    assert (second.ended, second.spared) == (None, 0)
    assert second.tool == "charge"


def test_a_step_that_only_the_lost_timeline_knew_is_planned_by_its_restore() -> None:
    told = Told().accept().claim()
    step = told.step(Event.RESTORE, lost_after_ms=5, **PLAN)
    assert (step.tool, step.planned_ms, step.restored_ms) == ("charge", 1_002, 5)
    assert step.state is StepState.UNKNOWN


def test_a_step_without_events_has_no_state_and_is_left_alone_by_a_restore() -> None:
    """No writer of ours makes one; a reader must not fall over it."""
    told = Told().accept().claim()
    step = told.step(letter="K")
    assert step.step is None
    assert not step.closed
    told.add(RecordKind.RESTORED, {"lost_after_ms": 77})
    assert step.step is None
    assert told.view.restored_ms == 77


def test_records_come_one_after_the_other() -> None:
    told = Told().accept().claim()
    for seq in (1, 3):
        with pytest.raises(JournalDamaged, match="a record is missing"):
            told.add(RecordKind.NOTE, {"what": "now"}, ordinal="1", seq=seq)


def test_a_task_is_accepted_once() -> None:
    with pytest.raises(JournalDamaged, match="a second record `accepted`"):
        Told().accept().accept()


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH])
def test_epochs_of_claims_rise(epoch: int) -> None:
    with pytest.raises(JournalDamaged, match="follows"):
        Told().accept().claim().claim(epoch)


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
@pytest.mark.parametrize(
    "kind",
    [RecordKind.STEP, RecordKind.NOTE, RecordKind.RESTED, RecordKind.FINISHED, RecordKind.RESTORED, RecordKind.ANSWER],
)
def test_nobody_writes_under_another_epoch(kind: RecordKind, epoch: int) -> None:
    told = Told().accept().claim()
    with pytest.raises(JournalDamaged, match="but the newest claim has"):
        told.add(kind, {}, ordinal="1", epoch=epoch)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RecordKind.STEP, {}),
        (RecordKind.NOTE, {}),
        (RecordKind.ANSWER, {}),
        (RecordKind.FINISHED, {"state": "odd"}),
        (RecordKind.RESTORED, {}),
        (RecordKind.CLAIMED, {}),
    ],
)
def test_a_record_that_says_too_little_is_damage(kind: RecordKind, body: dict[str, Any]) -> None:
    told = Told().accept().claim()
    epoch = EPOCH + (kind is RecordKind.CLAIMED)
    with pytest.raises(JournalDamaged, match="is malformed"):
        told.add(kind, body, ordinal="9", events=(Event.PLAN,), epoch=epoch)


# scratch files


def _files(told: Told, at: str, ordinal: str = "", **said: str) -> Files:
    told.add(RecordKind.FILES, {"at": at, **said}, ordinal=ordinal)
    assert told.view.files is not None
    return told.view.files


def test_what_the_scratch_folder_held_is_kept_by_step_and_side() -> None:
    told = Told().accept().claim()
    assert told.view.files is None
    files = _files(told, "before", "1", manifest="aa")
    assert (files.before, files.after, files.end) == ({"1": KeptFiles(2, "aa", "")}, {}, None)
    again = _files(told, "after", "1", unkept="a socket")
    assert again is files
    assert files.after == {"1": KeptFiles(3, "", "a socket")}
    _files(told, "end", manifest="cc")
    assert files.end == KeptFiles(4, "cc", "")
    with pytest.raises(JournalDamaged, match="files at"):
        _files(told, "beside", "1", manifest="dd")


def test_the_newest_manifest_is_the_one_recorded_last() -> None:
    told = Told().accept().claim()
    files = _files(told, "before", "1", unkept="too large")
    assert files.newest == ""
    _files(told, "before", "2", manifest="zz")
    assert files.newest == "zz"
    _files(told, "after", "2", manifest="bb")
    assert files.newest == "bb"
    _files(told, "before", "3", manifest="yy")
    assert files.newest == "yy"
    _files(told, "after", "3", unkept="too large")
    assert files.newest == "yy"
    _files(told, "end", manifest="aa")
    assert files.newest == "aa"


def test_the_newest_below_a_gather_is_of_its_branches_alone() -> None:
    told = Told().accept().claim()
    files = _files(told, "before", "4.1.1", manifest="aa")
    assert files.newest_below("4.") == KeptFiles(2, "aa", "")
    assert files.newest_below("5.") is None
    _files(told, "after", "4.2.1", manifest="bb")
    _files(told, "before", "5", manifest="cc")
    _files(told, "after", "4.1.1", unkept="too large")
    assert files.newest_below("4.") == KeptFiles(3, "bb", "")
    _files(told, "before", "4.3.1", manifest="ab")
    assert files.newest_below("4.") == KeptFiles(6, "ab", "")


# claims and doubts


def test_a_claim_over_one_that_did_not_end_says_that_it_was_lost() -> None:
    told = Told().accept().claim()
    assert told.view.lost == {}
    told.claim(EPOCH + 1)
    assert told.view.lost == {EPOCH: EPOCH + 1}
    told.add(RecordKind.RESTED, {"why": "sleeping"})
    told.claim(EPOCH + 2)
    assert told.view.lost == {EPOCH: EPOCH + 1}
    told.add(RecordKind.FINISHED, {"state": "failed"})
    told.claim(EPOCH + 3)
    assert told.view.lost == {EPOCH: EPOCH + 1}


def test_an_attempt_that_met_a_busy_model_is_spared() -> None:
    told = started("R")
    step = told.step(Event.RETRY, reason="busy")
    assert (step.doubt, step.spared) == ("busy", 1)
    told.step(Event.START)
    assert told.step(Event.RETRY, reason="raised").spared == 1
    told.step(Event.START)
    assert told.step(Event.UNSENT).spared == 2


# what the owner writes itself


@pytest.mark.parametrize("short", [False, True])
def test_the_owner_folds_what_it_wrote_as_a_reader_would(*, short: bool) -> None:
    """Also by the short ways, which the very tuples of a plain step take."""
    begin, success = (BEGIN, SUCCESS) if short else ((Event.PLAN, Event.START), (Event.SUCCEED,))
    read, own = Told().accept().claim(), Told().accept().claim()
    entries = [
        NewRecord(
            kind=RecordKind.STEP,
            ordinal="1",
            events=begin,
            body=PLAN,
            effect_key=b"k" * 16,
            fingerprint=b"f" * 16,
            slot=5,
            quiet=True,
        ),
        NewRecord(kind=RecordKind.NOTE, ordinal="2", body={"what": "now", "value": 7}),
        NewRecord(kind=RecordKind.STEP, ordinal="1", events=success, body={"result": 1}),
    ]
    for entry in entries:
        seq = own.view.seq + 1
        fold_own(own.view, entry, number=100 + seq, epoch=EPOCH, at_ms=1_000 + seq, boot_ms=50 + seq)
        read.add(
            entry.kind,
            entry.body,
            ordinal=entry.ordinal,
            events=entry.events,
            slot=entry.slot,
            quiet=entry.quiet,
            effect_key=entry.effect_key,
            fingerprint=entry.fingerprint,
        )
        shown = [
            {name: getattr(view, name) for name in TaskView.__struct_fields__ if name != "steps"}
            for view in (own.view, read.view)
        ]
        assert shown[0] == shown[1]
        steps = [structs.asdict(view.steps["1"]) for view in (own.view, read.view)]
        assert steps[0] == steps[1]


def test_the_owner_cannot_write_under_another_epoch() -> None:
    told = started()
    entry = NewRecord(kind=RecordKind.STEP, ordinal="1", events=(Event.SUCCEED,), body={"result": 1})
    with pytest.raises(JournalDamaged):
        fold_own(told.view, entry, number=9, epoch=EPOCH + 1, at_ms=1, boot_ms=1)


def test_a_content_is_kept_by_its_digest() -> None:
    told = Told().accept().claim()
    told.add(RecordKind.CONTENT, {"digest": "d1", "value": {"role": "user"}})
    assert told.view.contents == {"d1": {"role": "user"}}


@pytest.mark.parametrize(("event", "state"), [(Event.FIND, StepState.SUCCEEDED), (Event.ADOPT, StepState.SUCCEEDED)])
def test_a_step_knows_what_ended_it_and_who_said_so(event: Event, state: StepState) -> None:
    told = started()
    told.step(Event.DOUBT, reason="timeout")
    step = told.step(event, result=1, by="a webhook")
    assert (step.state, step.ending, step.by) == (state, event, "a webhook")


def test_a_settled_step_knows_who_settled_it() -> None:
    step = parked().step(Event.SETTLE_DONE, by="ada", result=1)
    assert (step.ending, step.by) == (Event.SETTLE_DONE, "ada")
