"""What became of the last runs to a place: three times that mean different things.

When a backup was last tried, when one was last made, and when one was last restored for a test
and compared. Only the third counts as a backup.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

OK = "ok"
SNAPSHOTS_MAX = 5_000  # far above what the rules keep


class PlaceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one place. Times are milliseconds since 1970; 0: never."""

    tried_ms: int = 0
    result: str = ""  # "ok", or the code of the error
    message: str = ""
    failures: int = 0  # in a row
    made_ms: int = 0
    made: str = ""  # the newest snapshot that was made
    snapshots: tuple[str, ...] = ()  # all that were made here and not removed by us, oldest first
    verified_ms: int = 0
    verified: str = ""  # the newest snapshot that was restored for a test
    told: str = ""  # the trouble that a person was told of last; "" when all is well
    beside: str = ""  # digest of the files that lie beside the repository


def tried(state: PlaceState, *, now_ms: int, result: str = OK, message: str = "") -> PlaceState:
    """After a run, whatever became of it."""
    failures = 0 if result == OK else state.failures + 1
    return msgspec.structs.replace(
        state, tried_ms=now_ms, result=result, message=message, failures=failures
    )


def made(state: PlaceState, *, now_ms: int, snapshot: str) -> PlaceState:
    kept = (*(one for one in state.snapshots if one != snapshot), snapshot)[-SNAPSHOTS_MAX:]
    return msgspec.structs.replace(state, made_ms=now_ms, made=snapshot, snapshots=kept)


def removed(state: PlaceState, snapshots: Collection[str]) -> PlaceState:
    """Before snapshots are removed: what a kill leaves in the place is then only not asked for."""
    kept = tuple(one for one in state.snapshots if one not in snapshots)
    return msgspec.structs.replace(state, snapshots=kept)


def verified(state: PlaceState, *, now_ms: int, snapshot: str) -> PlaceState:
    """After a test restore that was compared with the signed manifest."""
    return msgspec.structs.replace(state, verified_ms=now_ms, verified=snapshot)
