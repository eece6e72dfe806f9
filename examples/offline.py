"""Run an example agent with nothing but this machine: `python examples/offline.py travel`.

Starts the example's far ends and a scripted model, keeps the model's key as a secret, submits the
request and asks here when the agent wants an approval. Prints what it answered and what the far
ends counted. `--home FOLDER` keeps the journal: run it again with the same folder, after a kill
for example, and the same task goes on. The far ends begin new books with each start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast.app.binder import open_journal
from holdfast.app.loading import load_app
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.downstream.process import FarEnd
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.records import ENDED, TaskState
from holdfast.testing.offline import KEY, SECRET, Stage, set_up
from holdfast.views.unfinished import list_approvals

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", choices=("travel", "research"))
    parser.add_argument("--yes", action="store_true", help="grant every approval")
    parser.add_argument("--home", type=Path, help="keep the journal in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary) / "home"
        with set_up(HERE / given.example, Path(temporary)) as stage:
            os.environ.update(stage.variables)
            code = asyncio.run(run(stage, home, yes=given.yes))
            if given.home is not None:
                print(f"look at it: holdfast task list --journal {home}")
            return code


async def run(stage: Stage, home: Path, *, yes: bool) -> int:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    await keep_key(home)
    app = load_app(stage.app)
    async with holdfast.open(home / "journal.db", tasks=app.tasks.values()) as hf:
        task = await hf.submit(app.task(""), request_id="offline", **stage.request)
        print(f"task {task.task_id}")
        while (state := await task.state()) not in ENDED | {TaskState.PARKED}:
            for one in await list_approvals(hf.journal):
                print(f"approval wanted: {one.question} {one.details}")
                granted = yes or await asyncio.to_thread(ask)
                await hf.approve(one.task_id, one.ordinal, granted=granted, by="you")
            await hf.journal.wait_change(timeout_s=0.2)
        print(f"{state}: {(await task.view()).outcome.get('result')}")
    for far in stage.far_ends:
        books = await FarEnd(kind=far.kind, port=far.port, pid=far.pid).ledger()
        print(f"{far.kind}: {len(books.effects)} done, {books.duplicates} of them twice")
    return 0 if state is TaskState.SUCCEEDED else 1


def ask() -> bool:
    try:
        return input("grant it? [y/N] ").strip().lower() == "y"
    except EOFError:
        print("nobody answers: that is a no (--yes grants)")
        return False


async def keep_key(home: Path) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    journal, keys = await open_journal(file_at(home / "journal.db"), clock=clock, entropy=entropy)
    await journal.close()
    secrets = SecretFile(home, keys=keys, clock=clock, entropy=entropy)
    if secrets.find_current(SECRET) is None:
        secrets.set(SECRET, KEY)


if __name__ == "__main__":
    sys.exit(main())
