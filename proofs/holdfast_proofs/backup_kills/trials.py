"""The trials: `trials.py FOLDER POINTS MOMENTS CALLS ACT...`, started with the crash shim loaded.

A *point* is a call of ours to the system: the act is killed before it, and every second time Borg
with it, as when a machine stops; else Borg goes on alone, as when only a process is killed.
A *moment* is a time: act and Borg are killed together, however far both have come. That reaches
what Borg does within one of its commands, where none of our calls lies.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast_proofs.backup_kills import judges
from holdfast_proofs.backup_kills import stage as acts
from holdfast_proofs.backup_kills.stage import Stage
from holdfast_proofs.backup_lab.trees import tree_of
from holdfast_proofs.backup_lab.world import World, make_world
from holdfast_proofs.shim import Mode, Trace, arm

CALLS = 20_000
BORG_LIVES_EACH = 3  # every so many points Borg is left alone
_SUBREAPER = 36

Act = Callable[[Stage], Awaitable[None]]
Judge = Callable[[Stage, int], Awaitable[None]]
DOINGS: dict[str, tuple[Act, Judge]] = {
    "backup": (acts.backup, judges.judge_backup),
    "verify": (acts.verify, judges.judge_verify),
    "restore": (acts.restore, judges.judge_restore),
    "prune": (acts.prune, judges.judge_prune),
    "first": (acts.first, judges.judge_first),
    "recover": (acts.recover, judges.judge_recover),
    "revoke": (acts.revoke, judges.judge_revoke),
}
ACTS = tuple(DOINGS)


@dataclass(slots=True)
class Figures:
    calls: int = 0
    points: int = 0
    moments: int = 0
    kills: int = 0
    with_borg: int = 0  # of the kills, those in which a running Borg died too


def trial(
    stage: Stage,
    act: Act,
    trace: Trace,
    mode: Mode,
    *,
    at: int = 0,
    after_s: float | None = None,
    spare_borg: bool = True,
) -> tuple[int, int]:
    """The act in a process of its own; how that ended, and how many of its children were killed."""
    stage.reset(bare=act is acts.recover)
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
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed = 0
    while left := _children():
        if not spare_borg:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            killed += len(left)
        for pid in left:
            os.waitpid(pid, 0)
    return status, killed


async def _done(act: Act, stage: Stage) -> None:
    await act(stage)


def _children() -> list[int]:
    """Borg goes on when we are killed: it is ours now."""
    return [int(one) for one in Path("/proc/thread-self/children").read_text().split()]


class Sweep:
    """The trials of one act."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name
        self.act, self.judge = DOINGS[name]
        self.figures = Figures()
        self.wrong: list[str] = []
        self._trace = Trace.shared(CALLS)
        self._count = 0
        begun = time.monotonic()
        status, _ = trial(stage, self.act, self._trace, Mode.TRACE)
        self.takes_s = time.monotonic() - begun
        self.figures.calls = self._trace.count
        if status:
            self.wrong.append(f"{name} ends with {status} when nobody kills it")
        if name == "restore":
            stage.restored = tree_of(stage.world.home.folder)

    def points(self, points: int | None, only: list[int]) -> None:
        numbers = only or _spread(self.figures.calls, points)
        for count, at in enumerate(numbers):
            # Between two calls nothing durable changes: killed after one is before the next.
            last = not only and count == len(numbers) - 1
            mode = Mode.KILL_AFTER if last else Mode.KILL_BEFORE
            spare = count % BORG_LIVES_EACH == 0
            status, killed = trial(self.stage, self.act, self._trace, mode, at=at, spare_borg=spare)
            calls = self._trace.calls()
            where = f"{calls[at - 1].name} {calls[at - 1].where}" if at <= len(calls) else "?"
            self.figures.points += 1
            self._judge(status, killed, f"{mode.name} at {at} of {self.figures.calls} ({where})")

    def moments(self, moments: int) -> None:
        for number in range(moments):
            after_s = self.takes_s * (number + 0.5) / moments
            status, killed = trial(self.stage, self.act, self._trace, Mode.TRACE, after_s=after_s, spare_borg=False)
            self.figures.moments += 1
            self._judge(status, killed, f"killed after {after_s:.3f} of {self.takes_s:.3f} s")

    def _judge(self, status: int, killed: int, what: str) -> None:
        self.figures.kills += os.WIFSIGNALED(status)
        self.figures.with_borg += killed > 0
        try:
            asyncio.run(_judged(self.judge, self.stage, self._count))
        except (AssertionError, HoldfastError, OSError) as error:
            died = ", and Borg" if killed else ""
            self.wrong.append(f"{self.name}, {what}{died}: {error}")
            print(self.wrong[-1], file=sys.stderr, flush=True)
        self._count += 1


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
    await acts.add_key(world)
    return world


def main() -> None:
    folder, points, moments, only, *names = sys.argv[1:]
    ctypes.CDLL(None).prctl(ctypes.c_int(_SUBREAPER), ctypes.c_ulong(1), 0, 0, 0)
    began = time.monotonic()
    root = Path(folder).resolve()
    stage = Stage(root, asyncio.run(_prepared(root)))
    figures: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for name in names:
        sweep = Sweep(stage, name)
        if not sweep.wrong:
            numbers = [int(one) for one in only.split(",") if one]
            sweep.points(int(points) if points else None, numbers)
            sweep.moments(int(moments))
        figures[name] = asdict(sweep.figures)
        wrong += sweep.wrong
        print(f"{name}: {figures[name]}, {len(sweep.wrong)} wrong", file=sys.stderr)
    kills = sum(one["kills"] for one in figures.values())
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"kills": kills, "wrong": wrong, "acts": figures, "seconds": seconds}))


if __name__ == "__main__":
    main()
