"""`python -m holdfast.testing.history JOURNAL --books FILE|URL`: hold a journal against I1 to I9.

The books are those of a far end of `holdfast.downstream`: its address while it runs (`GET
/_ledger`), or a file with that page. Without books only what the records alone can show is looked
for (I5, I7, I8, I9). A worker's events (`--log`, JSON lines) say who held which epoch. Ends with
1 where anything is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import apsw
import msgspec

from holdfast.app.places import open_file_journal
from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.downstream.ledger import Page
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Filter
from holdfast.journal.sqlite.db import open_db
from holdfast.testing.history.check import Breach, check, told
from holdfast.testing.history.reading import make_story, of_task, read_records
from holdfast.testing.history.story import Held, Story

TASKS_MAX = 1_000_000
BOOKS_S_MAX = 30.0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    green: bool
    tasks: int
    records: int
    effects: int
    breaches: dict[str, list[str]]  # by task id


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    try:
        stories = asyncio.run(read_stories(given.journal, given.books, given.log, only=given.task))
    except (HoldfastError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = {story.task_id: breaches for story in stories if (breaches := check(story))}
    if given.order:
        for story in stories:
            print(f"task {story.task_id}", *told(story), sep="\n  ")
    _print(stories, found, as_json=given.json)
    return 1 if found else 0


async def read_stories(
    journal: Path, books: str, log: Path | None, *, only: str = ""
) -> list[Story]:
    """The stories of all tasks whose records are still kept."""
    page, held = _books(books), _holders(log)
    opened, _ = await open_file_journal(journal, create=False)
    db = open_db(str(journal), flags=apsw.SQLITE_OPEN_READWRITE)
    stories: list[Story] = []
    try:
        for row in await opened.list_tasks(Filter(limit=TASKS_MAX)):
            if row.erased or (only and row.task_id != only):
                continue
            view = await opened.read_task(row.task_id)
            letters: dict[str, Letter] = {
                ordinal: step.letter for ordinal, step in view.steps.items()
            }
            effects, requests = of_task(page, row.task_id) if page else ([], [])
            story = make_story(
                row.task_id, read_records(db, TaskId(row.task_id)), letters, effects=effects,
                requests=requests, books=page is not None,
            )  # fmt: skip
            stories.append(msgspec.structs.replace(story, holders=held.get(row.task_id, ())))
    finally:
        db.close()
        await opened.close()
    return stories


def _books(where: str) -> Page | None:
    if not where:
        return None
    if where.startswith(("http://", "https://")):
        with urlopen(f"{where.rstrip('/')}/_ledger", timeout=BOOKS_S_MAX) as answer:
            raw = answer.read()
    else:
        raw = Path(where).read_bytes()
    return msgspec.json.decode(raw, type=Page)


def _holders(log: Path | None) -> dict[str, tuple[Held, ...]]:
    """Lines of a worker's events that name a task, an epoch and who speaks."""
    held: dict[str, tuple[Held, ...]] = {}
    for line in log.read_text().splitlines() if log else ():
        fields = json.loads(line)
        worker = fields.get("worker") or fields.get("pid")
        if worker and "task_id" in fields and "epoch" in fields:
            one = Held(epoch=int(fields["epoch"]), worker=str(worker))
            held[fields["task_id"]] = (*held.get(fields["task_id"], ()), one)
    return held


def _print(stories: list[Story], found: dict[str, list[Breach]], *, as_json: bool) -> None:
    records = sum(len(story.records) for story in stories)
    effects = sum(len(story.effects) for story in stories)
    if as_json:
        breaches = {task: [str(one) for one in broken] for task, broken in found.items()}
        report = Checked(
            green=not found, tasks=len(stories), records=records, effects=effects,
            breaches=breaches,
        )  # fmt: skip
        print(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
        return
    for task, broken in found.items():
        for one in broken:
            print(f"task {task}: {one}")
    verdict = "RED" if found else "green"
    print(f"{verdict}: {len(stories):,} tasks, {records:,} records, {effects:,} effects")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.history", description=__doc__)
    parser.add_argument("journal", type=Path, metavar="JOURNAL")
    parser.add_argument("--books", default="", metavar="FILE|URL", help="of the far end")
    parser.add_argument("--log", type=Path, metavar="FILE", help="a worker's events")
    parser.add_argument("--task", default="", metavar="ID", help="only this task")
    parser.add_argument("--order", action="store_true", help="print each task's one order")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
