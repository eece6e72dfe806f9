"""A listing against the record of what a place must hold, and a folder against its own backups.

Every run that lists a place compares: what was made or seen there and was not removed by us must
be in the listing (place_state.py). The comparison is recorded before anything is made or removed
there, and what is gone stays recorded until a person says that it may be (`backup prune
--accept-missing`), so a backup that goes well afterwards does not cover it up.

The agent's own file of heads gets every head before any place does. So heads at the places that
are newer than its last one mean that this folder is not the newest state: an older copy was put
back, or the file was cut. The backup goes on, because it takes nothing away: the snapshots since
stay where they are, and pruning spares them for SPARE_DAYS, so that a person can fetch from them.
The order then: spared, the warning recorded, and last the heads taken over into the folder; a kill
before the last leaves the next run to find the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.backup.chain.chain import Chain, valid_heads
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places import place_state
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.place_states import PlaceStates
from holdfast.errors import HoldfastError, SnapshotsMissing
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head

SPARE_DAYS = 30
DAY_MS = 86_400_000
OLDER_HINT = (
    "`holdfast recover --keep-keys --place ADDRESS --to FOLDER` puts the files of the newest "
    "snapshot into another folder; --file PATH takes single files, --at TIME those of another moment"
)


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the agent's folder that a person must know."""

    code: str
    message: str
    hint: str


def record_listing(
    states: PlaceStates, place: str, *, listed: Collection[str], named: Sequence[str], before: Mapping[str, PlaceState]
) -> PlaceState:
    """Compare and record. `before`: the states as they were when the listing was asked for."""
    held = frozenset(before.get(place, PlaceState()).snapshots)

    def change(state: PlaceState) -> PlaceState:
        return place_state.seen(state, listed=listed, named=named, before=held)

    state = states.of(place)
    after = change(state)
    if after == state:
        return state
    with contextlib.suppress(OSError, HoldfastError):  # a look needs no place to write
        return states.change(place, change)
    return after


def find_missing(place: str, state: PlaceState) -> SnapshotsMissing | None:
    if not state.missing:
        return None
    return SnapshotsMissing(f"place {place}: {place_state.missing_text(state)}")


def own_heads(places: BackupPlaces) -> list[Signed[Head]]:
    """The valid heads in the agent's folder, as they lie there."""
    port = Sodium()
    log = find_own_log(places.home.folder, port)
    held = HeadFile(places.home.heads_file).read()
    return [] if log is None else valid_heads(held.heads, log, port=port)[0]


def find_older(own: Sequence[Signed[Head]], chain: Chain) -> Warned | None:
    """What is to say where the folder knows less than others do of its backups."""
    newest = chain.newest
    last = max((one.record for one in own), key=lambda one: one.rank, default=None)
    if newest is None or (last is not None and last.rank >= newest.record.rank):
        return None
    known = (
        "this folder has no record of a snapshot"
        if last is None
        else (f"the heads in this folder end at snapshot {last.seq}")
    )
    return Warned(
        code="older-folder",
        message=f"{known}, but its places have the head of snapshot {newest.record.seq}: either an older copy of "
        "the folder was put back, or its heads.jsonl was cut, or another copy of the agent makes backups too. "
        "The newer snapshots may have work that this folder does not have; "
        f"Holdfast does not prune them for {SPARE_DAYS} days",
        hint=OLDER_HINT,
    )


def take_over(places: BackupPlaces, chain: Chain, older: Warned | None, *, now_ms: int) -> None:
    """Spare what the folder did not know, keep the warning, and take the heads over."""
    known = {one.digest for one in own_heads(places)}
    lacking = [one for one in chain.heads if one.digest not in known]
    if not lacking:
        return
    if older is not None:
        archives = [one.record.archive for one in lacking]
        until = now_ms + SPARE_DAYS * DAY_MS
        for place in places.read():
            places.states.change(place.name, lambda state: place_state.spare(state, archives, until_ms=until))
        places.states.warn(older.message)
    HeadFile(places.home.heads_file).append_missing(lacking)
