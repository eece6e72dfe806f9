"""Kills a task that uses its scratch folder at every N-th point, and resumes it on an empty disk.

    python tests/runtime/programs/scratcher.py FOLDER [STRIDE [twice]]

A point lies before and after each commit and each blob of the journal, in the task's code and in
its tools. The task notes what it sees of its folder between its calls; whatever point it was
killed at, the notes of the run that ends it must be those of a run that nobody killed. `twice`
kills the run that resumes it too, at another point. Prints how many points there are, how many
were tried, and where the notes differ.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import holdfast
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing.lab import fast

# Any in this file: JSON, and the journal's own signatures.

passed = 0
deadly = 0  # the point that kills


def point() -> None:
    global passed  # noqa: PLW0603 - one count for the whole process
    passed += 1
    if passed == deadly:
        os.kill(os.getpid(), signal.SIGKILL)


def between(act: Callable[..., Any]) -> Callable[..., Any]:
    async def acting(*args: Any, **kwargs: Any) -> Any:
        point()
        done = await act(*args, **kwargs)
        point()
        return done

    return acting


def look(folder: Path) -> str:
    """A digest of all that is there: names, bytes, executable bits, empty folders."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found.append(f"{name}/")
        else:
            mode = path.stat().st_mode & 0o100
            found.append(f"{name} {mode} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


@holdfast.tool(effect=holdfast.Read())
async def write(call: holdfast.Call, name: str, text: str) -> int:
    point()
    path = call.scratch / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text[:1])  # half of it
    point()
    path.write_text(text)
    path.chmod(0o700)
    point()
    return len(text)


@holdfast.tool(effect=holdfast.Read())
async def drop(call: holdfast.Call, name: str) -> None:
    (call.scratch / name).unlink()
    point()
    (call.scratch / "left").mkdir()


@holdfast.task
async def work(run: holdfast.Run) -> list[str]:
    folder = run.scratch.path
    seen = [look(folder)]
    log = folder / "log"

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(text)
        seen.append(look(folder))
        point()

    note("begun\n")
    note(f"{await run.call(write, name='a/one', text='one')}\n")
    run.now()
    (folder / "large").write_bytes(b"x" * 3_000_000)
    note("a large one\n")
    await run.call(drop, name="a/one")
    note("dropped\n")
    parts = [run.call(write, name=f"part-{number}", text=f"part {number}") for number in (1, 2)]
    await run.gather(*parts, branch)
    note("gathered\n")
    (folder / "large").unlink()
    await run.call(write, name="last", text="last")
    note("done\n")
    return seen


async def branch(run: holdfast.Run) -> None:
    await run.call(write, name="b-1", text="branch")
    (run.scratch.path / "b-2").write_text("whole")
    point()
    await run.call(write, name="b-3", text="branch")


async def live(journal: Path) -> list[str]:
    async with holdfast.open(journal, tasks=[work], settings=fast()) as hf:
        handle = await hf.submit(work, request_id="one")
        result = await handle.result(60)
        files = (await handle.view()).files
        assert files is not None
        assert files.newest
        return cast("list[str]", result)


def life(folder: Path, kill_at: int) -> tuple[list[str] | None, int]:
    """What the task saw, or None where it was killed; and how many points there were."""
    global deadly  # noqa: PLW0603 - of the child alone
    read, answer = os.pipe()
    child = os.fork()
    if child == 0:
        deadly = kill_at
        seen = asyncio.run(live(folder / "journal.db"))
        os.write(answer, json.dumps([seen, passed]).encode())
        os._exit(0)
    os.close(answer)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None, kill_at
    assert status == 0, "the task failed"
    return cast("tuple[list[str], int]", tuple(json.loads(said)))


def trial(place: Path, kill_at: int, then_at: int = 0) -> tuple[list[str] | None, bool, int]:
    folder = place / f"at-{kill_at}"
    folder.mkdir(mode=0o700)
    seen, count = life(folder, kill_at)
    killed = seen is None
    for next_at in (then_at, 0):
        if seen is None:
            shutil.rmtree(folder / "scratch", ignore_errors=True)
            seen, _ = life(folder, next_at)
    shutil.rmtree(folder)
    return seen, killed, count


def main(place: Path, stride: int, *, twice: bool) -> None:
    for name in ("append", "put_blobs"):
        setattr(SqliteJournal, name, between(getattr(SqliteJournal, name)))
    right, _, count = trial(place, 0)
    tried, wrong = 0, list[int]()
    for kill_at in range(1, count + 1, stride):
        then_at = 1 + kill_at * 37 % count if twice else 0
        seen, killed, _ = trial(place, kill_at, then_at)
        tried += killed
        if seen != right:
            wrong.append(kill_at)
    print(json.dumps({"points": count, "killed": tried, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, twice="twice" in sys.argv)
