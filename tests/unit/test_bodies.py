"""Bodies that a struct writes: the same bytes as before there was one; one that does not fit is refused by name."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.ids import TaskId
from holdfast.errors import JournalDamaged
from holdfast.journal.bodies import (
    ApprovalGiven,
    Body,
    ClaimedBy,
    ContentKept,
    DecisionGiven,
    EvidenceGiven,
    HeadsNote,
    MarksNote,
    MessageAnswered,
    MessageSaid,
    PlanItem,
    PlanNote,
    PlanState,
    QuestionNote,
    RestoredFrom,
    SaidNote,
    ToldNote,
    Written,
)
from holdfast.journal.contract import Remark, RemarkTo
from holdfast.journal.records import NewRecord, Record, RecordKind, TaskView, fold
from holdfast.journal.rules import remark_of

TASK = TaskId("0" * 32)
LOOK = PlanItem(number=1, title="look")
PAID = PlanItem(number=2, title="pay", state=PlanState.DONE, result="42")

# Stored by version 0.1.0: in tests/golden/journal.tar.gz, or by the same code where that journal has no such record.
STORED: list[tuple[Written, bytes]] = [
    (
        ClaimedBy("65a924be12964d1b", "80ded074-b708-4d83-8502-64c7d86f8fac", worker="1516"),
        b'{"session":"65a924be12964d1b","boot":"80ded074-b708-4d83-8502-64c7d86f8fac","worker":"1516"}',
    ),
    (RestoredFrom(1794812201565), b'{"lost_after_ms":1794812201565}'),
    (
        ContentKept("s4nYXo8d7t8Ej5", {"role": "user", "parts": [{"type": "text", "text": "hello"}]}),
        b'{"digest":"s4nYXo8d7t8Ej5","value":{"role":"user","parts":[{"type":"text","text":"hello"}]}}',
    ),
    (
        QuestionNote("greet Alan?", {"who": "Alan"}, "f36564e08ff0362f"),
        b'{"what":"approve","question":"greet Alan?","details":{"who":"Alan"},"binding":"f36564e08ff0362f"}',
    ),
    (QuestionNote("", {}, "f3"), b'{"what":"approve","question":"","details":{},"binding":"f3"}'),
    (MarksNote({"code": "092c59caebc07d1b"}), b'{"what":"marks","marks":{"code":"092c59caebc07d1b"}}'),
    (MarksNote({}), b'{"what":"marks","marks":{}}'),
    (
        MarksNote({"code": "09", "model": "m"}, ["code"]),
        b'{"what":"marks","marks":{"code":"09","model":"m"},"changed":["code"]}',
    ),
    (HeadsNote({"a": "b"}, ["prompt"]), b'{"what":"asked","passed":{"a":"b"},"changed":["prompt"]}'),
    (SaidNote("m-1", "s4nYXo8d7t8Ej5"), b'{"what":"said","id":"m-1","digest":"s4nYXo8d7t8Ej5"}'),
    (ToldNote("no such tool", failed=True), b'{"what":"told","text":"no such tool","failed":true}'),
    (
        PlanNote([LOOK, PAID]),
        b'{"what":"plan","items":[{"number":1,"title":"look","state":"pending","result":""},'
        b'{"number":2,"title":"pay","state":"done","result":"42"}]}',
    ),
    (PlanNote([]), b'{"what":"plan","items":[]}'),
    (MessageAnswered("Good morning.", "m-1", "1"), b'{"text":"Good morning.","id":"m-1","step":"1"}'),
    (MessageAnswered("", "m-1", "1", refused=True), b'{"text":"","id":"m-1","step":"1","refused":true}'),
    (ApprovalGiven(True, "ops", "as agreed"), b'{"granted":true,"by":"ops","note":"as agreed"}'),
    (ApprovalGiven(False, "", "", "k/f/v"), b'{"granted":false,"by":"","note":"","binding":"k/f/v"}'),
    (
        DecisionGiven("done", {"letter": "ef_1"}, "ops", "asked", 8589934593),
        b'{"decision":"done","result":{"letter":"ef_1"},"by":"ops","note":"asked","epoch":8589934593}',
    ),
    (DecisionGiven("run", None, "", "", 0), b'{"decision":"run","result":null,"by":"","note":"","epoch":0}'),
    (
        EvidenceGiven("succeeded", {"letter": "ef_2"}, "command line"),
        b'{"outcome":"succeeded","result":{"letter":"ef_2"},"source":"command line"}',
    ),
    (
        EvidenceGiven("succeeded", None, "stale worker", 8589934593),
        b'{"outcome":"succeeded","result":null,"source":"stale worker","epoch":8589934593}',
    ),
    (MessageSaid("m-1", "hello"), b'{"id":"m-1","text":"hello"}'),
]


@pytest.mark.parametrize(("said", "stored"), STORED, ids=[type(said).__name__ for said, _ in STORED])
def test_a_body_is_stored_and_read_as_ever(said: Written, stored: bytes) -> None:
    body = said.body()
    assert msgspec.json.encode(body) == stored
    assert msgspec.json.decode(stored) == body  # what its owner sees is what everyone else reads
    assert type(said).read(body) == said
    assert type(said).read({**body, "of_a_later_version": 1}) == said


def test_every_struct_that_writes_is_among_them() -> None:
    assert {type(said) for said, _ in STORED} == set(Written.__subclasses__())


def test_a_content_is_held_once() -> None:
    value = {"role": "user"}
    assert ContentKept("d", value).body()["value"] is value


def test_a_remark_is_read_as_ever() -> None:
    stored = b'{"to":"MEMORY","text":"Ada has a trip","origin":"task trip"}'
    entry = NewRecord(kind=RecordKind.REMARK, ordinal="4", body=msgspec.json.decode(stored))
    wanted = Remark(remark_id=f"{TASK}/4", to=RemarkTo.MEMORY, text="Ada has a trip", origin="task trip")
    assert remark_of(TASK, entry) == wanted
    for name, bad in (("to", "home"), ("text", 1), ("origin", None)):
        with pytest.raises(msgspec.ValidationError, match=name):
            remark_of(TASK, msgspec.structs.replace(entry, body={**entry.body, name: bad}))


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (RecordKind.CLAIMED, {"session": "s", "boot": "b"}, "missing required field `worker`"),
        (
            RecordKind.CLAIMED,
            {"session": 1, "boot": "b", "worker": "w"},
            r"Expected `str`, got `int` - at `\$.session`",
        ),
        (RecordKind.RESTORED, {}, "missing required field `lost_after_ms`"),
        (RecordKind.RESTORED, {"lost_after_ms": "5"}, r"Expected `int`, got `str` - at `\$.lost_after_ms`"),
        (RecordKind.CONTENT, {"value": 1}, "missing required field `digest`"),
        (RecordKind.CONTENT, {"digest": "d"}, "missing required field `value`"),
        (RecordKind.NOTE, {"value": 1}, "what"),
    ],
)
def test_a_record_that_does_not_fit_is_damage(kind: RecordKind, body: Body, why: str) -> None:
    epoch = int(kind is RecordKind.CLAIMED)
    record = Record(1, 0, kind, "1", (), epoch, 1_000, 1_000, b"", b"", -1, False, body)
    with pytest.raises(JournalDamaged, match=f"record 0 is malformed: .*{why}"):
        fold(TaskView(TASK), record)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (SaidNote, {"what": "said", "id": "m-1"}, "missing required field `digest`"),
        (SaidNote, {"what": "told", "id": "m-1", "digest": "d"}, "Invalid value 'told'"),
        (ToldNote, {"what": "told"}, "missing required field `text`"),
        (QuestionNote, {"what": "approve", "binding": 1}, r"at `\$.binding`"),
        (MarksNote, {"what": "marks", "marks": {"code": 1}}, r"at `\$.marks\[...\]`"),
        (HeadsNote, {"what": "asked", "passed": []}, r"at `\$.passed`"),
        (
            PlanNote,
            {"what": "plan", "items": [{"number": 1, "title": "x", "state": "odd"}]},
            "Invalid enum value 'odd'",
        ),
        (MessageAnswered, {"text": None}, r"at `\$.text`"),
        (ApprovalGiven, {"granted": True, "binding": 1}, r"at `\$.binding`"),
        (DecisionGiven, {"decision": 1}, r"at `\$.decision`"),
        (EvidenceGiven, {"outcome": True}, r"at `\$.outcome`"),
        (MessageSaid, {"id": "m-1"}, "missing required field `text`"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_by_name(kind: type[Written], body: Body, why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        kind.read(body)
