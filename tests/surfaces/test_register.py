"""The register is found by looking: at a whole agent with real backups, and at the records of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import holdfast
from holdfast.app.doctor import examine_backups
from holdfast.backup import surfaces as backup_surfaces
from holdfast.backup.backups import archive_name
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.restore.restore_home import RestoredMark, write_mark
from holdfast.cli.drill import run as drill_command
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.surfaces import DAY_MS, HOUR_MS, Surface, Targets, Verdict, day_of
from holdfast.host.private_files import ensure_private_folder
from holdfast.identity.acts.paper_sheets import mark_verified, open_paper, today
from holdfast.identity.files.paper_readings import ASKER, challenge_of
from holdfast.identity.files.public_file import change_identity
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.paper.sheets import PrintedSheet
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.surfaces import Watched, _witness_row
from holdfast.identity.vault.rescue import RescueEntry
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.runtime.models.reply import Reply, Route, StopReason, Text
from holdfast.surfaces import register
from holdfast.surfaces.level import judge_level
from holdfast.surfaces.register import Register, drill_facts, look, opened_journal
from holdfast.surfaces.report import DrillSummary
from holdfast.surfaces.report import Verdict as DrillVerdict
from holdfast.surfaces.targets import set_targets
from holdfast_proofs.backup_lab.world import World, make_world

WHOLE_TEXT = """
    journal blobs workers steps code memory folder vault vault/second key-log paper/1 place/place-1 place/place-2
    escrow/place-1 escrow/place-2
"""
WHOLE = set(WHOLE_TEXT.split())


def says(answer: object) -> Callable[[object], object]:
    return lambda _: answer


SHEET = PrintedSheet(number=1, date=today(), generation=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A whole agent with two places in two failure domains, a tested snapshot in both, and paper that was read back."""

    async def made() -> World:
        world = await make_world(tmp_path_factory.mktemp("register") / "world", places=1, files=2)
        ensure_private_folder(world.place(2))
        places = await open_places(world.home)
        await places.add(PlaceRequest(name="place-2", address=str(world.place(2)), domain="usb disk"))
        assert (await (await world.backups()).now()).good
        return world

    world = asyncio.run(made())
    change_identity(world.home.identity_file, lambda one: msgspec.structs.replace(one, paper=one.paper.printed(SHEET)))
    mark_verified(open_paper(world.home.folder), [1], date=today(), speaker=open_speaker(world.home, SystemClock()))
    return world


@pytest.fixture(autouse=True)
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of tests are in memory; here that counts as a disk, and the second place is on another one."""

    def device(path: Path) -> str:
        return "disk 2" if "place-2" in str(path) else "disk 1"

    monkeypatch.setattr(register, "is_in_memory", says(False))
    monkeypatch.setattr(backup_surfaces, "_device", device)


@pytest.fixture
def drilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "read_reports", says((drill("host-loss", "pass", SystemClock().wall_ms()),)))


def drill(slug: str, verdict: DrillVerdict, ended_ms: int, *, lost: int | None = 0) -> DrillSummary:
    more: dict[str, Any] = {"environment": "shadow", "infrastructure": "fresh root", "key_used": "words", "rto_s": 2.0}
    more |= {"code": "D02", "rpo_s": 0.0, "identity_same": True, "digest": "", "findings": 0}
    return DrillSummary(slug=slug, verdict=verdict, ended_ms=ended_ms, rpo_items=lost, path="drills/1.json", **more)


@pytest.mark.parametrize("moved_ms", [-DAY_MS, DAY_MS])
def test_a_drill_that_failed_counts_whatever_the_clock_said(moved_ms: int) -> None:
    """Someone sets the clock back, or forward, between a drill that passed and the next one."""
    now_ms = SystemClock().wall_ms()
    passed, failed = drill("host-loss", "pass", now_ms), drill("host-loss", "fail", now_ms + moved_ms)
    for reports, proven in (([passed, failed], False), ([failed, passed], True), ([passed, failed, passed], True)):
        report = judge_level(drill_facts(reports), now_ms=now_ms, targets=Targets())
        gate = next(one for one in report.gates if one.id == "restore-drill")
        assert gate.ok is proven, gate.why


def test_a_report_of_the_future_puts_no_drill_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = SystemClock().wall_ms()
    for ended_ms, due in ((now_ms, False), (now_ms - 8 * DAY_MS, True), (now_ms + 400 * DAY_MS, True)):
        monkeypatch.setattr(drill_command, "read_reports", says((drill("disk-full", "pass", ended_ms),)))
        assert ("disk-full" in drill_command._due(cast("AgentHome", None))) is due


def looked(home: AgentHome, *, later_ms: int = 0) -> Register:
    async def main() -> Register:
        async with opened_journal(home) as opened:
            return await look(home, opened, now_ms=SystemClock().wall_ms() + later_ms)

    return asyncio.run(main())


def rows_of(found: Register) -> dict[str, Surface]:
    assert len({one.id for one in found.surfaces}) == len(found.surfaces), "ids are unique"
    return {one.id: one for one in found.surfaces}


def failing(found: Register) -> set[str]:
    return {gate.id for gate in found.level.gates if not gate.ok and gate.level in (1, 2, 3)}


def test_a_whole_agent_is_covered_everywhere_and_level_3_waits_for_a_drill(world: World) -> None:
    found = looked(world.home)
    rows = rows_of(found)
    assert rows.keys() >= WHOLE
    lacking = [name for name, row in rows.items() if row.verdict is not Verdict.COVERED]
    assert lacking == [f"witness/{world.root / 'witness'}"], "it is the only one"
    assert all(row.holds and row.owner and row.domain and row.why for row in found.surfaces)
    assert {(row.rpo_s, row.rto_s) for row in found.surfaces} == {(86_400, 300)}
    assert (found.level.level, found.level.proven_level, failing(found)) == (3, 2, {"restore-drill"})
    assert rows["place/place-2"].domain == "usb disk"


@pytest.mark.usefixtures("drilled")
@pytest.mark.parametrize(
    ("later_ms", "lacking"),
    [
        (0, set[str]()),
        (25 * HOUR_MS, {"rpo"}),
        (91 * DAY_MS, {"rpo", "read-back", "restore-drill"}),
        (400 * DAY_MS, {"rpo", "read-back", "restore-drill"}),
    ],
)
def test_a_moved_clock_lowers_the_proof_gate_by_gate(world: World, later_ms: int, lacking: set[str]) -> None:
    found = looked(world.home, later_ms=later_ms)
    assert failing(found) == lacking
    assert (found.level.level, found.level.proven) == (3, not lacking)
    old = {row.id for row in found.surfaces if row.verdict is Verdict.AT_RISK}
    assert {"folder", "journal", "memory"} <= old or not lacking


@pytest.mark.usefixtures("drilled")
def test_two_places_on_one_disk_stay_unproven(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_surfaces, "_device", says("disk 1"))
    found = looked(world.home)
    assert {"snapshot", "domains"} <= failing(found)
    assert found.level.level == 1, "neither is off the agent's own disk"
    assert rows_of(found)["folder"].verdict is Verdict.AT_RISK


def test_a_place_that_is_not_mounted_is_on_no_disk_of_this_machine(world: World) -> None:
    sentinel = world.place(1) / "holdfast-place.json"
    aside = sentinel.rename(sentinel.with_name("aside"))
    try:
        seen = backup_surfaces.see_places(world.home, now_ms=SystemClock().wall_ms())
        assert seen[0].off
        assert seen[0].absent is not None
        assert not seen[0].absent.gone, "its disk may be unplugged"
        never = dataclasses.replace(seen[0], state=PlaceState())
        found = [backup_surfaces.found_places(world.home, (one,), now_ms=1).facts for one in (seen[0], never)]
        off = [any(fact.name == "place.off" for fact in facts) for facts in found]
        assert off == [True, False], "one that never had a snapshot is no backup"
    finally:
        aside.rename(sentinel)
    assert backup_surfaces.is_on_disk_of(world.home.state, seen[0].place)


@pytest.mark.usefixtures("drilled")
@pytest.mark.parametrize(
    ("part", "verdict"), [(".", Verdict.AT_RISK), ("ada/repository/data", Verdict.UNCOVERED)], ids=["disk", "data"]
)
def test_a_backup_that_is_gone_covers_and_proves_nothing(world: World, part: str, verdict: Verdict) -> None:
    moved = [(one, one.with_name(f"{one.name}-moved")) for one in (world.place(1) / part, world.place(2) / part)]
    assert looked(world.home).level.proven
    try:
        moved[1][0].rename(moved[1][1])
        found = looked(world.home)
        rows = rows_of(found)
        assert rows["place/place-2"].verdict is verdict
        assert "not there now" in rows["place/place-2"].why
        assert rows["escrow/place-2"].verdict is Verdict.AT_RISK
        assert {"snapshot", "domains", "escrow"} <= failing(found), "the other place is on the agent's own disk"
        assert found.level.level == 1
        assert found.level.next is not None
        assert "not there now" in found.level.next.why
        moved[0][0].rename(moved[0][1])
        rows = rows_of(looked(world.home))
        assert {rows[one].verdict for one in ("folder", "journal", "memory", "place/place-1")} == {verdict}
        texts = asyncio.run(doctors_words(world.home))
        assert sum("not there now" in one for one in texts) == 2
    finally:
        for before, after in moved:
            if after.exists():
                after.rename(before)
    assert looked(world.home).level.proven


async def doctors_words(home: AgentHome) -> list[str]:
    return [one.text async for one in examine_backups(home.folder) if one.level.value == "warning"]


def test_escrow_that_differs_is_noticed(world: World) -> None:
    escrow = world.place(2) / "ada" / "escrow.age"
    before = escrow.read_bytes()
    escrow.write_bytes(before + b"x")
    try:
        found = looked(world.home)
        assert rows_of(found)["escrow/place-2"].verdict is Verdict.AT_RISK
        assert "escrow" in failing(found)
    finally:
        escrow.write_bytes(before)


def test_secrets_that_a_recovery_listed_stay_until_they_are_rotated(world: World) -> None:
    async def store() -> SecretFile:
        async with opened_journal(world.home) as opened:
            assert opened is not None
            return SecretFile(world.home.folder, keys=opened.keys, clock=SystemClock(), entropy=SystemEntropy())

    secrets = asyncio.run(store())
    secrets.set("billing", "correct-horse-battery")
    restored = world.home.instance / "restored.json"
    write_mark(world.home.instance, RestoredMark(heads=(), restored_ms=SystemClock().wall_ms() + 1, incarnation=None))
    try:
        row = rows_of(looked(world.home))["secret/billing"]
        assert row.verdict is Verdict.AT_RISK
        assert row.why.startswith(f"not rotated since the recovery of {today()}")
        assert row.fix == "holdfast secret rotate billing"
        asyncio.run(asyncio.sleep(0.01))
        secrets.rotate("billing", "another-horse-battery")
        assert rows_of(looked(world.home))["secret/billing"].verdict is Verdict.COVERED
    finally:
        secrets.remove("billing")
        restored.unlink()


def test_a_part_that_cannot_be_read_hides_no_other(world: World) -> None:
    path = world.home.places_file
    before = path.read_bytes()
    path.write_bytes(b"{")
    try:
        rows = rows_of(looked(world.home))
        assert rows["places"].verdict is Verdict.AT_RISK
        assert "places.json" in rows["places"].why
        assert {"vault", "journal", "memory"} <= rows.keys()
    finally:
        path.write_bytes(before)


def test_a_sheet_that_was_revoked_leaves_the_vault_uncovered(world: World) -> None:
    before = world.home.identity_file.read_bytes()
    change_identity(
        world.home.identity_file, lambda one: msgspec.structs.replace(one, paper=one.paper.revoked(1, date=today()))
    )
    try:
        found = looked(world.home)
        assert rows_of(found)["vault"].verdict is Verdict.UNCOVERED
        assert rows_of(found)["vault/second"].verdict is Verdict.UNCOVERED
        assert {"paper", "read-back"} <= failing(found)
        assert "keys" not in failing(found)
        assert world.home.vault is not None
        aside = world.home.vault.rename(world.home.vault.with_name("aside"))
        try:
            found = looked(world.home)
        finally:
            aside.rename(world.home.vault)
        assert rows_of(found)["vault"].verdict is Verdict.UNCOVERED
        assert "keys" in failing(found), "there are none"
    finally:
        world.home.identity_file.write_bytes(before)


def test_an_only_witness_has_nothing_that_protects_it() -> None:
    watched = cast("Watched", SimpleNamespace(holding={"a", "b"}, silent={}))
    assert _witness_row("a", watched, alone=False).verdict is Verdict.COVERED
    row = _witness_row("a", watched, alone=True)
    assert (row.verdict, row.protection) == (Verdict.AT_RISK, "")


@pytest.mark.parametrize("source", ["another agent's", "by hand"])
def test_a_reading_that_this_agent_did_not_sign_proves_nothing(world: World, tmp_path: Path, source: str) -> None:
    """The register of another agent, with its signed readings; and a later date in our own."""
    before, readings = world.home.identity_file.read_bytes(), world.home.readings_file.read_bytes()
    if source == "by hand":
        yesterday = day_of(SystemClock().wall_ms() - DAY_MS)
        changed = before.replace(f'"verified": "{today()}"'.encode(), f'"verified": "{yesterday}"'.encode())
        assert changed != before
        world.home.identity_file.write_bytes(changed)
    else:
        other = asyncio.run(make_world(tmp_path / "other", places=1, files=1)).home
        answer = open_speaker(other, SystemClock()).answer(challenge_of(SHEET, date=today()), asker=ASKER)
        world.home.readings_file.write_bytes(answer.line() + b"\n")
    try:
        found = looked(world.home)
        assert (found.level.level, "read-back" in failing(found)) == (3, True)
        rows = rows_of(found)
        assert (rows["vault"].verdict, rows["paper/1"].verdict) == (Verdict.AT_RISK, Verdict.AT_RISK)
        assert "did not sign" in rows["paper/1"].why
    finally:
        world.home.identity_file.write_bytes(before)
        world.home.readings_file.write_bytes(readings)
    assert rows_of(looked(world.home))["paper/1"].verdict is Verdict.COVERED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    made.mkdir(mode=0o700)
    (made / "holdfast.toml").write_text('agent = "ada"\n')
    return made


def test_surfaces_of_the_project_need_a_file_as_evidence(folder: Path) -> None:
    (folder / "holdfast.toml").write_text(
        'agent = "ada"\n[surfaces.own.crm]\nholds = "customers"\nwhere = "crm.example.org"\nprotection = "dump"\n'
        'evidence = "dump.sql"\nrpo_s = 3600\nfix = "crm-dump"\n'
        '[surfaces.own.notes]\nholds = "notes"\nwhere = "a wall"\n'
    )
    row = rows_of(looked(load_home(folder)))["own/crm"]
    assert (row.verdict, row.fix, row.rpo_s) == (Verdict.AT_RISK, "crm-dump", 3600)
    (folder / "dump.sql").write_text("x")
    rows = rows_of(looked(load_home(folder)))
    assert rows["own/crm"].verdict is Verdict.COVERED
    assert rows["own/notes"].verdict is Verdict.UNCOVERED
    os.utime(folder / "dump.sql", (1, 1))
    assert rows_of(looked(load_home(folder)))["own/crm"].verdict is Verdict.AT_RISK


def test_a_folder_in_memory_is_level_0(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "MEMORY.md").write_text("- tea\n")
    assert looked(load_home(folder)).level.level == 1
    monkeypatch.setattr(register, "is_in_memory", says(True))
    found = looked(load_home(folder)).level
    assert found.level == 0
    assert found.next is not None
    assert "in memory" in found.next.why


class Provider:
    async def ask(self, request: object, **_more: object) -> Reply:
        usage = holdfast.Usage(input_tokens=900, output_tokens=1, cached_tokens=700)
        route = Route(endpoint="first", region="eu", wire="openai")
        held = ("thread",)
        return Reply(parts=(Text(text="hi"),), stop=StopReason.END, usage=usage, route=route, held_state=held)


MODEL = holdfast.Model("model-1", Provider())


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01))
async def lose() -> None:
    raise ConnectionError("reset")


@holdfast.tool(effect=holdfast.Keyed(window_s=120, fingerprint="checked", refusals_stored=True), timeout_s=5)
async def charge() -> str:
    return "ch_1"


@holdfast.task
async def works(run: holdfast.Run) -> None:
    (run.scratch.path / "file").write_text("x")
    talk = run.talk()
    talk.say("hello")
    await run.ask(MODEL, talk)
    await run.call(charge)
    await run.call(lose)


def test_records_of_tasks_show_endpoints_windows_scratch_and_doubts(folder: Path) -> None:
    async def worked() -> str:
        async with holdfast.open(folder, tasks=[works]) as hf:
            task = await hf.submit(works)
            with contextlib.suppress(holdfast.TaskParked):
                await task.result(30)
            return task.id

    task_id, home = asyncio.run(worked()), load_home(folder)
    rows = rows_of(looked(home, later_ms=HOUR_MS))
    endpoint = rows["model/first"]
    assert endpoint.verdict is Verdict.UNCOVERED
    assert (endpoint.owner, endpoint.domain) == ("the provider", "eu")
    assert "thread" in endpoint.why
    assert rows["window/charge"].verdict is Verdict.AT_RISK, "120 s are shorter than the RTO target"
    assert rows["steps"].verdict is Verdict.AT_RISK
    assert rows["steps"].fix == f"holdfast effect show {task_id}/3"
    assert {"scratch", "plan-and-talk", "code", "journal"} <= rows.keys()
    set_targets(home, Targets(rto_s=60, rpo_s=60, by="Mira Lund", at_ms=1))
    found = looked(home)
    assert rows_of(found)["window/charge"].verdict is Verdict.COVERED
    assert found.targets.by == "Mira Lund"
    assert [one.about for one in found.facts if one.name == "effect.in-doubt"] == [f"{task_id}/3"]


def test_a_snapshot_is_dated_by_its_name() -> None:
    """Of hosts that share a journal, the one that made it alone has its head."""
    made = archive_name("a-da", 1, 7, 1_794_769_800)
    assert backup_surfaces._made_ms(made) == 1_794_769_800_000
    assert backup_surfaces._made_ms("ada-1-1") is None
    assert backup_surfaces._made_ms("") is None


def test_an_arbiter_that_is_gone_is_noticed_once_it_was_asked(world: World) -> None:
    identity = msgspec.structs.replace(world.home.settings.identity, arbiter=str(world.root / "disk" / "arbiter"))
    settings = msgspec.structs.replace(world.home.settings, identity=identity)
    home = AgentHome(folder=world.home.folder, name="ada", settings=settings)
    assert rows_of(looked(home))["arbiter"].verdict is Verdict.AT_RISK, "its disk is not there"
    ensure_private_folder(world.root / "disk")
    assert rows_of(looked(home))["arbiter"].verdict is Verdict.COVERED, "the first lease makes it"
    lease = home.instance / "lease.json"
    lease.touch(0o600)
    try:
        assert rows_of(looked(home))["arbiter"].verdict is Verdict.AT_RISK
    finally:
        lease.unlink()


def test_a_revoked_rescue_key_is_at_risk_while_it_opens_something(world: World) -> None:
    places = [one.place for one in backup_surfaces.see_places(world.home, now_ms=0)]
    valid = RescueEntry(name="night", recipient="age1", added_ms=1)
    assert backup_surfaces._rescue_row(valid, places).verdict is Verdict.COVERED
    epochs = {one.name: one.epoch for one in places}
    revoked = msgspec.structs.replace(valid, revoked_ms=2, epochs=epochs)
    row = backup_surfaces._rescue_row(revoked, places)
    assert (row.verdict, row.fix) == (Verdict.AT_RISK, "holdfast rescue revoke night")
    assert "place-1" in row.why
    closed = [msgspec.structs.replace(one, epoch=one.epoch + 1) for one in places]
    assert backup_surfaces._rescue_row(revoked, closed).verdict is Verdict.COVERED
