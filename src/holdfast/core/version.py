"""The installed version of Holdfast."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def find_version() -> str:
    """`unknown` where Holdfast runs without having been installed."""
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
