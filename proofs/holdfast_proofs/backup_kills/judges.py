"""What must be true after a kill.

After a kill of a *backup*: the agent's folder is as it was; a place holds the snapshots it held
before, or one more, and whatever it holds newest restores to what was signed; the chain has no
fork; the next backup takes the next number and is good.
After a kill of a *test restore*: nothing of the agent or the place has changed, and no scratch is
left behind by the next one.
After a kill of a *restore*: the folder is the old one or the restored one, whole, never a mixture;
run again it is the restored one, and the old state is kept.
After a kill of a *prune*: the newest verified snapshot is held and restores; run again, only that
one is left.
After a kill of a *first* run (a new place, and the first backup to it): the agent's folder is as it
was but for the list of places, the old repository too; run again, the new one holds a snapshot
that restores.
After a kill of a *recover* on a bare machine: there is no folder yet, or the whole state without
keys, which nothing can run, or the agent; run again it is the agent: same id, one key set.
After a kill of a *revoke* of a rescue key: a bare machine finds a snapshot that restores, the next
backup is good, and no snapshot counts as missing; run again, the key opens nothing that is new.
"""

from __future__ import annotations

from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places.rescue_file import opened_by
from holdfast.backup.rescue_keys import get_entry
from holdfast.backup.restore.restore_home import Wish, restore_to
from holdfast.core.clock import SystemClock
from holdfast.identity.acts.make_agent import find_whole
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.vault.vault import open_vault
from holdfast.recovery.survey import Evidence, survey_evidence
from holdfast_proofs.backup_kills.stage import KEY, Stage, files_of, first, older, prune, recover, revoke, same, that
from holdfast_proofs.backup_lab.trees import Tree, tree_of

AGAIN_EACH = 8  # the act again after a kill is dear: every so many trials is enough
AGAIN_OFTEN = 2  # where little else can be judged
# What a recovery changes: the log and who is shown, the settings, the journal, and the head of the first backup.
CHANGED = frozenset(
    (
        "kel.jsonl",
        "receipts.jsonl",
        "identity.json",
        "holdfast.toml",
        "journal.db",
        "escrow.age",
        "handoff.md",
        "HEARTBEAT.md",
        "heads.jsonl",
    )
)
NAMES_PLACES = ("escrow.age", "places.json")
NAMES_KEYS = (*NAMES_PLACES, "rescue.json")


async def judge_backup(stage: Stage, number: int) -> None:
    world = stage.world
    same(tree_of(world.home.folder), stage.old, "the agent's folder was changed")
    if files_of(world.place()) != stage.held:
        found = await stage.backups.look()
        that(not found.chain.forks, "the chain has a fork")
        seqs = [one.record.seq for one in found.places[0].held]
        that(seqs in ([1, 2], [1, 2, 3]), f"the place holds {seqs}")
        report = await stage.backups.verify()
        that(report.good, f"what it holds is not good: {report.places[0].message}")
    if number % AGAIN_EACH == 0:
        before = HeadFile(world.home.heads_file).read().heads
        again = await stage.backups.now()
        that(again.good, f"the next backup: {again.places[0].message}")
        that(again.snapshot.seq == len(before) + 1, f"it has number {again.snapshot.seq}")
        that(not (await stage.backups.look()).chain.forks, "the chain has a fork")


async def judge_verify(stage: Stage, number: int) -> None:
    world = stage.world
    same(tree_of(world.home.folder), stage.old, "the agent's folder was changed")
    same(files_of(world.place()), stage.held, "the place was changed")
    if number % AGAIN_EACH == 0:
        report = await stage.backups.verify()
        that(report.good, report.places[0].message)
        left = list((world.home.instance / "backup").glob("scratch-*"))
        that(not left, f"left behind: {left}")


async def judge_restore(stage: Stage, number: int) -> None:
    home = stage.world.home.folder
    that(home.is_dir(), "there is no folder")
    now = tree_of(home)
    that(now in (stage.old, stage.restored), "the folder is a mixture")
    was_new = now == stage.restored
    if number % AGAIN_EACH == 0 or was_new:
        report = await restore_to(home, stage.means, Wish(archive=older(stage)))
        that(report.done, "not restored")
        same(tree_of(home), stage.restored, "the second restore gives something else")
        kept = [tree_of(path) for path in home.parent.glob("ada.before-*")]
        that(stage.old in kept, "the old state is gone")
        left = [path.name for path in home.parent.glob(".ada*")]
        that(not left, f"left behind: {left}")


async def judge_prune(stage: Stage, number: int) -> None:
    same(tree_of(stage.world.home.folder), stage.old, "the agent's folder was changed")
    found = await stage.backups.look()
    seqs = [one.record.seq for one in found.places[0].held]
    that(seqs in ([1, 2], [2]), f"the place holds {seqs}")
    if number % AGAIN_OFTEN == 0:
        await prune(stage)
        report = await stage.backups.verify()
        that(report.good, report.places[0].message)
        seqs = [one.record.seq for one in (await stage.backups.look()).places[0].held]
        that(seqs == [2], f"after the second run the place holds {seqs}")


async def judge_first(stage: Stage, number: int) -> None:
    now = tree_of(stage.world.home.folder)
    told = {path: now.get(path, "") for path in NAMES_PLACES if path in stage.old}
    same(now, stage.old | told, "the agent's folder was changed")
    same(_segments(files_of(stage.world.place())), _segments(stage.held), "the old place changed")
    if number % AGAIN_OFTEN:
        return
    await first(stage)
    report = await stage.backups.verify()
    that(report.good, f"{report.places}")
    that(not (await stage.backups.look()).chain.forks, "the chain has a fork")


def _segments(place: Tree) -> Tree:
    """The repository itself, without the signed files that lie beside it in every place."""
    return {path: digest for path, digest in place.items() if path.startswith("ada/data")}


async def judge_recover(stage: Stage, number: int) -> None:
    home, port = stage.world.root / "ada", Sodium()
    if home.exists() and not find_whole(home):
        that(
            not (home / "keys.json").exists()
            or not (stage.world.root / "new-vault").exists()
            or (home / "pending.jsonl").exists(),
            "half an agent that something could run",
        )
    if number % AGAIN_OFTEN:
        return
    if not (home.exists() and find_whole(home)) or (home / "pending.jsonl").exists():
        await recover(stage)  # as the person does whose command was cut short
    log = read_own_log(home, port)
    that(log.id == stage.means.log.id, "another id")
    that(log.position == (1, 1), f"its log stands at {log.position}")
    with open_vault(stage.world.root / "new-vault") as vault:
        speaker = VaultSpeaker(vault, read_log=lambda: log, clock=SystemClock())
        speaker.answer("A" * 22)
    restored = tree_of(home)
    for path, digest in stage.old.items():
        if path not in CHANGED:
            that(restored.get(path) == digest, f"{path} is not as it was backed up")


async def judge_revoke(stage: Stage, number: int) -> None:
    world, places = stage.world, stage.backups.places
    now = tree_of(world.home.folder)
    told = {path: now.get(path, "") for path in NAMES_KEYS if path in stage.old}
    same(now, stage.old | told, "the agent's folder was changed")
    evidence = Evidence(places=(str(world.place()),), words=world.words)
    engine = stage.means.engine.fresh(world.root / "bare")
    survey = await survey_evidence(evidence, world.root / "nowhere", engine=engine, port=Sodium())
    that(survey.chosen is not None, "a bare machine finds no snapshot")
    if number % AGAIN_OFTEN:
        return
    restored = await restore_to(world.root / "restored", survey.means(Sodium()))
    that(restored.done and not restored.passed, f"what a bare machine finds does not restore: {restored.passed}")
    if number % AGAIN_EACH == 0:
        again = await stage.backups.now()
        that(again.good, f"the next backup: {again.places[0].message}")
    await revoke(stage)  # as the person does whose command was cut short
    (place,) = places.read()
    entry = get_entry(places, KEY)
    that(not [one for one in opened_by(entry, [place]) if one.newer], "the key opens what is new")
    report = await stage.backups.verify()
    that(report.good, report.places[0].message)
    that(not (await stage.backups.look()).chain.forks, "the chain has a fork")
    that(not places.states.of(place.name).missing, "snapshots count as missing")
    that([one.suffix for one in place.older] == [""], f"older repositories: {place.older}")
