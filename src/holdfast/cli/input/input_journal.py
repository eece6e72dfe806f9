"""Which journal, task and step a command means, and opening the journal for reading and deciding."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.cli.screen.screen import finish
from holdfast.core.ids import TASK_ID_CHARS, TaskId, parse_task_prefix
from holdfast.core.ordinal import parse_ordinal
from holdfast.errors import BadInput, BadReference, TaskNotFound
from holdfast.journal.contract import Filter, TaskRow
from holdfast.journal.rules import CRASHES_MAX, is_poisoned
from holdfast.journal.unserved import find_unserved

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.core.journal_address import JournalAddress

ENVIRONMENT = "HOLDFAST_JOURNAL"


def journal_of(args: argparse.Namespace) -> JournalAddress:
    """Where the journal is: --journal, that of --home, else by the environment, else in this folder.
    For an adopted agent it is in the folder that Holdfast made inside. With a url, --home is this host's folder."""
    from holdfast.core.journal_address import is_url
    from holdfast.layout.agent_home import home_folder
    from holdfast.layout.journal_location import journal_address, journal_in

    given: str | None = args.journal
    if given is None and args.home is None:
        given = os.environ.get(ENVIRONMENT) or None
    elif given is not None and not given:
        raise BadInput("--journal is empty")
    elif given is not None and args.home is not None and not is_url(given):
        raise BadInput("--journal and --home both name a journal", hint="give only one of them")
    if given is None:
        return journal_in(home_folder(args.home))
    return journal_address(given, home=args.home)


@asynccontextmanager
async def opened(args: argparse.Namespace, *, create: bool = False) -> AsyncGenerator[Holdfast, None]:
    """The journal that the options name, without serving tasks; it must exist."""
    import holdfast
    from holdfast.layout.settings import find_settings

    address = journal_of(args)
    settings = find_settings(address)
    async with holdfast.open(address, settings=settings, serve=False, create=create) as hf:
        yield hf


def run_opened(
    args: argparse.Namespace, work: Callable[[Holdfast, argparse.Namespace], Awaitable[int]], *, create: bool = False
) -> int:
    """Run the work over the open journal."""

    import asyncio

    async def main() -> int:
        async with opened(args, create=create) as hf:
            return await work(hf, args)

    return asyncio.run(main())


async def is_served(hf: Holdfast) -> bool:
    """Whether a living session serves this journal."""
    return any(session.alive for session in await hf.journal.list_sessions())


async def unserved_text(hf: Holdfast, row: TaskRow) -> str | None:
    """What to say of waiting tasks like this one where no live worker serves them. One may be starting."""
    if not await is_served(hf):
        return "no worker serves this journal yet; the task waits for one"
    return next((one.text for one in await find_unserved(hf.journal) if one.keeps(row)), None)


async def what_follows(hf: Holdfast, task_id: TaskId) -> str:
    """What a decision about a step of this task brings about; to be asked before it is recorded."""
    if not is_poisoned(await hf.journal.read_task(task_id)):
        return "the task continues"
    return (
        f"the task is parked because {CRASHES_MAX} runs of it killed their worker, so it gets one more run, alone; if "
        f"the worker dies again, the task is parked again until `holdfast task retry {task_id}`"
    )


async def finish_decision(hf: Holdfast, args: argparse.Namespace, fields: object, text: str) -> int:
    """As `finish`; also warns if no worker is there to carry it out."""
    waits = "no worker serves this journal now; this waits until one does\nhint: `holdfast worker APP`"
    return finish(args, fields, text, *(() if await is_served(hf) else (waits,)))


SHOWN_MAX = 5


async def get_task_id(hf: Holdfast, text: str) -> TaskId:
    """The task that the text names. Raises BadReference, TaskNotFound."""
    prefix = parse_task_prefix(text)
    found = await hf.journal.list_tasks(Filter(prefix=prefix, limit=SHOWN_MAX + 1))
    if not found:
        raise TaskNotFound(prefix if len(prefix) == TASK_ID_CHARS else f"{prefix}...")
    if len(found) > 1:
        ids = ", ".join(row.task_id for row in found[:SHOWN_MAX])
        more = ", ..." if len(found) > SHOWN_MAX else ""
        raise BadReference(f"{prefix} is the beginning of several task ids", hint=f"which one? {ids}{more}")
    return found[0].task_id


async def get_step_place(hf: Holdfast, text: str) -> tuple[TaskId, str]:
    """The step that TASK/ORDINAL names; whether it exists is not checked."""
    task, slash, ordinal = text.partition("/")
    if not slash or not task or not ordinal:
        raise BadReference(f"{text!r} is not a step")
    place = parse_ordinal(ordinal.strip())
    return await get_task_id(hf, task), place
