"""Two enrolled folders with a shared folder between them: the worker's job, and what a person hears of it."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from holdfast.app import eviction
from holdfast.app.doctor import Level
from holdfast.app.instances import merge_job, standing
from holdfast.app.instances.examine_merges import examine_merges
from holdfast.app.instances.merge_job import is_shared, merge_while_waiting, open_merging
from holdfast.app.instances.presence import list_instances
from holdfast.app.instances.standing import StandingKind
from holdfast.core.clock import SystemClock, iso
from holdfast.errors import AgentElsewhere, InstancesUnfit, JournalBusy, KeysReplaced, SymlinkRefused
from holdfast.host.log import Log
from holdfast.instances import merging
from holdfast.instances.merge_state import load_state, save_state
from holdfast.instances.merging import Merging
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.testing.lab import wait_until
from holdfast_proofs.instance_kills.world import World

HOUR = 3_600_000
NOW = SystemClock().wall_ms() - 2 * HOUR


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    found = World(tmp_path_factory.mktemp("two") / "world")
    found.make(backup=False)
    found.invite()
    found.join()
    return found


@pytest.fixture
def homes(made: World, tmp_path: Path) -> list[AgentHome]:
    """Both folders, sharing a new folder."""
    for host in ("a", "b"):
        path = made.home(host) / "holdfast.toml"
        text = path.read_text().partition("\n[instances]")[0]
        path.write_text(f'{text}\n[instances]\nfolder = "{tmp_path}"\n')
    return [load_home(made.home(host)) for host in ("a", "b")]


async def has(home: AgentHome, text: str) -> bool:
    return home.memory_file.exists() and text in home.memory_file.read_text()


async def test_the_job_merges(homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_job, "LOOK_S", 0.02)
    one, other = homes
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        jobs = [group.create_task(merge_while_waiting(home.journal, Log())) for home in homes]
        await wait_until(lambda: has(other, "primary"))
        other.memory_file.write_text(other.memory_file.read_text() + "- by hand\n")
        await wait_until(lambda: has(one, "by hand"))
        assert one.memory_file.read_text() == other.memory_file.read_text()
        for job in jobs:
            job.cancel()


async def test_an_instance_that_waits_closes_its_documents_and_still_merges(
    open_documents: Callable[[], int], homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_job, "LOOK_S", 0.02)
    monkeypatch.setattr(merging, "REST_MS", 200)
    one, other = homes

    async def rests() -> bool:
        return not open_documents()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        jobs = [group.create_task(merge_while_waiting(home.journal, Log())) for home in homes]
        for text in ("once", "and again"):
            other.memory_file.write_text(other.memory_file.read_text() + f"- {text}\n")
            await wait_until(lambda text=text: has(one, text))
            await wait_until(rests)
        for job in jobs:
            job.cancel()


class SharedJournal:
    """As the merges see one that hosts share."""

    hosts = True

    def __init__(self) -> None:
        self.lives = 1
        self.answers = True

    def incarnation(self) -> int:
        if not self.answers:
            raise JournalBusy("it does not answer")
        return self.lives


async def test_an_instance_that_waits_hears_that_the_journal_was_restored(
    homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others refuse what names the incarnation before."""
    shared = SharedJournal()

    def journal_at(_address: object) -> SharedJournal:
        return shared

    monkeypatch.setattr(merge_job, "journal_at", journal_at)
    monkeypatch.setattr(merge_job, "LOOK_S", 0.02)
    monkeypatch.setattr(merge_job, "LIFE_S", 0.1)
    one, other = homes
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waits = group.create_task(merge_while_waiting(other.journal, Log()))
        acts = group.create_task(merge_while_waiting(one.journal, Log()))
        other.memory_file.write_text(other.memory_file.read_text() + "- before the restore\n")
        await wait_until(lambda: has(one, "before the restore"))
        shared.answers = False
        other.memory_file.write_text(other.memory_file.read_text() + "- while it does not answer\n")
        await wait_until(lambda: has(one, "while it does not answer"))
        acts.cancel()
        await asyncio.wait([acts])
        shared.answers, shared.lives = True, 2
        acts = group.create_task(merge_while_waiting(one.journal, Log()))
        other.memory_file.write_text(other.memory_file.read_text() + "- after the restore\n")
        await wait_until(lambda: has(one, "after the restore"))
        waits.cancel()
        acts.cancel()


def opened(home: AgentHome) -> Merging:
    found = open_merging(home)
    assert found is not None
    return found[0]


def run(*merges: Merging) -> None:
    for _ in range(4):
        for one in merges:
            one.run(now_ms=NOW)


def test_doctor_and_notices_say_who_is_behind(homes: list[AgentHome]) -> None:
    assert all(map(is_shared, homes))
    one, other = map(opened, homes)
    one.run(now_ms=NOW)
    texts = [finding.text for finding in examine_merges(homes[0]) if finding.level is Level.WARNING]
    assert any("nothing has arrived from south yet" in text for text in texts)
    run(one, other)
    assert {finding.level for finding in examine_merges(homes[0])} == {Level.OK}
    homes[0].memory_file.write_text(homes[0].memory_file.read_text() + "- more\n")
    one.run(now_ms=NOW)
    behind = next(examine_merges(homes[0]))
    assert "has not confirmed changes of 1 memory files" in behind.text
    assert f"is kept for it until {iso(NOW + 30 * 24 * HOUR)}" in behind.text
    assert "start the worker of south" in behind.mend
    assert "remove" not in behind.mend
    assert list(merge_job._notices(one, (), NOW + HOUR - 1)) == []
    (notice,) = merge_job._notices(one, (), NOW + HOUR)
    assert notice.kind == "memory-lag"
    assert f"south has not confirmed memory updates since {iso(NOW)}" in notice.text


def test_doctor_advises_to_remove_only_an_instance_that_has_been_silent_for_long(homes: list[AgentHome]) -> None:
    one, other = map(opened, homes)
    run(one, other)
    homes[0].memory_file.write_text(homes[0].memory_file.read_text() + "- even more\n")
    one.run(now_ms=NOW)
    state = load_state(homes[0].instance)
    for heard_ms, advised in ((NOW, False), (NOW - 24 * HOUR, True)):
        peer = replace(state.peers["south"], heard_ms=heard_ms, behind_ms=NOW - 24 * HOUR)
        save_state(homes[0].instance, replace(state, peers={"south": peer}))
        (finding,) = examine_merges(homes[0])
        assert ("`holdfast instance remove south`" in finding.mend) is advised


def test_doctor_names_the_cause_once(homes: list[AgentHome]) -> None:
    one, other = map(opened, homes)
    run(one, other)
    state = load_state(homes[0].instance)
    save_state(homes[0].instance, replace(state, trouble="it is full", fix="free space"))
    assert [(one.text, one.mend) for one in examine_merges(homes[0])] == [("memory: it is full", "free space")]
    peer = replace(state.peers["south"], waits="two folders", fix="stop one")
    save_state(homes[0].instance, replace(state, peers={"south": peer}))
    assert [(one.text, one.mend) for one in examine_merges(homes[0])] == [("memory: two folders", "stop one")]


def test_doctor_and_the_list_name_a_link_in_the_shared_folder(homes: list[AgentHome], tmp_path: Path) -> None:
    one, other = map(opened, homes)
    run(one, other)
    (own,) = tmp_path.glob("*/north")
    own.rename(own.with_name("before"))
    own.symlink_to(homes[0].folder)
    with pytest.raises(SymlinkRefused):
        one.run(now_ms=NOW)
    other.run(now_ms=NOW)
    for home in homes:  # that of its own place, and that of the other instance's
        (said,) = [finding for finding in examine_merges(home) if finding.level is Level.WARNING]
        assert f"{own} is a symbolic link" in said.text
        assert f"remove {own}" in said.mend
    assert f"{own} is a symbolic link" in list_instances(homes[0], clock=SystemClock()).waits


def test_doctor_does_not_call_memory_merged_while_a_file_waits(homes: list[AgentHome]) -> None:
    one, other = map(opened, homes)
    run(one, other)
    state = load_state(homes[0].instance)
    save_state(homes[0].instance, replace(state, files={"MEMORY.md": "waits for a document of south"}))
    assert [one.text for one in examine_merges(homes[0])] == ["MEMORY.md waits for a document of south"]


def test_without_the_package_or_a_way_the_error_says_what_to_do(homes: list[AgentHome]) -> None:
    code = (
        "import sys, pathlib; sys.modules['loro'] = None; from holdfast.app.instances.merge_job import open_merging; "
        "from holdfast.layout.agent_home import load_home; open_merging(load_home(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(homes[0].folder)], capture_output=True, text=True)
    assert "the package `loro` is missing" in done.stderr
    assert "hint: pip install 'holdfast[instances]'" in done.stderr
    homes[0].settings_file.write_text(homes[0].settings_file.read_text().partition("\n[instances]")[0])
    with pytest.raises(InstancesUnfit, match="nothing carries") as raised:
        open_merging(load_home(homes[0].folder))
    assert "[instances]" in raised.value.hint
    (finding,) = examine_merges(load_home(homes[0].folder))
    assert finding.level is Level.WARNING


def test_an_agent_with_one_instance_does_not_load_the_library(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from holdfast.app.instances import merge_job, examine_merges; "
        "from holdfast.layout.agent_home import AgentHome; "
        "home = AgentHome(folder=pathlib.Path(sys.argv[1]), name='a'); "
        "assert not merge_job.is_shared(home) and list(examine_merges.examine_merges(home)) == []; "
        "assert 'loro' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_roster_that_another_instance_knows_counts_here(
    homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[bytes, ...]] = []

    def hearing(*_: object) -> Callable[[tuple[bytes, ...]], None]:
        return heard.append

    monkeypatch.setattr(merge_job, "_hearing", hearing)
    one, other = map(opened, homes)
    one._roster = (b"a newer one",)
    run(one, other)
    assert (b"a newer one",) in heard


async def test_an_instance_that_was_removed_hears_of_it_from_the_last_one_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_job, "LOOK_S", 0.02)
    monkeypatch.setattr(merge_job, "ALONE_S", 0.02)
    world, shared = World(tmp_path / "world"), tmp_path / "shared"
    shared.mkdir(mode=0o700)
    await asyncio.to_thread(world.make, backup=False)
    settings = world.home("a") / "holdfast.toml"
    settings.write_text(f'{settings.read_text()}\n[instances]\nfolder = "{shared}"\n')
    await asyncio.to_thread(world.invite)
    await asyncio.to_thread(world.join)
    homes = [load_home(world.home(host)) for host in ("a", "b")]

    async def is_copy() -> bool:
        return (await asyncio.to_thread(world.standing, "b")).kind is StandingKind.COPY

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        jobs = [group.create_task(merge_while_waiting(home.journal, Log())) for home in homes]
        await wait_until(lambda: has(homes[1], "primary"))
        await asyncio.to_thread(world.remove)
        await wait_until(is_copy)
        written = [path.stat().st_mtime_ns for path in shared.rglob("north/newest")]
        await asyncio.sleep(0.2)
        assert written == [path.stat().st_mtime_ns for path in shared.rglob("north/newest")]  # it said so once
        for job in jobs:
            job.cancel()


class Panic(BaseException):
    """As the library of documents raises it."""


def failing_once(error: BaseException, what: Callable[..., object]) -> Callable[..., object]:
    errors = [error]

    def found(*given: object, **named: object) -> object:
        if errors:
            raise errors.pop()
        return what(*given, **named)

    return found


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), Panic("a bug of the library")])
async def test_the_job_goes_on_after_an_error_that_no_code_expects(
    error: BaseException, homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_job, "LOOK_S", 0.02)
    monkeypatch.setattr(merge_job, "PANIC_S", 0.02)
    monkeypatch.setattr(Merging, "is_due", failing_once(error, Merging.is_due))
    one, other = homes
    text, log = f"after {type(error).__name__}", io.StringIO()
    other.memory_file.write_text(other.memory_file.read_text() + f"- {text}\n")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        jobs = [group.create_task(merge_while_waiting(home.journal, Log(log))) for home in homes]
        await wait_until(lambda: has(one, text))
        for job in jobs:
            job.cancel()
    assert str(error) in log.getvalue()


async def test_an_instance_still_hears_of_its_removal_after_an_error_that_no_code_expects(
    homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "WATCH_S", 0.02)
    removed = standing.Standing(kind=StandingKind.COPY, text="it was removed")
    looks = failing_once(RuntimeError("can't start new thread"), lambda *_, **__: removed)
    monkeypatch.setattr(standing, "find_standing", looks)
    home, stopped, log = homes[0], asyncio.Event(), io.StringIO()
    journal = cast("Journal", object())  # it is asked of the others only while this instance may act
    with pytest.raises(AgentElsewhere, match="it was removed"):
        async with asyncio.timeout(30), standing.kept_enrolled(home.journal, journal, stopped.set, log=Log(log)):
            await stopped.wait()
    assert "can't start new thread" in log.getvalue()


async def test_a_worker_still_finds_that_its_keys_were_replaced_after_an_error_that_no_code_expects(
    homes: list[AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, stopped, log = homes[0], asyncio.Event(), io.StringIO()
    settings = home.folder / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", "[identity]\nwatch_s = 0.5\n"))
    monkeypatch.setattr(eviction, "AGAIN_S", 0.02)

    def replaced(*_: object) -> object:
        raise KeysReplaced("the keys were replaced")

    monkeypatch.setattr(eviction, "check_speaks", failing_once(MemoryError("out of memory"), replaced))
    watch = eviction.stopped_when_evicted(home.journal, stopped.set, notices=None, log=Log(log))
    with pytest.raises(KeysReplaced):
        async with asyncio.timeout(30), watch:
            await stopped.wait()
    assert "out of memory" in log.getvalue()
