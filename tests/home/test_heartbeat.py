"""HEARTBEAT.md: what people wrote is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.memory import handoff_writer
from holdfast.memory.handoff_writer import write_heartbeat
from holdfast.memory.heartbeat import BEGIN, END, DamagedMarks, merged

FREE = st.binary(max_size=200).filter(lambda raw: b"<!-- holdfast:tasks" not in raw)
BLOCK = b"- [ ] one\n"


def outside(raw: bytes) -> tuple[bytes, bytes]:
    before, _, rest = raw.partition(BEGIN)
    return before, rest.partition(END)[2]


@given(before=FREE, after=FREE, old=FREE)
def test_every_byte_outside_of_the_marks_stays(before: bytes, after: bytes, old: bytes) -> None:
    raw = before + BEGIN + b"\n" + old + END + after
    new = merged(raw, BLOCK)
    assert isinstance(new, bytes)
    assert outside(new) == (before, after)
    assert BEGIN + b"\n" + BLOCK + END in new
    assert merged(new, BLOCK) == new


@given(before=FREE)
def test_without_marks_the_block_goes_to_the_end(before: bytes) -> None:
    new = merged(before, BLOCK)
    assert isinstance(new, bytes)
    assert new.startswith(before)
    assert new.endswith(BEGIN + b"\n" + BLOCK + END + b"\n")
    assert not new[len(before) :].partition(BEGIN)[0].strip()


def test_there_is_a_file_where_there_was_none() -> None:
    new = merged(None, BLOCK)
    assert isinstance(new, bytes)
    assert new.startswith(b"# Heartbeat")


@pytest.mark.parametrize(
    "raw",
    [
        BEGIN + b"\nmine",
        b"mine\n" + END,
        END + b"\n" + BEGIN,
        BEGIN + BEGIN + END,
        BEGIN + b"\n" + END + b"\n" + BEGIN + b"\n" + END,
    ],
)
def test_damaged_marks_are_reported_and_nothing_is_written(raw: bytes, tmp_path: Path) -> None:
    assert isinstance(merged(raw, BLOCK), DamagedMarks)
    path = tmp_path / "HEARTBEAT.md"
    path.write_bytes(raw)
    assert "mark" in write_heartbeat(path, BLOCK, asides=tmp_path / "aside")
    assert path.read_bytes() == raw


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o660])
def test_the_file_keeps_its_mode_and_a_new_one_is_private(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path, new = tmp_path / "HEARTBEAT.md", tmp_path / "new" / "HEARTBEAT.md"
    path.write_bytes(b"mine\n")
    path.chmod(mode)
    new.parent.mkdir(0o700)
    for one in (path, new):
        assert write_heartbeat(one, BLOCK, asides=tmp_path / "aside") == ""
    assert BLOCK in path.read_bytes()
    assert path.stat().st_mode & 0o777 == mode
    assert new.stat().st_mode & 0o777 == 0o600


def test_what_an_editor_saves_while_the_block_is_written_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asides = tmp_path / "HEARTBEAT.md", tmp_path / ".holdfast" / "aside"
    path.write_bytes(b"mine\n")
    whole = handoff_writer.exchange
    saves = [b"mine, saved\n", b"mine, saved twice\n"]

    def saved_before(path: Path, data: bytes, *, asides: Path) -> Path | None:
        if saves:  # an editor replaces the file after it was read, just before the exchange
            new = tmp_path / "editor"
            new.write_bytes(saves.pop(0))
            new.replace(path)
        return whole(path, data, asides=asides)

    monkeypatch.setattr(handoff_writer, "exchange", saved_before)
    assert write_heartbeat(path, BLOCK, asides=asides) == ""
    assert path.read_bytes().startswith(b"mine, saved twice\n")
    assert BLOCK in path.read_bytes()
    assert list(asides.iterdir()) == []
