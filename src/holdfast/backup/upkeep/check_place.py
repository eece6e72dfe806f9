"""`holdfast place check`: a place as it is, against what it should hold.

Compares the listing with the record (record.py), and the companion files with what a bare machine
needs. Changes nothing there: the next backup or test restore writes the companion files again
without a word; this command reports them.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.backup.chain.heads import HEADS, parse_copy
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.places import ABOUT, Place
from holdfast.backup.record import find_missing, own_heads, record_listing
from holdfast.errors import BackupDamaged, HoldfastError
from holdfast.identity.files.own_log import LOG
from holdfast.identity.vault.ring import ESCROW

NEEDED = (ABOUT, f"{ESCROW}.age", HEADS, LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    snapshots: tuple[str, ...]
    missing: tuple[str, ...]  # that it held, and that we did not remove
    companions: tuple[str, ...]  # what is wrong with the companion files
    error: HoldfastError | None  # of these, the worst


async def check_place(places: BackupPlaces, name: str, *, deep: bool = False) -> Checked:
    """Raises what keeps the place from being looked at; all else is in the answer."""
    before = places.states.read()
    listing = await places.check(name, deep=deep)
    listed = tuple(one.name for one in listing.archives)
    named = [one.record.archive for one in own_heads(places)]
    state = record_listing(places.states, name, listed=listed, named=named, before=before)
    companions = await _companion_faults(places, places.get(name))
    error: HoldfastError | None = find_missing(name, state)
    if error is None and companions:
        error = BackupDamaged(
            f"place {name}: companion files that a bare machine needs are missing or damaged: " + "; ".join(companions),
            hint=f"`holdfast backup verify {name}` writes them again; find out who removed them",
        )
    return Checked(snapshots=listed, missing=state.missing, companions=companions, error=error)


async def _companion_faults(places: BackupPlaces, place: Place) -> tuple[str, ...]:
    wanted = places.companions_of(place)
    try:
        there = await read_companions(places.engine, place)
    except HoldfastError as error:
        return (error.message,)
    found: list[str] = []
    for name in NEEDED:
        if name not in wanted:
            continue
        if name not in there:
            found.append(f"{name} is missing")
        elif name == HEADS:
            found += parse_copy(there[name]).findings
        elif not _is_right(name, there[name], wanted[name]):
            found.append(f"{name} differs from what it should be")
    return tuple(found)


def _is_right(name: str, there: bytes, wanted: bytes) -> bool:
    if name != LOG:
        return there == wanted
    # Whole lines; a place that was away has fewer, one that another machine wrote to has more.
    return there.endswith(b"\n") and (there.startswith(wanted) or wanted.startswith(there))
