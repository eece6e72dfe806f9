"""The installed version of Holdfast."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # it is part of every request to a relay, and is read from the disk
def find_version() -> str:
    """`unknown` where Holdfast runs without having been installed."""
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
