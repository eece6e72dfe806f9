"""Three instances over a shared folder: what people save on one host is on all of them."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from holdfast.app.blame import blame
from holdfast.errors import InstancesUnfit, SymlinkRefused
from holdfast.instances import channels, shared_files
from holdfast.instances.channels import NEWEST, FolderChannel
from holdfast.instances.envelope import Peers
from holdfast.instances.merge_state import STATE, load_state
from holdfast.instances.merging import REST_MS, Merging
from holdfast.layout.agent_home import AgentHome, MemoryPlace
from holdfast.memory.handoff_writer import write_heartbeat
from holdfast.memory.lines import entry_id, rendered
from holdfast.memory.projection import MEMORY_HEADING, locked, write_file

DAY = 86_400_000
NOW = 1_800_000_000_000
TODAY = "2027-01-15.md"
TOMORROW = "2027-01-16.md"
AGENT = "hf1" + "q" * 58
KEY = bytes(32)
SEEDS = {name: SigningKey(bytes([at]) * 32) for at, name in enumerate(("alder", "birch", "cedar"))}


class Host:
    def __init__(self, root: Path, name: str, names: tuple[str, ...], shared: Path) -> None:
        folder = root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        self.name, self.names, self.shared = name, names, shared
        self.place = MemoryPlace(folder=folder)
        self.now_ms = NOW
        self.start()

    def start(self) -> None:
        """As a new process would."""
        self.merging = Merging(self.place, self.channel(), self.peers(), KEY)

    def channel(self) -> FolderChannel:
        return FolderChannel(self.shared, agent=AGENT, instance=self.name)

    def peers(self) -> Peers:
        return Peers(
            agent=AGENT,
            incarnation=1,
            me=self.name,
            keys={name: bytes(SEEDS[name].verify_key) for name in self.names},
            sign=lambda message: SEEDS[self.name].sign(message).signature,
        )

    def run(self) -> None:
        if self.merging.is_due(now_ms=self.now_ms):
            self.merging.run(now_ms=self.now_ms)

    def lines(self, name: str = "MEMORY.md") -> list[str]:
        path = self.place.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def save(self, *text: str, name: str = "MEMORY.md") -> None:
        path = self.place.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        swap = self.place.folder / "swap"
        swap.write_text("".join(f"{line}\n" for line in text))
        swap.rename(path)

    def remember(self, *names: str) -> None:
        with locked(self.place):
            entries = [rendered(id=entry_id(one), at_ms=NOW, text=one, origin="model", timed=False) for one in names]
            write_file(self.place, self.place.memory_file, entries, heading=MEMORY_HEADING, now_ms=NOW)


@pytest.fixture
def hosts(tmp_path: Path) -> list[Host]:
    tmp_path.chmod(0o700)
    shared = tmp_path / "shared"
    shared.mkdir()
    return [Host(tmp_path, name, tuple(SEEDS), shared) for name in SEEDS]


def talk(hosts: list[Host], *, rounds: int = 6) -> None:
    for _ in range(rounds):
        for one in hosts:
            one.run()


def test_what_is_saved_on_one_host_is_on_all(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "", "- from before")
    talk(hosts)
    assert all(one.lines() == ["# Memory", "", "- from before"] for one in hosts)
    hosts[1].save(*hosts[1].lines(), "- by hand")
    hosts[2].remember("by the agent")
    hosts[0].save("# Memory", "", "- changed")
    talk(hosts)
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()
    assert [line[:14] for line in hosts[0].lines() if line] == ["# Memory", "- changed", "- by hand", "- by the agent"]
    assert not any(one.waits or one.behind_ms for one in hosts[0].merging.state.peers.values())


async def test_blame_on_another_host_names_a_task_that_spoke_after_the_first_pass(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    assert hosts[0].merging.tasks == {}
    hosts[0].merging.tasks[entry_id("of a task")] = "task-7"
    hosts[0].remember("of a task")
    talk(hosts)
    home = AgentHome(folder=hosts[1].place.folder, name="ada")
    (said,) = [line for line in await blame(home, "MEMORY.md") if line.text == "of a task"]
    assert (said.instance, said.task) == ("alder", "task-7")


def test_nothing_is_due_and_nothing_is_written_while_nothing_changes(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "", "- a line")
    talk(hosts, rounds=10)
    for one in hosts:
        before = {path: path.stat().st_mtime_ns for path in sorted(one.shared.rglob("*"))}
        assert not one.merging.is_due(now_ms=NOW + 60_000)
        assert {path: path.stat().st_mtime_ns for path in sorted(one.shared.rglob("*"))} == before


def test_an_instance_that_rests_has_no_document_open_and_goes_on_as_before(
    open_documents: Callable[[], int], hosts: list[Host]
) -> None:
    hosts[0].save("# Memory", "", *(f"- number {number} of many lines" for number in range(1_000)))
    talk(hosts)
    others = open_documents()
    for one in hosts:  # also the one that made the document: what it stored says that no other instance has it
        assert not one.merging.is_due(now_ms=NOW)
        assert not one.merging.rest(now_ms=NOW + REST_MS - 1)
        assert one.merging.rest(now_ms=NOW + REST_MS)
        assert not one.merging.is_due(now_ms=NOW + REST_MS)
    assert others
    assert not open_documents()
    before = [one.merging.sent_bytes for one in hosts]
    hosts[1].save(*hosts[1].lines(), "- by hand")
    talk(hosts)
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()
    assert hosts[0].lines()[-1:] == ["- by hand"]
    assert all(one.merging.sent_bytes - sent < 5_000 for one, sent in zip(hosts, before, strict=True))


def test_one_line_costs_little_even_while_an_instance_lacks_a_megabyte(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    away, here = hosts[2], hosts[:2]
    here[0].save("# Memory", *(f"- line {number} of a long text" for number in range(2_000)))
    talk(here)
    before = here[0].merging.sent_bytes
    assert before > 50_000
    here[0].save(*here[0].lines(), "- one more")
    talk(here)
    assert here[1].lines()[-1] == "- one more"
    assert here[0].merging.sent_bytes - before < 10_000
    assert here[0].merging.state.peers["cedar"].behind_ms == NOW
    talk([*here, away])
    assert away.lines() == here[0].lines()
    assert {path.name for path in (here[0].shared.glob("*/alder/*"))} == {NEWEST}


def test_a_new_day_does_not_wait_for_an_instance_that_is_away(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    for one in hosts[:2]:
        one.now_ms += DAY
        one.save("# 2027-01-16", "", f"- of {one.name}", name=f"memory/{TOMORROW}")
    talk(hosts[:2])
    lines = hosts[0].lines(f"memory/{TOMORROW}")
    assert lines[:2] == ["# 2027-01-16", ""]
    assert sorted(lines[2:]) == ["- of alder", "- of birch"]
    assert hosts[1].lines(f"memory/{TOMORROW}") == lines
    hosts[2].save("# 2027-01-16", "", "- of cedar", name=f"memory/{TOMORROW}")
    talk(hosts)
    assert sorted(hosts[2].lines(f"memory/{TOMORROW}")[2:]) == ["- of alder", "- of birch", "- of cedar"]


def test_a_file_from_before_waits_until_all_have_said_what_they_have(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "- a")
    talk(hosts[:2])
    assert hosts[1].lines() == []
    assert hosts[0].merging.state.files == {"MEMORY.md": "waits for a document of cedar"}
    assert hosts[0].merging.state.peers["cedar"].waits == "nothing has arrived from cedar yet"
    talk(hosts)
    assert hosts[1].lines() == hosts[2].lines() == ["# Memory", "- a"]
    assert hosts[0].merging.state.files == {}


def passes(hosts: list[Host], *, after_ms: int) -> None:
    """Time goes by, and the workers of these hosts look again."""
    for one in hosts:
        one.now_ms += after_ms
    talk(hosts)


@pytest.mark.parametrize("absent", ["alder", "cedar"])
def test_an_instance_that_never_started_keeps_nobody_from_merging(hosts: list[Host], absent: str) -> None:
    """Whether it would be the one that makes the first document or not."""
    living = [one for one in hosts if one.name != absent]
    (late,) = (one for one in hosts if one.name == absent)
    living[0].save("# Memory", "", "- of the first")
    living[1].save("# Memory", "", "- of the second")
    late.save("# Memory", "", "- from the invitation")  # its folder is there, and no worker runs
    talk(living)
    passes(living, after_ms=600_000)
    assert living[0].lines() == living[1].lines()
    assert sorted(living[0].lines()) == ["", "# Memory", "- of the first", "- of the second"]
    living[1].save(*living[1].lines(), "- and one more")
    talk(living)
    assert living[0].lines()[-1] == "- and one more"
    talk(hosts)  # it starts after all
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()
    assert len(late.lines()) == 6
    assert "- from the invitation" in living[0].lines()


def test_an_instance_that_was_lost_before_its_turn_keeps_nobody_from_merging(hosts: list[Host]) -> None:
    lost, living = hosts[0], hosts[1:]
    lost.run()  # it says that it has no document, and would make the first one
    living[0].save("# Memory", "", "- of the first")
    talk(living)
    assert living[1].lines() == []
    passes(living, after_ms=600_000)
    assert living[0].lines() == living[1].lines() == ["# Memory", "", "- of the first"]


def test_a_lost_document_is_not_made_from_the_file_while_the_one_that_has_it_is_away(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "- a", "- b")
    talk(hosts)
    hosts[2].save("# Memory", "- b")
    hosts[2].run()  # removed, and not heard of by the others
    for one in hosts[:2]:
        one.place.document(one.place.memory_file).unlink()
        one.start()
    (newest,) = hosts[0].shared.glob(f"*/cedar/{NEWEST}")
    kept = newest.read_bytes()
    newest.write_bytes(b"")
    for _ in range(5):
        passes(hosts[:2], after_ms=3_600_000)
    assert [one.place.document(one.place.memory_file).exists() for one in hosts] == [False, False, True]
    newest.write_bytes(kept)
    passes(hosts, after_ms=600_000)
    assert all(sorted(one.lines()) == sorted(hosts[0].lines()) for one in hosts)
    assert all(one.place.document(one.place.memory_file).exists() for one in hosts)


def test_history_is_kept_for_an_absent_instance_for_a_month_and_not_for_ever(hosts: list[Host]) -> None:
    def stored(one: Host) -> int:
        return one.place.document(one.place.memory_file).stat().st_size

    hosts[0].save("# Memory", "- from before")
    talk(hosts)
    living, away = hosts[:2], hosts[2]
    away.save(*away.lines(), "- only here")  # and its worker does not run any more

    def edit(begin: int) -> None:
        for number in range(begin, begin + 40):
            text = f"- {number} {os.urandom(8_000).hex()}"
            living[0].save("# Memory", "- from before", text)
            talk(living, rounds=2)

    edit(0)
    assert stored(living[0]) > 400_000  # nothing was dropped
    passes(living, after_ms=29 * DAY)
    edit(100)
    assert stored(living[0]) > 800_000
    passes(living, after_ms=2 * DAY)
    edit(200)
    assert stored(living[0]) < 400_000
    assert living[0].lines() == living[1].lines()
    away.now_ms = living[0].now_ms
    passes(hosts, after_ms=600_000)
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()
    assert len(away.lines()) == 4
    assert "- only here" in living[0].lines()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are compacted that have a few kilobytes."""
    monkeypatch.setattr(shared_files, "COMPACT_BYTES", 4_000)


def rewrite(one: Host, count: int) -> None:
    """The history grows, the text does not."""
    for _ in range(count):
        one.save("# Memory", f"- {os.urandom(500).hex()}")
        one.run()


def stored_bytes(one: Host) -> int:
    return one.place.document(one.place.memory_file).stat().st_size


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("held_by", ["an absent instance", "what cannot be taken", "what was removed"])
def test_a_large_document_that_cannot_be_made_smaller_is_left_alone(hosts: list[Host], held_by: str) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    living = hosts if held_by == "what was removed" else hosts[:2]
    if held_by == "what cannot be taken":
        hosts[0].merging._file("MEMORY.md").document._untaken.add("cedar")
    if held_by == "what was removed":
        for turn in range(20):
            hosts[0].remember(*(f"said {turn} {number}" for number in range(30)))
            hosts[0].run()
            hosts[0].save("# Memory", hosts[0].lines()[-1])
            hosts[0].run()
    else:
        rewrite(hosts[0], 30)
    talk(living)
    assert stored_bytes(hosts[0]) > 4_000
    document = hosts[0].place.document(hosts[0].place.memory_file)
    kept = document.stat()
    for _ in range(3):
        hosts[0].now_ms += 2_000
        assert not hosts[0].merging.is_due(now_ms=hosts[0].now_ms)
    hosts[0].save(*hosts[0].lines(), "- a line more")
    hosts[0].run()
    hosts[0].run()
    assert document.stat().st_ino != kept.st_ino
    assert not hosts[0].merging.is_due(now_ms=hosts[0].now_ms)


@pytest.mark.usefixtures("small")
def test_a_document_is_made_smaller_when_it_has_grown_after_the_absent_instance_came_back(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    rewrite(hosts[0], 30)
    talk(hosts[:2])
    large = stored_bytes(hosts[0])
    assert large > 4 * 4_000
    talk(hosts)
    for _ in range(12):  # all know each change before the next one: none of them keeps history
        rewrite(hosts[0], 1)
        talk(hosts)
    assert stored_bytes(hosts[0]) < large / 4
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()
    assert not any(one.merging.is_due(now_ms=one.now_ms) for one in hosts)


def test_the_free_part_of_the_heartbeat_is_shared_and_the_block_is_not(hosts: list[Host]) -> None:
    for one in hosts:
        write_heartbeat(one.place.heartbeat_file, f"- [ ] of {one.name}\n".encode(), asides=one.place.asides)
    talk(hosts)
    words = hosts[0].place.heartbeat_file.read_text()
    hosts[0].place.heartbeat_file.write_text(words.replace("# Heartbeat\n", "# Heartbeat\n\nCall Ben.\n"))
    hosts[1].place.heartbeat_file.write_text(hosts[1].place.heartbeat_file.read_text() + "Below the block.\n")
    talk(hosts)
    for one in hosts:
        text = one.place.heartbeat_file.read_text()
        assert text.count("Call Ben.") == text.count("Below the block.") == 1
        assert [line for line in text.splitlines() if line.startswith("- [ ]")] == [f"- [ ] of {one.name}"]
        assert text.index("Call Ben.") < text.index("- [ ]") < text.index("Below the block.")


def test_what_is_lost_in_the_folder_is_sent_again(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "- a")
    talk(hosts)
    hosts[0].save("# Memory", "- a", *(f"- long enough for a part of its own {number}" for number in range(500)))
    hosts[0].run()
    names = {path.name: path for path in hosts[0].shared.glob("*/alder/*")}
    assert len(names) == 2
    for name, path in names.items():
        if name == NEWEST:
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
    talk(hosts[1:])
    assert hosts[1].lines() == ["# Memory", "- a"]
    assert "damaged" in hosts[1].merging.state.peers["alder"].waits
    talk(hosts)
    assert len(hosts[1].lines()) == len(hosts[2].lines()) == 502


def test_a_damaged_file_of_the_same_size_is_found_while_an_instance_waits(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "- a")
    talk(hosts)
    hosts[0].save("# Memory", "- a", "- b")
    hosts[0].run()
    newest = next(hosts[0].shared.glob(f"*/alder/{NEWEST}"))
    raw = bytearray(newest.read_bytes())
    raw[-1] ^= 1
    newest.write_bytes(raw)
    talk(hosts)
    assert hosts[1].lines() == ["# Memory", "- a"]
    assert "did not sign it" in hosts[1].merging.state.peers["alder"].waits
    hosts[0].now_ms += 600_000
    talk(hosts)
    assert hosts[1].lines() == ["# Memory", "- a", "- b"]


def test_a_part_that_is_late_is_waited_for(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", "- a")
    talk(hosts)
    hosts[0].save("# Memory", "- a", *(f"- long enough for a part of its own {number}" for number in range(500)))
    hosts[0].run()
    (part,) = (path for path in hosts[0].shared.glob("*/alder/*") if path.name != NEWEST)
    late = part.read_bytes()
    part.write_bytes(late[:100])
    hosts[1].run()
    assert hosts[1].merging.state.peers["alder"].waits == "1 of 1 parts of what alder sent have not arrived yet"
    part.write_bytes(late)
    hosts[1].now_ms += 5_000
    hosts[1].run()
    assert len(hosts[1].lines()) == 502


def test_a_new_process_sends_only_what_is_not_confirmed(hosts: list[Host]) -> None:
    hosts[0].save("# Memory", *(f"- line {number} of a long text" for number in range(2_000)))
    talk(hosts)
    hosts[0].start()
    talk(hosts)
    assert hosts[0].merging.sent_bytes < 2_000
    assert hosts[0].merging._files == {}


def test_an_instance_that_joins_later_gets_everything(tmp_path: Path, hosts: list[Host]) -> None:
    two = [Host(tmp_path, one.name, ("alder", "birch"), one.shared) for one in hosts[:2]]
    two[0].save("# Memory", "- a")
    two[0].save("# 2027-01-15", "- said", name=f"memory/{TODAY}")
    talk(two)
    assert two[1].lines(f"memory/{TODAY}") == ["# 2027-01-15", "- said"]
    for one in hosts[:2]:
        one.start()
    talk(hosts)
    assert hosts[2].lines() == ["# Memory", "- a"]
    assert hosts[2].lines(f"memory/{TODAY}") == ["# 2027-01-15", "- said"]


@pytest.mark.parametrize("key", ["the same key", "a new key"])
def test_a_folder_that_was_put_back_to_an_older_day_catches_up(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The others believe that it has what it had before; nothing in it says that it is old. With a new key it was
    removed, and enrolled again under its name."""
    for text in ("- one", "- two"):
        hosts[0].save(*hosts[0].lines(), text)
        hosts[0].save(f"- {text} of the day", name=f"memory/{TODAY}")
        talk(hosts, rounds=10)
    away = hosts[2]
    kept = away.place.folder.with_name("kept")
    for one in hosts:
        one.start()
        talk(hosts, rounds=10)
    shutil.copytree(away.place.folder, kept)
    hosts[0].save("- two", "- three")
    hosts[1].save("- of the day", name=f"memory/{TODAY}")
    talk(hosts, rounds=10)
    assert away.lines() == ["- two", "- three"]
    shutil.rmtree(away.place.folder)
    kept.rename(away.place.folder)
    if key == "a new key":
        monkeypatch.setitem(SEEDS, away.name, SigningKey(b"n" * 32))
    for one in hosts:
        one.start()
    for one in hosts:
        one.now_ms += 60_000
    talk(hosts, rounds=10)
    assert [one.lines() for one in hosts] == [["- two", "- three"]] * 3
    assert len({tuple(one.lines(f"memory/{TODAY}")) for one in hosts}) == 1


def test_an_envelope_of_an_earlier_life_that_comes_back_is_no_second_folder(hosts: list[Host]) -> None:
    """A program that copies the shared folder brings it back, while the instance is away."""
    hosts[0].save("# Memory")
    talk(hosts)
    cedar = next(hosts[0].shared.glob(f"*/cedar/{NEWEST}"))
    old = cedar.read_bytes()
    (hosts[2].place.instance / STATE).unlink()  # as a folder that was put back: it begins a new life
    for one in hosts:
        one.now_ms += 60_000
    hosts[2].start()
    talk(hosts)
    lives = [one.merging.state.peers["cedar"].life for one in hosts[:2]]
    cedar.unlink()
    cedar.write_bytes(old)
    for _ in range(4):
        for one in hosts[:2]:
            one.now_ms += 60_000
        talk(hosts[:2], rounds=1)
    for one in hosts[:2]:
        assert "older than what it sent before" in one.merging.state.peers["cedar"].waits
        assert not one.merging.refused
    assert [one.merging.state.peers["cedar"].life for one in hosts[:2]] == lives
    hosts[2].save("# Memory", "- of cedar")
    talk(hosts)
    assert "- of cedar" in hosts[0].lines()
    assert [one.merging.state.peers["cedar"].waits for one in hosts[:2]] == ["", ""]


def test_two_folders_that_send_as_one_instance_say_so(tmp_path: Path, hosts: list[Host]) -> None:
    """So do the others: a standby has no journal to send a notice from. Each sends in turn, so no line is lost."""
    hosts[0].save("# Memory")
    talk(hosts)
    (tmp_path / "second").mkdir(mode=0o700)
    second = Host(tmp_path / "second", "cedar", tuple(SEEDS), hosts[0].shared)
    every = [*hosts, second]
    hosts[2].save("# Memory", "- of the first")
    said = "two folders send memory updates as cedar"
    for minute in range(8):
        if minute == 1:  # the others know already
            assert [said in one.merging.state.peers["cedar"].waits for one in hosts[:2]] == [True, True]
        if minute == 2:
            second.save(*second.lines(), "- of the second")
        for _ in range(30):
            for one in every:
                one.now_ms += 2_000
            talk(every, rounds=1)
    for one in (hosts[2], second):
        assert said in one.merging.state.trouble
        assert "stop one of the two" in one.merging.state.fix
        assert one.merging.refused["cedar"][0].code == "update-refused"
    for one in hosts[:2]:
        assert said in one.merging.state.peers["cedar"].waits
        assert "stop one of the two" in one.merging.state.peers["cedar"].fix
        assert one.merging.refused["cedar"][1] <= one.now_ms - 60_000  # a notice says so
    assert hosts[0].merging.sent_bytes < 100_000
    assert {"- of the first", "- of the second"} <= set(hosts[0].lines())
    for one in hosts:
        one.now_ms += 700_000
    talk(hosts, rounds=4)
    for one in hosts:
        one.now_ms += 700_000
    talk(hosts, rounds=4)
    assert [peer.waits for one in hosts for peer in one.merging.state.peers.values()] == [""] * 6
    assert not hosts[2].merging.is_due(now_ms=hosts[2].now_ms)
    assert hosts[0].lines() == hosts[1].lines() == hosts[2].lines()


@pytest.mark.parametrize("kind", ["symlink", "socket", "part", "folder", "part is a folder", "loop"])
def test_a_file_of_one_instance_that_cannot_be_read_does_not_stop_the_others(
    hosts: list[Host], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    if "part" in kind:
        hosts[2].save("# Memory", *(f"- line {number} of a long text" for number in range(500)))
        hosts[2].run()
    own = next(hosts[0].shared.glob("*/cedar"))
    path = next(one for one in own.iterdir() if (one.name == NEWEST) != ("part" in kind))
    path.unlink()
    if "folder" in kind:
        path.mkdir()
    elif kind == "loop":
        own.rename(own.with_name("before"))
        own.symlink_to(own)
    elif kind == "socket":
        monkeypatch.chdir(own)
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    else:
        path.symlink_to("elsewhere")
    hosts[0].save("# Memory", "- of alder")
    for one in hosts[:2]:
        one.now_ms += 5_000
    talk(hosts[:2])
    assert hosts[1].lines() == ["# Memory", "- of alder"]
    peer = hosts[0].merging.state.peers["cedar"]
    if kind == "loop":
        assert f"{own} is a symbolic link" in peer.waits
        assert f"remove {own}" in peer.fix
    else:
        assert f"{path} {'is not a file' if 'folder' in kind else 'cannot be read'}" in peer.waits
        assert str(path) in peer.fix


def test_a_folder_in_the_own_place_is_named_and_what_others_send_is_still_taken(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    own = next(hosts[0].shared.glob("*/cedar"))
    (own / NEWEST).unlink()
    (own / NEWEST).mkdir()
    hosts[0].save("# Memory", "- of alder")
    talk(hosts[:2])
    hosts[2].start()
    with pytest.raises(InstancesUnfit, match=f"{own / NEWEST} is a folder") as raised:
        hosts[2].run()
    assert raised.value.hint.startswith("remove it")
    assert hosts[2].lines() == ["# Memory", "- of alder"]
    (own / NEWEST).rmdir()
    hosts[2].start()
    talk(hosts)
    assert hosts[2].merging.state.trouble == ""


@pytest.mark.parametrize("level", ["agent", "instance"])
def test_a_link_in_the_own_place_is_named_and_what_it_leads_to_stays(
    hosts: list[Host], tmp_path: Path, level: str
) -> None:
    """Anyone who can write to the shared folder can put one there."""
    hosts[0].save("# Memory")
    talk(hosts)
    own = next(hosts[0].shared.glob("*/cedar"))
    at = own if level == "instance" else own.parent
    vault = tmp_path / "vault"
    (vault / "cedar").mkdir(parents=True)
    kept = [vault / "keys", vault / NEWEST, vault / "cedar" / "keys", vault / "cedar" / ("a" * 32)]
    for path in kept:
        path.write_text("a key")
    at.rename(at.with_name("before"))
    at.symlink_to(vault)
    hosts[2].save("# Memory", "- of cedar")
    for again in (False, True):  # also as a new process
        if again:
            hosts[2].start()
        with pytest.raises(SymlinkRefused, match=f"{at} is a symbolic link"):
            hosts[2].run()
    assert sorted(path for path in vault.rglob("*") if path.is_file()) == sorted(kept)
    assert {path.read_text() for path in kept} == {"a key"}
    state = load_state(hosts[2].place.instance)
    assert state.trouble.startswith(f"{at} is a symbolic link")
    assert f"remove {at}" in state.fix
    at.unlink()
    at.with_name("before").rename(at)
    for one in hosts:
        one.now_ms += 600_000
    talk(hosts)
    assert hosts[0].lines() == ["# Memory", "- of cedar"]
    assert hosts[2].merging.state.trouble == ""


def test_a_full_shared_folder_is_named_once_and_no_instance_is_blamed(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    with monkeypatch.context() as patched:
        patched.setattr(channels, "write_all", full_disk)
        hosts[0].save("# Memory", "- more")
        with pytest.raises(InstancesUnfit):
            hosts[0].run()
    state = hosts[0].merging.state
    path = next(hosts[0].shared.glob("*/alder")) / NEWEST
    assert state.trouble == f"{path} cannot be written: No space left on device"
    assert state.fix.startswith("free space in the shared folder")
    assert {one.waits for one in state.peers.values()} == {""}
    hosts[0].run()
    assert hosts[0].merging.state.trouble == ""


def test_a_shared_folder_that_is_not_there_is_told(hosts: list[Host]) -> None:
    hosts[0].save("# Memory")
    talk(hosts)
    hosts[0].shared.rename(hosts[0].shared.with_name("away"))
    with pytest.raises(InstancesUnfit):
        hosts[0].merging.is_due(now_ms=NOW)
    assert "is not there" in load_state(hosts[0].place.instance).trouble


def test_who_may_read_the_shared_folder_may_read_what_is_in_it(hosts: list[Host]) -> None:
    """The other host may have another user: also where files are private by default, as the how-to asks."""
    hosts[0].shared.chmod(0o2770)
    before = os.umask(0o077)
    try:
        hosts[0].run()
    finally:
        os.umask(before)
    (newest,) = hosts[0].shared.glob("*/*/newest")
    assert stat.S_IMODE(newest.stat().st_mode) == 0o660
    assert {stat.S_IMODE(one.stat().st_mode) for one in (newest.parent, newest.parent.parent)} == {0o2770}


def full_disk(*_: object) -> object:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_envelopes_that_could_not_be_put_there_begin_no_new_life(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a kill at any moment: the others need not look at every file again."""
    hosts[0].save("# Memory")
    talk(hosts)
    life = hosts[0].merging.state.life
    with monkeypatch.context() as patched:
        patched.setattr(FolderChannel, "put", full_disk)
        for text in ("- one", "- two", "- three"):
            hosts[0].save("# Memory", text)
            hosts[0].start()
            with pytest.raises(OSError, match="No space left"):
                hosts[0].run()
    hosts[0].start()
    talk(hosts)
    assert hosts[0].merging.state.life == life
    assert hosts[2].lines() == ["# Memory", "- three"]
