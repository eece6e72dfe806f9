"""Which snapshot of which place is tried, in which order, and what a failure means for the next.

Newest first, and each in every place that holds it. Damage leads on: to the next place with the
same snapshot, to all of them together, then to the next older one. What may pass by itself does not lead to
an older one: a place that does not answer now may hold the newest state, and it is for a person to give that up.
Nor does a failure of our own disk: an older snapshot would fail too, or fit by being smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from holdfast.backup.chain.sources import Overview
from holdfast.backup.places.places import Place
from holdfast.errors import (
    DiskFailed,
    DiskFull,
    EngineMissing,
    HoldfastError,
    JournalFull,
    ReadOnly,
    RepositoryDamaged,
    RepositoryReplaced,
    Retryable,
    SnapshotNotFound,
)
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head

_OURS = (DiskFull, DiskFailed, JournalFull, ReadOnly, EngineMissing)  # of this machine
TOLD_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which snapshot; the newest that there is, unless something is said."""

    at: int | None = None  # unix seconds: none that is newer
    archive: str = ""
    places: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # these alone, put below the target


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that should have been taken and could not be."""

    place: str
    archive: str
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCandidate:
    """One snapshot, and the places that hold it."""

    head: Signed[Head]
    places: tuple[Place, ...]


def candidates(found: Overview, wish: Wish) -> list[RestoreCandidate]:
    """Newest first. Raises SnapshotNotFound, which says why there is none."""
    made = [
        RestoreCandidate(head=head, places=places)
        for head in reversed(found.chain.heads)
        if (wish.at is None or head.record.at <= wish.at)
        and (not wish.archive or head.record.archive == wish.archive)
        and (
            places := tuple(
                one.place
                for one in found.places
                if head in one.held and (not wish.places or one.place.name in wish.places)
            )
        )
    ]
    if not made:
        raise none_to_restore(found, wish)
    return made


def none_to_restore(found: Overview, wish: Wish) -> SnapshotNotFound:
    held = [head for head in found.chain.heads if any(head in one.held for one in found.places)]
    if held and wish.at is not None and wish.at < held[0].record.at:
        oldest = held[0].record
        return SnapshotNotFound(
            f"no snapshot was made before {moment(wish.at)}: the oldest one is "
            f"number {oldest.seq} of {moment(oldest.at)}",
            hint=f"give --at {moment(oldest.at)} for that one, or leave out --at for the newest one",
        )
    troubles = [f"{one.place.name}: {one.error.message}" for one in found.places if one.error]
    if troubles:
        return SnapshotNotFound(
            f"Holdfast cannot restore a snapshot from any place ({'; '.join(troubles)})",
            hint=_exchanged(found)
            or _repair(found) + "fix the errors reported for these places, or name another one with --place",
        )
    return SnapshotNotFound(
        "no place has a snapshot that this agent signed",
        hint="give another place. To recover only the identity, run `holdfast identity recover`",
    )


def _exchanged(found: Overview) -> str:
    """What to do where a place has the repository of another one: by hand, after a copy between disks."""
    owners = {one.place.repository_id: one.place.name for one in found.places}
    wrong = [
        f"the repository of place {owners[one.error.found_id]} is at place {one.place.name}"
        for one in found.places
        if isinstance(one.error, RepositoryReplaced) and one.error.found_id in owners
    ]
    return f"{'; '.join(wrong)}: move the folder `repository` back to its own place" if wrong else ""


def _repair(found: Overview) -> str:
    if not any(isinstance(one.error, RepositoryDamaged) for one in found.places):
        return ""
    return "repair a copy of a damaged place, `holdfast explain restore-with-borg` shows how; or "


def moment(unix_s: int) -> str:
    """As `--at` takes it."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}"


class Failures:
    """What went wrong so far, and whether an older snapshot may be taken for it."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []
        self._first: HoldfastError | None = None
        self._may_pass: HoldfastError | None = None

    def add(self, head: Head, place: str, error: HoldfastError) -> None:
        """Raises the error where it is of this machine, and so of every place."""
        if isinstance(error, _OURS):
            raise error
        self._first = self._first or error
        if isinstance(error, Retryable):
            self._may_pass = error
        self.passed.append(Passed(place=place, archive=head.archive, error=error.code, message=error.message))

    def check_older(self, head: Head) -> None:
        """All places failed for this head. Raises where the next try may well succeed."""
        error = self._may_pass
        if error is not None:
            error.hint = (
                f"snapshot {head.seq} exists and could not be fetched now: run the command "
                f"again. To take an older one instead: --at {moment(head.at - 1)}"
            )
            raise error

    def last(self) -> HoldfastError:
        """Where nothing is left to try: the newest one's error, and that all others failed too."""
        first = self._first or SnapshotNotFound("no place has a snapshot that Holdfast can restore")
        if len(self.passed) > 1:
            shown = [f"{one.place}: {one.archive}: {one.message}" for one in self.passed[1:]]
            more = len(shown) - TOLD_MAX
            rest = "; ".join(shown[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")
            first = type(first)(f"{first.message}; these could not be used either: {rest}", hint=first.hint)
        return first
