"""Where the demo plays: a private folder that is gone afterwards, or one that was asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BadInput


@contextmanager
def playing(asked: str | None, *, kept: bool) -> Generator[Path]:
    """A folder for the journal and the ledgers, 0700."""
    if asked is not None:
        yield _new_folder(Path(os.path.abspath(asked)))
    elif kept:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
            yield Path(name)


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty", hint="name a new or an empty folder")
    except OSError as error:
        raise BadInput(f"{folder} cannot be used: {error.strerror}") from error
    return folder
