"""Two hosts, each with a journal file and an arbiter of its own: the agent goes over and comes back."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.app.eviction import check_at_start
from holdfast.app.instances.standing import StandingKind, wait_enrolled
from holdfast.backup.backups import open_backups
from holdfast.backup.places.places import read_places
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.errors import EXIT_CONFLICT, BadInput, IsStandby, KeysReplaced, MovedAway, MoveRefused
from holdfast.host.log import Log
from holdfast.identity.files.roster_file import ROSTER
from holdfast.instances.merge_state import MergeState, PeerState, save_state
from holdfast.layout.agent_home import load_home
from holdfast.recovery.promote import handed_over
from holdfast_proofs.instance_kills.world import World


def made(root: Path, *, backup: bool) -> World:
    world = World(root / "world", arbiters=True)
    world.make(backup=backup)
    settings = world.home("a") / "holdfast.toml"
    settings.write_text(settings.read_text() + "lease_s = 1.0\n")  # of the [identity] table, which is the last one
    world.invite()
    world.join()
    return world


def add_west(world: World) -> None:
    """A second standby, on host c."""
    for name in ("vault", "second"):
        shutil.copytree(world.root / "b" / name, world.root / "c" / name)
    (world.root / "c").chmod(0o700)
    world.invite(name="west")
    world.join("c")


def go(world: World, host: str, to: str) -> None:
    world.give(host, {"a": "north", "b": "south"}[to])
    world.take(to)
    assert world.acts(to) == ""
    assert world.acts(host) == IsStandby.code
    (world.root / "ada.handoff.taken").unlink()


def back_up(world: World, host: str) -> None:
    async def run() -> None:
        await (await open_backups(load_home(world.home(host)))).now(check=False)

    asyncio.run(run())


def run(world: World, host: str, *words: str) -> int:
    return main([*words, "--home", str(world.home(host))])


def notice_eviction(world: World, host: str) -> None:
    """As a worker does that starts."""
    with pytest.raises(KeysReplaced):
        asyncio.run(check_at_start(load_home(world.home(host)).journal, notices=None, log=Log()))


def test_the_agent_goes_over_and_back_several_times(tmp_path: Path) -> None:
    """The arbiter of a host has heard of the grants on that host alone. What was written on the host that waits, and
    had not reached the other one, is kept."""
    world = made(tmp_path, backup=False)
    lines = ["- of the primary"]
    for number, (host, to) in enumerate((("a", "b"), ("b", "a"), ("a", "b"), ("b", "a"))):
        go(world, host, to)
        memory = world.home(to) / "MEMORY.md"
        assert memory.read_text().splitlines() == lines
        lines.append(f"- of the one that waits, {number}")
        (world.home(host) / "MEMORY.md").write_text("\n".join(lines) + "\n")


def test_a_lost_primary_that_was_invited_again_is_handed_the_agent(tmp_path: Path) -> None:
    """Its arbiter still has the grant of the folder that was lost, which nobody gave away."""
    world = made(tmp_path, backup=True)
    assert world.acts("a") == ""
    world.promote("b")
    for name in ("ada", "vault", "second"):
        (world.root / "a" / name).rename(world.root / "a" / f"{name}.old")
        if name != "ada":
            shutil.copytree(world.root / "b" / name, world.root / "a" / name)
    world.invite(by="b", name="north")
    world.join("a")
    go(world, "b", "a")


def test_the_host_that_handed_over_takes_over_when_the_new_primary_is_lost(tmp_path: Path) -> None:
    world = made(tmp_path, backup=True)
    go(world, "a", "b")
    (world.home("a") / "MEMORY.md").write_text("- of the primary\n- written where it waits\n")
    back_up(world, "b")
    (world.root / "b").rename(world.root / "lost")
    assert world.standing("a").kind is StandingKind.STANDBY
    world.promote("a")
    assert world.acts("a") == ""
    assert "written where it waits" in (world.home("a") / "MEMORY.md").read_text()
    (world.root / "lost").rename(world.root / "b")
    assert world.acts("b") == "keys-replaced"


def test_a_host_whose_package_is_on_the_way_waits_and_can_take_over_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The roster that names it comes through the shared folder, before a person brings the package."""
    world = made(tmp_path, backup=True)
    go(world, "a", "b")
    back_up(world, "b")
    world.give("b", "north")
    shutil.copy(world.home("b") / ROSTER, world.home("a") / ROSTER)
    address = load_home(world.home("a")).journal
    waiting = wait_enrolled(address, clock=SystemClock(), notices=None, log=Log.to_stderr(), patient=True)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(waiting, 0.5))
    assert "instance promote FILE" in capsys.readouterr().err
    world.handoff.unlink()
    world.promote("a")
    assert world.acts("a") == ""
    assert run(world, "a", "instance", "promote", "--yes", "--primary-is-off") == EXIT_CONFLICT
    assert "it acts already" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_promotion_after_a_package_that_nobody_took_keeps_the_places(
    tmp_path: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package has the newest head; a place that lacks it was not put back to an older day. One that lacks a backup
    may have been, and a person hears of it."""
    world = made(tmp_path, backup=True)
    shutil.copytree(world.root / "place", world.root / "older")
    world.give()
    world.handoff.unlink()
    promote = ["instance", "promote", "--yes", "--primary-is-off"]
    assert run(world, host, *promote) == 0
    assert "snapshot 3 at disk, restored for a test" in capsys.readouterr().out
    assert [one.name for one in read_places(load_home(world.home(host)).places_file)] == ["disk"]
    if host == "b":
        return
    shutil.rmtree(world.root / "b")
    (world.root / "b").mkdir(mode=0o700)
    for name in ("vault", "second"):
        shutil.copytree(world.root / "a" / name, world.root / "b" / name)
    world.invite(by="a")
    world.join()
    shutil.rmtree(world.root / "place")
    (world.root / "older").rename(world.root / "place")
    assert run(world, "b", *promote) == 0
    said = "".join(capsys.readouterr())
    assert "place disk had only older snapshots" in said
    assert "holdfast place add NAME FOLDER" in said


def test_a_hand_off_that_is_taken_again_is_done(tmp_path: Path) -> None:
    """The name of the package is changed last: a run that was killed after that is repeated with the old name."""
    world = made(tmp_path, backup=False)
    world.give()
    for _ in range(2):
        assert run(world, "b", "instance", "promote", str(world.handoff)) == 0
    assert world.acts("b") == ""
    world.handoff.with_suffix(".handoff.taken").rename(world.root / "kept")
    world.give("b", "north")
    assert run(world, "b", "instance", "promote", str(world.root / "kept")) != 0  # it has left this host since


def test_a_primary_that_was_locked_out_takes_nothing_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its worker has seen the new keys, and stopped; what people give to the folder would be lost with it."""
    world = made(tmp_path, backup=True)
    app = tmp_path / "app.py"
    app.write_text("import holdfast\n\n@holdfast.task\nasync def wait(run: holdfast.Run) -> None: ...\n")
    work = (["submit", f"{app}:wait", "{}", "--no-follow"], ["memory", "add", "a line", "--to", "MEMORY"])
    for words in work:
        assert run(world, "a", *words) == 0
    world.promote("b")
    notice_eviction(world, "a")
    capsys.readouterr()
    before = (world.home("a") / "MEMORY.md").read_text()
    for words in work:
        assert run(world, "a", *words) == KeysReplaced.exit_code
        said = capsys.readouterr().err
        assert "instance invite" in said
        assert "move it aside" in said
    assert (world.home("a") / "MEMORY.md").read_text() == before
    assert run(world, "a", "task", "list") == 0
    for words in work:
        assert run(world, "b", *words) == 0


def test_of_two_standbys_that_are_promoted_the_loser_is_not_told_to_evict_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise InterruptedError

    world = made(tmp_path, backup=True)
    add_west(world)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recovery.promote.recover_agent", interrupted)
        with pytest.raises(InterruptedError):
            world.promote("c")
    world.promote("b")
    for _ in range(2):
        with pytest.raises(KeysReplaced, match="cannot take over") as raised:
            world.promote("c")
        assert raised.value.hint.startswith("if you promoted another instance")
    assert world.acts("b") == ""
    with pytest.raises(KeysReplaced, match="another instance was promoted"):  # a worker ends
        asyncio.run(check_at_start(load_home(world.home("c")).journal, notices=None, log=Log()))
    app = tmp_path / "app.py"
    app.write_text("import holdfast\n\n@holdfast.task\nasync def wait(run: holdfast.Run) -> None: ...\n")
    submit = ["submit", f"{app}:wait", "{}", "--no-follow"]
    listed = (["instance", "list"], 0)
    for words, code in (listed, (submit, KeysReplaced.exit_code), (["doctor"], None), listed):
        assert code in (None, run(world, "c", *words))
        said = "".join(capsys.readouterr())
        assert "another instance was promoted" in said
        assert "instance invite NAME FILE" in said
        assert "again to finish it" not in said
        assert "one instance" not in said
        (world.home("c") / ROSTER).unlink(missing_ok=True)  # a backup from before the first invitation has none


def test_the_worker_of_a_standby_waits_until_its_promotion_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The restored folder has no roster yet, as the backup is older than the first invitation; nor does it act then."""

    async def interrupted(*_: object, **__: object) -> None:
        raise InterruptedError

    async def waited() -> None:
        address = load_home(world.home("b")).journal
        waiting = wait_enrolled(address, clock=SystemClock(), notices=None, log=Log.to_stderr(), patient=True)
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0.5)
        assert not task.done()
        await asyncio.to_thread(world.promote, "b")
        await asyncio.wait_for(task, 10.0)

    world = made(tmp_path, backup=True)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recovery.promote.rotate_identity", interrupted)
        with pytest.raises(InterruptedError):
            world.promote("b")
    assert world.acts("b") == IsStandby.code
    capsys.readouterr()
    asyncio.run(waited())
    assert "is being promoted; if `holdfast instance promote` was interrupted, run it again" in capsys.readouterr().err
    assert world.acts("b") == ""


def test_what_is_said_names_the_command_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = made(tmp_path, backup=False)

    def said(host: str, code: int, *words: str) -> str:
        capsys.readouterr()
        assert run(world, host, *words) == code
        return capsys.readouterr().err

    text = said("b", IsStandby.exit_code, "instance", "yield", "north", str(world.handoff))
    assert "is a standby, so there is nothing to hand over" in text
    text = said("a", BadInput.exit_code, "instance", "promote", "--instance", "south")
    assert "on the host of south" in text
    text = said("b", BadInput.exit_code, "instance", "promote", str(world.invitation))
    assert "south.invite.taken was already taken" in text
    assert "this host has joined" in text
    assert "`holdfast instance promote` here, without a file" in text
    world.invite(name="west")
    assert "instance join" in said("b", MoveRefused.exit_code, "instance", "promote", str(world.invitation))
    assert "instance promote" in said("a", 0, "instance", "yield", "south", str(world.handoff))
    text = said("a", MovedAway.exit_code, "task", "list")
    assert f"`holdfast instance promote {world.handoff}` on the host of south" in text
    assert "migrate import" not in text
    said("a", 0, "memory", "add", "of the one that waits", "--to", "MEMORY")  # as on every standby
    assert "of the one that waits" in (world.home("a") / "MEMORY.md").read_text()
    assert "a waiting worker continues by itself" in said("b", 0, "instance", "promote", str(world.handoff))


def test_a_hand_over_that_is_repeated_later_says_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It changes nothing under the instance that acts by then, also where the package was copied and is still here."""
    world = made(tmp_path, backup=False)
    world.give()
    kept = world.handoff.read_bytes()
    world.take()
    world.invite(by="b", name="west")
    world.change("b", lambda change: handed_over(change, "west"))
    shutil.copy(world.home("b") / ROSTER, world.home("a") / ROSTER)
    before = world.standing("a").view.lines()
    for name in ("south", "west"):
        capsys.readouterr()
        assert run(world, "a", "instance", "yield", name, str(world.handoff)) == MovedAway.exit_code
        said = capsys.readouterr().err
        assert f"handed over to south on {datetime.now(UTC).date()}" in said
        assert "nothing is left to do" in said
    world.handoff.touch(mode=0o600)
    world.handoff.write_bytes(kept)
    assert run(world, "a", "instance", "yield", "south", str(world.handoff)) == 0
    assert world.standing("a").view.lines() == before


def test_hosts_that_were_locked_out_hand_nothing_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No worker of theirs has seen the new keys: each command looks at the witnesses. Where none answers, it works."""
    world = made(tmp_path, backup=True)
    add_west(world)
    world.promote("b")

    def refused(host: str, *words: str) -> None:
        capsys.readouterr()
        assert run(world, host, *words) == KeysReplaced.exit_code, words
        said = capsys.readouterr().err
        assert "keys-replaced" in said
        assert "instance invite NAME FILE" in said

    package = str(world.handoff)
    refused("a", "instance", "yield", "west", package)
    refused("a", "instance", "promote", "--yes", "--primary-is-off")
    refused("a", "instance", "invite", "east", str(world.root / "east.invite"))
    refused("a", "migrate", "export", package)
    refused("c", "instance", "promote", "--yes", "--primary-is-off")
    assert not world.handoff.exists()
    away = [world.root / name for name in ("witness", "place")]
    for one in away:
        one.rename(one.with_suffix(".away"))
    (world.home("a") / "instance" / "evicted").unlink()
    assert run(world, "a", "instance", "yield", "west", package) == 0
    for one in away:
        one.with_suffix(".away").rename(one)
    refused("a", "migrate", "cancel", "--nobody-has-it")
    refused("c", "instance", "promote", package)
    refused("new", "migrate", "import", package, "--vault", str(world.root / "c" / "vault"))
    assert world.acts("c") == "absent"
    assert run(world, "b", "instance", "promote", package) == MoveRefused.exit_code
    said = capsys.readouterr().err
    assert "made with keys that were replaced" in said
    assert "identity evict" not in said
    assert world.acts("b") == ""


def test_a_host_that_was_locked_out_is_told_the_same_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing there advises to lock out the instance that was promoted, or to go on here."""
    world = made(tmp_path, backup=True)
    add_west(world)
    app = tmp_path / "app.py"
    app.write_text("import holdfast\n\n@holdfast.task\nasync def wait(run: holdfast.Run) -> None: ...\n")
    world.promote("b")
    for host in ("a", "c"):
        for words in (["doctor"], ["todo"]):  # before and after a worker has seen it
            run(world, host, *words)
        early = "".join(capsys.readouterr())
        notice_eviction(world, host)
        run(world, host, "doctor")
        late = "".join(capsys.readouterr())
        assert run(world, host, "instance", "list") == 0
        for one in (early, late, "".join(capsys.readouterr())):
            assert "instance invite NAME FILE" in one
            for advice in ("recover --again", "worker APP", "instance promote", "is merged", "backup now"):
                assert advice not in one, one
        for words in (["submit", f"{app}:wait", "{}", "--no-follow"], ["memory", "add", "a"], ["backup", "now"]):
            assert run(world, host, *words) == KeysReplaced.exit_code
            said = capsys.readouterr().err
            assert "instance invite NAME FILE" in said, words
            assert "recover --again" not in said
    assert run(world, "b", "doctor") != 0
    assert "worker APP" in capsys.readouterr().out  # its open task waits for one


def test_doctor_of_a_host_that_handed_over_warns_until_the_other_one_has_the_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = made(tmp_path, backup=False)
    world.give()

    def said() -> str:
        run(world, "a", "doctor")
        return next(line for line in capsys.readouterr().out.splitlines() if "handed over to south" in line)

    instance = world.home("a") / "instance"
    save_state(instance, MergeState(peers={"south": PeerState(heard_ms=1, life="one")}))
    assert said().startswith("warning")
    peer = PeerState(heard_ms=SystemClock().wall_ms() + 60_000, life="one")
    save_state(instance, MergeState(peers={"south": peer}))
    assert said().startswith("warning")  # it merges, as every standby does
    save_state(instance, MergeState(peers={"south": peer.heard(peer.heard_ms, "two", peer.heard_ms)}))
    assert said().startswith("note")  # and has another folder since: that of the package


def test_doctor_of_a_standby_advises_nothing_that_the_instance_that_acts_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = made(tmp_path, backup=True)
    run(world, "b", "doctor")
    said = "".join(capsys.readouterr())
    assert "a standby gets the agent's" in said
    for advice in ("backup now", "worker APP` creates it"):
        assert advice not in said, said
