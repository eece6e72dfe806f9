"""The trials: `trials.py FOLDER POINTS CALLS ACT...`, started with the crash shim loaded.

After a kill of a *backup*: the agent's folder is as it was; a place holds the snapshots it held
before, or one more, and whatever it holds newest restores to what was signed; the chain has no
fork; the next backup takes the next number and is good.
After a kill of a *test restore*: nothing of the agent or the place has changed, and no scratch is
left behind by the next one.
After a kill of a *restore*: the folder is the old one or the restored one, whole, never a mixture;
run again it is the restored one, and the old state is kept.
After a kill of a *prune*: the newest verified snapshot is held and restores; run again, only that
one is left.
After a kill of a *first* run (a new place, and the first backup to it): the old place is as it was;
run again, the new one holds a snapshot that restores.
After a kill of a *recover* on a bare machine: there is no folder yet, or the whole state without
keys, which nothing can run, or the agent; run again it is the agent: same id, one key set.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.app.backup import Backups, ring_of
from holdfast.app.backup_prune import prune as prune_places
from holdfast.app.make_agent import find_whole
from holdfast.app.recover_agent import Target, perform
from holdfast.app.rescue_view import Have, look
from holdfast.app.restore_home import Means, Wish, restore_to
from holdfast.backup.borg import Borg
from holdfast.backup.heads import HeadFile
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import HoldfastError
from holdfast.identity.ed25519 import Sodium
from holdfast.identity.own_log import read_own_log
from holdfast.identity.ring import read_escrow
from holdfast.identity.slots import file_key
from holdfast.identity.vault import open_vault
from holdfast.identity.vault_speaker import VaultSpeaker
from holdfast.testing.backup_lab.trees import Tree, tree_of
from holdfast.testing.backup_lab.world import World, add_places, make_world
from holdfast.testing.shim import Mode, Trace, arm

ACTS = ("backup", "verify", "restore", "prune", "first", "recover")
LATER = timedelta(days=3650)  # when nothing is kept by its age
CALLS = 20_000
AGAIN_EACH = 8  # a whole backup after the kill is dear; every so many trials is enough
# What a recovery changes: the log and who is shown, the settings, the journal's new incarnation.
CHANGED = frozenset((
    "kel.jsonl", "receipts.jsonl", "identity.json", "holdfast.toml", "journal.db", "escrow.age",
    "handoff.md", "HEARTBEAT.md",
))  # fmt: skip
_SUBREAPER = 36


class Stage:
    """The world as it is before each trial, at one path."""

    def __init__(self, root: Path, world: World) -> None:
        self.root = root
        self.world = world
        self.backups: Backups = asyncio.run(world.backups())
        escrow = read_escrow(self.backups.places.vault)
        self.means = Means(
            borg=self.backups.places.borg, places=self.backups.places.read(), escrow=escrow,
            log=read_own_log(world.home.folder, Sodium()), keys=ring_of(escrow),
        )  # fmt: skip
        shutil.copytree(root / "world", root / "template", symlinks=True)
        self.old = tree_of(world.home.folder)
        self.held = _files(world.place())
        self.restored: Tree = {}

    def reset(self, *, bare: bool = False) -> None:
        """The world as it was; on a bare machine only the place is left of it."""
        for path in self.root.iterdir():
            if path.name != "template":
                shutil.rmtree(path)
        shutil.copytree(self.root / "template", self.root / "world", symlinks=True)
        if bare:
            for name in ("ada", "vault", "second", "witness"):
                shutil.rmtree(self.world.root / name)


def _files(folder: Path) -> Tree:
    return tree_of(folder, everything=True)


async def backup(stage: Stage) -> None:
    await stage.backups.now()


async def verify(stage: Stage) -> None:
    await stage.backups.verify()


async def restore(stage: Stage) -> None:
    await restore_to(stage.world.home.folder, stage.means, Wish(archive=_first(stage)))


async def prune(stage: Stage) -> None:
    done = await prune_places(stage.backups.places, now=datetime.now(UTC) + LATER)
    if done[0].error is not None:
        raise done[0].error


async def first(stage: Stage) -> None:
    places = stage.backups.places
    if all(one.name != "place-2" for one in places.read()):
        await add_places(stage.world, [2])
    report = await stage.backups.now(["place-2"], check=False)
    _that(report.good, f"not backed up: {report}")


async def recover(stage: Stage) -> None:
    root, port = stage.world.root, Sodium()
    key = [file_key(root / "unlock", (root / "unlock").read_bytes())]
    have = Have(places=(str(stage.world.place()),), words=stage.world.words)
    borg = Borg(stage.means.borg.program, base=root / "base", version=stage.means.borg.version)
    view = await look(have, root / "ada", borg=borg, port=port)
    target = Target(
        folder=root / "ada", vault=root / "new-vault", second=root / "new-second", keys=key,
        second_keys=key, spare_witness=root / "new-witness",
    )  # fmt: skip
    await perform(
        view, have, target, clock=SystemClock(), entropy=SystemEntropy(), port=port,
        tell=lambda _: None,
    )  # fmt: skip


def _first(stage: Stage) -> str:
    """The older snapshot, so that old and restored differ."""
    return HeadFile(stage.world.place() / "ada" / "heads.jsonl").read().heads[0].record.archive


async def judge_backup(stage: Stage, number: int) -> None:
    world = stage.world
    _same(tree_of(world.home.folder), stage.old, "the agent's folder was changed")
    if _files(world.place()) != stage.held:
        found = await stage.backups.look()
        _that(not found.chain.forks, "the chain has a fork")
        seqs = [one.record.seq for one in found.places[0].held]
        _that(seqs in ([1, 2], [1, 2, 3]), f"the place holds {seqs}")
        report = await stage.backups.verify()
        _that(report.good, f"what it holds is not good: {report.places[0].message}")
    if number % AGAIN_EACH == 0:
        before = HeadFile(world.home.heads_file).read().heads
        again = await stage.backups.now()
        _that(again.good, f"the next backup: {again.places[0].message}")
        _that(again.snapshot.seq == len(before) + 1, f"it has number {again.snapshot.seq}")
        _that(not (await stage.backups.look()).chain.forks, "the chain has a fork")


async def judge_verify(stage: Stage, number: int) -> None:
    world = stage.world
    _same(tree_of(world.home.folder), stage.old, "the agent's folder was changed")
    _same(_files(world.place()), stage.held, "the place was changed")
    if number % AGAIN_EACH == 0:
        report = await stage.backups.verify()
        _that(report.good, report.places[0].message)
        left = list((world.home.instance / "backup").glob("scratch-*"))
        _that(not left, f"left behind: {left}")


async def judge_restore(stage: Stage, number: int) -> None:
    home = stage.world.home.folder
    _that(home.is_dir(), "there is no folder")
    now = tree_of(home)
    _that(now in (stage.old, stage.restored), "the folder is a mixture")
    was_new = now == stage.restored
    if number % AGAIN_EACH == 0 or was_new:
        report = await restore_to(home, stage.means, Wish(archive=_first(stage)))
        _that(report.done, "not restored")
        _same(tree_of(home), stage.restored, "the second restore gives something else")
        kept = [tree_of(path) for path in home.parent.glob("ada.before-*")]
        _that(stage.old in kept, "the old state is gone")
        left = [path.name for path in home.parent.glob(".ada*")]
        _that(not left, f"left behind: {left}")


async def judge_prune(stage: Stage, number: int) -> None:
    _same(tree_of(stage.world.home.folder), stage.old, "the agent's folder was changed")
    found = await stage.backups.look()
    seqs = [one.record.seq for one in found.places[0].held]
    _that(seqs in ([1, 2], [2]), f"the place holds {seqs}")
    if number % AGAIN_EACH == 0:
        await prune(stage)
        report = await stage.backups.verify()
        _that(report.good, report.places[0].message)
        seqs = [one.record.seq for one in (await stage.backups.look()).places[0].held]
        _that(seqs == [2], f"after the second run the place holds {seqs}")


async def judge_first(stage: Stage, number: int) -> None:
    if number % AGAIN_EACH:
        return
    await first(stage)
    report = await stage.backups.verify()
    _that(report.good, f"{report.places}")
    _that(not (await stage.backups.look()).chain.forks, "the chain has a fork")


async def judge_recover(stage: Stage, number: int) -> None:
    home, port = stage.world.root / "ada", Sodium()
    if home.exists() and not find_whole(home):
        _that(
            not (home / "keys.json").exists()
            or not (stage.world.root / "new-vault").exists()
            or (home / "pending.jsonl").exists(),
            "half an agent that something could run",
        )
    if number % AGAIN_EACH:
        return
    if not (home.exists() and find_whole(home)):
        await recover(stage)
    log = read_own_log(home, port)
    _that(log.id == stage.means.log.id, "another id")
    _that(log.position == (1, 1), f"its log stands at {log.position}")
    with open_vault(stage.world.root / "new-vault") as vault:
        speaker = VaultSpeaker(vault, read_log=lambda: log, clock=SystemClock())
        speaker.answer("A" * 22)
    restored = tree_of(home)
    for path, digest in stage.old.items():
        if path not in CHANGED:
            _that(restored.get(path) == digest, f"{path} is not as it was backed up")


Act = Callable[[Stage], Awaitable[None]]
Judge = Callable[[Stage, int], Awaitable[None]]
DOINGS: dict[str, tuple[Act, Judge]] = {
    "backup": (backup, judge_backup), "verify": (verify, judge_verify),
    "restore": (restore, judge_restore), "prune": (prune, judge_prune),
    "first": (first, judge_first), "recover": (recover, judge_recover),
}  # fmt: skip


def _that(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


def _same(one: Tree, other: Tree, text: str) -> None:
    if one != other:
        changed = sorted(
            path for path in one.keys() | other.keys() if one.get(path) != other.get(path)
        )
        raise AssertionError(f"{text}: {changed[:5]}")


def trial(stage: Stage, act: Act, trace: Trace, mode: Mode, at: int) -> int:
    """The act in a process of its own; how that ended."""
    stage.reset(bare=act is recover)
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        arm(trace, mode, at=at, root=stage.root)
        try:
            asyncio.run(_done(act, stage))
        except HoldfastError:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    _wait_for_orphans()
    return status


async def _done(act: Act, stage: Stage) -> None:
    await act(stage)


def _wait_for_orphans() -> None:
    """Borg goes on when we are killed; it is ours now, and ends by itself."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def sweep(
    stage: Stage, name: str, points: int | None, only: list[int]
) -> tuple[dict[str, int], list[str]]:
    act, judge = DOINGS[name]
    trace = Trace.shared(CALLS)
    status = trial(stage, act, trace, Mode.TRACE, 0)
    total, wrong = trace.count, list[str]()
    if status:
        return {"calls": total, "kills": 0}, [f"{name} ends with {status} when nobody kills it"]
    if name == "restore":
        stage.restored = tree_of(stage.world.home.folder)
    kills = 0
    numbers = only or _spread(total, points)
    for count, at in enumerate(numbers):
        # Between two calls nothing durable changes: killed after one is killed before the next.
        last = not only and count == len(numbers) - 1
        mode = Mode.KILL_AFTER if last else Mode.KILL_BEFORE
        status = trial(stage, act, trace, mode, at)
        kills += os.WIFSIGNALED(status)
        calls = trace.calls()
        where = f"{calls[at - 1].name} {calls[at - 1].where}" if at <= len(calls) else "?"
        try:
            asyncio.run(_judged(judge, stage, count))
        except (AssertionError, HoldfastError, OSError) as error:
            wrong.append(f"{name}, {mode.name} at {at} of {total} ({where}): {error}")
            print(wrong[-1], file=sys.stderr, flush=True)
    return {"calls": total, "points": len(numbers), "kills": kills}, wrong


def _spread(total: int, points: int | None) -> list[int]:
    """So many of the calls 1 to total, evenly, the first and the last among them; the last twice,
    to be killed before and after it."""
    if points is None or points > total:
        points = total
    numbers = {1 + index * (total - 1) // max(1, points - 1) for index in range(points)}
    return [*sorted(numbers), total]


async def _judged(judge: Judge, stage: Stage, number: int) -> None:
    await judge(stage, number)


async def _prepared(root: Path) -> World:
    world = await make_world(root / "world", places=1, files=6)
    backups = await world.backups()
    await backups.now(check=False)
    await world.work(2)
    await backups.now(check=False)
    await backups.verify()
    return world


def main() -> int:
    folder, points, only, *acts = sys.argv[1:]
    ctypes.CDLL(None).prctl(ctypes.c_int(_SUBREAPER), ctypes.c_ulong(1), 0, 0, 0)
    began = time.monotonic()
    root = Path(folder).resolve()
    stage = Stage(root, asyncio.run(_prepared(root)))
    figures: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for name in acts:
        numbers = [int(one) for one in only.split(",") if one]
        figures[name], found = sweep(stage, name, int(points) if points else None, numbers)
        wrong += found
        print(f"{name}: {figures[name]}, {len(found)} wrong", file=sys.stderr)
    kills = sum(one["kills"] for one in figures.values())
    print(
        json.dumps(
            {"kills": kills, "wrong": wrong, "acts": figures,
             "seconds": round(time.monotonic() - began, 1)}, indent=1,
        )
    )  # fmt: skip
    return 1 if wrong or not kills else 0


if __name__ == "__main__":
    raise SystemExit(main())
