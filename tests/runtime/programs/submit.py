"""Submits one request when told to: `submit.py JOURNAL [SCOPE]`; with SCOPE `file` under the settings beside it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import holdfast
from holdfast.core.journal_address import file_at
from holdfast.layout.settings import find_settings


async def main(journal: str, scope: str = "") -> None:
    settings = find_settings(file_at(Path(journal))) if scope == "file" else holdfast.Settings(request_scope=scope)
    async with holdfast.open(journal, settings=settings, serve=False) as hf:
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        handle = await hf.submit("greet", name="ada", request_id="order-1")
        print("task", handle.id)
        print("created", handle.created)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
