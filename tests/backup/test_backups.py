"""Snapshots of a whole agent, in real repositories: made, tested, lost, rolled back, restored."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from holdfast.app.doctor import Level, examine_backups
from holdfast.app.eviction import check_speaks
from holdfast.backup.backups import Backups, alone, archive_name, open_backups, ring_of
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.chain.sources import Overview, witness_file
from holdfast.backup.report import NowReport
from holdfast.backup.restore.restore_home import Means, Wish, restore_to
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import (
    BackupBusy,
    BackupDamaged,
    BadInput,
    HoldfastError,
    JournalBusy,
    KeysReplaced,
    SnapshotFailed,
    SnapshotNotFound,
)
from holdfast.host import folder_swap as swap
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.slots import file_key
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessFolder
from holdfast.recovery.recover_agent import RecoveryTarget, recover_agent
from holdfast.recovery.survey import Evidence, survey_evidence
from holdfast_proofs.backup_lab.flips import damage
from holdfast_proofs.backup_lab.trees import tree_of
from holdfast_proofs.backup_lab.world import World
from holdfast_proofs.support.warm_start import run_command


async def both(world: World) -> tuple[Backups, Means]:
    """The agent's own view, and what a bare machine has: escrow, log, places; no cache, no home."""
    backups = await world.backups()
    escrow = read_escrow(backups.places.vault)
    means = Means(
        engine=backups.places.engine,
        places=backups.places.read(),
        escrow=escrow,
        log=backups._speaker.log(),
        keys=ring_of(escrow),
    )
    return backups, means


async def means_of(world: World) -> Means:
    return (await both(world))[1]


async def looked(world: World) -> Overview:
    return await (await world.backups()).look()


def heads_beside(world: World, number: int) -> HeadFile:
    return HeadFile(world.place(number) / "ada" / "heads.jsonl")


def forget_newest(file: HeadFile) -> None:
    """As if the file had been put back to an older day."""
    file.path.write_bytes(file.read().heads[0].line() + b"\n")


async def test_a_snapshot_is_made_and_tested_in_every_place(world: World) -> None:
    backups = await world.backups()
    before = (await backups.look()).places
    assert [one.lag is None for one in before] == [True, False]
    lag = before[1].lag
    assert lag is not None
    assert (lag.generations, lag.steps is not None and lag.steps >= 4) == (1, True)
    report = await backups.now()
    assert report.good
    assert report.snapshot.seq == 3
    assert [(one.made, one.verified) for one in report.places] == [(True, True)] * 2
    found = await backups.look()
    newest = found.chain.newest
    assert newest is not None
    assert [len(one.held) for one in found.places] == [3, 2]
    assert [one.lag for one in found.places] == [None, None]
    for source in (
        HeadFile(world.home.heads_file),
        heads_beside(world, 1),
        heads_beside(world, 2),
        witness_file(world.root / "witness", newest.record.id),
    ):
        assert [one.record.seq for one in source.read().heads] == [1, 2, 3], source.path
    states = backups.states()
    assert all(one.made == one.verified == newest.record.archive for one in states.values())
    assert list((world.home.instance / "backup").glob("s*-*")) == []
    assert (world.home.instance / "backup" / "staged.index").is_file(), "unchanged files are not copied again"


async def test_a_place_that_is_away_stops_no_other_and_made_is_not_verified(world: World) -> None:
    world.place(2).rename(world.root / "away")
    backups = await world.backups()
    before = backups.states()["place-1"]
    report = await backups.now(check=False)
    assert not report.good
    assert [(one.made, one.error) for one in report.places] == [(True, ""), (False, "place-missing")]
    after = backups.states()["place-1"]
    assert after.made == report.snapshot.archive
    assert after.verified == before.verified != after.made


async def test_a_bit_that_flips_after_a_green_backup_turns_the_next_test_red(world: World) -> None:
    """Borg itself makes the next archive without an error: it shares the damaged chunk."""
    damage(world.repository(1), random.Random(7))
    backups = await world.backups()
    made = await backups.now(["place-1"], check=False)
    assert made.good, "this is the point: the backup is green"
    report = await backups.verify()
    assert not report.good
    assert [one.verified for one in report.places] == [False, True]
    red = backups.states()["place-1"]
    assert red.failures > 0
    assert red.result == report.places[0].error != ""
    assert red.verified != red.made


async def test_a_rolled_back_repository_is_found_by_a_machine_that_never_saw_it(world: World) -> None:
    """The second place is as it was after the first snapshot, also the heads beside it."""
    forget_newest(heads_beside(world, 2))
    means = await means_of(world)
    shutil.rmtree(world.home.folder)
    target = world.root / "new"
    plan = await restore_to(target, means, Wish(places=("place-2",)), dry_run=True)
    assert (plan.seq, plan.newest_known) == (1, 2)
    assert plan.behind is not None
    assert plan.behind.generations == 1
    assert plan.behind.steps is not None
    assert plan.behind.steps >= 4
    assert plan.behind.seconds >= 0
    assert not target.exists()
    report = await restore_to(target, means)
    assert (report.seq, report.place, report.behind) == (2, "place-1", None)


async def test_where_every_repository_was_rolled_back_a_witness_knows_better(world: World) -> None:
    for number in (1, 2):
        forget_newest(heads_beside(world, number))
    means = replace(await means_of(world), places=(await means_of(world)).places[1:])
    blind = await restore_to(world.root / "new", means, dry_run=True)
    assert blind.behind is None, "nobody else knows: this cannot be seen"
    held = witness_file(world.root / "witness", means.log.id).read()
    means = replace(means, others={"witness": held})
    told = await restore_to(world.root / "new", means, dry_run=True)
    assert told.behind is not None
    assert (told.seq, told.newest_known) == (1, 2)


async def test_a_swapped_repository_is_named_and_the_other_place_is_taken(world: World) -> None:
    shutil.rmtree(world.repository(2))
    shutil.copytree(world.repository(1), world.repository(2))
    found = await looked(world)
    assert found.places[1].error is not None
    assert found.places[1].error.code == "repository-replaced"
    assert "was replaced: its id is" in found.places[1].error.message
    report = await restore_to(world.root / "new", await means_of(world), dry_run=True)
    assert report.place == "place-1"


async def test_two_heads_with_one_number_are_named_and_damaged_lines_hide_no_other(world: World) -> None:
    """Somebody signs another first head: a copy of the agent that went on by itself."""
    backups = await world.backups()
    head = HeadFile(world.home.heads_file).read().heads[0]
    other = backups._speaker.seal_head(
        incarnation=1, seq=1, manifest=head.record.manifest, archive="ada-1-1-other", size_bytes=1, files=1
    )
    heads_beside(world, 2).append(other)
    path = heads_beside(world, 1).path
    path.write_bytes(b'{"b":garbage}\n' + path.read_bytes())
    found = await backups.look()
    (fork,) = found.chain.forks
    assert fork.seq == 1
    assert not fork.after_restore
    assert any("two copies of the agent were running" in text for text in found.findings)
    assert any("line 1" in text for text in found.places[0].findings)
    assert len(found.places[0].held) == 2
    told = [one.text async for one in examine_backups(world.home.folder) if one.level is Level.DAMAGE]
    assert told == [
        "two heads with number 1 of one incarnation: two copies of the agent were running, or someone else has its key"
    ]
    report = await backups.now(["place-2"], check=False)
    assert [one.code for one in report.warnings] == ["two-heads"]


@pytest.mark.parametrize("step_s", [0, 1], ids=["same-second", "later"])
async def test_heads_by_keys_of_a_second_recovery_are_named(
    world: World, step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two machines recovered the agent and backed it up at a place that the other did not reach. In the same
    second both give their snapshot the same name, and that of the other machine is still not taken for ours."""
    seconds = count(int(time.time()), step_s)

    def named(agent: str, incarnation: int, seq: int, at: int) -> str:
        return archive_name(agent, incarnation, seq, next(seconds))

    monkeypatch.setattr("holdfast.backup.backups.archive_name", named)
    root, port = world.root, Sodium()
    key = [file_key(root / "unlock", (root / "unlock").read_bytes())]
    backups = await world.backups()
    engine = backups.places.engine
    await backups.now(check=False)  # in both places
    shutil.rmtree(root / "witness")
    homes: list[AgentHome] = []
    for number in (1, 2):
        world.place(3 - number).rename(root / "hidden")
        evidence = Evidence(places=(str(world.place(number)),), words=world.words)
        survey = await survey_evidence(evidence, root / f"m{number}", engine=engine, port=port)
        target = RecoveryTarget(
            folder=root / f"m{number}",
            vault=root / f"m{number}-vault",
            second=root / f"m{number}-second",
            keys=key,
            second_keys=key,
            spare_witness=WitnessFolder(root / f"m{number}-witness"),
        )
        done = await recover_agent(
            survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=port, tell=lambda _: None
        )
        assert list(done.told) == [f"place-{number}"]
        homes.append(done.home)
        (root / "hidden").rename(world.place(3 - number))
    for home in homes:
        with pytest.raises(KeysReplaced, match="recovered or rotated twice"):
            await (await open_backups(home)).now()
        with pytest.raises(KeysReplaced, match="recovered or rotated twice"):
            await asyncio.to_thread(check_speaks, home)
        told = [one.text async for one in examine_backups(home.folder) if one.level is Level.DAMAGE]
        assert any("recovered or rotated twice" in text for text in told), told
    evidence = Evidence(places=(str(world.place(1)), str(world.place(2))), words=world.words)
    survey = await survey_evidence(evidence, root / "m3", engine=engine, port=port)
    assert any("two heads with number" in text and "another recovery" in text for text in survey.overview.findings)
    again = RecoveryTarget(
        folder=root / "m1",
        vault=root / "m1-vault",
        second=root / "m1-second",
        keys=key,
        second_keys=key,
        spare_witness=WitnessFolder(root / "m1-witness"),
        again=True,
    )
    done = await recover_agent(
        survey, evidence, again, clock=SystemClock(), entropy=SystemEntropy(), port=port, tell=lambda _: None
    )
    assert done.log.position == (2, 1)
    assert isinstance(done.backup, NowReport)
    assert [one.place for one in done.backup.places if one.verified] == ["place-1"]  # the other had only strange heads
    with pytest.raises(KeysReplaced):
        await (await open_backups(homes[1])).now()


async def test_a_copy_that_was_replaced_makes_no_snapshot(world: World) -> None:
    """A newer incarnation has backed up: this one is a copy that should be silent."""
    backups = await world.backups()
    head = HeadFile(world.home.heads_file).read().heads[1]
    newer = backups._speaker.seal_head(
        incarnation=9,
        seq=3,
        manifest=head.record.manifest,
        archive="ada-9-3-x",
        size_bytes=1,
        files=1,
        prev=head.digest,
    )
    heads_beside(world, 1).append(newer)
    with pytest.raises(SnapshotFailed, match="incarnation 9"):
        await backups.now()
    assert len(HeadFile(world.home.heads_file).read().heads) == 2


async def test_one_process_at_a_time(world: World) -> None:
    backups, means = await both(world)
    with alone(world.home.instance / "backup"):
        with pytest.raises(BackupBusy):
            await backups.now()
        with pytest.raises(BackupBusy):
            await restore_to(world.home.folder, means)


async def test_a_restore_gives_the_agent_back_as_it_was(world: World) -> None:
    before = tree_of(world.home.folder)
    world.home.memory_file.write_text("overwritten by mistake")
    shutil.rmtree(world.home.days)
    restored = await restore_to(world.home.folder, await means_of(world))
    assert (restored.seq, restored.done) == (2, True)
    after = tree_of(world.home.folder)
    assert after == before
    kept = Path(restored.kept)
    assert (kept / "MEMORY.md").read_text() == "overwritten by mistake"
    assert (world.home.instance / "backup").is_dir(), "this host's own is taken over"
    assert world.home.keys_file.is_file()
    left = {path.name for path in world.root.iterdir() if path.name.startswith(".ada")}
    assert left == set()


async def test_the_restored_agent_goes_on_and_its_chain_too(world: World) -> None:
    """The next head has the next number, also where an older snapshot was restored."""
    backups, means = await both(world)
    first = HeadFile(world.home.heads_file).read().heads[0].record.archive
    restored = await restore_to(world.home.folder, means, Wish(archive=first))
    assert restored.behind is not None
    numbers = [one.record.seq for one in HeadFile(world.home.heads_file).read().heads]
    assert numbers == [1, 2]
    report = await backups.now(["place-2"], check=False)
    assert report.snapshot.seq == 3
    found = await backups.look()
    assert found.chain.forks == ()
    assert found.chain.gaps == ()


async def test_a_restore_takes_another_moment_or_some_files(world: World) -> None:
    first, second = (one.record for one in HeadFile(world.home.heads_file).read().heads)
    assert first.at < second.at
    means = await means_of(world)
    older = await restore_to(world.root / "older", means, Wish(at=second.at - 1), dry_run=True)
    assert older.seq == 1
    files = await restore_to(world.root / "files", means, Wish(files=("MEMORY.md", "memory")))
    assert files.seq == 2
    assert sorted(path.name for path in (world.root / "files").iterdir()) == ["MEMORY.md", "memory"]
    for wrong in ("../x", "/etc/passwd", "a//b"):
        with pytest.raises(BadInput):
            await restore_to(world.root / "more", means, Wish(files=(wrong,)))
    with pytest.raises(SnapshotNotFound):
        await restore_to(world.root / "more", means, Wish(at=1), dry_run=True)
    assert not (world.root / "more").exists()


async def test_the_lock_of_a_dead_machine_does_not_stop_a_restore(world: World) -> None:
    lock = world.repository(1) / "lock.exclusive"
    lock.mkdir()
    (lock / "another-host@12345.1-0").touch()
    report = await restore_to(world.root / "new", await means_of(world), Wish(places=("place-1",)))
    assert report.done


async def test_a_folder_that_lost_its_chain_goes_on_with_it(world: World) -> None:
    world.home.heads_file.unlink()
    for number in (1, 2):
        heads_beside(world, number).path.chmod(0o644)  # as a far host would show it
    report = await (await world.backups()).now(["place-2"], check=False)
    assert report.snapshot.seq == 3


async def test_a_damaged_file_comes_from_an_older_snapshot_in_which_it_was_the_same(world: World) -> None:
    """Of snapshot 2 in the one place that has it; place 2 has the file in snapshot 1."""
    damage(world.repository(1), random.Random(3))
    (world.root / "open").mkdir(mode=0o755)
    report = await restore_to(world.root / "open" / "new", await means_of(world))
    assert (report.place, report.seq, report.behind) == ("place-1", 2, None)
    assert [one.place for one in report.passed] == ["place-1"]
    assert tree_of(world.root / "open" / "new") == tree_of(world.home.folder)


async def test_preparation_that_fails_leaves_the_target_as_it_was(world: World) -> None:
    before = tree_of(world.home.folder, everything=True)

    async def prepare(folder: Path, _at: int) -> None:
        assert (folder / "journal.db").is_file()
        raise BackupDamaged("not today")

    with pytest.raises(BackupDamaged, match="not today"):
        await restore_to(world.home.folder, await means_of(world), prepare=prepare)
    assert tree_of(world.home.folder, everything=True) == before


async def test_a_folder_in_use_is_not_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backup.restore.restore_home.BUSY_WAIT_S", 0.1)
    (lock,) = world.home.instance.glob("*/use.lock")
    fd = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        with pytest.raises(JournalBusy):
            await restore_to(world.home.folder, await means_of(world))
    finally:
        os.close(fd)


async def test_no_secret_lies_in_a_snapshot(world: World) -> None:
    """Opened and searched: keys of the vault and the journal, passphrases, a tool's secret."""
    await asyncio.to_thread(set_secret, world, b"canary-of-a-tool-0123456789")
    (world.home.folder / ".env").write_text("TOKEN=canary-of-the-environment")
    (world.home.folder / "id.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\ncanary-pem\n")
    backups, means = await both(world)
    await backups.now(["place-1"], check=False)
    await restore_to(world.root / "new", means, Wish(places=("place-1",)))
    escrow = read_escrow(backups.places.vault)
    keys = [escrow.vault_root, escrow.keys.k_effect, *escrow.keys.journal_keys.values()]
    canaries = [
        b"canary-of-a-tool-0123456789",
        b"canary-of-the-environment",
        b"canary-pem",
        escrow.vault_key.encode(),
        escrow.backup_passphrase("place-1").reveal(),
        (world.root / "unlock").read_bytes().strip(),
        *keys,
        *(key.hex().encode() for key in keys),
    ]
    op = backups.places.vault.read("op")
    canaries += [one.encode() for one in _texts(op)]
    assert len(canaries) >= 14
    searched = 0
    for path in (world.root / "new").rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            searched += 1
            assert [one for one in canaries if one in raw] == [], path
    assert searched > 10
    assert any(one in (world.root / "unlock").read_bytes() for one in canaries), "it can find one"


def set_secret(world: World, value: bytes) -> None:
    words = ["secret", "set", "shop", "--from-fd", "0", "--journal", str(world.home.journal)]
    run_command(words, input=value).check_returncode()


def _texts(value: object) -> list[str]:
    return re.findall(r"[A-Za-z0-9_-]{40,}", json.dumps(value))


def test_the_commands_say_what_happened(world: World) -> None:
    home = ["--home", str(world.home.folder)]

    def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
        return run_command(("backup", *words, *home))

    made = holdfast("now", "place-1", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["places"][0]["verified"] is True
    assert "test restore done" in made.stderr
    shape = json.loads(holdfast("list", "--json").stdout)
    assert [one["newest"] for one in shape["places"]] == [3, 1]
    assert shape["places"][1]["behind"]["generations"] == 2
    damage(world.repository(2), random.Random(5))
    red = holdfast("verify")
    assert red.returncode == 6, red.stdout
    assert "place-2" in red.stdout
    assert holdfast("now", "nowhere").returncode == 3


def test_names_of_archives_are_plain() -> None:
    assert archive_name("ada", 1, 7, 0) == "ada-1-7-19700101T000000Z"
    assert archive_name("-ä b/../{now}", 1, 7, 0).startswith("b-..--now-")
    assert archive_name("ä", 1, 7, 0) == "agent-1-7-19700101T000000Z"


async def test_a_test_restore_projects_the_memory_again(world: World) -> None:
    """A line that only the journal has is no fault; a file that loses lines is one."""
    from holdfast.app.memory import add_line
    from holdfast.backup.archive.reader import read_snapshot
    from holdfast.backup.snapshot.place_snapshots import projection_check
    from holdfast.host.private_files import ensure_private_folder
    from holdfast_proofs.backup_lab import Owner, archive, snapshot, tree_members

    await add_line(world.home, text="the flight is on Tuesday", to="MEMORY", origin="a test")
    head = snapshot(Owner(), world.home.folder, world.root / "staging")
    keys = ring_of(read_escrow((await world.backups()).places.vault))
    ensure_private_folder(world.root / "work")
    found = read_snapshot(archive(tree_members(world.root / "staging")), head, world.root / "work")
    await asyncio.to_thread(projection_check(keys), found)
    assert "Tuesday" in (found.state / "MEMORY.md").read_text()
    (found.state / "journal.db").write_bytes(b"no journal")
    with pytest.raises(BackupDamaged, match="cannot open the restored journal"):
        await asyncio.to_thread(projection_check(keys), found)


async def test_a_machine_that_was_evicted_writes_over_nothing(world: World) -> None:
    """The agent was recovered elsewhere from words and a place; then the old machine comes back."""
    root, port = world.root, Sodium()
    key = [file_key(root / "unlock", (root / "unlock").read_bytes())]
    evidence = Evidence(places=(str(world.place(1)), str(world.place(2))), words=world.words)
    backups = await world.backups()
    survey = await survey_evidence(evidence, root / "new", engine=backups.places.engine, port=port)
    target = RecoveryTarget(
        folder=root / "new",
        vault=root / "new-vault",
        second=root / "new-second",
        keys=key,
        second_keys=key,
        spare_witness=WitnessFolder(root / "new-witness"),
    )
    shutil.move(root / "witness", root / "away")
    done = await recover_agent(
        survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=port, tell=lambda _: None
    )
    assert (set(done.told), done.untold) == ({"place-1", "place-2"}, {})
    assert isinstance(done.backup, NowReport)
    assert done.backup.good, done.backup
    beside = [world.place(number) / "ada" for number in (1, 2)]
    before = {folder / name: (folder / name).read_bytes() for folder in beside for name in ("kel.jsonl", "heads.jsonl")}
    shutil.move(root / "away", root / "witness")
    for folder in beside:  # one place that knows it is enough to stop the backup to all
        shutil.move(folder, folder.with_name("hidden"))
        with pytest.raises(KeysReplaced, match="another copy recovered this agent"):
            await backups.now()
        shutil.move(folder.with_name("hidden"), folder)
    assert {path: path.read_bytes() for path in before} == before
    living = await (await open_backups(done.home)).now(["place-1"])
    assert living.good, living


@pytest.mark.parametrize("call", ["_sync", "rename"])
async def test_a_disk_that_fails_in_the_swap_does_not_take_the_old_folder(
    call: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are exchanged already: the old folder lies in the work, which is removed last."""
    (world.home.folder / "since.md").write_text("newer than every snapshot\n")
    old = tree_of(world.home.folder)
    real = getattr(swap if call == "_sync" else os, call)
    failing = [True]

    def fail(*paths: Path, **at: int) -> None:
        moves = call == "_sync" or ".before-" in str(paths[-1])
        if failing[0] and moves and os.path.lexists(world.root / f".{world.home.folder.name}.swap"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*paths, **at)

    monkeypatch.setattr(swap if call == "_sync" else os, call, fail)
    with pytest.raises(HoldfastError):
        await restore_to(world.home.folder, await means_of(world))
    failing[0] = False
    swap.settle(world.home.folder)
    kept = [world.home.folder, *world.root.glob("ada.before-*"), *world.root.glob(".ada.rest*/*/*")]
    assert old in [tree_of(path) for path in kept if path.is_dir()]
    assert (await restore_to(world.home.folder, await means_of(world))).done


async def test_single_files_go_into_any_folder_and_once_each(world: World, tmp_path: Path) -> None:
    target = tmp_path / "stick"
    target.mkdir()
    (tmp_path).chmod(0o500)  # nothing can be made beside it
    try:
        wish = Wish(files=("memory", next(iter(_below(world, "memory")))))
        report = await restore_to(target, await means_of(world), wish)
    finally:
        tmp_path.chmod(0o700)
    assert report.done
    assert [path.name for path in target.iterdir()] == ["memory"]


def _below(world: World, folder: str) -> list[str]:
    root = world.home.folder
    return [str(path.relative_to(root)) for path in (root / folder).rglob("*") if path.is_file()]
