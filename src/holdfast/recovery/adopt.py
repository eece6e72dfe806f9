"""`holdfast adopt`: an agent that was there before gets an identity, backups, a hand-off, recovery.

True at all times: no file, link or folder that was there is moved, renamed, written, or given
another mode. Everything that Holdfast makes lies in one new folder inside, `.holdfast`, which is
0700; so no name can meet one of the agent's own (its HEARTBEAT.md, its identity.json), and the
mode of the agent's folder itself may stay as it is. A folder that every user may write to is
refused: anyone who can rename `.holdfast` can put another one in its place.

What is made, in this order, and what a kill between two lines leaves:

    .holdfast               an empty folder of ours
    holdfast.toml           the agent's name, and that it was adopted: commands find it
    the identity            by the very code of `holdfast init`, with its own order (make_agent.py)
    handoff.md              the first hand-off, from the agent's own files

The same command finishes what was cut short. To undo an adoption, remove `.holdfast` and the
vault: nothing else was changed.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import AgentExists, BadInput, BadSettings, NotAnAgent, WrongKind, WrongOwner
from holdfast.host.private_files import check_place, check_private_folder, ensure_private_folder, write_atomically
from holdfast.identity.acts.make_agent import check_name
from holdfast.layout.agent_home import ADOPTED, AgentHome, load_home
from holdfast.layout.covered import CoveredKind, FolderEntry, Reason, look
from holdfast.layout.covering import CoveringRules, Part, known_parts
from holdfast.layout.settings import NAME

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_-]+")
_FOLDER_LINE = re.compile(r"^\[adopted\]\n", re.MULTILINE)
SETTINGS = 'agent = "{name}"\n\n[adopted]\nfolder = ".."\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSurvey:
    """What lies in a folder, and what Holdfast would cover of it. Nothing was changed."""

    folder: Path
    name: str
    adopted: bool  # an adoption was begun, or is whole
    seal_secrets: bool
    mode: int
    parts: tuple[Part, ...]
    files: int
    folders: int
    links: int
    bytes: int
    databases: tuple[FolderEntry, ...]
    left_out: tuple[FolderEntry, ...]
    remarks: tuple[FolderEntry, ...]  # covered, with something to know

    @property
    def home(self) -> Path:
        return self.folder / ADOPTED

    @property
    def secrets(self) -> tuple[FolderEntry, ...]:
        return tuple(one for one in self.left_out if one.left_out and one.left_out.reason is Reason.SECRET)


def survey_folder(folder: Path, *, name: str = "", seal_secrets: bool = False) -> FolderSurvey:
    """Look at the folder of an agent. Changes nothing.
    Raises NotAnAgent: there is no such folder; AgentExists: it is an agent of Holdfast itself; OpenParent, WrongOwner,
    SymlinkRefused, NetworkFileSystem: it cannot be adopted as it is; TooLarge: it holds more files than a backup
    takes."""
    mode = _check_folder(folder)
    home = folder / ADOPTED
    adopted = _check_home(home)
    before = load_home(home) if adopted else None
    known = "" if before is None else before.name
    if name and known and name != known:
        raise AgentExists(f"{folder} was already adopted as {known!r}", hint="leave --name out")
    seal_secrets = seal_secrets or (before is not None and before.settings.adopted.seal_secrets)
    rules = CoveringRules(own=ADOPTED, seal=seal_secrets)
    entries = [one for one in look(folder, rules) if one.path.partition("/")[0] != ADOPTED]
    covered = [one for one in entries if one.kind is not None]
    return FolderSurvey(
        folder=folder,
        name=check_name(name or known or _name_of(folder)),
        adopted=adopted,
        seal_secrets=seal_secrets,
        mode=mode,
        parts=tuple(known_parts((one.path, one.kind is CoveredKind.FOLDER) for one in covered)),
        files=_count(covered, CoveredKind.FILE),
        folders=_count(covered, CoveredKind.FOLDER),
        links=_count(covered, CoveredKind.LINK),
        bytes=sum(one.size for one in covered),
        databases=tuple(one for one in covered if one.kind is CoveredKind.DATABASE),
        left_out=tuple(one for one in entries if one.kind is None),
        remarks=tuple(one for one in covered if one.remark),
    )


def prepare(found: FolderSurvey, *, seal_secrets: bool = False) -> AgentHome:
    """Make Holdfast's folder inside, with its settings. Safe to repeat."""
    ensure_private_folder(found.home)
    path = found.home / NAME
    if not os.path.lexists(path):
        write_atomically(path, SETTINGS.format(name=found.name).encode())
    home = load_home(found.home)
    if not seal_secrets or home.settings.adopted.seal_secrets:
        return home
    text, changed = _FOLDER_LINE.subn(r"\g<0>seal_secrets = true\n", path.read_text(), count=1)
    if not changed or "seal_secrets" in path.read_text():
        raise BadSettings(f"Holdfast cannot change {path}", hint="write `seal_secrets = true` under [adopted] in it")
    write_atomically(path, text.encode())
    return load_home(found.home)


def check_apart(folder: Path, places: tuple[Path, ...]) -> None:
    """Refuse a vault, second place or witness inside of the agent's folder. Raises BadInput."""
    for place in places:
        if place == folder or folder in place.parents:
            raise BadInput(
                f"{place} is in the agent's folder {folder}", hint="keep keys outside the folder that they protect"
            )


def _check_folder(folder: Path) -> int:
    try:
        status = folder.stat()
    except FileNotFoundError:
        raise NotAnAgent(f"there is no folder {folder}", hint="give the path of the agent's folder") from None
    if not stat.S_ISDIR(status.st_mode):
        raise WrongKind(f"{folder} is not a folder")
    check_place(folder)
    if status.st_uid != os.geteuid():
        raise WrongOwner(
            f"{folder} belongs to user {status.st_uid}, but Holdfast runs as user {os.geteuid()}",
            hint="run the command as the user who owns the agent",
        )
    if os.path.lexists(folder / NAME):
        raise AgentExists(
            f"{folder} is already a Holdfast agent: it has {NAME}",
            hint="run `holdfast init NAME --home FOLDER` to give it an identity",
        )
    return stat.S_IMODE(status.st_mode)


def _check_home(home: Path) -> bool:
    """Whether an adoption was begun here; what else has that name is not ours to use."""
    if not os.path.lexists(home):
        return False
    check_private_folder(home)
    if os.path.lexists(home / NAME):
        return True
    if any(home.iterdir()):
        raise AgentExists(f"{home} already exists, and Holdfast did not make it", hint="move or rename it")
    return False


def _name_of(folder: Path) -> str:
    return _NOT_IN_A_NAME.sub("-", folder.name.lower()).strip("-_")[:64] or "agent"


def _count(entries: list[FolderEntry], kind: CoveredKind) -> int:
    return sum(one.kind is kind for one in entries)
