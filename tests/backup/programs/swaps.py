"""A folder takes another's place, killed at every call: `swaps.py ROOT exchange|renames`.

Started with the crash shim loaded. Prints what was wrong, one line each, and the number of kills.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from holdfast.host import folder_swap as swap
from holdfast_proofs.shim import Mode, Trace, arm


def no_exchange(_one: Path, _other: Path) -> bool:
    return False


def main(root: Path, way: str) -> None:
    if way == "renames":
        setattr(swap, "exchange_names", no_exchange)  # noqa: B010 - another module's name
    trace, at, kills = Trace.shared(), 0, 0
    while True:
        at += 1
        home, fresh, aside = root / "ada", root / ".ada.restoring-1", root / "ada.before-1"
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, text in ((home, "old"), (fresh, "new")):
            path.mkdir(mode=0o700)
            (path / "file").write_text(text)
        child = os.fork()
        if child == 0:
            arm(trace, Mode.KILL_BEFORE, at=at, root=root)
            swap.swap_in(fresh, home, aside=aside)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        if len(sys.argv) <= 3:
            swap.settle(home)
            swap.settle(home)  # safe to repeat
        found = (home / "file").read_text() if home.is_dir() else "nothing"
        others = [path for path in (fresh, aside) if path.exists()]
        texts = sorted((path / "file").read_text() for path in others)
        good = (found == "old" and texts in ([], ["new"])) or (
            found == "new" and [path.name for path in others] == ["ada.before-1"] and texts == ["old"]
        )
        if not good:
            print(f"killed at {at}: {found}, beside it {[path.name for path in others]} {texts}")
        if not os.WIFSIGNALED(status):
            break
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
