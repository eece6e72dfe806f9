"""What is known of a standing copy (copy.py), and the job that brings it forward. It is light: workers import it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.app.worker import JobContext
from holdfast.backup.places.backup_places import states_of
from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, HoldfastError
from holdfast.host.private_files import read_private
from holdfast.layout.agent_home import AgentHome, find_home

FILE, FILE_BYTES_MAX = "stand.json", 1 << 16
LOOK_S = 60.0  # how often a worker compares it with the newest verified snapshot


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    id: str
    home: str
    place: str  # the address that it was restored from
    rescue_key: str  # the file with the key
    archive: str
    seq: int
    at: int  # when the snapshot was made, in seconds since 1970
    files: int
    journal_sequence: int | None  # of the newest record in it
    incarnation: int | None
    forwarded_ms: int


def stands_folder() -> Path:
    return Path.home() / ".cache" / "holdfast" / "stands"


def find_stand(name: str) -> Stand | None:
    try:
        return decode_json(read_private(stands_folder() / name / FILE, FILE_BYTES_MAX), Stand)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise BadInput(
            f"{stands_folder() / name / FILE}: {error}", hint="`holdfast drill stand end` removes it"
        ) from None


def list_stands() -> list[Stand]:
    folder = stands_folder()
    names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    return [found for name in names if (found := find_stand(name)) is not None]


def newest_verified(home: AgentHome) -> str:
    """The newest snapshot that some place restored for a test; empty: none."""
    return max(((one.verified_ms, one.verified) for one in states_of(home).read().values()), default=(0, ""))[1]


async def keep_forward(context: JobContext) -> None:
    """A worker's job: with each verified snapshot the standing copy follows, in a process of its own."""
    while True:
        try:
            home = find_home(context.address.folder)
            if home is None:
                return  # a journal that is no agent's has no copy
            stand = find_stand(home.name)
            if stand is not None and newest_verified(home) not in ("", stand.archive):
                await _forward(home)
        except (HoldfastError, OSError) as error:
            context.log.event("standing-copy-failed", error=str(error))
        await asyncio.sleep(LOOK_S)


async def _forward(home: AgentHome) -> None:
    words = ("drill", "stand", "forward", "--home", str(home.folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "holdfast", *words, stdin=subprocess.DEVNULL
    )
    try:
        await process.wait()
    finally:
        if process.returncode is None:  # the worker ends: the older copy stays
            process.kill()
            await process.wait()
