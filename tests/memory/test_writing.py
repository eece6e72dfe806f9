"""One file, whatever others do to it: by hand, step by step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import MemoryFileBusy, SymlinkRefused, TooLarge, WrongKind
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory import exchange, projection
from holdfast.memory.lines import entry_id, rendered
from holdfast.memory.projection import Written, locked, write_file

NOW = 1_800_000_000_000
HEAD = ("# Memory", "")


@pytest.fixture
def place(tmp_path: Path) -> MemoryPlace:
    tmp_path.chmod(0o700)
    return MemoryPlace(folder=tmp_path)


def entry(name: str) -> str:
    return rendered(id=entry_id(name), at_ms=NOW, text=name, origin="model", timed=False)


def add(place: MemoryPlace, *names: str, now_ms: int = NOW) -> Written:
    with locked(place):
        return write_file(place, place.memory_file, [entry(name) for name in names], heading=HEAD, now_ms=now_ms)


def lines(place: MemoryPlace) -> list[str]:
    return place.memory_file.read_text().splitlines()


def save(place: MemoryPlace, *text: str) -> None:
    """As an editor does: a new file under the old name."""
    new = place.folder / "swap"
    new.write_text("".join(f"{line}\n" for line in text))
    new.rename(place.memory_file)


def test_a_new_file_has_a_heading_and_is_private(place: MemoryPlace) -> None:
    add(place, "one")
    assert lines(place) == [*HEAD, entry("one")]
    assert place.memory_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o664, 0o640, 0o600, 0o444])
@pytest.mark.parametrize("way", ["exchange", "link"])
def test_a_file_that_is_there_keeps_its_mode(
    place: MemoryPlace, mode: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its editor may be another user; what lies aside for us is nobody else's."""
    if way == "link":
        monkeypatch.setattr(exchange, "exchange_names", _no_exchange)
    place.memory_file.write_text("mine\n")
    place.memory_file.chmod(mode)
    add(place, "one")
    assert entry("one") in lines(place)
    assert place.memory_file.stat().st_mode & 0o7777 == mode
    assert place.asides.stat().st_mode & 0o077 == 0


def _no_exchange(one: Path, other: Path) -> bool:
    return False


def test_a_save_between_brings_its_own_mode(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    add(place, "one")
    assert place.memory_file.stat().st_mode & 0o777 == 0o600
    swap, saved = exchange.exchange_names, False

    def saves_first(one: Path, other: Path) -> bool:
        nonlocal saved
        if not saved:
            saved = True
            save(place, *lines(place), "theirs")
            place.memory_file.chmod(0o644)
        return swap(one, other)

    monkeypatch.setattr(exchange, "exchange_names", saves_first)
    add(place, "two")
    assert {"theirs", entry("two")} <= set(lines(place))
    assert place.memory_file.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can be two users here")
def test_its_group_stays_where_we_may_give_it(place: MemoryPlace) -> None:
    place.memory_file.write_text("mine\n")
    os.chown(place.memory_file, -1, 12_345)
    place.memory_file.chmod(0o660)
    add(place, "one")
    found = place.memory_file.stat()
    assert (found.st_gid, found.st_mode & 0o777) == (12_345, 0o660)


def test_another_group_gets_no_rights_in_its_place(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """We are not in the group that the person chose: ours is not let in instead."""

    def refused(*_: object) -> None:
        raise PermissionError

    place.memory_file.write_text("mine\n")
    place.memory_file.chmod(0o664)
    fstat = os.fstat

    def of_another_group(fd: int) -> os.stat_result:
        found = list(fstat(fd))
        found[5] = 54_321
        return os.stat_result(found)

    monkeypatch.setattr(os, "fchown", refused)
    monkeypatch.setattr(os, "fstat", of_another_group)
    add(place, "one")
    monkeypatch.undo()
    assert place.memory_file.stat().st_mode & 0o777 == 0o604


def test_an_entry_that_is_there_is_not_added_again(place: MemoryPlace) -> None:
    add(place, "one")
    assert add(place, "one").added == 0
    (place.sidecar(place.memory_file)).unlink()
    add(place, "one", "two")
    assert lines(place) == [*HEAD, entry("one"), entry("two")]


def test_a_line_that_two_processes_were_asked_for_is_there_once_after_a_stale_save(place: MemoryPlace) -> None:
    """Both read the same remark; the first has written it, and an editor saved what it had open before."""
    add(place, "one")
    stale = lines(place)
    add(place, "two")
    save(place, *stale, "- edited")
    told = add(place, "two", "three")
    assert [line for line in lines(place) if line not in HEAD].count(entry("two")) == 1
    assert sorted(lines(place)) == sorted([*HEAD, entry("one"), "- edited", entry("two"), entry("three")])
    assert (told.added, told.put_back) == (1, 1)


def test_a_line_that_a_person_removed_is_not_added_by_a_second_process(place: MemoryPlace) -> None:
    add(place, "one")
    add(place, "two")
    save(place, *HEAD, entry("two"))
    add(place, "one")
    assert lines(place) == [*HEAD, entry("two")]


def test_a_persons_edits_stay(place: MemoryPlace) -> None:
    add(place, "one")
    save(place, "# My heading", "- mine", entry("one"))
    add(place, "two")
    assert lines(place) == ["# My heading", "- mine", entry("one"), entry("two")]


def test_what_a_person_removed_stays_away(place: MemoryPlace) -> None:
    save(place, "- old", "- other")
    add(place, "one")
    add(place, "two")
    save(place, "- other", entry("two"))
    told = add(place, "three")
    assert lines(place) == ["- other", entry("two"), entry("three")]
    assert told.removed == 1


def test_a_save_from_before_our_write_takes_nothing_away(place: MemoryPlace) -> None:
    add(place, "one")
    loaded = lines(place)
    add(place, "two")
    save(place, *loaded, "- mine")
    told = add(place)
    assert sorted(lines(place)) == sorted([*loaded, "- mine", entry("two")])
    assert told.put_back == 1


def test_the_newest_line_can_be_removed_in_the_end(place: MemoryPlace) -> None:
    add(place, "one")
    save(place, *HEAD)
    add(place)
    assert entry("one") in lines(place)  # it may be a save from before it
    save(place, *HEAD)
    add(place, now_ms=NOW + 601_000)
    assert lines(place) == [*HEAD]
    add(place, "two", now_ms=NOW + 602_000)
    assert entry("one") not in lines(place)


def test_a_save_between_read_and_exchange_is_merged(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    add(place, "one")
    write, saves = exchange.write_aside, ["- first", "- second", "- third"]

    def save_first(path: Path, data: bytes, *, asides: Path) -> Path:
        aside = write(path, data, asides=asides)
        if saves:
            save(place, *lines(place), saves.pop(0))
        return aside

    monkeypatch.setattr(exchange, "write_aside", save_first)
    told = add(place, "two")
    assert sorted(lines(place)) == sorted([*HEAD, entry("one"), entry("two"), "- first", "- second", "- third"])
    assert told.rounds == 4
    assert os.listdir(place.asides) == []


def test_a_save_between_read_and_exchange_may_remove_lines(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks what this pass brings in, and not the lines that were there before: those its writer has removed."""
    save(place, *HEAD, "- of a person", "- of another one")
    add(place, "one")
    add(place, "two")
    write, saves = exchange.write_aside, [[*HEAD, entry("one"), entry("two"), "- of another one", "- new"]]

    def save_first(path: Path, data: bytes, *, asides: Path) -> Path:
        aside = write(path, data, asides=asides)
        if saves:
            save(place, *saves.pop())
        return aside

    monkeypatch.setattr(exchange, "write_aside", save_first)
    told = add(place, "three")
    kept = [*HEAD, entry("one"), entry("two"), entry("three"), "- of another one", "- new"]
    assert sorted(lines(place)) == sorted(kept)
    assert (told.rounds, told.put_back) == (2, 1)
    save(place, *(line for line in lines(place) if line != entry("three")))
    add(place)
    assert entry("three") in lines(place)  # this save may be one from before it
    add(place)
    assert sorted(lines(place)) == sorted(kept)


def test_without_an_exchange_the_old_file_is_linked_aside(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "exchange_names", lambda _one, _other: False)  # pyright: ignore
    add(place, "one")
    write = exchange.write_aside

    def save_first(path: Path, data: bytes, *, asides: Path) -> Path:
        aside = write(path, data, asides=asides)
        if "- mine" not in lines(place):
            save(place, *lines(place), "- mine")
        return aside

    monkeypatch.setattr(exchange, "write_aside", save_first)
    add(place, "two")
    assert sorted(lines(place)) == sorted([*HEAD, entry("one"), entry("two"), "- mine"])
    assert os.listdir(place.asides) == []


def test_a_writer_in_place_that_comes_late_is_heard(place: MemoryPlace) -> None:
    """It opened the file before the exchange, and writes into what was displaced."""
    add(place, "one")
    with place.memory_file.open("ab") as file:
        told = add(place, "two")
        assert told.left == 1
        file.write(b"- late\n")
    told = add(place)
    assert (told.joined, told.left) == (1, 0)
    assert sorted(lines(place)) == sorted([*HEAD, entry("one"), entry("two"), "- late"])
    assert os.listdir(place.asides) == []


def test_a_file_that_is_being_written_is_read_when_it_is_whole(place: MemoryPlace) -> None:
    add(place, "one")
    text = place.memory_file.read_bytes()
    began = threading.Event()

    def rewrite() -> None:
        with place.memory_file.open("wb") as file:
            began.set()
            time.sleep(0.1)
            file.write(text + b"- mine\n")

    thread = threading.Thread(target=rewrite)
    thread.start()
    began.wait()
    told = add(place, "two")
    thread.join()
    assert told.put_back == 0  # nothing looked removed
    assert lines(place)[-2:] == ["- mine", entry("two")]


def test_a_file_that_is_gone_is_written_again(place: MemoryPlace) -> None:
    add(place, "one")
    place.memory_file.unlink()
    told = add(place, "two")
    assert told.was_gone
    assert lines(place) == [*HEAD, entry("one"), entry("two")]


def test_an_emptied_file_stays_empty_of_old_lines(place: MemoryPlace) -> None:
    save(place, "- old")
    add(place)
    save(place)
    add(place, "one")
    assert lines(place) == [*HEAD, entry("one")]


def test_a_torn_tail_is_kept_and_told(place: MemoryPlace) -> None:
    place.memory_file.write_bytes(b"- whole\n- half a li")
    told = add(place, "one")
    assert told.torn
    assert lines(place) == ["- whole", "- half a li", entry("one")]


@pytest.mark.parametrize("content", [b"\xff\xfe bytes\n", b"- crlf\r\n", b"nul \0 here\n"])
def test_bytes_that_are_no_text_come_back_as_they_are(place: MemoryPlace, content: bytes) -> None:
    place.memory_file.write_bytes(content)
    add(place, "one")
    add(place, "two")
    assert place.memory_file.read_bytes().startswith(content)


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "base": 7}'])
def test_a_lost_sidecar_costs_no_line(place: MemoryPlace, garbage: bytes) -> None:
    add(place, "one")
    save(place, *lines(place), "- mine")
    place.sidecar(place.memory_file).write_bytes(garbage)
    add(place, "one", "two")
    assert lines(place) == [*HEAD, entry("one"), "- mine", entry("two")]


def test_what_is_no_file_of_ours_is_refused(place: MemoryPlace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("- precious\n")
    place.memory_file.symlink_to(elsewhere)
    with pytest.raises(SymlinkRefused):
        add(place, "one")
    place.memory_file.unlink()
    place.memory_file.mkdir()
    with pytest.raises(WrongKind):
        add(place, "one")
    place.memory_file.rmdir()
    with place.memory_file.open("wb") as file:
        file.truncate(exchange.FILE_BYTES_MAX + 1)
    with pytest.raises(TooLarge):
        add(place, "one")
    assert elsewhere.read_text() == "- precious\n"


def test_a_folder_that_a_person_made_is_used(place: MemoryPlace) -> None:
    place.days.mkdir(mode=0o755)
    path = place.day_file("2026-11-15")
    with locked(place):
        write_file(place, path, [entry("one")], heading=("# day", ""), now_ms=NOW)
    assert entry("one") in path.read_text()


def test_a_folder_that_leads_elsewhere_is_refused(place: MemoryPlace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.days.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SymlinkRefused), locked(place):
        write_file(place, place.day_file("2026-11-15"), [entry("one")], heading=(), now_ms=NOW)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_an_editor_that_never_stops_is_told(place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "ROUNDS_MAX", 5)
    write, count = exchange.write_aside, 0

    def save_each_time(path: Path, data: bytes, *, asides: Path) -> Path:
        nonlocal count
        count += 1
        aside = write(path, data, asides=asides)
        save(place, *lines(place), f"- save {count}")
        return aside

    save(place, "- old")
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "write_aside", save_each_time)
        with pytest.raises(MemoryFileBusy):
            add(place, "one")
    add(place, "one")
    assert sorted(lines(place)) == sorted(["- old", entry("one"), *(f"- save {number}" for number in range(1, 6))])


def test_one_process_at_a_time(place: MemoryPlace) -> None:
    code = (
        "import sys, pathlib; from holdfast.layout.agent_home import MemoryPlace\n"
        "from holdfast.memory.projection import locked\n"
        "with locked(MemoryPlace(folder=pathlib.Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(place.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(MemoryFileBusy), locked(place, wait_s=0.05):
        pass
    other.communicate()
    with locked(place):
        pass
