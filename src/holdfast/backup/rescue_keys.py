"""Making and revoking rescue keys (identity/vault/rescue.py says what one opens).

Adding: the key's file, then its recipient in the vault, then rescue.age beside the places. A kill leaves a file that
opens nothing yet; the same command goes on with it.

Revoking: the vault marks the key first, with the key epoch of every place, so that rescue.age is not sealed for it any
more. But it knows the passphrases of these epochs. So every place gets a new repository, with the next epoch:

    the repository is made under a new name, and its key is kept in the vault
    a snapshot goes into it, and is restored for a test
    places.json and then place.json name it; from here on the revoked key opens nothing that is new

Until places.json names it a place is used as before, with its old repository; so a kill anywhere, or the loss of this
machine, leaves each place with a repository that holds snapshots. The same command does what is left. The state of the
run is kept apart from the states of the places (PlaceStates in `renewing`), and what it says of a place is taken over
with the new repository.

The old repository stays, with its snapshots, until a person asks for its removal (`remove_older`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.backup.backups import Backups
from holdfast.backup.places.address import PlaceKind, check_place_name
from holdfast.backup.places.backup_places import BackupPlaces, last_epoch
from holdfast.backup.places.cloud_copy import bring, copy_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.place_states import PlaceStates
from holdfast.backup.places.places import OlderRepository, Place, check_there, get_place, place_error, write_places
from holdfast.backup.places.rescue_file import opened_by
from holdfast.backup.record import own_heads
from holdfast.backup.report import NowReport
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import BadInput, BadPlace, HoldfastError, PlaceMissing, RescueKeyNotFound
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import sync_folder
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.records.encodings import parse_agent_id
from holdfast.identity.vault.rescue import RescueEntry, entries_of, make_key_file, with_entry
from holdfast.identity.vault.ring import read_escrow

RENEWING = "renewing"


class RenewalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the revocation would do at one place."""

    place: str
    repository: str  # the new one
    files: int  # of the newest snapshot: what is sent
    bytes: int
    seconds: float | None  # about twice a test restore, as the last one took; None: none was measured here


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it at one place."""

    place: str
    repository: str
    done: bool
    error: str = ""
    message: str = ""
    hint: str = ""


async def add_rescue_key(places: BackupPlaces, file: Path, *, name: str) -> tuple[RescueEntry, dict[str, Exception]]:
    """A new rescue key in this file, or the one that a killed run left there; and what places raised that could not be
    written. Raises BadInput: the name or the file is taken, or the file would be in a backup or beside it."""
    try:
        check_place_name(name)
    except BadPlace as error:
        raise BadInput(f"{name!r} is not a valid name for a rescue key", hint=error.hint) from None
    real = Path(os.path.realpath(file))
    for what, folder in _covered(places):
        if Path(os.path.realpath(folder)) in (real, *real.parents):
            raise BadInput(f"{file} is in {what} {folder}", hint="keep the key apart from what it opens")
    known = next((one for one in entries_of(read_escrow(places.vault)) if one.name == name), None)
    agent = parse_agent_id(read_identity(places.home.identity_file).id)
    if known is not None and (known.revoked_ms or not file.exists()):
        was = "was revoked" if known.revoked_ms else "exists already, in another file"
        raise BadInput(f"the rescue key {name!r} {was}", hint="give another --name")
    with make_key_file(file, agent=agent, name=name, entropy=SystemEntropy()) as key:
        entry = RescueEntry(name=name, recipient=key.identity.recipient, added_ms=SystemClock().wall_ms())
        if known is not None and known.recipient != entry.recipient:
            raise BadInput(f"the rescue key {name!r} is another one than that in {file}", hint="give another --name")
    if known is None:
        places.change_escrow(lambda escrow: with_entry(escrow, entry))
    return known or entry, await places.refresh_companions()


def _covered(places: BackupPlaces) -> list[tuple[str, Path]]:
    home = places.home
    found = [("the agent's folder", home.state), ("the vault", places.vault.folder)]
    return found + [(f"place {one.name},", one.root) for one in places.read() if one.kind is not PlaceKind.SSH]


def get_entry(places: BackupPlaces, name: str) -> RescueEntry:
    entries = entries_of(read_escrow(places.vault))
    found = next((one for one in entries if one.name == name), None)
    if found is None:
        raise RescueKeyNotFound(f"this agent has no rescue key {name!r}")
    return found


def plan_renewals(places: BackupPlaces, entry: RescueEntry) -> tuple[RenewalPlan, ...]:
    """What `revoke_rescue_key` would do now, with the size of the newest snapshot and the time of the last test
    restore: a first backup takes about as long, and is restored for a test."""
    heads, states, revoked = own_heads(places), places.states.read(), _marked(places, entry)
    newest = heads[-1].record if heads else None
    return tuple(
        RenewalPlan(
            place=place.name,
            repository=_draft(places, place, revoked).repository,
            files=0 if newest is None else newest.files,
            bytes=0 if newest is None else newest.bytes,
            seconds=round(2 * took_s, 1) if (took_s := states.get(place.name, PlaceState()).verify_s) else None,
        )
        for place in _to_renew(places, revoked)
    )


async def revoke_rescue_key(backups: Backups, entry: RescueEntry) -> tuple[Renewal, ...]:
    """Close every place that can be reached to this key. What is left, the same call does later."""
    places, revoked = backups.places, _marked(backups.places, entry)
    if revoked != entry:
        places.change_escrow(lambda escrow: with_entry(escrow, revoked), despite_away=True)
    await places.refresh_companions()
    failed: dict[str, Renewal] = {}
    drafts: list[Place] = []
    wanted = _to_renew(places, revoked)
    for place in wanted:
        draft = _draft(places, place, revoked)
        try:
            await bring(place)
            await asyncio.to_thread(check_there, place)
            drafts.append(await places.begin_repository(draft))
            places.engine.progress.say(f"place {place.name}: made the new repository {draft.repository}")
        except (HoldfastError, OSError) as error:
            found = place_error(error, place.name)
            failed[place.name] = _failed(draft, found.code, found.message, found.hint)
    if drafts:
        failed |= await _fill(backups, drafts)
    now = {one.name: one.repository for one in places.read()}
    return tuple(failed.get(one.name) or Renewal(place=one.name, repository=now[one.name], done=True) for one in wanted)


def _failed(draft: Place, code: str, message: str, hint: str) -> Renewal:
    return Renewal(place=draft.name, repository=draft.repository, done=False, error=code, message=message, hint=hint)


def _to_renew(places: BackupPlaces, revoked: RescueEntry) -> tuple[Place, ...]:
    """The places whose next snapshots the key would still open."""
    open_at = {one.place for one in opened_by(revoked, places.read()) if one.newer}
    return tuple(place for place in places.read() if place.name in open_at)


def _marked(places: BackupPlaces, entry: RescueEntry) -> RescueEntry:
    """The entry as it is once it is revoked. What a first run noted stays."""
    if entry.revoked_ms:
        return entry
    escrow = read_escrow(places.vault)
    epochs = {one.name: max(one.epoch, last_epoch(escrow, one.name)) for one in places.read()}
    return msgspec.structs.replace(entry, revoked_ms=SystemClock().wall_ms(), epochs=epochs)


def _draft(places: BackupPlaces, place: Place, revoked: RescueEntry) -> Place:
    """The place with its next repository: above every epoch that a revoked key knows."""
    known = [one.epochs.get(place.name, 0) for one in (*entries_of(read_escrow(places.vault)), revoked)]
    epoch = max(place.epoch, *known) + 1
    older = (*place.older, OlderRepository(epoch=place.epoch, suffix=place.suffix))
    return msgspec.structs.replace(place, epoch=epoch, suffix=f"-{epoch}", repository_id="", older=older)


async def _fill(backups: Backups, drafts: Sequence[Place]) -> dict[str, Renewal]:
    """A verified snapshot in each of the new repositories; those that have one take over. What failed, by place."""
    places, by_name = backups.places, {one.name: one for one in drafts}
    real, places.states = places.states, PlaceStates(places.home.instance / "backup" / RENEWING)
    failed: dict[str, Renewal] = {}

    async def switch(report: NowReport) -> None:
        fresh = places.states.read()
        for one in report.places:
            new = by_name[one.place]
            if not one.verified:
                failed[new.name] = _failed(new, one.error, one.message, one.hint)
                continue
            # Forgotten first: what the old repository held is not missing from the new one.
            real.forget(new.name)
            write_places(places.home.places_file, [new if old.name == new.name else old for old in places.read()])
            real.change(new.name, lambda _, name=new.name: fresh[name])

    try:
        for name in by_name:
            places.states.forget(name)  # of a run that was killed
        await backups.into_new(drafts, switch)
    finally:
        places.states = real
    await places.refresh_companions()  # a place that cannot be written now gets its place.json with the next backup
    return failed


class RemovedRepository(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    repository: str
    removed: bool
    message: str = ""


async def remove_older(places: BackupPlaces, entry: RescueEntry) -> tuple[RemovedRepository, ...]:
    """Remove the old repositories that a revoked key opens, with their snapshots, where the place's present one holds a
    verified snapshot. One on another host a person removes there; this finds out that it is gone."""
    done: list[RemovedRepository] = []
    for place in places.read():
        for one in (one for one in place.older if one.epoch <= entry.epochs.get(place.name, 0)):
            try:
                message = await _remove(places, place, one)
            except (HoldfastError, OSError) as error:
                message = place_error(error, place.name).message
            done.append(
                RemovedRepository(
                    place=place.name, repository=place.repository_of(one.suffix), removed=not message, message=message
                )
            )
    return tuple(done)


async def _remove(places: BackupPlaces, place: Place, old: OlderRepository) -> str:
    """Why it is still there; empty: it is gone, and the place forgets it."""
    await asyncio.to_thread(check_there, place)
    if not places.states.of(place.name).verified:
        return f"place {place.name} has no verified snapshot in its new repository yet: run `holdfast backup now` first"
    was = msgspec.structs.replace(place, epoch=old.epoch, suffix=old.suffix, repository_id="")
    if place.kind is PlaceKind.SSH:
        try:
            await places.engine.list_archives(places.repository(was), rescue=True)
        except PlaceMissing:
            pass
        else:
            return f"remove it on that host, then run this command again: `borg delete {was.repository}`"
    else:
        await asyncio.to_thread(remove_tree, Path(was.repository))
        if Path(was.repository).exists():
            return f"{was.repository} could not be removed"
        sync_folder(place.own)
    if place.kind is PlaceKind.RCLONE:
        await copy_of(place).push()
    left = tuple(one for one in get_place(places.read(), place.name).older if one != old)
    new = msgspec.structs.replace(get_place(places.read(), place.name), older=left)
    write_places(places.home.places_file, [new if one.name == new.name else one for one in places.read()])
    return ""
