"""What keeps backups going without a person: due, told, pruned, scheduled, beside a worker."""

from __future__ import annotations

import asyncio
import io
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.app.notify import NotTold
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.upkeep.prune import prune
from holdfast.backup.upkeep.scheduled import (
    backup_of,
    install,
    kept_backups,
    make_schedule,
    notify_refused_prunes,
    parse_every,
    run_due,
)
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.notices import Notice
from holdfast.errors import BadInput, PruneRefused
from holdfast.host.log import Log
from holdfast.layout.agent_home import load_home
from holdfast_proofs.backup_lab.world import make_world

HOUR_MS = 3_600_000


class Shifted(SystemClock):
    """The machine's clock, some hours on."""

    __slots__ = ("hours",)

    def __init__(self) -> None:
        super().__init__()
        self.hours = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + round(self.hours * HOUR_MS)


class Told:
    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.broken = False

    async def tell(self, notice: Notice) -> None:
        if self.broken:
            raise NotTold("nobody listens")
        self.notices.append(notice)

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.notices]


async def test_due_away_stale_and_well_again(tmp_path: Path) -> None:
    """A disk in the drawer is tried again, told of once when it is too old, and catches up."""
    world = await make_world(tmp_path / "world", places=1)
    clock, told = Shifted(), Told()

    async def look() -> tuple[str, ...]:
        return await run_due(world.home, backup_of(world.home), every_s=3600, clock=clock, notices=told)

    assert await look() == ("place-1",)
    assert await look() == ()
    state = states_of(world.home).of("place-1")
    assert state.result == "ok"
    assert state.verified == state.made != ""
    assert state.snapshots == (state.made,)
    world.place(1).rename(tmp_path / "drawer")
    clock.hours = 2
    assert await look() == ("place-1",)
    away = states_of(world.home).of("place-1")
    assert (away.result, away.failures, away.verified) == ("place-missing", 1, state.verified)
    assert told.kinds == []
    clock.hours = 28
    told.broken = True
    await look()
    told.broken = False
    await look()  # not told the first time: told now
    await look()
    assert told.kinds == ["backup-stale"]
    assert "28 h old" in told.notices[0].text
    (tmp_path / "drawer").rename(world.place(1))
    clock.hours = 1.5  # what was recorded is of the machine's own clock
    assert await look() == ("place-1",)
    assert told.kinds == ["backup-stale", "backup-well"]


async def test_a_backup_that_never_reached_its_places_is_a_failure_of_each(tmp_path: Path) -> None:
    world = await make_world(tmp_path / "world", places=1)
    toml = world.home.settings_file
    toml.write_text(toml.read_text() + '\n[backup]\nborg = "/nowhere/borg"\n')
    home, told = load_home(world.home.folder), Told()
    for _ in range(2):
        await run_due(home, backup_of(home), every_s=1, clock=Shifted(), notices=told)
        await asyncio.sleep(0)
    assert states_of(home).of("place-1").result == "engine-missing"
    assert told.kinds == ["backup-engine-missing"], "the agent goes on, a person is told once"


async def test_pruning_keeps_the_last_verified_and_stops_at_a_missing_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = await make_world(tmp_path / "world", places=1)
    backups = await world.backups()
    places = backups.places
    first = await backups.now(check=False)
    later = datetime.now(UTC) + timedelta(days=800)
    (refused,) = await prune(places, now=later)
    assert isinstance(refused.error, PruneRefused)
    assert "has not verified any snapshot there" in refused.error.message
    second = await backups.now()
    home = str(world.home.folder)
    words = ["backup", "prune", "--dry-run", "--json", "--home", home]
    assert await asyncio.to_thread(main, words) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["places"][0]["kept"][-1:] == [second.snapshot.archive]
    listed = await places.engine.list_archives(places.repository(places.get("place-1")))
    assert len(listed.archives) == 2, "--dry-run removes nothing"
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    section = page.split("## `holdfast backup prune`")[1].split("\n## ")[0]
    assert all(f"`{field}`" in section for field in ("dry_run", *shown["places"][0]))
    (done,) = await prune(places, now=later)
    assert done.plan is not None
    assert done.plan.remove == (first.snapshot.archive,)
    place = places.get("place-1")
    listing = await places.engine.list_archives(places.repository(place))
    assert [one.name for one in listing.archives] == [second.snapshot.archive]
    assert states_of(world.home).of("place-1").snapshots == (second.snapshot.archive,)

    await places.engine.delete(places.repository(place), [second.snapshot.archive])  # a thief
    told = Told()
    (gone,) = await prune(places)
    await notify_refused_prunes([gone], notices=told, clock=SystemClock())
    assert isinstance(gone.error, PruneRefused)
    assert second.snapshot.archive in gone.error.message
    assert told.kinds == ["prune-refused"]
    assert await asyncio.to_thread(main, ["backup", "prune", "--home", home]) == 4
    assert "find out who removed the snapshots" in capfd.readouterr().err


async def test_a_worker_backs_up_beside_its_tasks(tmp_path: Path) -> None:
    world = await make_world(tmp_path / "world", places=1)
    said = io.StringIO()
    ends = time.monotonic() + 60
    async with kept_backups(world.home, every="5m", clock=SystemClock(), log=Log(said), look_s=0.1):
        while not states_of(world.home).of("place-1").verified:
            assert time.monotonic() < ends, said.getvalue()
            await asyncio.sleep(0.1)
    with pytest.raises(BadInput, match="not a valid interval"):
        async with kept_backups(world.home, every="often", clock=SystemClock(), log=Log()):
            pass


def test_a_schedule_is_printed_or_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "an agent 50%"
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('agent = "Ada L."\n')
    assert main(["backup", "schedule", "--every", "1d", "--home", str(home)]) == 0
    shown = capfd.readouterr().out
    assert "Persistent=true" in shown, "what was missed while the machine was off is caught up"
    assert '"backup" "due" "--every" "1d"' in shown
    assert 'an agent 50%%"' in shown
    assert r"an agent 50\%" in shown.split("crontab -e:")[1]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for _ in range(2):
        assert main(["backup", "schedule", "--install", "--home", str(home)]) == 0
    files = sorted(path.name for path in (tmp_path / "config" / "systemd" / "user").iterdir())
    assert files == ["holdfast-backup-ada-l.service", "holdfast-backup-ada-l.timer"]
    assert "systemctl --user enable --now" in capfd.readouterr().err
    schedule = make_schedule(home, agent="ada", every="30m")
    assert install(schedule, tmp_path / "units")[0].read_text() == schedule.service
    assert parse_every("1.5h") == 5400
    for odd in ("", "h", "1s", "1m", "0h", "99d", "-1h", "nan"):
        with pytest.raises(BadInput):
            parse_every(odd)
