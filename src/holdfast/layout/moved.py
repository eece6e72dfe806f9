"""`instance/moved.json`: this copy of the agent is moving to another host, or has moved.

The mark is in the instance folder, which no backup and no package holds: it is about this copy
alone. Everything that opens the journal looks for it twice, before and after it has the lock that
says "in use": a process that writes the mark and then finds the journal unused knows that no other
will open it without seeing the mark.

    moving   nothing has left this host; `migrate cancel` removes the mark, and all is as before
    moved    the package may be anywhere: this copy does not run again, unless it is taken back

`moved` is written before the package gets the name under which it is found. So at every instant
at most one copy can run: this one until the mark, then none, then the one that takes the package.
A mark that cannot be read counts as `moved`.

`instance/standby.json` says that this folder is a standby of an agent whose journal is a file on another host. It has
the same effect, and is looked for at the same times. It goes when the folder is promoted.

`instance/evicted` says that a worker here found other keys than it has: nothing new is taken in (app/eviction.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.core.waiting import running_beside
from holdfast.errors import IsStandby, KeysReplaced, MovedAway
from holdfast.host.log import Log
from holdfast.host.private_files import read_private, remove_durably, write_atomically

FORMAT = 1
NAME = "moved.json"
FILE_BYTES_MAX = 64 * 1024
LOOK_S = 0.25  # how often a worker looks whether it shall stop
MOVING, MOVED = "moving", "moved"
STAGING = "moving"  # in instance/backup: what is packed, until it is sealed


STANDBY = "standby.json"
EVICTED = "evicted"
PROMOTING_HINT = "if `holdfast instance promote` was interrupted, run it again to finish it"
RETURN_HINT = (
    "if you promoted another instance, this folder does not act any more: move it aside (`mv ada ada.old`), run "
    "`holdfast instance invite NAME FILE` on the host that acts and `holdfast instance join FILE` here, with the new "
    "vault, then add the lines that only the old memory files have. If you rotated the keys on another host, copy its "
    "vault here and run `holdfast identity show --fetch`. If neither, a thief may have the keys: run "
    "`holdfast identity evict --paper`"
)


class StandbyMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Written when the folder joins; again, with the position of the key log, when it is being promoted."""

    format: int = FORMAT
    primary: str = ""  # the name of the instance that acts, for people
    promoting: tuple[int, int] | None = None  # new keys above this position evict the old primary
    since_ms: int = 0  # these three: since when; the [identity] settings of this host, and its name in the roster
    identity: dict[str, Any] = {}  # Any: as the settings file has it
    name: str = ""
    replaced: bool = False  # the promotion found that the agent has other keys now

    def beaten(self, folder: Path) -> str:
        return (
            f"the standby in {folder} cannot take over: another instance was promoted, or the agent was recovered "
            "elsewhere, and acts there with new keys"
        )


def find_standby(instance: Path) -> StandbyMark | None:
    """Raises IsStandby for a mark that cannot be read: that is the careful side."""
    path = instance / STANDBY
    try:
        mark = decode_json(read_private(path, FILE_BYTES_MAX), StandbyMark)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise IsStandby(f"Holdfast cannot read {path}: {error}") from None
    if mark.format != FORMAT:
        raise IsStandby(f"{path} has a format that this Holdfast does not know")
    return mark


def write_standby(instance: Path, mark: StandbyMark) -> None:
    """Durable on return."""
    write_atomically(instance / STANDBY, msgspec.json.encode(mark) + b"\n")


def remove_standby(instance: Path) -> None:
    remove_durably(instance / STANDBY)


class MovedMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: int = FORMAT
    state: str
    package: str  # where it is, or will be
    to: str = ""  # the key of the instance that takes over
    instance: str = ""  # its name, where it is an enrolled standby
    part_sha256: str = ""  # of the package, once it is written
    incarnation: int = 0
    sequence: int = 0  # the last record of the journal
    at: int = 0
    yielded: str = ""  # the line that gives the lease away; sent as often as needed


def find_mark(instance: Path) -> MovedMark | None:
    """Raises MovedAway for a mark that cannot be read: that is the careful side."""
    try:
        return parse_mark(read_private(instance / NAME, FILE_BYTES_MAX), where=instance / NAME)
    except FileNotFoundError:
        return None


def has_handed_over(instance: Path) -> bool:
    """Whether this folder waits as a standby since it gave the agent to an enrolled one. Raises MovedAway."""
    mark = find_mark(instance)
    return mark is not None and mark.state == MOVED and bool(mark.instance)


def parse_mark(raw: bytes, *, where: Path) -> MovedMark:
    """Raises MovedAway."""
    try:
        mark = decode_json(raw, MovedMark)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MovedAway(f"Holdfast cannot read {where}: {error}") from None
    if mark.format != FORMAT or mark.state not in (MOVING, MOVED):
        raise MovedAway(f"{where} has a format or state that this Holdfast does not know")
    return mark


def write_mark(instance: Path, mark: MovedMark) -> None:
    """Durable on return."""
    write_atomically(instance / NAME, msgspec.json.encode(mark) + b"\n")


def remove_mark(instance: Path) -> None:
    remove_durably(instance / NAME)


@asynccontextmanager
async def stopped_when_moved(
    instance: Path, stop: Callable[[], None], log: Log, *, look_s: float = LOOK_S
) -> AsyncGenerator[None]:
    """While the block runs, a mark that appears stops the work as SIGTERM would: calls under way end, tasks go back to
    the queue. Then this raises MovedAway: a new start would change nothing."""

    async def watch() -> None:
        while not any(os.path.lexists(instance / one) for one in (NAME, STANDBY)):  # noqa: ASYNC110 - a file is no sign
            await asyncio.sleep(look_s)
        log.event("stopping", reason="the agent is moved to another host, or this folder is a standby")
        stop()

    async with running_beside(watch()):
        yield
    check_not_moved(instance)


def check_not_moved(instance: Path) -> None:
    """Raises MovedAway, IsStandby or KeysReplaced where this copy of the agent may not run."""
    standby = find_standby(instance) if os.path.lexists(instance / STANDBY) else None
    if standby is not None and standby.replaced:
        raise KeysReplaced(standby.beaten(instance.parent), hint=RETURN_HINT)
    if standby is not None and standby.promoting:
        raise IsStandby(f"the agent in {instance.parent} is being promoted", hint=PROMOTING_HINT)
    if standby is not None:
        acts = f": {standby.primary} acts" if standby.primary else ""
        raise IsStandby(f"the folder {instance.parent} is a standby of its agent{acts}")
    mark = find_mark(instance) if os.path.lexists(instance / NAME) else None
    if mark is None:
        return
    if mark.instance and mark.state == MOVING:
        raise MovedAway(
            f"the instance in {instance.parent} is handing over to {mark.instance}",
            hint=f"run `holdfast instance yield {mark.instance} {mark.package}` to finish it, or `holdfast migrate "
            "cancel` to stop it",
        )
    if mark.instance:
        raise MovedAway(
            f"the instance in {instance.parent} has handed over to {mark.instance}; the package is {mark.package}",
            hint=f"run `holdfast instance promote {mark.package}` on the host of {mark.instance}, if that was not done "
            "yet, and a worker here, which waits as a standby; `holdfast migrate cancel` is only for a package that "
            "nobody has taken",
        )
    if mark.state == MOVING:
        raise MovedAway(
            f"the agent in {instance.parent} is being moved to another host",
            hint="run `holdfast migrate export` to continue the move, or `holdfast migrate cancel` to stop it",
        )
    raise MovedAway(
        f"the agent in {instance.parent} was moved to another host; its package is {mark.package}",
        hint="run `holdfast migrate import` there; if no host imported it, run `holdfast migrate cancel` here",
    )
