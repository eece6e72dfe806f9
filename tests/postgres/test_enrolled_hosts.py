"""Enrolled instances that share a journal: all of them act; a folder that is not enrolled, or was removed, waits."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.app.binder import open_journal
from holdfast.app.instances import roster_change
from holdfast.app.instances.merge_job import open_merging
from holdfast.app.instances.roster_change import RosterChange
from holdfast.app.instances.shared_roster import stopped_by_roster
from holdfast.app.instances.standing import ROSTER_TEXT, StandingKind, find_standing, read_seen, share_roster
from holdfast.app.memory import list_folders
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import AgentElsewhere, IsStandby, NotEnrolled
from holdfast.host.log import Log
from holdfast.host.machine import host_id
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.files.roster_file import roster_lines
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.certificate import Role
from holdfast.instances.channels import NEWEST, JournalChannel
from holdfast.instances.merging import Merging
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, MemoryPlace, load_home
from holdfast.memory.journal_position import close_position
from holdfast_proofs.instance_kills.world import World
from holdfast_proofs.support.command_line import Worker
from holdfast_proofs.support.hosts import Host

NewHost = Callable[..., Host]


def joined(agent: AgentHome, tmp_path: Path, first: Host, name: str, *more: str) -> AgentHome:
    """A host that the agent's owner has invited, with a vault of its own."""
    package = tmp_path / f"{name}.invite"
    first("instance", "invite", name, str(package), "--as", "north", "--json", *more)
    vault = shutil.copytree(tmp_path / "machine/vault", tmp_path / f"vault-{name}")
    first("instance", "join", str(package), "--home", str(tmp_path / name), "--vault", str(vault), "--json")
    return load_home(tmp_path / name)


def rows(host: Host) -> dict[str, tuple[str, str]]:
    listed = host("instance", "list", "--json").json
    return {one["name"]: (one["role"], one["presence"]) for one in listed["instances"]}


def standing(folder: Path) -> StandingKind:
    return find_standing(load_home(folder), clock=SystemClock()).kind


def host_at(folder: Path, new_host: NewHost) -> Host:
    """The host whose folder is there already."""
    aside = folder.with_name(f"{folder.name}-kept")
    folder.rename(aside)
    host = new_host(folder.name, at="")
    folder.rmdir()
    aside.rename(folder)
    return host


def waits(worker: Worker) -> dict[str, str]:
    return worker.wait_event("agent-waits")


def test_all_enrolled_hosts_act_and_nobody_else(
    agent: AgentHome, new_host: NewHost, second_host: Callable[..., AgentHome], tmp_path: Path
) -> None:
    north = host_at(agent.folder, new_host)
    assert standing(agent.folder) is StandingKind.ALONE
    joined(agent, tmp_path, north, "south")
    south = host_at(tmp_path / "south", new_host)
    copy = host_at(second_host(tmp_path / "copy").folder, new_host)  # with the roster, without instance/

    one, two, three = north.worker(), south.worker(), copy.worker()
    for worker in (one, two):
        assert worker.wait_event("agent-enrolled")["role"] == "primary"
        worker.wait_event("session-begun")
    assert waits(three)["state"] == "copy"
    assert json.loads(south.submit('{"cents": 5}', "order-1"))["cents"] == 5
    assert rows(north) == {"north": ("primary", "alive"), "south": ("primary", "alive")}
    listed = north("instance", "list", "--json").json
    assert len(listed["unknown"]) == 1
    assert str(tmp_path / "copy") in listed["unknown"][0]

    # Planned: it stops, ends its session, and waits; promoted, it acts again.
    south("instance", "yield", "--json")
    assert waits(two)["state"] == "standby"
    assert rows(north)["south"] == ("standby", "away")
    north("instance", "promote", "--instance", "south", "--json")
    two.wait_event("session-begun")

    north("instance", "remove", "south", "--yes", "--json")
    assert waits(two)["state"] == "copy"
    assert standing(tmp_path / "south") is StandingKind.COPY
    assert rows(north) == {"north": ("primary", "alive")}
    assert north("journal", "show", "--json").json["workers"] == 1


def test_the_parent_of_a_standby_is_small_and_does_what_a_parent_does(
    agent: AgentHome, new_host: NewHost, tmp_path: Path
) -> None:
    """It has none of the code loaded that its worker needs; it starts the worker again, and ends with it."""
    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "spare", "--standby")
    spare = host_at(tmp_path / "spare", new_host)
    acts, waiting = north.worker(), spare.worker()
    acts.wait_event("session-begun")
    assert waits(waiting)["state"] == "standby"
    assert "psycopg" in loaded(acts.process.pid)
    assert "psycopg" not in loaded(waiting.process.pid)

    os.kill(only_child(waiting.process.pid), signal.SIGKILL)
    waiting.wait_said("worker ended (-9)")
    assert waits(waiting)["state"] == "standby"
    north("instance", "promote", "--instance", "spare", "--json")
    waiting.wait_event("session-begun")
    left = only_child(waiting.process.pid)
    assert waiting.stop() == 0
    assert not Path(f"/proc/{left}").exists()


def loaded(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def only_child(pid: int) -> int:
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def test_a_roster_that_a_host_has_not_heard_of_counts_for_it(
    agent: AgentHome, new_host: NewHost, second_host: Callable[..., AgentHome], tmp_path: Path
) -> None:
    """A copy of the folder from before the roster knows nothing of it; the journal does. Its owner may enrol it."""
    old = second_host(tmp_path / "old")
    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "south")
    assert not (old.folder / "instances.jsonl").exists()
    assert standing(old.folder) is StandingKind.COPY
    other = host_at(old.folder, new_host)
    other("instance", "join", "--as", "east", "--json")
    assert standing(old.folder) is StandingKind.PRIMARY
    assert set(rows(north)) == {"north", "south", "east"}
    # The package is taken a second time: the first host that acted with the key has it.
    assert standing(tmp_path / "south") is StandingKind.PRIMARY
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "south", again)
    assert standing(again) is StandingKind.COPY
    assert standing(tmp_path / "south") is StandingKind.PRIMARY


def test_a_folder_whose_key_log_is_behind_the_roster_waits(
    agent: AgentHome, new_host: NewHost, second_host: Callable[..., AgentHome], tmp_path: Path
) -> None:
    """It cannot check the roster by the keys that it knows; that does not mean that there is none."""
    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "south")
    old = second_host(tmp_path / "old")
    (old.folder / "instances.jsonl").unlink()
    north("identity", "rotate", "--yes", "--json")
    package = tmp_path / "west.invite"
    north("instance", "invite", "west", str(package), "--json")  # signed by the new keys
    assert standing(agent.folder) is StandingKind.PRIMARY
    assert standing(old.folder) is StandingKind.COPY
    for name in ("kel.jsonl", "receipts.jsonl"):
        (old.folder / name).unlink()  # nothing shows whose folder it is
    assert standing(old.folder) is StandingKind.COPY


def test_a_removed_host_that_missed_a_rotation_does_not_put_its_old_roster_back(
    agent: AgentHome, new_host: NewHost, tmp_path: Path
) -> None:
    """Its own roster still counts by the keys that it knows. The journal says that there is a newer one."""
    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "south")
    north("identity", "rotate", "--yes", "--json")
    north("instance", "remove", "south", "--yes", "--json")
    shared = journal_at(agent.journal).find_shared()
    assert shared is not None
    told = shared.read_text(ROSTER_TEXT)
    found = find_standing(load_home(tmp_path / "south"), clock=SystemClock())
    assert found.kind is StandingKind.COPY
    assert "older than the roster" in found.text
    south = host_at(tmp_path / "south", new_host)
    refused = south("instance", "remove", "north", "--yes", "--json", code=4)
    assert "older than the roster" in refused.err
    share_roster(shared, roster_lines(tmp_path / "south"), read_own_log(tmp_path / "south", Sodium()), port=Sodium())
    assert shared.read_text(ROSTER_TEXT) == told


def test_an_agent_keeps_an_instance_that_acts(agent: AgentHome, new_host: NewHost, tmp_path: Path) -> None:
    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "south")
    south = host_at(tmp_path / "south", new_host)
    refused = south("instance", "yield", "--json", code=4)  # north is enrolled, and has no worker
    assert "no other instance would act" in refused.err
    north.worker().wait_event("session-begun")
    south("instance", "yield", "--json")
    refused = south("instance", "remove", "north", "--yes", "--json", code=4)
    assert "no other instance would act" in refused.err
    north("instance", "remove", "south", "--yes", "--json")
    refused = south("instance", "remove", "north", "--yes", "--json", code=4)  # by one that was removed
    assert "is not in the roster" in refused.err
    refused = south("instance", "join", "--as", "south", "--json", code=4)  # only an invite brings it back
    assert "was removed from the roster" in refused.err
    assert rows(north) == {"north": ("primary", "alive")}


def test_a_removed_host_that_joins_again_at_its_path_is_no_unknown_folder(
    agent: AgentHome, new_host: NewHost, tmp_path: Path
) -> None:
    north = host_at(agent.folder, new_host)
    folder = joined(agent, tmp_path, north, "south").folder
    north("instance", "remove", "south", "--yes", "--json")
    assert standing(folder) is StandingKind.COPY
    assert north("instance", "list", "--json").json["unknown"]
    folder.rename(tmp_path / "old")
    (tmp_path / "vault-south").rename(tmp_path / "old-vault")
    joined(agent, tmp_path, north, "south")
    assert standing(folder) is StandingKind.PRIMARY
    assert not north("instance", "list", "--json").json["unknown"]


# --- two hosts change the roster at once ---


@pytest.fixture
def both(tmp_path: Path, url: str) -> World:
    """North on host a and south on host b act."""
    world = World(tmp_path / "world", url)
    world.make(backup=False)
    world.invite()
    world.join()
    return world


def roles(world: World, host: str) -> dict[str, str]:
    return {one.name: one.role.value for one in world.standing(host).view.enrolled}


def meanwhile(world: World, act: Callable[[RosterChange], object]) -> Callable[..., None]:
    """South does this after north has looked, and before north changes the roster."""

    def run(*_: object, **__: object) -> None:
        world.change("b", act)

    return run


def test_of_two_hosts_that_yield_at_once_one_acts(
    both: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    yields = meanwhile(both, lambda change: change.step_down("south"))
    monkeypatch.setattr("holdfast.app.instances.presence.check_another_acts", yields)
    assert main(["instance", "yield", "--home", str(both.home("a"))]) == IsStandby.exit_code
    assert "no other instance would act" in capsys.readouterr().err
    assert roles(both, "a") == {"north": "primary", "south": "standby"}
    assert both.acts("a") == ""


def test_of_two_hosts_that_remove_each_other_one_stays(
    both: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """South removes north while a person is asked at north."""
    monkeypatch.setattr("holdfast.cli.input.terminal.confirm", meanwhile(both, lambda change: change.remove("north")))
    assert main(["instance", "remove", "south", "--home", str(both.home("a"))]) == NotEnrolled.exit_code
    assert "is not in the roster of its agent any more" in capsys.readouterr().err
    assert roles(both, "b") == {"south": "primary"}
    assert both.acts("b") == ""
    assert both.shared is not None
    assert len(read_seen(both.shared).removed) == 1  # south's key may still join again


def test_the_only_instance_that_acts_by_then_is_not_removed(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = meanwhile(both, lambda change: change.give_role("north", Role.STANDBY))
    monkeypatch.setattr("holdfast.cli.input.terminal.confirm", lower)
    assert main(["instance", "remove", "south", "--home", str(both.home("a"))]) == IsStandby.exit_code
    assert roles(both, "b") == {"north": "standby", "south": "primary"}


# --- a folder that has the journal's keys alone ---


def keys_alone(agent: AgentHome, new_host: NewHost) -> Host:
    """As a further host of an agent without an identity has them."""
    host = new_host("bare")
    shutil.copy(agent.keys_file, host.folder)
    return host


def test_a_folder_with_the_keys_alone_is_a_copy_once_there_is_a_roster(
    agent: AgentHome, new_host: NewHost, second_host: Callable[..., AgentHome], tmp_path: Path
) -> None:
    bare = keys_alone(agent, new_host)
    first = bare.worker()
    first.wait_event("session-begun")  # no roster: as any further host
    assert json.loads(bare.submit('{"cents": 5}', "order-1"))["cents"] == 5
    first.close()

    north = host_at(agent.folder, new_host)
    joined(agent, tmp_path, north, "south", "--yes")
    waiting = bare.worker()
    said = waits(waiting)
    assert said["state"] == "copy"
    assert str(bare.folder) in said["text"]
    assert "roster" in said["text"]
    refused = bare("submit", bare.app, '{"cents": 6}', "--task", "pay", "--request-id", "order-2", "--json", code=4)
    assert refused.error["code"] == "not-enrolled"
    assert "holdfast instance join FILE --home" in refused.error["hint"]
    findings = bare("doctor", "--json", code=6).json["findings"]
    assert any("it is a copy" in one["text"] and "instance invite" in one["mend"] for one in findings)
    shown = bare("journal", "show", "--json").json  # it may read
    assert shown["workers"] == 0
    assert shown["tasks"] == {"succeeded": 1}
    assert any(str(bare.folder) in one for one in north("instance", "list", "--json").json["unknown"])
    copy = host_at(second_host(tmp_path / "copy").folder, new_host)
    for words in (("memory", "add", "a line"), ("submit", copy.app, '{"cents": 7}', "--task", "pay", "--no-follow")):
        assert copy(*words, "--json", code=4).error["code"] == "not-enrolled"
    north.worker().wait_event("session-begun")
    assert json.loads(north.submit('{"cents": 6}', "order-2"))["cents"] == 6


async def test_a_folder_with_the_keys_alone_stops_when_instances_are_enrolled(
    agent: AgentHome, new_host: NewHost, tmp_path: Path, url: str
) -> None:
    bare = keys_alone(agent, new_host)
    address = JournalAddress(folder=bare.folder, url=url)
    stopped = asyncio.Event()

    async def serve() -> None:
        async with stopped_by_roster(address, stopped.set, log=Log(), look_s=0.05):
            await stopped.wait()

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0.3)
    assert not stopped.is_set()
    await asyncio.to_thread(joined, agent, tmp_path, host_at(agent.folder, new_host), "south")
    with pytest.raises(AgentElsewhere, match="roster"):
        await asyncio.wait_for(serving, 10)
    with pytest.raises(NotEnrolled):
        async with holdfast.open(url, home=bare.folder):
            pass
    async with holdfast.open(url, home=bare.folder, serve=False) as hf:
        assert await hf.journal.count_tasks() == {}
        with pytest.raises(NotEnrolled):
            await hf.submit("pay", cents=1)
    async with holdfast.open(url, home=tmp_path / "south", serve=False) as hf:
        await hf.submit("pay", cents=1)


# --- memory through the journal ---

NOW = 1_800_000_000_000


@holdfast.task(name="noting")
async def noting(run: holdfast.Run) -> None:
    await run.note("the tenant pays on Fridays", to="MEMORY")


async def test_a_line_that_holdfast_wrote_is_not_lost_with_the_disk(
    agent: AgentHome, new_host: NewHost, tmp_path: Path, url: str
) -> None:
    """It is in the journal before it is in a file; nothing was merged between the two hosts yet."""
    north = host_at(agent.folder, new_host)
    await asyncio.to_thread(joined, agent, tmp_path, north, "south")
    async with holdfast.open(url, home=agent.folder, tasks=[noting]) as hf:
        await (await hf.submit("noting")).result(20)
    await asyncio.to_thread(north, "memory", "add", "the roof is new", "--to", "MEMORY", "--json")
    shutil.rmtree(agent.folder)
    async with holdfast.open(url, home=tmp_path / "south", tasks=[noting]):
        pass
    text = (tmp_path / "south/MEMORY.md").read_text()
    assert text.count("the tenant pays on Fridays") == text.count("the roof is new") == 1


async def test_an_instance_that_is_removed_leaves_nothing_that_grows(
    agent: AgentHome, new_host: NewHost, tmp_path: Path, url: str
) -> None:
    """Retention erases no remark that a folder of the list lacks, and nobody drops what a removed one has sent."""
    north = host_at(agent.folder, new_host)
    south = await asyncio.to_thread(joined, agent, tmp_path, north, "south")
    for folder in (agent.folder, south.folder):
        async with holdfast.open(url, home=folder, tasks=[noting]) as hf:
            await (await hf.submit("noting")).result(20)
    south.memory_file.write_text("".join(f"- a line of the south, number {number}\n" for number in range(300)))
    await asyncio.to_thread(talk, opened(agent.folder), opened(south.folder))
    shared = journal_at(agent.journal).find_shared()
    assert shared is not None
    own = JournalChannel(shared, instance="south")
    beside = await serving(south, last=lambda: own.put(NEWEST, b"written before it has noticed"))
    names = ["memory/south", *(f"memory/south/{part}" for part in own.own())]
    assert shared.read_text("memory/south")
    assert await folders(agent) == {host_id(agent.instance), host_id(south.instance)}

    await asyncio.to_thread(north, "instance", "remove", "south", "--yes", "--json")
    await beside
    assert await folders(agent) == {host_id(agent.instance)}
    assert not any(map(shared.read_text, names))
    assert not own.own()
    assert JournalChannel(shared, instance="north").own()


@pytest.mark.parametrize("at", ["drop_texts", "forget_seen"])
async def test_a_removal_that_was_interrupted_is_finished_by_the_same_command(
    agent: AgentHome, new_host: NewHost, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException): ...

    def killed(*_: object) -> None:
        raise Killed

    north = host_at(agent.folder, new_host)
    south = await asyncio.to_thread(joined, agent, tmp_path, north, "south")
    async with holdfast.open(url, home=south.folder, tasks=[noting]) as hf:
        await (await hf.submit("noting")).result(20)
    south.memory_file.write_text("- of the south\n")
    await asyncio.to_thread(talk, opened(agent.folder), opened(south.folder))
    shared = journal_at(agent.journal).find_shared()
    assert shared is not None
    remove = ["instance", "remove", "south", "--yes", "--json", "--home", str(agent.folder)]
    with monkeypatch.context() as fault:
        fault.setattr(roster_change, at, killed)
        with pytest.raises(Killed):
            await asyncio.to_thread(main, remove)
    assert find_standing(south, clock=SystemClock()).kind is StandingKind.COPY
    assert len(read_seen(shared).bound) == 2

    await asyncio.to_thread(north, *remove[:-2])
    assert await folders(agent) <= {host_id(agent.instance)}
    assert len(read_seen(shared).bound) == 1
    assert not shared.read_text("memory/south")
    await asyncio.to_thread(north, *remove[:-2], code=NotEnrolled.exit_code)


async def serving(home: AgentHome, *, last: Callable[[], object]) -> asyncio.Task[None]:
    """A worker that writes its memory files once more, and does `last`, while it is being removed."""
    journal, _ = await open_journal(home.journal, create=False)
    session = await journal.open_session(worker="w", ttl_ms=60_000)

    async def ends() -> None:
        while find_standing(home, clock=SystemClock()).kind is not StandingKind.COPY:  # noqa: ASYNC110 - a roster is no event
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # its calls end
        await close_position(journal, MemoryPlace(folder=home.folder), 99)
        await asyncio.to_thread(last)
        await journal.end_session(session)
        await journal.close()

    return asyncio.create_task(ends())


async def folders(home: AgentHome) -> set[str]:
    """Those for whose memory files the journal keeps its remarks."""
    return {one.id for one in (await list_folders(home)).folders}


def opened(folder: Path) -> Merging:
    found = open_merging(load_home(folder))
    assert found is not None
    return found[0]


def talk(*both: Merging) -> None:
    for _ in range(5):
        for one in both:
            if one.is_due(now_ms=NOW):
                one.run(now_ms=NOW)


def test_memory_travels_through_the_journal(agent: AgentHome, new_host: Callable[..., Host], tmp_path: Path) -> None:
    north = host_at(agent.folder, new_host)
    agent.memory_file.write_text("# Memory\n- of the north\n")
    south = joined(agent, tmp_path, north, "south")
    both = opened(agent.folder), opened(south.folder)
    talk(*both)
    assert south.memory_file.read_text() == "# Memory\n- of the north\n"
    long = "".join(f"- a line of the south, number {number}\n" for number in range(300))
    south.memory_file.write_text(f"# Memory\n- of the north\n{long}")
    both[1].run(now_ms=NOW)
    shared = journal_at(agent.journal).find_shared()
    assert shared is not None
    channel = JournalChannel(shared, instance="south")
    assert len(channel.own()) == 2
    assert b"a line of the south" not in (channel.read("south", NEWEST) or b"")
    talk(*both)
    assert agent.memory_file.read_text() == south.memory_file.read_text() == f"# Memory\n- of the north\n{long}"
    assert set(channel.own()) == {NEWEST}  # the part is confirmed, and its text removed
    assert not any(one.is_due(now_ms=NOW) for one in both)

    north("instance", "remove", "south", "--yes", "--json")
    south.memory_file.write_text("# Memory\n- of one that was removed\n")
    both[1].run(now_ms=NOW)
    assert open_merging(load_home(agent.folder)) is None  # alone again
