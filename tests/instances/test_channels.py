"""A shared folder to which others can write: a link among its folders leads nowhere, and what is not ours stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import BadUpdate, SymlinkRefused, WrongKind
from holdfast.instances.channels import NEWEST, FolderChannel
from holdfast.instances.envelope import ENVELOPE_BYTES_MAX

AGENT = "hf1" + "q" * 58
PART = "0af7651c" * 4
ELSEWHERE = {"journal.db": b"tasks", "MEMORY.md": b"# Memory", NEWEST: b"of another folder", PART: b"a key"}
LEVELS = ("agent", "instance")


@pytest.fixture
def channel(tmp_path: Path) -> FolderChannel:
    (tmp_path / "shared").mkdir()
    found = FolderChannel(tmp_path / "shared", agent=AGENT, instance="north")
    found.put(NEWEST, b"hello")
    return found


def folder_of(channel: FolderChannel, level: str) -> Path:
    return channel._own if level == "instance" else channel._agent


def misplaced(channel: FolderChannel, level: str) -> tuple[Path, Path]:
    """A folder of the share becomes a link to one that must not be touched: the link, and that folder."""
    at, elsewhere = folder_of(channel, level), channel._folder.parent / "elsewhere"
    inner = elsewhere if level == "instance" else elsewhere / "north"
    inner.mkdir(parents=True)
    for name, data in ELSEWHERE.items():
        (inner / name).write_bytes(data)
    at.rename(at.with_name("before"))
    at.symlink_to(elsewhere)
    return at, inner


ACTS: dict[str, Callable[[FolderChannel], object]] = {
    "own": lambda one: one.own(),
    "put": lambda one: one.put(NEWEST, b"mine"),
    "remove": lambda one: one.remove(PART),
    "read": lambda one: one.read("north", NEWEST),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_read_written_or_removed_through_a_link(channel: FolderChannel, act: str, level: str) -> None:
    link, elsewhere = misplaced(channel, level)
    with pytest.raises(SymlinkRefused, match=f"{link} is a symbolic link") as raised:
        ACTS[act](channel)
    assert f"remove {link}" in raised.value.hint
    assert {one.name: one.read_bytes() for one in elsewhere.iterdir()} == ELSEWHERE


@pytest.mark.parametrize("level", LEVELS)
def test_a_link_is_a_mark_that_stays_so_that_it_is_read_and_named(channel: FolderChannel, level: str) -> None:
    link, elsewhere = misplaced(channel, level)
    before = channel.marks(["north"])
    assert str(link) in str(before["north"])
    (elsewhere / NEWEST).write_bytes(b"it changes")
    assert channel.marks(["north"]) == before


@pytest.mark.parametrize("act", ACTS)
def test_a_file_in_the_place_of_a_folder_is_named(channel: FolderChannel, act: str) -> None:
    channel._own.rename(channel._own.with_name("before"))
    channel._own.write_bytes(b"no folder")
    with pytest.raises(WrongKind, match=f"{channel._own} is not a folder"):
        ACTS[act](channel)


def test_only_plain_files_with_names_that_this_program_gives_are_its_own(channel: FolderChannel) -> None:
    own = channel._own
    channel.put(PART, b"a part")
    ours = {NEWEST: 5, PART: 6, f".{NEWEST}.0a1b2c3d": 2, f".{PART}.0a1b2c3d": 2}
    for name in ours.keys() - {NEWEST, PART} | {"MEMORY.md", "newest (conflicted copy)", f"{PART}0", f".{NEWEST}.new"}:
        (own / name).write_bytes(b"..")
    (own / ("a" * 32)).symlink_to(own / "MEMORY.md")
    (own / ("b" * 32)).mkdir()
    assert channel.own() == ours


def test_many_files_of_others_hide_none_of_its_own(channel: FolderChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.instances.channels.OWN_FILES_MAX", 3)
    for number in range(20):
        (channel._own / f"newest (conflicted copy {number})").write_bytes(b"")
    assert channel.own() == {NEWEST: 5}


def test_a_pipe_or_a_huge_file_of_another_instance_is_refused_at_once(channel: FolderChannel) -> None:
    newest = channel._own / NEWEST
    newest.unlink()
    os.mkfifo(newest)
    with pytest.raises(BadUpdate, match="is not a file"):
        channel.read("north", NEWEST)
    newest.unlink()
    newest.touch()
    os.truncate(newest, ENVELOPE_BYTES_MAX + 1)
    with pytest.raises(BadUpdate, match="has more than"):
        channel.read("north", NEWEST)
