"""Every body that the older version stored, read by its struct and written again: the same bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from golden_kit import HERE, unpack

import holdfast
from holdfast.journal import bodies
from holdfast.journal.bodies import Written
from holdfast.journal.contract import Filter, InboxKind
from holdfast.journal.records import RecordKind
from holdfast.journal.seal import DataKeySealer, unpacked

STRUCTS: dict[str, type[Written]] = {
    "CLAIMED": bodies.ClaimedBy,
    "RESTORED": bodies.RestoredFrom,
    "CONTENT": bodies.ContentKept,
    "NOTE approve": bodies.QuestionNote,
    "NOTE marks": bodies.MarksNote,
    "NOTE plan": bodies.PlanNote,
    "NOTE said": bodies.SaidNote,
    "ANSWER granted": bodies.ApprovalGiven,
    "ANSWER text": bodies.MessageAnswered,
    "approval": bodies.ApprovalGiven,
    "decision": bodies.DecisionGiven,
    "evidence": bodies.EvidenceGiven,
    "said id": bodies.MessageSaid,
}


async def test_every_stored_body_is_written_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[str, bytes]] = []
    opened = DataKeySealer.open

    def watch(self: DataKeySealer, sealed: bytes, place: bytes) -> bytes:
        plain = opened(self, sealed, place)
        match place.split(b"\0"):
            case [b"record", _, _, kind, *_]:
                stored.append((RecordKind(int(kind)).name, unpacked(plain)))
            case [b"inbox", *_, kind]:
                stored.append((InboxKind(kind.decode()).value, plain))
            case _:
                pass
        return plain

    monkeypatch.setattr(DataKeySealer, "open", watch)
    unpack(HERE / "journal.tar.gz", tmp_path)
    async with holdfast.open(tmp_path / "ada" / "journal.db", serve=False) as hf:
        for row in await hf.journal.list_tasks(Filter(limit=1_000)):
            if not row.erased:
                await hf.journal.read_task(row.task_id)
                await hf.journal.inbox_of(row.task_id)
    seen: set[str] = set()
    for kind, raw in stored:
        name = _name(kind, raw)
        if name in STRUCTS:
            seen.add(name)
            assert msgspec.json.encode(STRUCTS[name].read(msgspec.json.decode(raw)).body()) == raw
    assert seen == set(STRUCTS)


def _name(kind: str, raw: bytes) -> str:
    body = msgspec.json.decode(raw, type=dict[str, object])
    match kind:
        case "NOTE":
            return f"NOTE {body['what']}"
        case "ANSWER" | "said":
            return f"{kind} {next(iter(body))}"
        case _:
            return kind
