"""Instances with journal files: a roster follows the agent over moves, and a standby does nothing of a primary's."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

import holdfast
from holdfast.app.instances.examine import standby_faults
from holdfast.app.instances.roster_change import RosterChange
from holdfast.app.instances.standing import SEEN_TEXT, Seen, StandingKind, find_standing
from holdfast.app.memory import add_line
from holdfast.app.worker import is_standby
from holdfast.backup.backups import open_backups
from holdfast.backup.turns import check_backs_up, take_duty
from holdfast.cli.main import main
from holdfast.core.clock import Clock, SystemClock
from holdfast.errors import (
    ArchiveRefused,
    BadInput,
    BadSettings,
    IsStandby,
    JournalFull,
    MoveRefused,
    NotEnrolled,
    NotNow,
)
from holdfast.host.folder_swap import folders_before
from holdfast.identity.files.roster_file import ROSTER
from holdfast.identity.lease import enrolment
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.certificate import Role
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.admin import SharedState
from holdfast.layout.agent_home import MemoryPlace, load_home
from holdfast.layout.moved import StandbyMark, find_standby
from holdfast.memory.lines import Gone, removal_mark
from holdfast.memory.sidecar import State, save_state
from holdfast.recovery import invite as invite_module
from holdfast.recovery import move_package, promote
from holdfast.recovery.carry_memory import carry_memory
from holdfast.recovery.invite import Joining, invite
from holdfast.recovery.move_in import TAKEN, HostPaths, cancel_move, move_in
from holdfast.recovery.move_lease import MoveMeans
from holdfast.recovery.move_out import MoveOut
from holdfast.recovery.promote import handed_over, stops_within_s
from holdfast_proofs.instance_kills.world import CLOCK, ENTROPY, PORT, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "world")
    made.make(backup=False)
    made.invite()
    made.join()
    return made


def test_a_standby_opens_no_journal_and_backs_up_nothing(world: World) -> None:
    home = load_home(world.home("b"))
    assert main(["task", "list", "--home", str(home.folder)]) == IsStandby.exit_code
    assert not (home.folder / "journal.db").exists()
    with pytest.raises(IsStandby):
        check_backs_up(home)
    assert take_duty(home)
    assert not take_duty(load_home(world.home("a")))
    shutil.copytree(world.home("a"), world.root / "copy")
    with pytest.raises(NotEnrolled):
        check_backs_up(load_home(world.root / "copy"))
    assert find_standing(load_home(world.root / "copy"), clock=SystemClock()).kind is StandingKind.COPY


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it does not ask")
def test_the_parent_of_a_worker_never_has_the_key_of_its_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives as long as the agent, and tools could read its memory. It asks who will wait all the same."""
    look = enrolment.find_enrolment

    def looked(instance: Path, *, id: AgentId, clock: Clock) -> KeyPair | None:
        (world.root / "looked").write_text(str(os.getpid()))
        return look(instance, id=id, clock=clock)

    monkeypatch.setattr(enrolment, "find_enrolment", looked)
    for host, waits in ("a", False), ("b", True):
        assert is_standby(load_home(world.home(host)).journal) is waits
        assert int((world.root / "looked").read_text()) != os.getpid()
    (world.home("b") / "instance" / "enrolment.json").write_text("{")
    assert not is_standby(load_home(world.home("b")).journal)


def test_an_agent_that_moves_keeps_its_place_in_the_roster(world: World) -> None:
    """`holdfast migrate` moves the instance that acts: its folder is a new one, and has its name."""
    package, new = world.root / "ada.move", world.root / "c" / "ada"
    shutil.copytree(world.root / "a" / "vault", world.root / "c" / "vault")
    (world.root / "c").chmod(0o700)
    with open_vault(world.root / "a" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        asyncio.run(MoveOut(load_home(world.home("a")), means, say=lambda _: None, wait_s=10.0).run(package))
    with open_vault(world.root / "c" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        with pytest.raises(MoveRefused, match="not an invitation"):
            asyncio.run(Joining(package, new, means, HostPaths()).run())
        asyncio.run(move_in(package, new, means))
    found = find_standing(load_home(new), clock=CLOCK)
    assert (found.kind, found.name) == (StandingKind.PRIMARY, "north")
    assert {one.name for one in found.view.enrolled} == {"north", "south"}


def test_a_hand_off_that_is_cancelled_leaves_the_primary_as_it_was(world: World) -> None:
    world.give()
    assert world.acts("a") == IsStandby.code
    with open_vault(world.root / "b" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        with pytest.raises(MoveRefused, match="not an invitation"):
            asyncio.run(Joining(world.handoff, world.root / "x", means, HostPaths()).run())
    assert main(["migrate", "cancel", "--nobody-has-it", "--home", str(world.home("a"))]) == 0
    assert world.acts("a") == ""
    assert {one.name: one.role.value for one in world.standing("a").view.enrolled} == {
        "north": "primary",
        "south": "standby",
    }


@pytest.mark.parametrize("killed", ["cancel", "yield"])
def test_a_cancel_is_repeated_after_a_kill(world: World, killed: str) -> None:
    """The mark is gone, or was never written; by its roster alone this folder would wait for ever."""
    if killed == "yield":
        world.change("a", lambda change: handed_over(change, "south"))
    else:
        world.give()
        with open_vault(world.root / "a" / "vault") as vault:
            means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
            asyncio.run(cancel_move(load_home(world.home("a")), means, sure=True))
    assert world.acts("a") == IsStandby.code
    cancel = ["migrate", "cancel", "--home", str(world.home("a"))]
    assert main(cancel) == 0
    assert world.acts("a") == ""
    assert [one.name for one in world.standing("a").view.enrolled if one.role is Role.PRIMARY] == ["north"]
    assert main(cancel) == MoveRefused.exit_code  # nothing is being moved


def test_a_standby_that_joined_has_nothing_to_cancel(world: World) -> None:
    before = (world.home("b") / ROSTER).read_bytes()
    assert main(["migrate", "cancel", "--nobody-has-it", "--home", str(world.home("b"))]) == MoveRefused.exit_code
    assert (world.home("b") / ROSTER).read_bytes() == before


def test_a_standby_that_takes_over_keeps_what_only_it_has_seen(tmp_path: Path) -> None:
    """Also in HEARTBEAT.md, without its block of tasks; a line that was removed on the other host stays removed."""
    old, new = MemoryPlace(folder=tmp_path / "old"), MemoryPlace(folder=tmp_path / "new")
    for place in (old, new):
        place.private.mkdir(parents=True, mode=0o700)
    old.memory_file.write_text("- of both\n- of the standby\n- removed there\n")
    new.memory_file.write_text("- of both\n")
    gone = (Gone(write=2, at_ms=1, entry=removal_mark("- removed there")),)
    save_state(new.sidecar(new.memory_file), State(base="- of both\n", write=2, gone=gone))
    block = "<!-- holdfast:tasks begin: {0} -->\n- [ ] {0}\n<!-- holdfast:tasks end -->\n"
    old.heartbeat_file.write_text(f"# Heartbeat\n{block.format('old')}- a person's\n")
    new.heartbeat_file.write_text(f"# Heartbeat\n{block.format('new')}")
    for _ in range(2):  # safe to repeat
        carry_memory(old.folder, new.folder)
        assert new.memory_file.read_text() == "- of both\n- of the standby\n"
        assert new.heartbeat_file.read_text() == f"# Heartbeat\n{block.format('new')}- a person's\n"


class OddName(World):
    """Homes with a name that is a pattern for files."""

    def home(self, host: str) -> Path:
        return self.root / host / "ada [*?]"


@pytest.mark.parametrize("planned", [True, False])
def test_a_home_with_any_name_keeps_the_lines_of_its_standby(tmp_path: Path, planned: bool) -> None:
    world = OddName(tmp_path / "world")
    world.make(backup=not planned)
    world.invite()
    world.join()
    (world.home("b") / "MEMORY.md").write_text("- of the standby\n")
    if planned:
        world.give()
        world.take()
    else:
        world.promote()
    assert sorted((world.home("b") / "MEMORY.md").read_text().splitlines()) == ["- of the primary", "- of the standby"]
    (before,) = folders_before(world.home("b"))
    assert (before / "instance" / enrolment.NAME).exists() is not planned


def test_a_standby_refuses_a_package_that_is_for_another_instance(world: World) -> None:
    """It would take the lease, and wait as a standby; the instance that the package is for could not take it then."""
    package = world.root / "ada.move"
    with open_vault(world.root / "a" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        asyncio.run(MoveOut(load_home(world.home("a")), means, say=lambda _: None, wait_s=10.0).run(package))
    code = main(["instance", "promote", str(package), "--home", str(world.home("b"))])
    assert code == MoveRefused.exit_code
    assert package.exists()
    assert find_standing(load_home(world.home("b")), clock=CLOCK).kind is StandingKind.STANDBY
    assert not list(world.root.glob("b/*moving*")) + list(world.root.glob("b/*before*"))


@pytest.mark.parametrize("path", ["there.handoff", "missing/ada.handoff", "a/ada/ada.handoff"])
def test_a_hand_off_that_cannot_begin_changes_nothing(world: World, path: str) -> None:
    """A wrong path must not take the agent out of service."""
    (world.root / "there.handoff").touch()
    before = world.standing("a").view.lines()
    for words in (["yield", "south"], ["invite", "west"]):
        code = main(["instance", *words, str(world.root / path), "--home", str(world.home("a"))])
        assert code == BadInput.exit_code
    assert world.standing("a").view.lines() == before
    assert world.acts("a") == ""


@pytest.mark.parametrize("bytes_left", [0, 100, -40])
def test_a_cut_invitation_is_to_be_copied_again(world: World, bytes_left: int, tmp_path: Path) -> None:
    taken = world.invitation.with_name(world.invitation.name + TAKEN)
    package = tmp_path / "cut.invite"
    package.write_bytes(taken.read_bytes()[: bytes_left or 0])
    with open_vault(world.root / "b" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        with pytest.raises((MoveRefused, ArchiveRefused)) as raised:
            asyncio.run(Joining(package, tmp_path / "new", means, HostPaths()).run())
    assert "copy the file again from the host that made it" in raised.value.hint


def test_an_invitation_for_which_there_is_no_space_names_the_disk(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "west.invite"

    def invited(change: RosterChange) -> None:
        invite(change, package, name="west", role=Role.STANDBY, host="west")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(move_package, "sync", full)
        with pytest.raises(JournalFull, match="No space left") as raised:
            world.change("a", invited)
    assert str(tmp_path) in raised.value.hint
    assert "journal" not in raised.value.hint
    assert "run the same command again" in raised.value.hint
    world.change("a", invited)
    assert package.exists()
    assert [one.name for one in world.standing("a").view.enrolled].count("west") == 1


@dataclass(frozen=True, slots=True)
class Texts:
    """What a shared journal says of its hosts; nothing else is asked of it here."""

    seen: Seen

    def read_text(self, name: str) -> str:
        return msgspec.json.encode(self.seen).decode() if name == SEEN_TEXT else ""


@pytest.mark.parametrize("removed", ["from the roster", "in the shared journal, and the command was killed there"])
def test_an_invitation_that_was_killed_brings_no_removed_key_back(
    removed: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "west.invite"

    def invited(change: RosterChange) -> None:
        invite(change, package, name="west", role=Role.STANDBY, host="west")

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    def key_of_west() -> str:
        found = world.standing("a").view.named("west")
        return "" if found is None else found.key

    with monkeypatch.context() as patched:
        patched.setattr(invite_module, "remove_durably", killed)
        with pytest.raises(KeyboardInterrupt):
            world.change("a", invited)
    stolen = key_of_west()
    assert stolen
    package.rename(tmp_path / "on-its-way")
    if removed == "from the roster":
        world.change("a", lambda change: change.remove("west"))
        world.change("a", invited)
        assert key_of_west() not in ("", stolen)
    else:
        texts = cast("SharedState", Texts(Seen(removed=(stolen,))))
        with pytest.raises(BadInput, match="already"):
            world.change("a", lambda change: invited(replace(change, shared=texts)))


@pytest.mark.parametrize(
    "words", [["remove", "nobody", "--yes"], ["yield", "nobody", "x.handoff"], ["promote", "--instance", "nobody"]]
)
def test_an_unknown_name_is_answered_with_the_names_that_there_are(
    world: World, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.root)
    assert main(["instance", *words, "--home", str(world.home("a"))]) == NotEnrolled.exit_code
    said = capsys.readouterr().err
    assert "enrolled: north, south" in said
    assert "give one of these names" in said
    assert "invite" not in said


def test_an_instance_does_not_remove_itself_behind_the_others_backs(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.root)
    before = (world.home("b") / ROSTER).read_bytes()
    assert main(["instance", "remove", "south", "--yes", "--home", str(world.home("b"))]) == BadInput.exit_code
    assert "`holdfast instance remove south` on the host that acts" in capsys.readouterr().err
    assert (world.home("b") / ROSTER).read_bytes() == before
    assert main(["instance", "list", "--home", str(world.home("b"))]) == 0
    assert "south" in capsys.readouterr().out


def test_two_changes_of_the_roster_at_once_are_named_and_settled_by_either_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One host invites, another one removes. The host that was invited joins, and hears that nobody removed it."""
    world = World(tmp_path / "world")
    world.make(backup=False)
    for host, name in (("b", "south"), ("c", "west"), ("d", "east")):
        if host != "b":
            for vault in ("vault", "second"):
                shutil.copytree(world.root / "b" / vault, world.root / host / vault)
            (world.root / host).chmod(0o700)
        if name == "east":
            shutil.copy(world.home("a") / ROSTER, world.home("b") / ROSTER)
            world.change("b", lambda change: change.remove("west"))
        world.invite(name=name)
        world.join(host)
    lines = {line for host in "ab" for line in (world.home(host) / ROSTER).read_bytes().splitlines()}
    for host in "abcd":
        (world.home(host) / ROSTER).write_bytes(b"".join(line + b"\n" for line in sorted(lines)))
        assert main(["instance", "list", "--home", str(world.home(host))]) == 0
        said = "".join(capsys.readouterr())
        assert "two hosts changed the roster at the same time: only what both versions say counts" in said
        assert "was removed" not in said
        assert ("only one of two changes that were made at once lists its key" in said) == (host in "cd")
    package = world.root / "east2.invite"
    assert main(["instance", "remove", "west", "--yes", "--home", str(world.home("a"))]) == 0
    assert not world.standing("a").view.forked
    shutil.copy(world.home("a") / ROSTER, world.home("d") / ROSTER)
    assert "not in the roster any more" in world.standing("d").text
    assert main(["instance", "invite", "east", str(package), "--home", str(world.home("a"))]) == 0
    world.home("d").rename(world.root / "d" / "old")
    with open_vault(world.root / "d" / "vault") as vault:
        means = MoveMeans(vault=vault, clock=CLOCK, entropy=ENTROPY, port=PORT)
        asyncio.run(Joining(package, world.home("d"), means, world.here("d")).run())
    assert world.standing("d").kind is StandingKind.STANDBY
    assert {one.name for one in world.standing("d").view.enrolled} == {"north", "south", "east"}


def test_a_standby_that_was_removed_cannot_promote_itself(tmp_path: Path) -> None:
    """It has not heard of it; the places have."""
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    world.change("a", lambda change: change.remove("south"))
    asyncio.run(back_up(world))
    with pytest.raises(NotEnrolled, match="was removed"):
        world.promote()
    assert world.acts("a") == ""
    assert find_standby(load_home(world.home("b")).instance) == StandbyMark(primary="north")


def test_the_places_hear_of_a_removal_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An owner who had just removed a standby could promote it by mistake until the next backup."""
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    asyncio.run(back_up(world))
    assert main(["instance", "remove", "south", "--yes", "--home", str(world.home("a"))]) == 0
    assert "next backup" not in capsys.readouterr().err
    with pytest.raises(NotEnrolled, match="was removed"):
        world.promote()
    assert world.acts("a") == ""


def test_a_place_that_does_not_hear_of_a_removal_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    (world.root / "place").rename(world.root / "away")
    assert main(["instance", "remove", "south", "--yes", "--home", str(world.home("a"))]) == 0
    assert "gets the roster only with the next backup" in capsys.readouterr().err
    assert {one.name for one in world.standing("a").view.enrolled} == {"north"}


async def back_up(world: World) -> None:
    await (await open_backups(load_home(world.home("a")))).now(check=False)


def test_a_promotion_that_the_witnesses_cannot_confirm_changes_nothing(tmp_path: Path) -> None:
    """The only witness was on the lost host: keys cannot change. A folder that is restored half way helps nobody."""
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    home = load_home(world.home("b"))
    assert not standby_faults(home)
    (world.root / "witness").rename(world.root / "lost")
    with pytest.raises(NotNow, match="0 of the 1 witnesses") as raised:
        world.promote()
    assert "recovery words" in raised.value.hint
    assert find_standby(home.instance) == StandbyMark(primary="north")
    assert not list(world.root.glob("b/ada.before-*"))
    (world.root / "b" / "second").rename(world.root / "b" / "lost")
    (fault,) = standby_faults(home)
    assert "cannot be promoted" in fault.text


def test_a_promotion_waits_as_long_as_the_old_primary_may_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two looks and the calls; what its worker was started with only a person knows."""
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    old = load_home(world.home("a"))
    assert stops_within_s(old, {}) == 60 + 2 * 10 + 20
    assert stops_within_s(old, {"lease_ttl_s": 900.0}) == 900
    kept = old.settings_file.read_text()
    old.settings_file.write_text(f"{kept}\n[worker]\nlease_ttl_s = 200\nrenew_every_s = 25\n")
    assert stops_within_s(old, {}) == 200
    assert stops_within_s(old, {"lease_ttl_s": 20.0}) == 100  # shorter than the renewals of the file
    old.settings_file.write_text(kept)
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(promote, "asyncio", SimpleNamespace(sleep=wait))
    command = ["instance", "promote", "--yes", "--home", str(world.home("b"))]
    assert main([*command, "--grace", "-1"]) == BadSettings.exit_code
    assert find_standby(load_home(world.home("b")).instance) == StandbyMark(primary="north")
    assert main([*command, "--grace", "600"]) == 0
    assert waited == [60 + 2 * 10 + 600]
    assert "waiting 680 s" in capsys.readouterr().err


def test_a_folder_that_is_no_instance_any_more_takes_no_line_and_no_work(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.make(backup=False)
    world.invite()
    world.join()
    asyncio.run(add_line(load_home(world.home("b")), text="of a standby", to="MEMORY", origin="operator"))
    world.remove()
    shutil.copy2(world.home("a") / ROSTER, world.home("b") / ROSTER)  # as a merge brings it
    line = partial(add_line, load_home(world.home("b")), text="x", to="MEMORY", origin="operator")
    for act in (partial(asked, world, "b"), line):
        with pytest.raises(NotEnrolled, match="not in the roster any more") as raised:
            asyncio.run(act())
        assert "holdfast recover" in raised.value.hint
    asyncio.run(asked(world, "a"))


def test_a_folder_that_the_roster_makes_a_standby_again_takes_no_work(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.make(backup=False)
    world.invite()
    world.join()
    world.give()
    world.take()
    asyncio.run(asked(world, "b"))
    world.change("b", lambda change: change.give_role("south", Role.STANDBY))
    with pytest.raises(IsStandby):
        asyncio.run(asked(world, "b"))
    asyncio.run(add_line(load_home(world.home("b")), text="of a standby", to="MEMORY", origin="operator"))


async def asked(world: World, host: str) -> None:
    """As `holdfast submit` does."""
    async with holdfast.open(world.home(host) / "journal.db", serve=False) as hf:
        await hf.submit("any")
