"""An agent whose tools write files elsewhere, run in a process of its own: `watched_tools.py FOLDER OUTSIDE`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import holdfast

OUT = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(os.environ.get("OUT", "/nonexistent"))
pool = ThreadPoolExecutor(1)


def write(name: str) -> None:
    (OUT / name).write_text("x")


@holdfast.tool(effect=holdfast.Idempotent())
async def scatter(call: holdfast.Call) -> None:
    (call.scratch / "fine.txt").write_text("x")
    write("direct")
    (OUT / "direct").rename(OUT / "renamed")
    write("gone")
    (OUT / "gone").unlink()
    (OUT / "folder").mkdir()
    thread = threading.Thread(target=write, args=("thread",))
    thread.start()
    thread.join()
    await asyncio.to_thread(write, "to-thread")
    pool.submit(write, "pool").result()
    child = multiprocessing.get_context("fork").Process(target=write, args=("child",))
    child.start()
    child.join()
    subprocess.run(["sh", "-c", f"echo x > {OUT}/program"], check=True)  # noqa: ASYNC221 - a tool may
    (OUT / "direct").exists()
    (OUT / "renamed").read_text()


@holdfast.tool(effect=holdfast.Idempotent())
async def other(call: holdfast.Call) -> None:
    await asyncio.sleep(0.01)
    pool.submit(write, "other").result()


@holdfast.tool(effect=holdfast.Idempotent())
def in_thread() -> None:
    write("in-thread")


@holdfast.tool()
def in_child() -> None:
    write("in-child")
    thread = threading.Thread(target=write, args=("in-child-thread",))
    thread.start()
    thread.join()


@holdfast.task
async def work(run: holdfast.Run) -> None:
    run.scratch.path.exists()
    await run.gather(run.call(scatter), run.call(other))
    await run.call(in_thread)
    await run.call(in_child)
    write("by-the-task")


async def main(folder: Path) -> None:
    os.environ["OUT"] = str(OUT)
    async with holdfast.open(folder / "journal.db", tasks=[work]) as hf:
        await (await hf.submit(work)).result(60)
    from holdfast.runtime.tool import file_watch

    print(file_watch._installed)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
