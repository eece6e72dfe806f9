"""What commands about snapshots have to say, as values (docs/reference/json.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.backup.archive.manifest import SnapshotNote
from holdfast.backup.chain.chain import Lag
from holdfast.backup.chain.sources import Overview, RelayHead, Standing
from holdfast.backup.places.place_state import PlaceState, shown
from holdfast.backup.record import Warned
from holdfast.core.clock import iso
from holdfast.errors import HoldfastError
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head


class PlaceResult(msgspec.Struct, kw_only=True):
    """What came of one place in one run; filled as it goes."""

    place: str
    archive: str = ""
    made: bool = False
    verified: bool = False
    stored_bytes: int = 0
    backup_s: float = 0.0
    verify_s: float = 0.0
    error: str = ""  # the code of what went wrong
    message: str = ""
    hint: str = ""
    exit_code: int = 0


class MadeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    archive: str
    incarnation: int
    files: int
    bytes: int
    journal_sequence: int | None
    notes: tuple[SnapshotNote, ...]


class NowReport(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: MadeSnapshot
    places: tuple[PlaceResult, ...]
    relays: tuple[RelayHead, ...] = ()  # empty too where no place has the snapshot
    staging_s: float
    seconds: float
    warnings: tuple[Warned, ...] = ()  # about the agent's folder

    @property
    def good(self) -> bool:
        """Whether every place has it."""
        return all(not one.error for one in self.places)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    places: tuple[PlaceResult, ...]
    findings: tuple[str, ...]

    @property
    def good(self) -> bool:
        return all(one.verified and not one.error for one in self.places)


class HeadShape(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    archive: str
    incarnation: int
    at: int  # unix seconds, for older programs
    made: str  # the same as ISO 8601
    files: int
    bytes: int
    journal_sequence: int | None
    places: tuple[str, ...]  # that hold it


class PlaceShape(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    address: str
    newest: int | None  # number of the newest snapshot it holds
    snapshots: int
    behind: Lag | None
    last_backup: int  # unix seconds, for older programs; 0: never
    last_verified: int
    last_backup_at: str  # the same as ISO 8601; empty: never
    last_verified_at: str
    verified_archive: str
    result: str
    message: str
    error: str  # why it could not be looked at now
    unnamed: int  # archives that no head names
    missing: tuple[str, ...]  # snapshots that it held, and that we did not remove
    findings: tuple[str, ...]


class ListReport(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    newest: int | None
    places: tuple[PlaceShape, ...]
    snapshots: tuple[HeadShape, ...]  # newest first
    findings: tuple[str, ...]


def result_of(result: PlaceResult, error: HoldfastError) -> None:
    result.error, result.message, result.hint = error.code, error.message, error.hint
    result.exit_code = error.exit_code


def list_report(agent: str, found: Overview, states: Mapping[str, PlaceState]) -> ListReport:
    newest = found.chain.newest
    return ListReport(
        agent=agent,
        newest=None if newest is None else newest.record.seq,
        places=tuple(_place(one, states.get(one.place.name, PlaceState())) for one in found.places),
        snapshots=tuple(_head(one, found) for one in reversed(found.chain.heads)),
        findings=found.findings,
    )


def _place(one: Standing, state: PlaceState) -> PlaceShape:
    newest = one.newest
    result, message = shown(state)
    return PlaceShape(
        place=one.place.name,
        address=one.place.address,
        newest=None if newest is None else newest.record.seq,
        snapshots=len(one.held),
        behind=one.lag,
        last_backup=state.made_ms // 1000,
        last_verified=state.verified_ms // 1000,
        last_backup_at=iso(state.made_ms),
        last_verified_at=iso(state.verified_ms),
        verified_archive=state.verified,
        result=result,
        message=message,
        missing=state.missing,
        error="" if one.error is None else one.error.message,
        unnamed=one.unnamed,
        findings=one.findings,
    )


def _head(signed: Signed[Head], found: Overview) -> HeadShape:
    places = tuple(one.place.name for one in found.places if signed in one.held)
    at = signed.record.at
    return HeadShape(**head_fields(signed.record), at=at, made=iso(at * 1000), places=places)


def head_fields(head: Head) -> dict[str, Any]:
    """What every report says of a snapshot, as its head has it."""
    sequence = None if head.journal is None else head.journal.sequence
    fields = {name: getattr(head, name) for name in ("seq", "archive", "files", "bytes")}
    return {**fields, "incarnation": head.e, "journal_sequence": sequence}
