"""A run to several places at once: each its own job, its own time, its own result.

No place waits for another and none stops another: what one raises is recorded as its result and
given back beside the others'. Only a cancel of the whole run ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from holdfast.backup.places import place_state
from holdfast.backup.places.place_errors import place_error
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.place_states import PlaceStates
from holdfast.backup.places.places import Place, check_there
from holdfast.errors import BackupInterrupted, HoldfastError

JOB_S_MAX = 8 * 3600.0  # a first backup over a slow line; above what one run of Borg may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job reached: the snapshot it made, and whether it was restored for a test."""

    snapshot: str = ""
    verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    place: str
    done: Done | None = None
    error: HoldfastError | None = None


Job = Callable[[Place], Awaitable[Done]]
NowMs = Callable[[], int]


async def run_jobs(
    places: Sequence[Place], job: Job, *, states: PlaceStates, now_ms: NowMs, timeout_s: float = JOB_S_MAX
) -> tuple[Outcome, ...]:
    """Do the job for every place at once and record what became of each, in the given order.

    The sentinel of a place is looked at first. Never raises for what happens at a place.
    """
    return tuple(await asyncio.gather(*(_one(place, job, states, now_ms, timeout_s) for place in places)))


async def _one(place: Place, job: Job, states: PlaceStates, now_ms: NowMs, timeout_s: float) -> Outcome:
    try:
        done = await _timed(place, job, timeout_s)
    except HoldfastError as error:
        code, message = error.code, error.message
        states.change(place.name, lambda state: place_state.tried(state, now_ms=now_ms(), result=code, message=message))
        return Outcome(place=place.name, error=error)
    states.change(place.name, lambda state: _after(state, done, now_ms()))
    return Outcome(place=place.name, done=done)


async def _timed(place: Place, job: Job, timeout_s: float) -> Done:
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.to_thread(check_there, place)  # a dead network mount may hang
            return await job(place)
    except TimeoutError:
        raise BackupInterrupted(f"place {place.name}: not done after {timeout_s:g} s") from None
    except OSError as error:
        raise place_error(error, place.name) from error


def _after(state: PlaceState, done: Done, now_ms: int) -> PlaceState:
    state = place_state.tried(state, now_ms=now_ms)
    if done.snapshot:
        state = place_state.made(state, now_ms=now_ms, snapshot=done.snapshot)
    if done.verified:
        state = place_state.verified(state, now_ms=now_ms, snapshot=done.snapshot)
    return state
