"""The sealed file: private, whole, versions that only rise, several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import BadSecret, ModeTooWide, SecretNotFound, SecretsDamaged, SymlinkRefused
from holdfast.identity.journal_keys.secret_file import SECRETS, VERSIONS_KEPT, SecretFile
from holdfast.testing.lab import Lab

OpenStore = Callable[[], SecretFile]
VALUE = "correct-horse-battery"


def test_the_file_is_private_and_says_nothing(lab: Lab, open_store: OpenStore) -> None:
    open_store().set("billing", VALUE)
    path = lab.folder / SECRETS
    raw = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"billing" not in raw
    assert VALUE.encode() not in raw
    assert [one.name for one in lab.folder.iterdir() if one.name.endswith(".new")] == []
    assert VALUE not in repr(open_store()) + repr(open_store().get("billing"))


def test_another_process_sees_a_rotation(open_store: OpenStore) -> None:
    writer, reader = open_store(), open_store()
    assert not reader.refresh()
    assert writer.set("billing", VALUE) == 1
    assert reader.find_current("billing") is None
    assert reader.refresh()
    assert not reader.refresh()
    assert writer.rotate("billing", VALUE + "-2") == 2
    assert reader.refresh()
    assert reader.find_current("billing") == 2
    assert reader.find_value("billing", 1) == VALUE
    assert sorted(reader.known()) == [("billing", VALUE), ("billing", VALUE + "-2")]


def test_numbers_only_rise(open_store: OpenStore) -> None:
    """A step that recorded version 1 must never find another value under that number."""
    store = open_store()
    store.set("billing", VALUE)
    store.remove("billing")
    assert store.find_value("billing", 1) is None
    assert list(store.list_secrets()) == []
    with pytest.raises(SecretNotFound):
        store.rotate("billing", VALUE)
    assert store.set("billing", VALUE + "-again") == 2
    assert open_store().find_value("billing", 1) is None


def test_old_versions_are_kept_for_a_while_or_dropped(open_store: OpenStore) -> None:
    store = open_store()
    store.set("billing", VALUE)
    for number in range(2, 6):
        store.rotate("billing", f"{VALUE}-{number}")
    kept = [one.number for one in store.get("billing").versions]
    assert kept == [3, 4, 5]
    assert len(kept) == VERSIONS_KEPT
    store.rotate("billing", f"{VALUE}-6", drop_old=True)
    assert [one.number for one in store.get("billing").versions] == [6]


@pytest.mark.parametrize(
    "value", ["tiny7", "", "aaaaaaaaaaaa", "x" * 70_000 + "yz", "has secret://x inside", "nul\0in here..."]
)
def test_values_that_could_not_be_swapped_are_refused(open_store: OpenStore, value: str) -> None:
    with pytest.raises(BadSecret) as caught:
        open_store().set("billing", value)
    assert len(value) < 4 or value not in str(caught.value) + caught.value.hint
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a/b", "a.b", "é", "x" * 64])
def test_names_that_no_handle_can_hold_are_refused(open_store: OpenStore, name: str) -> None:
    with pytest.raises(BadSecret):
        open_store().set(name, VALUE)


def test_a_value_is_never_part_of_a_handle(open_store: OpenStore) -> None:
    """Else what was swapped would be swapped again."""
    store = open_store()
    with pytest.raises(BadSecret):
        store.set("customer-key", "customer-key")
    store.set("billing", "customer")
    with pytest.raises(BadSecret):
        store.set("customer-token", VALUE)


def test_set_is_not_rotate(open_store: OpenStore) -> None:
    store = open_store()
    store.set("billing", VALUE)
    with pytest.raises(BadSecret, match="already set"):
        store.set("billing", VALUE + "x")
    with pytest.raises(BadSecret, match="already has that value"):
        store.rotate("billing", VALUE)


def test_a_changed_file_is_refused(lab: Lab, open_store: OpenStore) -> None:
    store = open_store()
    store.set("billing", VALUE)
    path = lab.folder / SECRETS
    good = path.read_bytes()
    for bad in (good[:-1], good[:-1] + bytes((good[-1] ^ 1,)), b"", b"x" * 100, good[:20]):
        path.write_bytes(bad)
        with pytest.raises(SecretsDamaged):
            open_store()
        with pytest.raises(SecretsDamaged):
            store.refresh()
    path.write_bytes(good)
    assert open_store().find_value("billing", 1) == VALUE


def test_other_keys_do_not_open_it(lab: Lab, open_store: OpenStore) -> None:
    open_store().set("billing", VALUE)
    (lab.folder / "keys.json").unlink()
    with pytest.raises(SecretsDamaged):
        open_store()


def test_wide_or_linked_files_are_refused(lab: Lab, open_store: OpenStore, tmp_path: Path) -> None:
    open_store().set("billing", VALUE)
    path = lab.folder / SECRETS
    path.chmod(0o640)
    with pytest.raises(ModeTooWide):
        open_store()
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SymlinkRefused):
        open_store()


def _add(lab: Path, number: int) -> None:
    from holdfast.core.clock import SystemClock, SystemEntropy
    from holdfast.identity.journal_keys.keyfile import load_or_create

    entropy = SystemEntropy()
    keys = load_or_create(lab / "keys.json", journal_exists=False, entropy=entropy)
    store = SecretFile(lab, keys=keys, clock=SystemClock(), entropy=entropy)
    for turn in range(5):
        store.set(f"s-{number}-{turn}", f"{VALUE}-{number}-{turn}")


def test_writers_at_the_same_time_lose_nothing(lab: Lab, open_store: OpenStore) -> None:
    open_store()
    start = multiprocessing.get_context("fork").Process
    writers = [start(target=_add, args=(lab.folder, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(open_store().list_secrets()) == 20
    assert os.listdir(lab.folder).count(SECRETS) == 1
