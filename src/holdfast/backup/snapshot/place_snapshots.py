"""One snapshot at one place: made there, restored for a test, and what is recorded of it.

In this order (heads.py says why): make the archive; see it in the repository's listing; write the
heads into the companion files; restore it for a test and compare. A kill leaves either an archive
that no head names, or a whole snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.backup.chain.heads import HEADS, parse_lines
from holdfast.backup.engine import Amount, Created
from holdfast.backup.places import place_state
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.place_state import OK
from holdfast.backup.places.places import Place, place_error
from holdfast.backup.record import find_missing, record_listing
from holdfast.backup.report import PlaceResult, result_of
from holdfast.backup.snapshot.staging import Staged
from holdfast.backup.snapshot.verify import Check, Verified, verify
from holdfast.core.clock import Clock
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupDamaged, BackupFailed, HoldfastError, PlaceFull, SnapshotNotFound
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import ESCROW

SCRATCH = "scratch-"


class PlaceSnapshots:
    """Of one agent. `folder` holds scratch; the caller has locked it."""

    def __init__(
        self, places: BackupPlaces, *, keys: KeyRing | None, checks: Sequence[Check], clock: Clock, folder: Path
    ) -> None:
        self._places = places
        self._keys = keys
        self._checks = checks
        self._clock = clock
        self._folder = folder
        self._progress = places.engine.progress

    async def make(
        self, place: Place, staged: Staged, head: Signed[Head], named: Sequence[str], result: PlaceResult
    ) -> None:
        repository, engine, archive = (self._places.repository(place), self._places.engine, head.record.archive)
        await self._places.check_keys_current(place)
        what = f"place {place.name}: sending"

        async def create() -> Created:
            return await engine.create(
                repository,
                archive,
                staged.folder,
                on_progress=lambda at: self._progress.reached(
                    what, Amount(files=at.files, bytes=at.bytes, files_all=staged.files, bytes_all=staged.bytes)
                ),
            )

        try:
            created = await create()
        except PlaceFull:
            if not await self._compacted(place, named):
                raise
            created = await create()
        before = self._places.states.read()
        listing = await engine.list_archives(repository)
        names = {one.name for one in listing.archives}
        if archive not in names:
            raise BackupFailed(
                f"place {place.name}: Borg reported that it made {archive}, but the repository does not list it"
            )
        record_listing(self._places.states, place.name, listed=names, named=named, before=before)
        failed = await self._places.refresh_companions((place.name,))
        if place.name in failed:
            raise _as_ours(failed[place.name], place)
        self._places.states.change(
            place.name, lambda state: place_state.made(state, now_ms=self._clock.wall_ms(), snapshot=archive)
        )
        result.made = True
        result.stored_bytes = created.stored_bytes
        result.backup_s = round(created.seconds, 3)
        self._progress.say(f"{place.name}: made {archive}, stored {created.stored_bytes:,} bytes")

    async def _compacted(self, place: Place, named: Sequence[str]) -> bool:
        """Make room at a full place, if nothing is missing there: compacting would destroy for good
        what another program deleted."""
        before = self._places.states.read()
        repository, engine = self._places.repository(place), self._places.engine
        try:
            names = {one.name for one in (await engine.list_archives(repository)).archives}
            state = record_listing(self._places.states, place.name, listed=names, named=named, before=before)
            if state.missing or place.append_only:
                return False
            await engine.compact(repository)
        except HoldfastError:  # that it is full is what there is to say
            return False
        return True

    async def check(self, place: Place, head: Signed[Head], result: PlaceResult) -> None:
        """The test restore, and the companion files that paper needs."""
        files = await read_companions(self._places.engine, place)
        known = parse_lines(files.get(HEADS, b""), where=HEADS)
        if head.digest not in {one.digest for one in known.heads}:
            raise BackupDamaged(f"place {place.name}: head {head.record.seq} is missing from {HEADS}")
        if files.get(f"{ESCROW}.age") != (self._places.vault.folder / f"{ESCROW}.age").read_bytes():
            raise BackupDamaged(f"place {place.name}: {ESCROW}.age there differs from {ESCROW}.age in the vault")
        found = await self._restored(place, head)
        self._places.states.change(place.name, lambda state: _after_verify(state, found, self._clock.wall_ms()))
        result.verified = True
        result.verify_s = round(found.fetch_s + found.check_s, 3)
        self._progress.say(f"{place.name}: test restore done, {found.files:,} files are equal")

    async def _restored(self, place: Place, head: Signed[Head]) -> Verified:
        scratch = self._folder / f"{SCRATCH}{place.name}-{os.urandom(4).hex()}"
        repository = self._places.repository(place)  # with the passphrase from the escrow
        return await verify(self._places.engine, repository, head, scratch, keys=self._keys, checks=self._checks)

    async def verify(
        self, place: Place, held: Sequence[Signed[Head]], archive: str, *, error: HoldfastError | None
    ) -> PlaceResult:
        result = PlaceResult(place=place.name)
        try:
            if error is not None:
                raise error
            wanted = [one for one in held if not archive or one.record.archive == archive]
            lost = find_missing(place.name, self._places.states.of(place.name))
            if not wanted and lost is not None:
                raise lost
            if not wanted:
                what = f"no snapshot {archive}" if archive else "no snapshot"
                raise SnapshotNotFound(f"place {place.name} has {what}")
            result.archive = wanted[-1].record.archive
            await self.check(place, wanted[-1], result)
            if lost is not None:
                result_of(result, lost)
        except (HoldfastError, OSError) as raised:
            failed = place_error(raised, place.name) if isinstance(raised, OSError) else raised
            code, message = failed.code, failed.message
            self._places.states.change(
                place.name,
                lambda state: place_state.tried(state, now_ms=self._clock.wall_ms(), result=code, message=message),
            )
            result_of(result, failed)
        return result


def _after_verify(state: place_state.PlaceState, found: Verified, now_ms: int) -> place_state.PlaceState:
    """A good test restore ends every trouble that was reported before it."""
    after = place_state.verified(state, now_ms=now_ms, snapshot=found.archive)
    return msgspec.structs.replace(after, result=OK, message="", failures=0)


def _as_ours(error: Exception, place: Place) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, OSError):
        return place_error(error, place.name)
    return BackupFailed(f"place {place.name}: {error}")
