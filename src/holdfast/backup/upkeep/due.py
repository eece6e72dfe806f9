"""Which places are due, and what a person should know: over states and a clock, nothing else.

A place that failed is tried again after five minutes, then ten, twenty, up to the usual interval:
a laptop that comes back, a disk that is plugged in, catches up soon and is never hammered.
A place that is only away (not mounted, not reachable, locked) raises no alarm by itself: an absent
removable disk is its normal state. What raises one is the absence of a verified backup for longer
than `stale_after`. Trouble that waiting does not fix is reported at once. Each change is reported
once. A time in the future was written by a wrong clock: it proves nothing and is reported at once, so
that a clock that once ran ahead cannot silence the alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.backup.places.place_state import MISSING, PlaceState, missing_text
from holdfast.errors import SnapshotsMissing

RETRY_FIRST_MS = 5 * 60_000
STALE = "stale"
AWAY = frozenset(("place-missing", "place-unreachable", "repository-locked", "backup-interrupted"))
DOUBLINGS_MAX = 20  # beyond any interval
SKEW_MS = 10 * 60_000  # of a clock that is set by the network


@dataclass(frozen=True, slots=True)
class PlaceTrouble:
    """Something to tell: `kind` is STALE or the code of an error; empty means all is well again."""

    place: str
    kind: str
    text: str
    hint: str = ""


def next_try_ms(state: PlaceState, *, every_ms: int) -> int:
    """When the place is tried next; in the past where it never was."""
    if not state.tried_ms:
        return 0
    if not state.failures:
        return state.tried_ms + every_ms
    wait = RETRY_FIRST_MS * 2 ** min(state.failures - 1, DOUBLINGS_MAX)
    return state.tried_ms + min(wait, every_ms)


def due(places: Sequence[str], states: Mapping[str, PlaceState], *, now_ms: int, every_ms: int) -> tuple[str, ...]:
    """The places to back up to now. A clock that was set back makes everything due."""
    found: list[str] = []
    for place in places:
        state = states.get(place, PlaceState())
        if next_try_ms(state, every_ms=every_ms) <= now_ms or state.tried_ms > now_ms:
            found.append(place)
    return tuple(found)


def find_trouble(
    place: str, state: PlaceState, *, added_ms: int, now_ms: int, stale_after_ms: int
) -> PlaceTrouble | None:
    """What is wrong with the place now, the worst first; None where nothing is."""
    if state.failures > 0 and state.result not in AWAY:
        failed = f"backup to {place} failed: {state.message}"
        return PlaceTrouble(place, state.result, failed, f"`holdfast place check {place}`")
    if state.missing:
        return PlaceTrouble(place, MISSING, f"place {place}: {missing_text(state)}", SnapshotsMissing.default_hint)
    since_ms = state.verified_ms or added_ms
    if is_ahead(since_ms, now_ms=now_ms):
        return PlaceTrouble(
            place,
            STALE,
            f"place {place}: its last verified backup is dated {_hours(since_ms - now_ms)} "
            "in the future: the clock was changed, so the age of the backup is unknown",
            "correct the clock, then run `holdfast backup now`",
        )
    if now_ms - since_ms <= stale_after_ms:
        return None
    old, why = _hours(now_ms - since_ms), f" ({state.message})" if state.failures else ""
    never = f"there is no verified backup yet, {old} after it was added"
    text = f"place {place}: {f'the last verified backup is {old} old' if state.verified_ms else never}{why}"
    hint = f"run `holdfast place check {place}` to see the cause, and `holdfast backup now` to try again"
    return PlaceTrouble(place, STALE, text, hint)


def is_ahead(at_ms: int, *, now_ms: int) -> bool:
    """Whether this time has not come yet."""
    return at_ms > now_ms + SKEW_MS


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:,.0f} h"


def unreported(state: PlaceState, trouble: PlaceTrouble | None, *, place: str) -> PlaceTrouble | None:
    """What a person does not know yet: a new trouble, or that the last one is over."""
    now = trouble or PlaceTrouble(place, "", f"place {place}: backups work again")
    return None if now.kind == state.notified else now
