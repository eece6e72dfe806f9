"""Moves, killed: run with the crash shim loaded; it forks a child for each trial.

The export, the import, or taking the move back is killed before one of its calls. Then the parent
looks who could run, finishes the move as a person would, and looks again.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError, MoveRefused
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import load_home
from holdfast.recovery.move_in import TAKEN
from holdfast_proofs.crash.forks import fork
from holdfast_proofs.moves.world import Moves
from holdfast_proofs.shim import Mode, Trace, arm

TRACE_CALLS = 20_000
ACTS = ("export", "import", "cancel")
MOVED = "moved-away"


class Figures(msgspec.Struct, kw_only=True):
    acts: dict[str, int] = {}  # calls of each, undisturbed
    kills: int = 0
    both: int = 0  # both copies could run
    neither_for_good: int = 0  # the next command did not bring one back
    seconds: float = 0.0
    findings: list[str] = []

    @property
    def green(self) -> bool:
        return self.kills > 0 and not self.findings


def sweep(folder: Path, points: int, *, arbiter: bool = True) -> Figures:
    """About so many kills of each act, spread over its calls."""
    began = time.monotonic()
    figures = Figures()
    moves = Moves(folder / "world", arbiter)
    moves.make()
    _keep(moves, folder / "export")
    moves.export()
    for act in ("import", "cancel"):
        _keep(moves, folder / act)
    for act in ACTS:
        total = _trial(moves, folder, act, 0, figures)
        figures.acts[act] = total
        stride = max(1, total // points)
        for at in range(1 + stride // 2, total + 1, stride):
            _trial(moves, folder, act, at, figures)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _trial(moves: Moves, folder: Path, act: str, at: int, figures: Figures) -> int:
    """Kill the act before its `at`-th call; 0 leaves it in peace and counts them."""
    shutil.rmtree(moves.root)
    shutil.copytree(folder / act, moves.root, symlinks=True)
    trace = Trace.shared(TRACE_CALLS)
    work: dict[str, Callable[[], object]] = {"export": moves.export, "import": moves.take, "cancel": moves.cancel}

    async def live() -> None:
        await asyncio.to_thread(work[act])

    mode = Mode.KILL_BEFORE if at else Mode.TRACE
    child = fork(live, before=lambda: arm(trace, mode, at=at, root=moves.root))
    while not child.ended():
        time.sleep(0.01)
    where = f"{act} at {at}"
    if at == 0:
        if child.code != 0:
            figures.findings.append(f"{where}: nobody was killed, and it ended with {child.code}")
    else:
        figures.kills += 1
    if at == 0 or trace.reached:
        try:
            _check(moves, act, where, figures)
        except HoldfastError as error:
            figures.findings.append(f"{where}: {error.code}: {error.message}")
    return trace.count


def _check(moves: Moves, act: str, where: str, figures: Figures) -> None:
    runs = {host: moves.runs(host) for host in ("a", "b")}
    if list(runs.values()).count("") > 1:
        figures.both += 1
        figures.findings.append(f"{where}: both can run")
    if act == "cancel":
        _finish_cancel(moves)
    else:
        _finish_move(moves)
    after = {host: moves.runs(host) for host in ("a", "b")}
    wanted = "a" if act == "cancel" else "b"
    other = "b" if act == "cancel" else "a"
    if after[wanted] != "" or after[other] == "":
        figures.neither_for_good += 1
        figures.findings.append(f"{where}: then {runs}, in the end {after}")


def _finish_move(moves: Moves) -> None:
    """What a person does next: the command again, until the agent is on b."""
    if not moves.home("b").exists():
        if not moves.package.exists():
            moves.export()
        moves.take()
    elif moves.package.exists():  # all was done but the package's new name
        moves.take()
    taken = moves.package.with_name(f"{moves.package.name}{TAKEN}")
    if taken.exists():
        taken.rename(moves.package)
    before = _arrived(moves)
    moves.take()  # a package is taken once: the second time says that it is done, and changes nothing
    if _arrived(moves) != before:
        raise MoveRefused("a package was taken twice")


def _arrived(moves: Moves) -> tuple[int, int]:
    """Which folder the agent is on b, and its incarnation."""
    home = moves.home("b")
    return home.stat().st_ino, journal_at(load_home(home).journal).incarnation()


def _finish_cancel(moves: Moves) -> None:
    if moves.runs("a") == MOVED:
        moves.cancel()


def _keep(moves: Moves, copy: Path) -> None:
    shutil.copytree(moves.root, copy, symlinks=True)


def main(arguments: Sequence[str]) -> None:
    folder, points, arbiter = arguments
    figures = sweep(Path(folder), int(points), arbiter=arbiter == "arbiter")
    sys.stdout.buffer.write(msgspec.json.encode(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
