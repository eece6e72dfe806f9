"""The agents that one worker process serves: the file that lists their folders, and the mark of one that it left out.

The file has one folder on each line. Empty lines and lines that begin with `#` do not count. A path may begin with `~`;
a relative one is counted from the folder of the file. Whoever can change the file decides which settings, and so which
programs, are run: it is read under the rules for settings.

`instance/left-out.json` says why a worker has left an agent out: for `holdfast doctor`. It is removed when a worker
serves the agent again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, BadSettings, HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.layout.agent_home import home_in
from holdfast.layout.settings import NAME, read_checked

AGENTS_MAX = 1_000  # each has a lease that is renewed every few seconds
PATH_CHARS_MAX = 4_000
LEFT_OUT = "left-out.json"
FILE_BYTES_MAX = 16 * 1024


def read_fleet(path: Path) -> list[str]:
    """The folders that the file lists. Raises BadSettings, which names the line; ModeTooWide, WrongOwner."""
    try:
        lines = read_checked(path, what="fleet file").decode().splitlines()
    except UnicodeDecodeError:
        raise BadSettings(f"{path} is not UTF-8 text", hint="write one agent's folder on each line") from None
    base = Path(os.path.abspath(path)).parent
    homes: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if len(text) > PATH_CHARS_MAX or not text.isprintable():
            raise BadSettings(f"{path}, line {number}: not a path", hint="write one agent's folder on each line")
        try:
            home = os.path.abspath(base / Path(text).expanduser())
        except RuntimeError:
            raise BadSettings(
                f"{path}, line {number}: {text} names a user without a home folder", hint="write the whole path"
            ) from None
        if home in homes:
            raise BadSettings(f"{path}, line {number}: {home} is on line {homes[home]} already", hint="remove one")
        if os.path.isfile(home):
            raise BadSettings(f"{path}, line {number}: {home} is a file", hint="write the agent's folder")
        homes[home] = number
    if not homes:
        raise BadSettings(f"{path} lists no agent", hint="write one agent's folder on each line")
    return list(homes)


def fleet_folders(given: Sequence[str]) -> list[str]:
    """The folders of these agents, once each. Raises BadInput."""
    folders = [str(home_in(Path(os.path.abspath(one)))) for one in given]
    twice = next((one for one in folders if folders.count(one) > 1), None)
    if twice is not None:
        raise BadInput(f"the agent in {twice} is named twice", hint="name each agent once")
    if len(folders) > AGENTS_MAX:
        raise BadInput(
            f"{len(folders):,} agents are too many for one worker: at most {AGENTS_MAX:,}",
            hint="start several workers, each with a part of the agents",
        )
    return folders


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Why a worker that serves many agents does not serve this one."""

    at_ms: int
    code: str
    error: str
    hint: str = ""


def note_left_out(instance: Path, why: LeftOut) -> None:
    """In an agent's folder, as far as that can be written: the log has it in any case."""
    with suppress(HoldfastError, OSError):
        if not os.path.lexists(instance.parent / NAME):
            return
        ensure_private_folder(instance)
        write_atomically(instance / LEFT_OUT, msgspec.json.encode(why) + b"\n")


def forget_left_out(instance: Path) -> None:
    with suppress(OSError):
        (instance / LEFT_OUT).unlink(missing_ok=True)


def find_left_out(instance: Path) -> LeftOut | None:
    try:
        return decode_json(read_private(instance / LEFT_OUT, FILE_BYTES_MAX), LeftOut)
    except (FileNotFoundError, HoldfastError, OSError, msgspec.DecodeError, UnicodeError):
        return None
