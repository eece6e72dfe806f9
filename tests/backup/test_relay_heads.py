"""The newest backup head at relays: left there by the command that makes it; and places and folder that were all put
back to one day are found."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.backup.backups import open_backups
from holdfast.backup.chain.sources import Overview
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.snapshot.place_snapshots import PlaceSnapshots
from holdfast.cli.main import main
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements.statements import Head, parse_head
from holdfast.layout.agent_home import load_home
from holdfast.recovery.survey import Evidence, Survey, survey_evidence
from holdfast_proofs.backup_lab.world import World
from holdfast_proofs.support.relays import RelayProcess, relays


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[RelayProcess]:
    """A new one for each test: the agent begins again with its first keys, and a relay never goes back."""
    with relays(tmp_path_factory.mktemp("relays"), "r") as (one,):
        yield one


def head_at(relay: RelayProcess, world: World) -> Head:
    raw = asyncio.run(relay.link.find_head(read_own_log(world.home.folder, Sodium()).id))
    assert raw is not None
    return parse_head(raw).record


async def back_up(world: World, *places: str) -> None:
    report = await (await open_backups(load_home(world.home.folder))).now(places)
    assert report.good, report


async def look(world: World) -> Overview:
    return await (await open_backups(load_home(world.home.folder))).look()


async def survey(world: World, evidence: Evidence) -> Survey:
    backups = await world.backups()
    return await survey_evidence(evidence, world.root / "bare", engine=backups.places.engine, port=Sodium())


def test_places_and_folder_put_back_to_one_day_are_found(world: World, running: RelayProcess) -> None:
    assert main(["relay", "add", running.address, "--home", str(world.home.folder)]) == 0
    asyncio.run(back_up(world))
    assert head_at(running, world).seq == 3
    copies = [world.home.folder, world.place(1), world.place(2)]
    for path in copies:
        shutil.copytree(path, path.with_name(f"{path.name}.old"), symlinks=True)
    asyncio.run(world.work(2))
    asyncio.run(back_up(world))
    assert head_at(running, world).seq == 4
    for path in copies:
        shutil.rmtree(path)
        path.with_name(f"{path.name}.old").rename(path)
    shutil.rmtree(world.root / "witness")  # the relay alone has heard of the fourth

    # The agent's own look.
    found = asyncio.run(look(world))
    assert [one.lag is not None and one.lag.generations for one in found.places] == [1, 1]
    assert any("the heads in this folder end at snapshot 3" in one for one in found.findings)

    # A bare machine: with the relay's address it sees it, without it cannot.
    for witnesses, behind in (((running.at,), [1, 1]), ((), [False, False])):
        evidence = Evidence(places=(str(world.place(1)), str(world.place(2))), words=world.words, witnesses=witnesses)
        seen = asyncio.run(survey(world, evidence)).overview
        lags = [one.lag is not None and one.lag.generations for one in seen.places]
        assert lags == behind

    # A lower head never replaces the higher one, and another agent's does not count.
    old = parse_head(world.home.heads_file.read_bytes().splitlines()[-1])
    answer = asyncio.run(running.link.put_head(old.record.id, old.line()))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.OLD_VERSION
    assert head_at(running, world).seq == 4


def test_a_relay_that_is_added_gets_the_newest_head_that_a_place_has(world: World, running: RelayProcess) -> None:
    heads = [parse_head(line).record for line in world.home.heads_file.read_bytes().splitlines()]
    assert [one.seq for one in heads] == [1, 2]
    states = states_of(world.home)
    for name in states.read():  # the second was signed, and no place got its snapshot
        states.change(name, lambda state: msgspec.structs.replace(state, snapshots=(heads[0].archive,)))
    assert main(["relay", "add", running.address, "--home", str(world.home.folder)]) == 0
    assert head_at(running, world).seq == 1


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:  # Any: JSON
    """What a command that succeeds prints, and what it says beside it."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.fixture
def at_relay(world: World, running: RelayProcess) -> World:
    assert main(["relay", "add", running.address, "--home", str(world.home.folder)]) == 0
    return world


def test_a_backup_says_which_relays_have_its_head(
    at_relay: World, running: RelayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(at_relay.home.folder)
    report, _ = run_json(capsys, "backup", "now", "--no-verify", "--home", home)
    assert report["relays"] == [{"relay": running.at.url, "held": True, "message": ""}]
    assert head_at(running, at_relay).seq == report["snapshot"]["seq"]


def test_keys_that_a_relay_has_not_heard_of_do_not_keep_the_head_from_it(
    at_relay: World, running: RelayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The relay is no witness, so a rotation does not tell it; no worker runs that would."""
    home = str(at_relay.home.folder)
    assert main(["identity", "rotate", "--yes", "--home", home]) == 0
    report, _ = run_json(capsys, "backup", "now", "--no-verify", "--home", home)
    assert report["relays"] == [{"relay": running.at.url, "held": True, "message": ""}]
    found = head_at(running, at_relay)
    assert (found.seq, found.position) == (report["snapshot"]["seq"], (0, 1))


def test_the_head_is_at_the_relay_before_a_place_is_checked(
    at_relay: World, running: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test restore takes long, and may be killed."""
    seen: list[int] = []

    async def look_instead(self: PlaceSnapshots, place: object, head: Signed[Head], result: object) -> None:
        raw = await running.link.find_head(head.record.id)
        seen.append(head.record.seq - (0 if raw is None else parse_head(raw).record.seq))

    monkeypatch.setattr(PlaceSnapshots, "check", look_instead)
    asyncio.run(back_up(at_relay, "place-1"))
    assert seen == [0]


def test_without_any_relay_a_backup_succeeds_and_says_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(world.home.folder)
    with relays(tmp_path, "gone") as (gone,):
        assert main(["relay", "add", gone.address, "--home", home]) == 0
    said = "no relay has the newest backup head: they get it with the next backup"
    report, err = run_json(capsys, "backup", "now", "--no-verify", "--home", home)
    assert [(one["relay"], one["held"]) for one in report["relays"]] == [(gone.at.url, False)]
    assert gone.at.url in report["relays"][0]["message"]
    assert err.count(said) == 1
    states_of(world.home).forget("place-2")  # so that it is due
    report, err = run_json(capsys, "backup", "due", "--every", "1h", "--home", home)
    assert report["due"] == ["place-2"]
    assert [(one["relay"], one["held"]) for one in report["relays"]] == [(gone.at.url, False)]
    assert err.count(said) == 1


def test_an_agent_without_relays_hears_nothing_of_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    report, err = run_json(capsys, "backup", "now", "--no-verify", "--home", str(world.home.folder))
    assert report["relays"] == []
    assert "relay" not in err


def test_a_move_leaves_its_head_at_the_relay(
    at_relay: World, running: RelayProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("migrate", "export", str(tmp_path / "ada.move"), "--home", str(at_relay.home.folder))
    held = [{"relay": running.at.url, "held": True, "message": ""}]
    done, _ = run_json(capsys, *words)
    assert (done["relays"], head_at(running, at_relay).seq) == (held, done["snapshot"])
    again, _ = run_json(capsys, *words)
    assert (again["relays"], again["snapshot"]) == (held, done["snapshot"])
