"""A projection killed and failed at every call: `projection_lives.py ROOT STEP`.

Started with the crash shim loaded. Each trial is a fork: a copy of a folder with a journal that has
remarks for three files, one of them with a line that an editor saves while it is written. Then the
parent looks at what is left, projects again, and looks again. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

from holdfast.app.binder import open_journal
from holdfast.core.journal_address import file_at
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Remark, RemarkTo
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory import exchange
from holdfast.memory.lines import entry_id, key_of
from holdfast.memory.projection import project_now
from holdfast_proofs.shim import Mode, Trace, arm

BEFORE = ("# Memory", "", "- a person's line")
SAVED = "- saved by an editor while it was written"


def remark(number: int) -> Remark:
    to = RemarkTo.DAY if number % 3 == 2 else RemarkTo.MEMORY
    return Remark(remark_id=f"r{number}", to=to, text=f"remark {number}", origin="model")


async def add(root: Path, numbers: range) -> None:
    journal, _ = await open_journal(file_at(root / "journal.db"))
    await journal.add_remarks([remark(number) for number in numbers])
    await journal.close()


async def project(root: Path) -> None:
    journal, _ = await open_journal(file_at(root / "journal.db"))
    try:
        await project_now(journal, MemoryPlace(folder=root))
    finally:
        await journal.close()


def prepare(root: Path) -> None:
    memory = root / "MEMORY.md"
    memory.write_text("".join(f"{line}\n" for line in BEFORE))
    memory.chmod(0o600)
    asyncio.run(add(root, range(2)))
    asyncio.run(project(root))
    asyncio.run(add(root, range(2, 6)))


def act(root: Path) -> None:
    """Project, and an editor saves right before the exchange."""
    write = exchange.write_aside

    def write_and_save(path: Path, data: bytes, *, asides: Path) -> Path:
        aside = write(path, data, asides=asides)
        if path.name == "MEMORY.md" and not (root / "saved").exists():
            text = path.read_text() + f"{SAVED}\n"
            (root / "swap").write_text(text)
            os.rename(root / "swap", path)
            (root / "saved").touch()
        return aside

    exchange.write_aside = write_and_save
    asyncio.run(project(root))


def check(root: Path, *, whole: bool) -> None:
    """Files are whole at every instant; after another pass everything is there once."""
    text = (root / "MEMORY.md").read_text()
    assert text.endswith("\n"), "a torn tail"
    days = "".join(path.read_text() for path in sorted((root / "memory").glob("*.md")))
    keys = Counter(key_of(line) for line in (text + days).splitlines())
    for line in BEFORE:
        assert line in text.splitlines(), f"lost: {line!r}"
    assert max(count for key, count in keys.items() if key != "=") == 1, f"doubled: {keys}"
    for number in range(6 if whole else 2):
        assert keys[entry_id(f"r{number}")] == 1, f"lost: remark {number}"
    if whole and (root / "saved").exists():
        assert keys[f"={SAVED}"] == 1, "lost: what the editor saved"
    if whole:
        left = os.listdir(root / ".holdfast" / "aside")
        assert not left, f"left aside: {left}"


def trial(base: Path, root: Path, trace: Trace, mode: Mode, at: int) -> tuple[str, int]:
    shutil.copytree(base, root)
    child = os.fork()
    if child == 0:
        os.chdir(root)
        arm(trace, mode, at=at, root=root)
        try:
            act(root)
        except (HoldfastError, OSError):
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    try:
        check(root, whole=False)
        asyncio.run(project(root))
        check(root, whole=True)
    except (HoldfastError, OSError, AssertionError) as error:
        return f"{type(error).__name__}: {error}", status
    finally:
        shutil.rmtree(root)
    return "", status


def main(folder: Path, step: int) -> None:
    base, root = folder / "base", folder / "trial"
    base.mkdir(mode=0o700)
    prepare(base)
    trace = Trace.shared()
    wrong, counts = list[str](), dict[str, int]()

    def run(mode: Mode, at: int) -> None:
        said, status = trial(base, root, trace, mode, at)
        calls = trace.calls()
        where = f"{calls[-1].name} {calls[-1].where}" if calls else ""
        if said:
            wrong.append(f"{mode.name} at {at} ({where}): {said}")
        if trace.reached:
            counts[mode.name] = counts.get(mode.name, 0) + 1
            if mode.name.startswith("KILL") and not os.WIFSIGNALED(status):
                wrong.append(f"{mode.name} at {at}: not killed")

    run(Mode.TRACE, 0)
    total = trace.count
    made = Counter(call.name for call in trace.calls())
    ours = [
        at
        for at, call in enumerate(trace.calls(), start=1)
        if "journal.db" not in call.where and "instance" not in call.where
    ]
    for at in ours[::step]:
        run(Mode.KILL_BEFORE, at)
        run(Mode.FULL_ANY, at)
    run(Mode.KILL_AFTER, ours[-1])
    print(json.dumps({"calls": total, "ours": len(ours), "made": made, "trials": counts, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
