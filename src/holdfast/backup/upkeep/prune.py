"""Removing old snapshots, place by place, after looking whether all that must exist does.

The order at a place: the listing is compared with the heads (retention.py), what is to go is
first taken off the list of what must exist, then deleted, then the space is freed. A kill in
between leaves snapshots that are removed by the next run, never a false alarm.

At an append-only place the same is asked for and means less: the far end hides the snapshots and
keeps their data, until an administrator of that host compacts the repository.

`check_place` compares the listing with the record (record.py), and the companion files with what a bare
machine needs. It changes nothing there: the next backup or test restore writes the companion files again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.backup.chain.chain import valid_heads
from holdfast.backup.chain.heads import HEADS, HeadFile, parse_copy
from holdfast.backup.places import place_state
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.places import ABOUT, Place, check_there, place_error
from holdfast.backup.record import find_missing, own_heads, record_listing
from holdfast.backup.upkeep.retention import Named, PrunePlan, RetentionRules, check_plan, plan
from holdfast.errors import BackupDamaged, HoldfastError, PruneRefused
from holdfast.identity.files.own_log import LOG, read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.rescue import RESCUE
from holdfast.identity.vault.ring import ESCROW
from holdfast.layout.moved import check_not_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    place: Place
    plan: PrunePlan | None = None
    error: HoldfastError | None = None


async def prune(
    places: BackupPlaces,
    *,
    names: Sequence[str] = (),
    dry_run: bool = False,
    accept_missing: bool = False,
    now: datetime | None = None,
) -> tuple[Pruned, ...]:
    """Prune every place, or these. What goes wrong at one is in its answer and stops no other. Raises MovedAway."""
    check_not_moved(places.home.instance)
    heads = read_named(places)

    async def one(place: Place) -> Pruned:
        try:
            decided = await _prune_one(
                places, place, heads, dry_run=dry_run, accept_missing=accept_missing, now=now or datetime.now(UTC)
            )
        except (HoldfastError, OSError) as error:
            return Pruned(place=place, error=place_error(error, place.name))
        return Pruned(place=place, plan=decided)

    wanted = [place for place in places.read() if not names or place.name in names]
    return tuple(await asyncio.gather(*map(one, wanted)))


def read_named(places: BackupPlaces) -> tuple[Named, ...]:
    """The snapshots that valid heads of this agent name."""
    port = Sodium()
    held = HeadFile(places.home.heads_file).read()
    log = read_own_log(places.home.folder, port)
    good, _ = valid_heads(held.heads, log, port=port)
    return tuple(
        Named(archive=one.record.archive, order=one.record.rank, at=datetime.fromtimestamp(one.record.at, UTC))
        for one in good
    )


async def _prune_one(
    places: BackupPlaces, place: Place, heads: Sequence[Named], *, dry_run: bool, accept_missing: bool, now: datetime
) -> PrunePlan:
    await asyncio.to_thread(check_there, place)  # a dead network mount may hang
    repository = places.repository(place)
    before = places.states.read()
    listing = await places.engine.list_archives(repository)
    named = [one.archive for one in sorted(heads, key=lambda one: one.order)]
    state = record_listing(
        places.states, place.name, listed={one.name for one in listing.archives}, named=named, before=before
    )
    spared = state.spared if now.timestamp() * 1000 < state.spared_until_ms else ()
    settings = places.home.settings.backup
    decided = plan(
        heads,
        [one.name for one in listing.archives],
        made_here=state.snapshots,
        verified=state.verified,
        now=now,
        spared=spared,
        rules=RetentionRules(
            hourly=settings.hourly, daily=settings.daily, weekly=settings.weekly, monthly=settings.monthly
        ),
    )
    check_plan(decided, place=place.name, accept_missing=accept_missing)
    if decided.missing and not dry_run:  # a person accepts that they are gone
        places.states.change(place.name, lambda state: place_state.removed(state, decided.missing))
    if not state.verified:
        raise PruneRefused(
            f"place {place.name}: this machine has not verified any snapshot there yet",
            hint="run `holdfast backup verify` (it makes a test restore of the newest snapshot), then prune",
        )
    if decided.remove and not dry_run:
        places.states.change(place.name, lambda state: place_state.removed(state, decided.remove))
        await places.engine.delete(repository, decided.remove)
    if not dry_run and (decided.remove or not place.append_only):
        # Also where nothing goes: what a killed run or superseded lists left is freed, and the
        # place says so where it has no room even for that.
        await places.engine.compact(repository)
    return decided


NEEDED = (ABOUT, f"{ESCROW}.age", RESCUE, HEADS, LOG)


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
            f"place {name}: companion files are missing or damaged; a new machine needs them to recover the agent: "
            + "; ".join(companions),
            hint=f"run `holdfast backup verify {name}` to write them again, and find out who removed them",
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
