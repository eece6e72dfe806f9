"""What a power cut may leave, and what is read from the calls of a program: plain values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from holdfast.journal.sqlite.host.page import SessionPage
from holdfast_proofs.crash.disk_faults.disk import SECTOR, Image, Loss, after_power_loss, as_entries
from holdfast_proofs.crash.disk_faults.full_disk import answers_when_full, unrecorded_sends
from holdfast_proofs.crash.disk_faults.power import may_be_open, sent
from holdfast_proofs.crash.disk_faults.sync_error import retried
from holdfast_proofs.shim import PAGE, SLOT_TAKEN, Made, Phase
from holdfast_proofs.shim.disk_log import Act, Entry

Step = tuple[Act, dict[str, object]]
SEEDS = range(200)
FILE = 7
LOG = "journal.db-wal"


def log(*acts: Step) -> list[Entry]:
    """Entries at rising places; a sync has begun after all that lies before it."""
    return [
        Entry(act=act, place=place, began=place, **fields)  # pyright: ignore[reportArgumentType]
        for place, (act, fields) in enumerate(acts)
    ]


def created(path: str = "a", file: int = FILE) -> Step:
    return Act.CREATE, {"paths": (path,), "file": file}


def written(at: int, data: bytes, file: int = FILE) -> Step:
    return Act.WRITE, {"file": file, "at": at, "length": len(data), "data": data}


def synced(file: int = FILE, *, failed: bool = False) -> Step:
    return Act.SYNC_FAILED if failed else Act.SYNC, {"file": file}


FOLDER_SYNCED: Step = (Act.FOLDER_SYNC, {"paths": (".",)})


def lose(entries: Sequence[Entry], loss: Loss, seeds: Iterable[int] = SEEDS) -> list[Image]:
    return [after_power_loss(entries, loss, seed) for seed in seeds]


def test_nothing_unsynced_survives_the_strictest_loss() -> None:
    entries = log(created(), FOLDER_SYNCED, written(0, b"old"), synced(), written(0, b"new"))

    assert after_power_loss(entries, Loss.UNDONE, 1).files == {"a": b"old"}


@pytest.mark.parametrize("loss", Loss)
def test_what_was_synced_is_never_lost(loss: Loss) -> None:
    entries = log(created(), FOLDER_SYNCED, written(0, b"kept"), synced(), written(4, b"more"))

    assert all(image.files["a"].startswith(b"kept") for image in lose(entries, loss))


@pytest.mark.parametrize("loss", [Loss.COIN, Loss.TORN])
def test_what_was_not_synced_may_be_there_or_not(loss: Loss) -> None:
    entries = log(created(), FOLDER_SYNCED, written(0, b"x"))

    found = {image.files["a"] for image in lose(entries, loss)}

    assert found == {b"", b"x", b"\0"}, "gone, there, or only its length"


def test_a_torn_write_keeps_whole_sectors() -> None:
    data = b"a" * SECTOR + b"b" * SECTOR + b"c" * SECTOR
    entries = log(created(), FOLDER_SYNCED, written(0, data))

    for image in lose(entries, Loss.TORN):
        for at in range(0, len(image.files["a"]), SECTOR):
            assert image.files["a"][at : at + SECTOR] in (data[at : at + SECTOR], bytes(SECTOR))
    assert any(image.files["a"].startswith(bytes(SECTOR) + b"b") for image in lose(entries, Loss.TORN))


def test_a_name_is_safe_with_its_folder_and_not_with_its_file() -> None:
    entries = log(created(), written(0, b"x"), synced())

    assert after_power_loss(entries, Loss.UNDONE, 1).files == {}
    assert {tuple(image.files) for image in lose(entries, Loss.COIN)} == {(), ("a",)}


def test_a_rename_is_done_or_not_but_never_half() -> None:
    moved: Step = (Act.RENAME, {"paths": ("a", "b"), "file": 0})
    entries = log(created("a", 7), created("b", 8), FOLDER_SYNCED, moved)

    assert {tuple(sorted(image.files)) for image in lose(entries, Loss.COIN)} == {("a", "b"), ("b",)}


def test_a_failed_sync_is_not_mended_by_a_later_one() -> None:
    entries = log(created(), FOLDER_SYNCED, written(0, b"lost"), synced(failed=True), written(4, b"kept"), synced())

    assert after_power_loss(entries, Loss.UNDONE, 1).files == {"a": b"\0\0\0\0kept"}


def test_a_write_during_a_sync_is_not_synced_by_it() -> None:
    entries = [*log(created(), FOLDER_SYNCED, written(0, b"x")), Entry(act=Act.SYNC, place=9, began=2, file=FILE)]

    assert after_power_loss(entries, Loss.UNDONE, 1).files == {"a": b""}


def test_shared_memory_is_gone() -> None:
    entries = log(created("journal.db-shm"), FOLDER_SYNCED, written(0, b"x"), synced())

    assert after_power_loss(entries, Loss.UNDONE, 1).files == {}


@pytest.mark.parametrize("loss", Loss)
def test_what_one_cut_left_is_safe_in_the_next(loss: Loss) -> None:
    image = Image(folders=("sub",), files={"a": b"old", "sub/b": b""}, doubtful=0, fate="")
    entries = as_entries(image, {"a": 7, "sub/b": 8})

    assert after_power_loss(entries, loss, 1).files == image.files
    again = [*entries, Entry(act=Act.WRITE, place=0, file=7, length=3, data=b"new")]
    assert {one.files["a"] for one in lose(again, loss)} <= {b"old", b"new"}
    assert after_power_loss(again, Loss.UNDONE, 1).files == image.files


def test_one_fate_is_one_disk() -> None:
    entries = log(created(), FOLDER_SYNCED, written(0, b"x"), written(1, b"y"))
    images = lose(entries, Loss.COIN)

    by_fate = {image.fate: image.files["a"] for image in images}
    assert all(by_fate[image.fate] == image.files["a"] for image in images)
    assert len(by_fate) > 3
    assert all(image.doubtful == 2 for image in images)


def test_a_sync_tried_again_is_seen() -> None:
    def story(name: str, *after: Step) -> list[Entry]:
        return log(created(name), written(0, b"x"), synced(failed=True), *after)

    gone: Step = (Act.UNLINK, {"paths": ("a",)})
    temporary_gone: Step = (Act.UNLINK, {"paths": (".a",)})

    assert retried(story("a")) == ""
    assert retried(story("a", synced())) == "a"
    assert retried(story("a", (Act.LIFE, {}), synced(), gone)) == "a", "by another program"
    assert retried(story("a", written(0, b"y"), synced())) == "", "written anew before"
    assert retried(story(".a", synced(), temporary_gone)) == "", "never used"
    assert retried(story(".a", synced(), (Act.RENAME, {"paths": (".a", "a")}))) == "a"


def call(
    name: str,
    where: str = "socket",
    *,
    head: bytes = b"",
    length: int = 0,
    failed: bool = False,
    phase: Phase = Phase.WHOLE,
) -> Made:
    return Made(name=name, where=where, head=head, length=length, done=True, failed=failed, phase=phase)


LOGGED, COMMITTED = call("pwrite", LOG, length=4_096), call("fdatasync", LOG)
SLOT, SENT = call("pwrite", PAGE, length=SLOT_TAKEN), call("send", head=b"POST /ef")
ANSWERED = call("recv")


def test_a_slot_is_known_by_what_a_session_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = SessionPage.create(tmp_path / "instance", "5e5510", boot_id="boot", incarnation=1)
    lengths: list[int] = []
    monkeypatch.setattr(os, "pwrite", lambda _fd, data, _at: lengths.append(len(data)))  # pyright: ignore
    slot = page.take_slot(b"8 bytes.")
    assert slot is not None
    page.mark_begun(slot)
    page.raise_mark(7)
    monkeypatch.undo()
    page.close(delete=True)

    calls = [call("pwrite", PAGE, length=length) for length in lengths]
    assert [(one.is_slot, one.is_mark) for one in calls] == [(True, False), (False, True), (False, False)]


def test_a_park_is_right_from_the_start_to_the_result() -> None:
    start, result = (SLOT, LOGGED, COMMITTED, SENT, ANSWERED), (LOGGED, COMMITTED)

    assert not may_be_open((SLOT,))
    assert may_be_open((SLOT, LOGGED)), "it may have reached the disk unsynced"
    assert may_be_open((*start, LOGGED)), "the result may not have"
    assert not may_be_open((*start, *result))
    assert may_be_open((*start, LOGGED, call("fdatasync", LOG, failed=True)))


def test_a_send_without_a_commit_is_seen() -> None:
    assert unrecorded_sends((SLOT, LOGGED, COMMITTED, SENT)) == 0
    assert unrecorded_sends((SLOT, LOGGED, SENT)) == 1
    assert unrecorded_sends((LOGGED, COMMITTED, SLOT, SENT)) == 1
    assert unrecorded_sends((SLOT, LOGGED, COMMITTED, SENT, ANSWERED, SENT)) == 1
    assert unrecorded_sends((SLOT, LOGGED, call("fdatasync", LOG, failed=True), SENT)) == 1
    assert sent((SENT, ANSWERED, SENT)) == {"1", "2"}


def test_an_answer_that_the_reserve_had_no_room_for_is_seen() -> None:
    full, later = Phase.FULL, Phase.ROOM_AGAIN
    answered = call("recv", phase=full)

    def recorded(phase: Phase) -> tuple[Made, ...]:
        return call("pwrite", LOG, phase=phase), call("fdatasync", LOG, phase=phase)

    assert answers_when_full((SENT, ANSWERED)) == (0, 0)
    assert answers_when_full((SENT, answered, *recorded(full))) == (1, 0)
    assert answers_when_full((SENT, answered, *recorded(later))) == (1, 1)
    assert answers_when_full((SENT, answered)) == (1, 1)
