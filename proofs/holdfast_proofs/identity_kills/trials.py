"""One life, cut short at each of its calls: `python -m holdfast_proofs.identity_kills.trials`.

Started by the command of the package with the crash shim loaded. Each trial is a fork: the
prepared folder is put back at its path, the child is armed and acts; then the parent looks at what
is left, acts again as a person would, and looks once more. Ways to be cut short: SIGKILL before a
call, a disk that is full from a call on, a sync that fails, an act on files that fails with EIO.
"""

from __future__ import annotations

import errno
import functools
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast_proofs.identity_kills.lives import LIVES, Life
from holdfast_proofs.shim import Mode, Trace, arm

CALLS_MAX = 4_000


class Trials:
    """All trials of one life below one folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.root, self.base = folder / "world", folder / "base"
        self.root.mkdir(mode=0o700)
        self.life: Life = LIVES[name](self.root)
        self.life.prepare()
        shutil.copytree(self.root, self.base)
        self.words = list(self.life.world.words)
        self.trace = Trace.shared(CALLS_MAX)
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {}

    def sweep(self, points: int) -> dict[str, Any]:  # Any: JSON
        """Every call, or so many of each way, spread evenly and with the last ones."""
        self._armed(Mode.TRACE, 0)
        total = self.trace.count
        syncs = sum(one.name in ("fsync", "fdatasync") for one in self.trace.calls())
        for at in chosen(total, points):
            self._armed(Mode.KILL_BEFORE, at)
            self._armed(Mode.FULL_ANY, at)
        self._armed(Mode.KILL_AFTER, total)
        for at in chosen(syncs, points):
            self._armed(Mode.SYNC_ERROR, at)
        acts = self._count_acts()
        for at in chosen(acts, points):
            self._failed(at)
        return {"calls": total, "acts": acts, "trials": self.counts, "wrong": self.wrong}

    def _armed(self, mode: Mode, at: int) -> None:
        said, status = self._trial(lambda: arm(self.trace, mode, at=at, root=self.root))
        calls = self.trace.calls()
        where = f"{calls[-1].name} {calls[-1].where}" if calls else ""
        if said:
            self.wrong.append(f"{mode.name} at {at} ({where}): {said}")
        if mode is Mode.TRACE or self.trace.reached:
            self.counts[mode.name] = self.counts.get(mode.name, 0) + 1
        if mode.name.startswith("KILL") and not os.WIFSIGNALED(status):
            self.wrong.append(f"{mode.name} at {at}: not killed")

    def _failed(self, at: int) -> None:
        said, _ = self._trial(functools.partial(fail_at, at))
        self.counts["EIO"] = self.counts.get("EIO", 0) + 1
        if said:
            self.wrong.append(f"EIO at {at}: {said}")

    def _count_acts(self) -> int:
        """How many acts on files the life has."""
        counted = mmap.mmap(-1, 8)
        said, _ = self._trial(functools.partial(fail_at, 0, counted))
        if said:
            self.wrong.append(f"left alone: {said}")
        return int.from_bytes(counted[:8], "little")

    def _trial(self, cut: Callable[[], None]) -> tuple[str, int]:
        """What was wrong, and how the child ended."""
        shutil.rmtree(self.root)
        shutil.copytree(self.base, self.root)
        shown = self.root.parent / "shown"
        shown.unlink(missing_ok=True)
        world = self.life.world
        world.words = list(self.words)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                world.note = shown
                cut()
                self.life.act()
                code = 0
            except (HoldfastError, OSError):
                code = 3
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 1:
            return "the act raised something else than an error of ours", status
        if shown.exists():  # what a person would have written down
            world.words += shown.read_text().splitlines()
        try:
            self.life.check()
            self.life.again()
            self.life.check_whole()
        except (HoldfastError, OSError, AssertionError) as error:
            return f"{type(error).__name__}: {error}", status
        return "", status


def chosen(total: int, points: int) -> Iterable[int]:
    if not points or points >= total:
        return range(1, total + 1)
    step = total / points
    return sorted({max(1, round(total - step * number)) for number in range(points)})


def fail_at(number: int, counted: mmap.mmap | None = None) -> None:
    """The number-th act on files fails with EIO; with 0 they are only counted."""
    count = 0

    def failing(original: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            if counts(*args):
                count += 1
                if counted is not None:
                    counted[:8] = count.to_bytes(8, "little")
                if count == number:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(*args, **options)

        return call

    def on_files(first: Any, *_: Any) -> bool:
        import stat

        if not isinstance(first, int):
            return True
        return not stat.S_ISSOCK(os.fstat(first).st_mode)  # the loop wakes itself by one

    def creates(_: Any, flags: int = 0, *__: Any) -> bool:
        return bool(flags & os.O_CREAT)

    for name in ("write", "fsync", "rename", "mkdir", "link", "ftruncate"):
        setattr(os, name, failing(getattr(os, name), on_files))
    os.open = failing(os.open, creates)


def main(name: str, folder: str, points: str) -> None:
    print(json.dumps({"life": name, **Trials(name, Path(folder)).sweep(int(points))}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
