"""`python -m holdfast_proofs.history JOURNAL --books FILE|URL`: hold a journal against I1 to I9.

The books are those of far ends of `holdfast.downstream`: an address while it runs (`GET /_ledger`),
a file with that page, or the log of effects that it was started with. Without books only what the
records alone can show is looked for (I5, I7, I8, I9). Workers' events (`--logs`, JSON lines) say
who held which epoch. Ends with 1 where anything is broken, with 2 where nothing can be read.
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

from holdfast.app.binder import open_journal
from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import file_at
from holdfast.downstream.ledger import Done, Page
from holdfast.errors import BadInput
from holdfast.host.sqlite import open_db
from holdfast.journal.contract import Filter
from holdfast_proofs.history.check import check, told
from holdfast_proofs.history.reading import make_story, of_task, read_records
from holdfast_proofs.history.story import Held, Story
from holdfast_proofs.runner import Proof, Result

TASKS_MAX = 1_000_000
BOOKS_S_MAX = 30.0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What --json prints."""

    green: bool
    tasks: int
    records: int
    effects: int
    breaches: dict[str, list[str]]  # by task id


async def read_stories(journal: Path, books: Sequence[str], logs: Sequence[Path], *, only: str = "") -> list[Story]:
    """The stories of all tasks whose records are still kept."""
    pages, held = [_read_page(one) for one in books], _holders(logs)
    # Transactional effects lie in the user's own tables; a log of effects tells of no reads.
    reads = any(page.requests for page in pages)
    unseen: frozenset[Letter] = frozenset(("T",) if reads else ("T", "R"))
    opened, _ = await open_journal(file_at(journal), create=False)
    db = open_db(str(journal), flags=apsw.SQLITE_OPEN_READWRITE)
    stories: list[Story] = []
    try:
        for row in await opened.list_tasks(Filter(limit=TASKS_MAX)):
            if row.erased or (only and row.task_id != only):
                continue
            view = await opened.read_task(row.task_id)
            letters: dict[str, Letter] = {ordinal: step.letter for ordinal, step in view.steps.items()}
            found = [of_task(page, row.task_id) for page in pages]
            story = make_story(
                row.task_id,
                read_records(lambda sql, values: db.execute(sql, values).fetchall(), TaskId(row.task_id)),
                letters,
                books=bool(pages),
                effects=[one for effects, _ in found for one in effects],
                requests=[one for _, requests in found for one in requests],
            )
            holders = held.get(row.task_id, ())
            stories.append(msgspec.structs.replace(story, holders=holders, unseen=unseen))
    finally:
        db.close()
        await opened.close()
    return stories


def _read_page(where: str) -> Page:
    if where.startswith(("http://", "https://")):
        with urlopen(f"{where.rstrip('/')}/_ledger", timeout=BOOKS_S_MAX) as answer:
            raw = answer.read()
    else:
        raw = Path(where).read_bytes()
    try:
        return msgspec.json.decode(raw, type=Page)
    except msgspec.DecodeError:
        effects = tuple(msgspec.json.decode(line, type=Done) for line in raw.splitlines())
    return Page(kind="log", effects=effects, requests=(), by_key={}, by_reference={}, by_base={}, duplicates=0)


def _holders(logs: Sequence[Path]) -> dict[str, tuple[Held, ...]]:
    """Who held which epoch of which task, by the workers' own events.

    A worker names its session when it begins one; the runs that it tells of are that session's.
    """
    held: dict[str, tuple[Held, ...]] = {}
    for log in logs:
        session = ""
        for line in log.read_text().splitlines():
            fields = json.loads(line)
            session = fields.get("session", session)
            if session and "task_id" in fields and "epoch" in fields:
                one = Held(epoch=int(fields["epoch"]), worker=str(session))
                held[fields["task_id"]] = (*held.get(fields["task_id"], ()), one)
    return held


def _run(given: argparse.Namespace) -> Result:
    try:
        stories = asyncio.run(read_stories(given.journal, given.books, given.logs, only=given.task))
    except (OSError, ValueError) as error:
        raise BadInput(str(error)) from error
    found = {story.task_id: breaches for story in stories if (breaches := check(story))}
    if given.order:
        for story in stories:
            print(f"task {story.task_id}", *told(story), sep="\n  ")
    records = sum(len(story.records) for story in stories)
    effects = sum(len(story.effects) for story in stories)
    breaches = {task: [str(one) for one in broken] for task, broken in found.items()}
    return Result(
        green=not found,
        figures=Checked(green=not found, tasks=len(stories), records=records, effects=effects, breaches=breaches),
        findings=[f"task {task}: {one}" for task, broken in breaches.items() for one in broken],
        summary=f"{len(stories):,} tasks, {records:,} records, {effects:,} effects",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("journal", type=Path, metavar="JOURNAL")
    add("--books", nargs="+", default=(), metavar="FILE|URL", help="of far ends")
    add("--logs", nargs="+", type=Path, default=(), metavar="FILE", help="workers' events")
    add("--task", default="", metavar="ID", help="only this task")
    add("--order", action="store_true", help="print each task's one order")


PROOF = Proof(name="history", purpose=str(__doc__), add_options=_options, run=_run)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
