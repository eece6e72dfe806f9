"""The fork server: a program with the shim in it that runs the trials and prints its figures."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.app.binder import open_journal
from holdfast.app.loading import App, load_app
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.downstream.ledger import Page
from holdfast.downstream.process import FarEnd
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.sqlite.host import disk_trouble
from holdfast.testing.offline import KEY, SECRET, Stage
from holdfast_proofs.agent_kills.judge import Figures, count_effects, judge
from holdfast_proofs.agent_kills.life import JOURNAL, Found, live
from holdfast_proofs.crash.forks import Trial, fork, run_trials
from holdfast_proofs.crash.sweep import MODES, UNREACHED_MAX, side_of
from holdfast_proofs.shim import Mode, Point, Trace, arm, point_at
from holdfast_proofs.weakened import Weakness, weaken

LIFE_S_MAX = 60.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which kills."""

    points: int | None = None  # a sample of about this many kills
    only: tuple[str, int] | None = None  # one kill alone
    names: frozenset[str] = frozenset()  # only at calls of these names
    weakness: Weakness | None = None  # with one rule of the protocol taken out
    lanes: int = 3


class Order(msgspec.Struct, frozen=True, kw_only=True):
    stage: Stage
    choice: Choice


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode
    index: int
    point: Point | None
    calls: tuple[str, ...]  # their names, of a life that was not to be killed
    found: Found | None
    error: str = ""

    def __str__(self) -> str:
        return f"{side_of(self.mode)}:{self.index} ({self.point or 'never reached'})"


def main() -> None:
    disk_trouble.RESERVE_BYTES = disk_trouble.RESERVE_BYTES_MIN
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    os.environ.update(order.stage.variables)
    began = time.monotonic()
    figures = do(order, load_app(order.stage.app))
    figures.seconds = round(time.monotonic() - began, 1)
    sys.stdout.buffer.write(msgspec.json.encode(figures))


def do(order: Order, app: App) -> Figures:
    stage = order.stage
    asyncio.run(_make_template(Path(stage.folder) / "template"))
    _warm_up(stage, app)
    figures = Figures(example=Path(stage.example).name)
    (whole,) = run_trials(iter((_trial(order, app, Mode.TRACE, 0),)), lanes=1)
    if whole.found is None or whole.found.state != "succeeded":
        raise RuntimeError(f"nobody was killed, and yet: {whole.error or whole.found}")
    figures.calls = len(whole.calls)
    tried = list(run_trials(_trials(order, app, whole.calls), lanes=order.choice.lanes))
    books = count_effects(asyncio.run(_read_books(stage)))
    distinct: set[object] = set()
    for one in tried:
        if one.point is None:
            figures.unreached += 1
        else:
            figures.points += 1
            distinct.add((one.mode, one.point))
        if one.found is None:
            figures.lost += 1
            figures.findings.append(f"{one}: {one.error}")
        else:
            judge(figures, str(one), one.found, whole.found, books)
    figures.distinct = len(distinct)
    return figures


def _trials(order: Order, app: App, calls: Sequence[str]) -> Iterator[Trial[Tried]]:
    if order.choice.only is not None:
        side, index = order.choice.only
        mode = next(mode for mode in MODES if side_of(mode) == side)
        yield _trial(order, app, mode, index)
        return
    every = [(mode, at) for at in range(1, len(calls) + UNREACHED_MAX + 1) for mode in MODES]
    if order.choice.names:
        named = [at for at, name in enumerate(calls, 1) if name in order.choice.names]
        every = [(mode, at) for at in named for mode in MODES]
    stride = max(1, len(every) // order.choice.points) if order.choice.points else 1
    # An odd step takes turns between the two sides.
    stride += order.choice.points is not None and stride % 2 == 0
    for mode, at in every[stride // 2 :: stride]:
        yield _trial(order, app, mode, at)


def _trial(order: Order, app: App, mode: Mode, index: int) -> Trial[Tried]:
    base = Path(order.stage.folder)
    name = f"{mode.name.lower()}-{index}"
    root, found = base / name, base / f"{name}.json"
    home, disk, other_disk = root / "home", root / "disk", root / "other disk"
    root.mkdir(mode=0o700)
    shutil.copytree(base / "template", home)
    request, trace = order.stage.request, Trace.shared()

    def begin() -> None:
        weaken(order.choice.weakness)
        arm(trace, mode, at=index, root=root)

    first = fork(lambda: live(app, request, name, home, disk, None), before=begin, life_s=LIFE_S_MAX)
    yield first.ended
    shutil.rmtree(disk, ignore_errors=True)
    second = fork(
        lambda: live(app, request, name, home, other_disk, found),
        before=lambda: weaken(order.choice.weakness),
        life_s=LIFE_S_MAX,
    )
    yield second.ended
    expected = -signal.SIGKILL if trace.reached else 0
    error = ""
    if first.code != expected:
        error = f"the first program ended with {first.code}, not {expected}"
    elif second.code != 0:
        error = f"the resumer ended with {second.code}{', it hung' if second.overdue else ''}"
    seen = None if error else msgspec.json.decode(found.read_bytes(), type=Found)
    calls = tuple(trace.calls())
    names = tuple(call.name for call in calls) if mode is Mode.TRACE else ()
    shutil.rmtree(root)
    return Tried(
        mode=mode,
        index=index,
        point=point_at(calls, index) if trace.reached else None,
        calls=names,
        found=seen,
        error=error,
    )


async def _make_template(folder: Path) -> None:
    """A journal that knows the model's key, so that every trial begins with the task."""
    folder.mkdir(mode=0o700)
    clock, entropy = SystemClock(), SystemEntropy()
    journal, keys = await open_journal(file_at(folder / JOURNAL), clock=clock, entropy=entropy)
    await journal.close()
    SecretFile(folder, keys=keys, clock=clock, entropy=entropy).set(SECRET, KEY)


def _warm_up(stage: Stage, app: App) -> None:
    """One life in this process, so that its children need not import and learn what it did."""
    base = Path(stage.folder)
    shutil.copytree(base / "template", base / "warm")
    asyncio.run(live(app, stage.request, "warm", base / "warm", base / "warm-scratch", None))
    shutil.rmtree(base / "warm")


async def _read_books(stage: Stage) -> dict[str, Page]:
    pages: dict[str, Page] = {}
    for far in stage.far_ends:
        far_end = FarEnd(kind=far.kind, port=far.port, pid=far.pid)
        await far_end.wait_idle()
        pages[far.kind] = await far_end.ledger()
    return pages


if __name__ == "__main__":
    main()
