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
    """The journal's file: the option, else the environment, else journal.db in this folder."""
    from holdfast.app.journal_path import journal_path

    given: str | None = args.journal
    if given is None:
        given = os.environ.get(ENVIRONMENT) or DEFAULT
    elif not given:
        raise BadInput("--journal is empty")
    return journal_path(given)


@asynccontextmanager
async def opened(
    args: argparse.Namespace, *, create: bool = False
) -> AsyncGenerator[Holdfast, None]:
    """The journal that the options name, for looking and deciding; it must exist."""
    import holdfast
    from holdfast.app.settings_file import find_settings

    path = journal_of(args)
    settings = find_settings(path)
    async with holdfast.open(path, settings=settings, serve=False, create=create) as hf:
        yield hf


def run_opened(
    args: argparse.Namespace,
    work: Callable[[Holdfast, argparse.Namespace], Awaitable[int]],
    *,
    create: bool = False,
) -> int:
    """Run the work over the open journal."""

    import asyncio

    async def main() -> int:
        async with opened(args, create=create) as hf:
            return await work(hf, args)

    return asyncio.run(main())
