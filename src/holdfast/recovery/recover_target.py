"""Where a recovered agent may be put.

A recovery gives the agent's folder the place of the folder that is there. So it takes the place of an
agent's folder, of this same agent, or of nothing: never of a person's home, never of a folder with other
files. Keys are kept outside of it, because every backup covers what is inside.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.backup.chain.heads import HEADS
from holdfast.errors import BadInput, HoldfastError
from holdfast.identity.files.own_log import LOG
from holdfast.identity.files.public_file import read_identity
from holdfast.layout.agent_home import ADOPTED, home_in
from holdfast.layout.settings import NAME

_OF_AN_AGENT = (
    NAME,
    LOG,
    HEADS,
    "places.json",
    "journal.db",
)  # one of them is there in what is left of an agent's folder


def is_agents(folder: Path) -> bool:
    """Whether this is the folder of an agent, or what is left of it."""
    return any(os.path.lexists(one / name) for one in (folder, folder / ADOPTED) for name in _OF_AN_AGENT)


def check_target(folder: Path, *, name: str) -> None:
    """The agent may take the place of this folder. Raises BadInput."""
    hint = f"give the agent a folder of its own, such as `--home ./{name or 'NAME'}`"
    real, home = Path(os.path.realpath(folder)), Path(os.path.realpath(os.path.expanduser("~")))
    if real == home or real in home.parents:
        what = "your home folder" if real == home else "a folder that contains your home folder"
        raise BadInput(f"{folder} is {what}: the agent's folder would take its place", hint=hint)
    if not is_agents(folder) and folder.is_dir() and any(folder.iterdir()):
        raise BadInput(
            f"{folder} has files that belong to no agent: the agent's folder would take its place", hint=hint
        )


def check_same_agent(folder: Path, id_: str, *, name: str) -> None:
    """The folder is not that of another agent. Raises BadInput."""
    try:
        there = read_identity(home_in(folder) / "identity.json").id
    except (HoldfastError, OSError):
        return  # nothing says that it is another's
    if there != id_:
        raise BadInput(
            f"{folder} is the folder of another agent ({there})",
            hint=f"give this agent a folder of its own, such as `--home ./{name or 'NAME'}`",
        )


def check_outside(folder: Path, keys: Sequence[Path]) -> None:
    """Vault, second place and witnesses are not in the agent's folder. Raises BadInput."""
    real = Path(os.path.realpath(folder))
    for one in keys:
        if real in (inner := Path(os.path.realpath(one)), *inner.parents):
            raise BadInput(
                f"{one} is in the agent's folder {folder}: every backup would contain the keys",
                hint="keep vault, second place and witnesses outside it: --vault DIR, --second DIR, --new-witness DIR",
            )
