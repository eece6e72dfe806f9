"""The session page: slots, marks, and what damaged pages may not be taken to say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvariantViolated, ModeTooWide
from holdfast.journal.sqlite.host.high_water import HighWater, find_mark, high_water
from holdfast.journal.sqlite.host.page import SessionPage
from holdfast.journal.sqlite.host.page_reader import (
    MARK_AT,
    PAGE_BYTES,
    SLOT_COUNT,
    SLOTS_AT,
    Begun,
    DeadPage,
    NotBegun,
    Unreadable,
    blank,
    is_alive,
    page_ids,
    page_path,
    parsed,
    read_dead_page,
)

EXAMPLES = settings().max_examples  # of the profile: more for `make mutants`

TAG = b"attempt1"
OTHER = b"attempt2"
HEAD_BYTES = 156


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "journal"


def _page(folder: Path, session_id: str = "s1", *, boot_id: str = "boot") -> SessionPage:
    return SessionPage.create(folder, session_id, boot_id=boot_id, incarnation=3)


def _read(folder: Path, slot: int, tag: bytes, boot_id: str = "boot") -> object:
    page = read_dead_page(folder, "s1", boot_id=boot_id)
    return page.slot(slot, tag) if isinstance(page, DeadPage) else page


def _taken(page: SessionPage, tag: bytes) -> int:
    slot = page.take_slot(tag)
    assert slot is not None
    return slot


def test_the_lock_is_held_from_the_first_sight_of_the_page_to_its_close(folder: Path) -> None:
    assert not is_alive(folder, "s1")
    page = _page(folder)
    assert is_alive(folder, "s1")
    assert is_alive(folder, "s1")  # asking does not take it away
    page.close(delete=False)
    page.close(delete=False)
    assert not is_alive(folder, "s1")


def test_page_and_folders_are_private(folder: Path) -> None:
    page = _page(folder)
    path = page_path(folder, "s1")
    modes = [item.stat().st_mode & 0o777 for item in (path, path.parent, folder, folder.parent)]
    assert modes == [0o600, 0o700, 0o700, 0o700]
    assert os.listdir(path.parent) == ["s1.page"]
    page.close(delete=False)


def test_a_session_id_is_used_once(folder: Path) -> None:
    page = _page(folder)
    with pytest.raises(FileExistsError):
        _page(folder)
    assert is_alive(folder, "s1")
    assert os.listdir(folder / "sessions") == ["s1.page"]
    page.close(delete=False)


@pytest.mark.parametrize("session_id", ["", "../evil", "a/b", ".hidden", "x" * 65, "a\0b"])
def test_an_id_cannot_lead_out_of_the_folder(folder: Path, session_id: str) -> None:
    with pytest.raises(InvariantViolated):
        _page(folder, session_id)


def test_a_clear_slot_of_a_dead_session_proves_that_nothing_was_sent(folder: Path) -> None:
    page = _page(folder)
    clear, begun = _taken(page, TAG), _taken(page, OTHER)
    page.mark_begun(begun)
    assert isinstance(_read(folder, clear, TAG), Unreadable)  # alive: the flag may still be set
    page.close(delete=False)
    assert _read(folder, clear, TAG) == NotBegun()
    assert _read(folder, begun, OTHER) == Begun()


def test_what_outlives_its_session_is_in_the_page(folder: Path) -> None:
    page = _page(folder)
    left, other = _taken(page, TAG), _taken(page, OTHER)
    page.mark_left(left)
    assert (page.is_left(left), page.is_left(other)) == (True, False)
    os.pwrite(page.lock_fd, b"\x5a", page.left_at(other))  # as the process of a blocking tool does
    assert page.is_left(other)
    page.free_slot(other)
    assert _taken(page, OTHER) == other
    assert not page.is_left(other)
    page.close(delete=False)
    assert not page.is_left(left)
    for boot_id, found in (("boot", True), ("next boot", False)):  # nothing outlives a restart of the machine
        dead = read_dead_page(folder, "s1", boot_id=boot_id)
        assert isinstance(dead, DeadPage)
        assert dead.is_left(left, TAG) is found
        assert not dead.is_left(left, OTHER)
        assert not dead.is_left(other, OTHER)
        assert not dead.is_left(-1, TAG)


def test_after_a_reboot_a_clear_flag_proves_nothing_and_a_set_one_still_counts(folder: Path) -> None:
    page = _page(folder)
    clear, begun = _taken(page, TAG), _taken(page, OTHER)
    page.mark_begun(begun)
    page.close(delete=False)
    assert isinstance(_read(folder, clear, TAG, "next boot"), Unreadable)
    assert _read(folder, begun, OTHER, "next boot") == Begun()


def test_another_attempts_slot_proves_nothing(folder: Path) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)
    page.free_slot(slot)
    again = _taken(page, OTHER)
    page.close(delete=False)
    assert again == slot
    assert isinstance(_read(folder, slot, TAG), Unreadable)
    assert _read(folder, slot, OTHER) == NotBegun()
    for number in (-1, SLOT_COUNT, SLOT_COUNT - 1):
        assert isinstance(_read(folder, number, OTHER), Unreadable)


def test_a_reused_slot_is_clear_again(folder: Path) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)
    page.mark_begun(slot)
    page.free_slot(slot)
    assert _taken(page, TAG) == slot
    page.close(delete=False)
    assert _read(folder, slot, TAG) == NotBegun()


def test_slots_run_out_and_come_back(folder: Path) -> None:
    page = _page(folder)
    slots = {_taken(page, TAG) for _ in range(SLOT_COUNT)}
    assert slots == set(range(SLOT_COUNT))
    assert page.take_slot(TAG) is None
    page.free_slot(5)
    assert page.take_slot(OTHER) == 5
    page.close(delete=False)
    assert page_path(folder, "s1").stat().st_size == PAGE_BYTES
    assert _read(folder, SLOT_COUNT - 1, TAG) == NotBegun()


def test_misused_slots_are_a_defect_not_a_guess(folder: Path) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)
    page.free_slot(slot)
    with pytest.raises(InvariantViolated):
        page.mark_begun(slot)
    with pytest.raises(InvariantViolated):
        page.free_slot(slot)
    with pytest.raises(InvariantViolated):
        page.take_slot(b"short")
    page.close(delete=False)


def test_a_page_that_cannot_be_written_takes_no_slot_and_lets_nothing_be_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert page.take_slot(OTHER) is None
    assert not page.raise_mark(9)
    assert page.mark == 0
    with pytest.raises(Exception, match="No space left"):
        page.mark_begun(slot)
    monkeypatch.undo()
    assert page.raise_mark(9)
    page.close(delete=False)


def test_the_mark_only_rises(folder: Path) -> None:
    page = _page(folder)
    assert find_mark(folder, "s1") == HighWater(3, 0)
    for sequence in (5, 4, 5, 7):
        assert page.raise_mark(sequence)
    assert high_water(folder) == HighWater(3, 7)
    with pytest.raises(InvariantViolated):
        page.raise_mark(1 << 40)
    page.close(delete=False)


def test_a_page_that_others_can_write_is_no_evidence(folder: Path) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)
    page.close(delete=False)
    page_path(folder, "s1").chmod(0o666)
    assert isinstance(_read(folder, slot, TAG), Unreadable)
    assert is_alive(folder, "s1")  # nothing is proven
    with pytest.raises(ModeTooWide):
        _page_folder_made_wide(folder)


def _page_folder_made_wide(folder: Path) -> None:
    folder.chmod(0o755)
    _page(folder, "s2")


def test_a_failed_sync_of_the_page_makes_it_unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports a lost write-back there; the flag it shows may be the older one."""
    page = _page(folder)
    slot = _taken(page, TAG)
    page.close(delete=False)

    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    assert isinstance(_read(folder, slot, TAG), Unreadable)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HOLDPAGE",
        bytes(PAGE_BYTES),
        b"\xff" * PAGE_BYTES,
        b"\xa5" * PAGE_BYTES,
        b"HOLDPAGE" + bytes(PAGE_BYTES - 8),
    ],
)
def test_garbage_is_neither_a_mark_nor_a_proof(folder: Path, raw: bytes) -> None:
    page = _page(folder)
    page.close(delete=False)
    page_path(folder, "s1").write_bytes(raw)
    assert find_mark(folder, "s1") is None
    assert high_water(folder) == HighWater()
    for slot, tag in ((0, bytes(8)), (0, b"\xff" * 8), (0, b"\xa5" * 8), (0, TAG)):
        assert isinstance(_read(folder, slot, tag), Unreadable)


@settings(max_examples=4 * EXAMPLES)
@given(data=st.data())
def test_no_torn_page_raises_the_mark_or_invents_a_proof(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Power loss leaves any mixture of sectors old and new, and some of them may be garbage."""
    folder = tmp_path_factory.mktemp("torn") / "journal"
    page = _page(folder)
    path = page_path(folder, "s1")
    images = [path.read_bytes()]
    slot = _taken(page, TAG)
    page.raise_mark(255)
    images.append(path.read_bytes())
    page.mark_begun(slot)
    page.raise_mark(256)
    images.append(path.read_bytes())
    page.close(delete=False)

    sectors = PAGE_BYTES // 512
    junk = data.draw(st.binary(min_size=512, max_size=512))
    choice = data.draw(st.lists(st.integers(0, 3), min_size=sectors, max_size=sectors))
    torn = b"".join(junk if pick == 3 else images[pick][i * 512 : i * 512 + 512] for i, pick in enumerate(choice))
    cut = data.draw(st.sampled_from([0, 511, 512, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES]))
    path.write_bytes(torn[:cut])

    assert high_water(folder) <= HighWater(3, 256)
    after_power_loss = _read(folder, slot, TAG, "next boot")
    assert not isinstance(after_power_loss, NotBegun)
    assert isinstance(_read(folder, slot, OTHER), Unreadable)


@given(offset=st.integers(0, PAGE_BYTES - 1), bit=st.integers(0, 7))
@settings(max_examples=4 * EXAMPLES)
def test_no_flipped_bit_turns_a_begun_send_into_a_proof(
    offset: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flip") / "journal"
    page = _page(folder)
    slot = _taken(page, TAG)
    page.mark_begun(slot)
    page.raise_mark(1000)
    page.close(delete=False)
    path = page_path(folder, "s1")
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)
    assert not isinstance(_read(folder, slot, TAG), NotBegun)
    assert high_water(folder) in (HighWater(), HighWater(3, 1000))


def test_the_layout_is_the_documented_one(folder: Path) -> None:
    page = _page(folder)
    page.raise_mark(0x0102)
    slot = _taken(page, TAG)
    page.mark_begun(slot)
    raw = page_path(folder, "s1").read_bytes()
    page.close(delete=False)
    assert raw[:12] == b"HOLDPAGE\x01\0\0\0"
    assert raw[MARK_AT : MARK_AT + 8] == b"\x02\x01" + bytes(6)
    assert raw[SLOTS_AT : SLOTS_AT + 9] == TAG + b"\x5a"
    assert (SLOTS_AT, MARK_AT, len(raw)) == (512, 256, 16_384)


def test_many_attempts_are_read_from_one_image(folder: Path) -> None:
    page = _page(folder)
    slots = [_taken(page, number.to_bytes(8, "big")) for number in range(50)]
    for slot in slots[::2]:
        page.mark_begun(slot)
    page.close(delete=False)
    dead = read_dead_page(folder, "s1", boot_id="boot")
    assert not isinstance(dead, Unreadable)
    found = [dead.slot(slot, number.to_bytes(8, "big")) for number, slot in enumerate(slots)]
    assert found == [Begun(), NotBegun()] * 25


def test_a_missing_page_proves_nothing(folder: Path) -> None:
    assert isinstance(_read(folder, 0, TAG), Unreadable)
    assert list(page_ids(folder)) == []


def test_every_flipped_bit_of_the_head_makes_the_page_unreadable() -> None:
    whole = blank(session_id="s1", boot_id="boot", incarnation=3)
    assert parsed(whole, session_id="s1") is not None
    assert parsed(whole, session_id="s2") is None
    for offset in range(HEAD_BYTES):
        for bit in range(8):
            raw = bytearray(whole)
            raw[offset] ^= 1 << bit
            assert parsed(bytes(raw), session_id="s1") is None, (offset, bit)


def test_only_the_two_documented_flags_mean_anything(folder: Path) -> None:
    page = _page(folder)
    slot = _taken(page, TAG)
    page.close(delete=False)
    path = page_path(folder, "s1")
    raw = bytearray(path.read_bytes())
    found: dict[int, object] = {}
    for flag in range(256):
        raw[SLOTS_AT + slot * 16 + 8] = flag
        path.write_bytes(raw)
        reading = _read(folder, slot, TAG)
        if not isinstance(reading, Unreadable):
            found[flag] = reading
    assert found == {0xA5: NotBegun(), 0x5A: Begun()}
