"""The journal's path from what a person typed. Loads nothing: a supervising parent uses it too."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import BadInput


def journal_path(text: str | os.PathLike[str]) -> Path:
    name = os.fspath(text)
    if name.startswith(("postgres://", "postgresql://")):
        raise BadInput(
            "this version of Holdfast has no PostgreSQL journal",
            hint="give the path of a journal file; it needs no server",
        )
    if not name or "\0" in name:
        raise BadInput(f"{name!r} is not a valid path")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput("the path is not valid text (a lone surrogate)") from None
    path = Path(os.path.abspath(name))
    if path.is_dir():
        path = path / "journal.db"
    return path
