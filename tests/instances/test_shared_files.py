"""Two instances with real files: what people save, what Holdfast adds, what is lost."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.app.blame import blame
from holdfast.instances import shared_files
from holdfast.instances.line_document import NOTHING
from holdfast.instances.shared import Update
from holdfast.instances.shared_files import SharedFile
from holdfast.layout.agent_home import AgentHome, MemoryPlace
from holdfast.memory import projection, sidecar
from holdfast.memory.exchange import exchange
from holdfast.memory.lines import entry_id, rendered
from holdfast.memory.projection import MEMORY_HEADING, locked, write_file
from holdfast_proofs.merges.world import update_to

NOW = 1_800_000_000_000


class Host:
    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(mode=0o700)
        self.name = name
        self.place = MemoryPlace(folder=folder)
        self.shared = self.open()

    def open(self) -> SharedFile:
        tasks = {entry_id("of a task"): "task-7"}
        return SharedFile(self.place, self.place.memory_file, instance=self.name, tasks=tasks)

    def lines(self) -> list[str]:
        return self.place.memory_file.read_text().splitlines()

    def save(self, *text: str) -> None:
        new = self.place.folder / "swap"
        new.write_text("".join(f"{line}\n" for line in text))
        new.rename(self.place.memory_file)

    def remember(self, *names: str) -> None:
        with locked(self.place):
            write_file(
                self.place, self.place.memory_file, [entry(name) for name in names], heading=MEMORY_HEADING, now_ms=NOW
            )

    def merge(self, *, now_ms: int = NOW) -> None:
        with locked(self.place):
            self.shared.merge(now_ms=now_ms)


def entry(name: str) -> str:
    return rendered(id=entry_id(name), at_ms=NOW, text=name, origin="model", timed=False)


def talk(one: Host, other: Host, *, rounds: int = 2) -> None:
    for _ in range(rounds):
        for speaker, hearer in ((one, other), (other, one)):
            speaker.merge()
            with locked(hearer.place):
                hearer.shared.receive(update_to(speaker.shared.document, hearer.name), now_ms=NOW)
            hearer.merge()


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Host, Host]:
    tmp_path.chmod(0o700)
    one, other = Host(tmp_path / "one", "a"), Host(tmp_path / "other", "b")
    one.remember("first")
    with locked(one.place):
        one.shared.found()
    talk(one, other)
    return one, other


def test_a_document_that_could_not_be_stored_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made from the file, and the file is edited before there is room on the disk."""
    tmp_path.chmod(0o700)
    host = Host(tmp_path / "one", "a")
    host.save("- stays", "- is removed by a person")
    with monkeypatch.context() as full:
        full.setattr(shared_files, "write_atomically", refuses)
        with locked(host.place), pytest.raises(OSError, match="No space"):
            host.shared.found()
    host.save("- stays")
    assert host.shared.document.document is None
    with locked(host.place):
        host.shared.found()
    host.merge()
    assert host.lines() == ["- stays"]
    assert host.shared.document.document is not None
    assert host.shared.document.document.lines() == ["- stays"]


def refuses(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_could_not_be_stored_is_received_again(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = hosts
    one.save(*one.lines(), "- is new")
    one.merge()
    update = update_to(one.shared.document, other.name)
    with monkeypatch.context() as full:
        full.setattr(shared_files, "write_atomically", refuses)
        with locked(other.place), pytest.raises(OSError, match="No space"):
            other.shared.receive(update, now_ms=NOW)
    other.merge()
    assert "- is new" not in other.lines()
    talk(one, other)
    assert other.lines() == one.lines()
    assert "- is new" in other.lines()


def test_both_files_get_what_either_wrote(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    assert other.lines() == one.lines() == [*MEMORY_HEADING, entry("first")]
    one.remember("of a task")
    other.save(*other.lines(), "- by hand")
    talk(one, other)
    assert one.lines() == other.lines()
    assert sorted(one.lines()) == sorted([*MEMORY_HEADING, entry("first"), entry("of a task"), "- by hand"])
    who = {line.text: (line.instance, line.task) for line in other.shared.document.shown()}
    assert who[entry("of a task")] == ("a", "task-7")
    assert who["- by hand"] == ("b", "")


async def test_blame_says_who_brought_each_line_in(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.remember("of a task")
    other.save(*other.lines(), "- by hand")
    talk(one, other)
    home = AgentHome(folder=one.place.folder, name="ada")
    found = {line.text: line for line in await blame(home, "MEMORY.md")}
    said = found["of a task"]
    assert (said.origin, said.task, said.instance, said.at) == ("model", "task-7", "a", "2027-01-15T08:00:00Z")
    assert (found["by hand"].origin, found["by hand"].instance) == ("file", "b")
    one.place.document(one.place.memory_file).unlink()
    alone = {line.text: line for line in await blame(home, "MEMORY.md")}
    assert (alone["of a task"].origin, alone["of a task"].instance) == ("model", "")


def test_a_line_removed_on_one_host_is_removed_on_the_other(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.save(*one.lines(), "- old", "- stays")
    one.remember("second")  # who has it in a text has seen the lines that came with it
    talk(one, other)
    other.save(*(line for line in other.lines() if line != "- old"))
    one.save(*one.lines(), "- not seen there yet")
    talk(one, other)
    assert (
        one.lines()
        == other.lines()
        == [*MEMORY_HEADING, entry("first"), "- stays", entry("second"), "- not seen there yet"]
    )


def test_an_old_text_that_an_editor_saves_takes_nothing_away(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    loaded = other.lines()
    one.remember("second")
    talk(one, other)
    assert entry("second") in other.lines()
    other.save(*loaded, "- mine")
    talk(one, other)
    assert one.lines() == other.lines()
    assert sorted(one.lines()) == sorted([*loaded, entry("second"), "- mine"])


def test_an_entry_removed_before_a_merge_is_not_brought_by_the_other_host(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.remember("shared")
    one.remember("later")
    one.save(*(line for line in one.lines() if line != entry("shared")))
    one.remember("last")  # a write without the document sees the removal
    other.remember("shared", "later", "last")
    talk(one, other)
    assert one.lines() == other.lines()
    assert entry("shared") not in one.lines()


def test_an_entry_that_came_and_was_removed_is_not_written_from_the_journal(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.remember("shared", "later")
    talk(one, other)
    other.save(*(line for line in other.lines() if line != entry("shared")))
    other.remember()
    other.remember("shared")  # its own journal comes to it only now
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), entry("later")]


@pytest.mark.parametrize("lost", ["document", "sidecar", "both", "damaged"])
def test_what_is_kept_beside_the_file_may_be_lost(hosts: tuple[Host, Host], lost: str) -> None:
    one, other = hosts
    one.remember("second")
    talk(one, other)
    stored = other.place.document(other.place.memory_file)
    if lost in ("document", "both"):
        stored.unlink()
    if lost == "damaged":
        stored.write_bytes(stored.read_bytes()[:-5])
    if lost in ("sidecar", "both"):
        other.place.sidecar(other.place.memory_file).unlink()
    other.save(*other.lines(), "- by hand")
    one.save(*one.lines(), "- on the other host")
    talk(one, other, rounds=3)
    assert one.lines() == other.lines()
    assert sorted(one.lines()) == sorted(
        [*MEMORY_HEADING, entry("first"), entry("second"), "- by hand", "- on the other host"]
    )
    assert "- by hand" in told(other)


def told(host: Host) -> list[str]:
    """The lines that the merge report says may have been removed."""
    reports = sidecar.read_reports(host.place.report)
    return [line for report in reports for line in report["unsure"]]  # pyright: ignore


class Killed(BaseException):
    """The process ends here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, host: Host, where: object, name: str) -> None:
    """One pass of the host, killed before this call; then the process is started again."""

    def killed(*_args: object, **_named: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(where, name, killed)
        with pytest.raises(Killed):
            host.merge()
    host.shared = host.open()


AT = [(sidecar, "put_state"), (SharedFile, "finish"), (projection, "put_down")]


@pytest.mark.parametrize(("where", "name"), AT)
def test_a_killed_pass_brings_back_no_line_that_another_host_removed(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand", "- more")
    talk(one, other)
    one.save(*(line for line in one.lines() if line != "- by hand"), "- new")
    one.merge()
    with locked(other.place):
        other.shared.receive(update_to(one.shared.document, "b"), now_ms=NOW)
    kill_at(monkeypatch, other, where, name)
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), "- more", "- new"]


@pytest.mark.parametrize(("where", "name"), AT)
def test_what_a_killed_pass_brought_is_not_brought_in_once_more(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand")
    one.merge()
    with locked(other.place):
        other.shared.receive(update_to(one.shared.document, "b"), now_ms=NOW)
    kill_at(monkeypatch, other, where, name)
    other.remember("second")  # the next pass is one without the document
    other.merge()
    one.save(*(line for line in one.lines() if line != "- by hand"))
    one.merge()
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), entry("second")]


def hear(one: Host, other: Host) -> None:
    """What one has told, before a pass of the other."""
    one.merge()
    with locked(other.place):
        other.shared.receive(update_to(one.shared.document, other.name), now_ms=NOW)


def copy_and_remove(one: Host, other: Host) -> None:
    """One has removed a line that the other has copied meanwhile."""
    one.save(*one.lines(), "- by hand")
    talk(one, other)
    one.save(*(line for line in one.lines() if line != "- by hand"))
    other.save(*other.lines(), "- by hand")
    hear(one, other)


@pytest.mark.parametrize(("where", "name"), AT)
@pytest.mark.parametrize("between", [False, True])
def test_the_copy_of_a_line_that_another_host_removed_stays_after_a_killed_pass(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str, between: bool
) -> None:
    one, other = hosts
    copy_and_remove(one, other)
    kill_at(monkeypatch, other, where, name)
    if between:
        other.remember("second")  # a write without the document
        kill_at(monkeypatch, other, SharedFile, "finish")
    talk(one, other)
    assert one.lines() == other.lines()
    assert one.lines().count("- by hand") == 1


@pytest.mark.parametrize("lost", ["version", "document", "field"])
def test_where_the_version_of_a_killed_pass_is_not_known_no_line_is_lost(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    one, other = hosts
    document, path = (place(other.place.memory_file) for place in (other.place.document, other.place.sidecar))
    before = document.read_bytes()
    copy_and_remove(one, other)
    kill_at(monkeypatch, other, SharedFile, "finish")
    fields = json.loads(path.read_bytes())
    if lost == "document":  # an older one was put back
        document.write_bytes(before)
    elif lost == "version":
        fields["merged"] = [fields["merged"][0], "no version"]
    else:  # as versions before it have left it: it cannot be known, and nothing else is lost
        del fields["merged"]
    path.write_text(json.dumps(fields))
    other.shared = other.open()
    other.merge()
    talk(one, other)
    assert one.lines() == other.lines()
    assert set(one.lines()) >= {*MEMORY_HEADING, entry("first")}
    if lost != "field":
        assert "- by hand" in one.lines()
        told = sidecar.read_reports(other.place.report)
        assert any(report["unsure"] == ["- by hand"] for report in told)


@pytest.mark.parametrize(("where", "name"), AT)
def test_a_line_stays_after_a_killed_pass_where_another_host_removes_its_own_with_the_same_words(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- the same words", "- more")
    other.save(*other.lines(), "- the same words")
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    one.save(*(line for line in one.lines() if line != "- the same words"))
    talk(one, other)
    assert one.lines() == other.lines()
    assert one.lines().count("- the same words") == 1


@pytest.mark.parametrize(("where", "name"), AT)
def test_a_line_that_a_killed_pass_brought_stays_removed_where_its_host_removes_it(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand", "- stays")
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    assert "- by hand" in other.lines()
    one.save(*(line for line in one.lines() if line != "- by hand"))
    hear(one, other)
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), "- stays"]


@pytest.mark.parametrize(("where", "name"), AT)
def test_a_line_that_a_killed_pass_brought_and_another_host_removed_is_not_back_after_a_write_without_the_document(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand")
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    one.save(*(line for line in one.lines() if line != "- by hand"))
    hear(one, other)
    other.remember("second")
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), entry("second")]


@pytest.mark.parametrize(
    ("where", "name"), [*AT, (projection, "exchange"), (SharedFile, "begin"), (SharedFile, "store")]
)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("first", ["person", "agent"])
@pytest.mark.parametrize("gone", ["- by hand", entry("of one")])
def test_a_line_that_a_killed_pass_brought_and_a_person_removed_stays_removed_when_the_agent_writes(
    hosts: tuple[Host, Host],
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    again: bool,
    first: str,
    gone: str,
) -> None:
    """The agent writes the file without the document, before or after the person saves it. No other line is lost."""
    one, other = hosts
    one.save(*one.lines(), "- by hand", "- stays")
    one.remember("of one", "of one too")  # who saves a text with one of them has seen the other
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    if first == "agent":
        other.remember("second")
    was_there = gone in other.lines()
    assert was_there is (name in {"put_state", "finish", "put_down", "store"})
    other.save(*(line for line in other.lines() if line != gone))
    if first == "person":
        other.remember("second")
    if again:
        kill_at(monkeypatch, other, SharedFile, "finish")
    talk(one, other)
    assert one.lines() == other.lines()
    brought = {"- by hand", "- stays", entry("of one"), entry("of one too")}
    assert set(one.lines()) >= {*MEMORY_HEADING, entry("first"), entry("second"), *brought - {gone}}
    assert (gone in one.lines()) is not was_there or gone in told(one) + told(other)
    assert len(set(one.lines())) == len(one.lines())


@pytest.mark.parametrize("written", [False, True])
def test_a_line_that_comes_back_is_listed_where_a_killed_pass_brought_it_and_the_sidecar_is_lost(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand")
    hear(one, other)
    kill_at(monkeypatch, other, SharedFile, "finish")
    other.place.sidecar(other.place.memory_file).unlink()
    if written:
        other.remember("second")  # there is a sidecar again, of another life
    other.merge()
    one.save(*(line for line in one.lines() if line != "- by hand"))
    talk(one, other)
    assert one.lines() == other.lines()
    assert "- by hand" in one.lines()  # a person may have written it there: that is not known any more
    assert all("- by hand" in told(host) for host in hosts)


def test_a_copy_that_comes_back_because_the_sidecar_is_lost_is_listed(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand", "- between", "- by hand")
    talk(one, other)
    one.save(*one.lines()[:-1])
    hear(one, other)
    other.place.sidecar(other.place.memory_file).unlink()
    before = told(other)
    talk(one, other)
    assert one.lines() == other.lines()
    assert one.lines().count("- by hand") == 2
    assert told(other) == [*before, "- by hand"]


def test_an_entry_that_the_journal_brings_back_because_the_sidecar_is_lost_is_listed(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.remember("second")
    talk(one, other)
    other.save(*(line for line in other.lines() if line != entry("second")))
    other.place.sidecar(other.place.memory_file).unlink()
    other.remember("second")  # this host reads that row of the journal only now
    before = told(other)
    other.merge()
    assert entry("second") in other.lines()
    assert told(other) == [*before, entry("second")]


@pytest.mark.parametrize(("where", "name"), AT)
def test_what_a_person_wrote_after_a_killed_pass_is_the_persons(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand")
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    other.save(*other.lines(), "- the same words")
    one.save(*one.lines(), "- the same words")
    hear(one, other)
    other.merge()
    one.save(*(line for line in one.lines() if line != "- the same words"))
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), "- by hand", "- the same words"]


def test_what_an_editor_saved_into_a_killed_pass_brings_back_no_line_that_another_host_removed(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand", "- more")
    talk(one, other)
    one.save(*(line for line in one.lines() if line != "- by hand"), "- new")
    hear(one, other)

    def saved_and_killed(path: Path, data: bytes, *, asides: Path, note: Callable[[str], bytes]) -> None:
        other.save(*other.lines(), "- saved meanwhile")
        exchange(path, data, asides=asides, note=note)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(projection, "exchange", saved_and_killed)
        with pytest.raises(Killed):
            other.merge()
    other.shared = other.open()
    one.save(*(line for line in one.lines() if line != "- new"))
    hear(one, other)
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), "- more", "- saved meanwhile"]


@pytest.mark.parametrize(("where", "name"), AT)
def test_a_line_that_is_removed_after_a_killed_pass_that_found_its_words_elsewhere_is_gone(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- the same words")
    one.remember("second")  # who has it in a text has seen the lines that came with it
    other.save(*other.lines(), "- the same words")
    hear(one, other)
    kill_at(monkeypatch, other, where, name)
    other.save(*(line for line in other.lines() if line != "- the same words"))
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), entry("second")]


@pytest.mark.parametrize("killed", [False, True])
def test_a_line_that_was_written_and_removed_before_the_document_knew_it_takes_no_other_with_it(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    one, other = hosts
    other.save(*other.lines(), "- the same words")
    if killed:
        kill_at(monkeypatch, other, SharedFile, "finish")
    else:
        other.remember("second")  # a write without the document
    one.save(*one.lines(), "- the same words")
    hear(one, other)
    other.save(*(line for line in other.lines() if line != "- the same words"))
    talk(one, other)
    assert one.lines() == other.lines()
    assert one.lines().count("- the same words") == 1


def test_a_killed_pass_has_told_which_lines_it_was_not_sure_of(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    one.save(*one.lines(), "- by hand")
    talk(one, other)
    other.place.sidecar(other.place.memory_file).unlink()
    other.save(*MEMORY_HEADING, entry("first"))
    kill_at(monkeypatch, other, sidecar, "put_state")
    talk(one, other)
    assert "- by hand" in other.lines()
    assert sidecar.read_reports(other.place.report)[-1]["unsure"] == ["- by hand"]


def test_an_old_text_takes_nothing_away_where_another_host_wrote_the_same_words(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    one, other = hosts
    third = Host(tmp_path / "third", "c")
    talk(one, third)
    old = other.lines()
    one.save(*one.lines(), "- the same words")
    talk(one, other)
    third.save(*third.lines(), "- the same words")
    third.merge()
    with locked(other.place):
        other.shared.receive(update_to(third.shared.document, "b"), now_ms=NOW)
    other.save(*old)  # loaded before the line came: it is put back
    other.merge()
    third.save(*old)  # its own, and it has seen no other
    talk(other, third, rounds=3)
    assert other.lines() == third.lines() == [*old, "- the same words"]


def test_a_removal_is_noted_only_of_lines_that_came_from_the_document(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    other.save(*other.lines(), "- the same words")
    other.remember("second")
    other.save(*(line for line in other.lines() if line != "- the same words"))
    other.remember("third")  # no document knows that the line was there
    one.save(*one.lines(), "- the same words")
    talk(one, other)
    assert one.lines() == other.lines()
    assert "- the same words" in one.lines()


def lose_sidecar(host: Host, *, before: Sequence[str] = ()) -> None:
    """After many writes; then it has no number of these any more. `before`: what an editor saves after the loss."""
    for number in range(8):
        host.remember(f"early {number}")
    host.merge()
    host.place.sidecar(host.place.memory_file).unlink()
    if before:
        host.save(*before)


def overtake(host: Host) -> None:
    """More writes than those whose numbers the document knows."""
    for number in range(30):
        host.remember(f"late {number}")


def test_an_entry_removed_after_the_sidecar_was_lost_stays_removed(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    lose_sidecar(one)
    one.remember("shared")
    one.remember("later")
    one.save(*(line for line in one.lines() if line != entry("shared")))
    overtake(one)
    other.remember("shared", "later")
    talk(one, other)
    assert one.lines() == other.lines()
    assert entry("shared") not in one.lines()


def test_a_text_that_was_saved_after_the_sidecar_was_lost_takes_nothing_away(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    other.save(*other.lines(), "- by the other host")
    loaded = one.lines()
    talk(one, other)
    lose_sidecar(one, before=loaded)
    overtake(one)
    talk(one, other)
    assert one.lines() == other.lines()
    assert "- by the other host" in one.lines()
    told = [line for report in sidecar.read_reports(one.place.report) for line in report["unsure"]]  # pyright: ignore
    assert "- by the other host" in told


def test_a_pass_that_is_killed_after_the_sidecar_was_lost_takes_nothing_away(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    other.save(*other.lines(), "- by the other host")
    loaded = one.lines()
    talk(one, other)
    lose_sidecar(one, before=loaded)
    one.remember("next")
    kill_at(monkeypatch, one, SharedFile, "store")
    one.save(*loaded)
    overtake(one)
    talk(one, other)
    assert one.lines() == other.lines()
    assert "- by the other host" in one.lines()


def test_files_of_a_version_that_knew_no_lives_are_read(hosts: tuple[Host, Host]) -> None:
    """A sidecar and a document without the field belong together."""
    one, other = hosts
    one.save(*one.lines(), "- from before")
    talk(one, other)
    for host in hosts:
        path = host.place.sidecar(host.place.memory_file)
        path.write_text(
            json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "life"})
        )
        stored = host.place.document(host.place.memory_file)
        head, _, rest = stored.read_bytes().partition(b"\n")
        fields = {name: value for name, value in json.loads(head).items() if name != "life"}
        stored.write_bytes(json.dumps(fields).encode() + b"\n" + rest)
        host.shared = host.open()
    one.save(*(line for line in one.lines() if line != "- from before"), "- by hand")
    told = sidecar.read_reports(one.place.report)
    talk(one, other)
    assert one.lines() == other.lines() == [*MEMORY_HEADING, entry("first"), "- by hand"]
    assert sidecar.read_reports(one.place.report) == told


def test_a_process_that_was_started_again_continues(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    peers = set[int]()
    for number in range(3):
        one.shared = one.open()
        one.remember(f"number {number}")
        talk(one, other)
        document = one.shared.document.document
        assert document is not None
        peers.add(document._doc.peer_id)
    assert one.lines() == other.lines()
    assert len(peers) == 3


def test_a_document_that_was_closed_knows_what_others_told(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    document = one.shared.document
    known, before = dict(document.known), document.document
    assert before is not None
    one.shared.receive(Update(instance="c", file="MEMORY.md", version=NOTHING, wants_whole=True), now_ms=NOW)
    one.shared.close()
    one.shared.close()
    assert document.document is None
    opened = one.shared.document
    assert opened.known == {**known, "c": NOTHING}
    assert opened.is_asked(["c"])
    assert not opened.is_asked(["b"])
    assert opened.document is not None
    assert opened.document._doc.peer_id != before._doc.peer_id
    one.save(*one.lines(), "- by hand")
    talk(one, other)
    assert one.lines() == other.lines()
    assert "- by hand" in other.lines()


def test_a_pass_without_news_writes_nothing(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    talk(one, other)
    before = [path.stat().st_mtime_ns for path in (one.place.memory_file, one.place.document(one.place.memory_file))]
    one.merge()
    after = [path.stat().st_mtime_ns for path in (one.place.memory_file, one.place.document(one.place.memory_file))]
    assert before == after
