"""Which journal a command means, and opening it for reading and deciding."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast

ENVIRONMENT = "HOLDFAST_JOURNAL"
DEFAULT = "journal.db"


def journal_of(args: argparse.Namespace) -> Path:
    """The journal's file: --journal, that of --home, else by the environment, else in this folder.

    Of an adopted agent it lies in the folder that Holdfast has made inside.
    """
    from holdfast.layout.agent_home import home_folder
    from holdfast.layout.journal_location import journal_path

    given: str | None = args.journal
    if given is None and args.home is None:
        given = os.environ.get(ENVIRONMENT) or None
    elif given is not None and not given:
        raise BadInput("--journal is empty")
    elif given is not None and args.home is not None:
        raise BadInput("--journal and --home both say where the journal is", hint="give one")
    return journal_path(home_folder(args.home) / DEFAULT if given is None else given)


@asynccontextmanager
async def opened(args: argparse.Namespace, *, create: bool = False) -> AsyncGenerator[Holdfast, None]:
    """The journal that the options name, for looking and deciding; it must exist."""
    import holdfast
    from holdfast.layout.settings import find_settings

    path = journal_of(args)
    settings = find_settings(path)
    async with holdfast.open(path, settings=settings, serve=False, create=create) as hf:
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
