"""Builds: tasks that finish on the build of the app that began them (`on_change="pin"`). Values in, values out.

A task that is pinned to a build has the build in its stored name, behind a character that no name has. So it is claimed
by its name, as all tasks are: by sessions that ask for this very build and by no others, those of older versions of
Holdfast included; and a journal needs no column, no index and no migration for it. The claim that pins a task, or hands
it to another build, says so in its record, which the full check compares.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

MARK = "\x1f"  # names of tasks are printable


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """Which build of an app a session is. Tasks whose names are in `pins` finish on the build that began them."""

    name: str = ""  # empty: of no build
    pins: frozenset[str] = frozenset()
    takes_over: frozenset[str] = frozenset()  # builds that are gone: it finishes their tasks too
    drains: bool = False  # it begins no task

    @property
    def served(self) -> frozenset[str]:
        return (self.takes_over | {self.name}) - {""}


NO_BUILD = Build()


def pinned_name(name: str, build: str) -> str:
    """The stored name of a task of this build; where that is empty, of one that every session may claim."""
    return f"{name}{MARK}{build}" if build else name


def name_and_build(stored: str) -> tuple[str, str]:
    name, _, build = stored.partition(MARK)
    return name, build


def names_claimed(names: Collection[str], build: Build) -> list[str]:
    """The stored names that a session of this build claims, of the tasks with these names."""
    pinned = (pinned_name(name, one) for name in names for one in build.served)
    return sorted([*(() if build.drains else names), *pinned])


def build_when_claimed(name: str, build: Build) -> str:
    """The build that a task of this name is pinned to, once a session of this build has claimed it."""
    return build.name if name in build.pins else ""
