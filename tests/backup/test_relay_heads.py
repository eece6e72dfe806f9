"""The newest backup head at a relay: places and folder that were all put back to one day are found."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Generator

import pytest

from holdfast.backup.backups import open_backups
from holdfast.backup.chain.sources import Overview
from holdfast.cli.main import main
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.statements.statements import Head, parse_head
from holdfast.layout.agent_home import load_home
from holdfast.recovery.survey import Evidence, Survey, survey_evidence
from holdfast_proofs.backup_lab.world import World
from holdfast_proofs.support.relays import RelayProcess, relays


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[RelayProcess]:
    with relays(tmp_path_factory.mktemp("relays"), "r") as (one,):
        yield one


def head_at(relay: RelayProcess, world: World) -> Head:
    raw = asyncio.run(relay.link.find_head(read_own_log(world.home.folder, Sodium()).id))
    assert raw is not None
    return parse_head(raw).record


async def back_up(world: World) -> None:
    report = await (await open_backups(load_home(world.home.folder))).now()
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
