"""Suites and kits that test Holdfast, and what is built on it. Each public name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.crash import CrashReport, Trial, crash_everywhere, crash_everywhere_async

__all__ = ["CrashReport", "Trial", "crash_everywhere", "crash_everywhere_async"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    from holdfast.testing import crash

    return getattr(crash, name)
