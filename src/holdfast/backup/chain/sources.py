"""What is known of an agent's snapshots, from everywhere: its folder, its places, its witnesses.

A place is asked two things, because either may be older than the other: which archives its
repository lists, and which heads its companion files hold. A place *holds* a snapshot if the
repository lists the archive that a valid head names; the head may come from any source. A place is
behind by the distance from the newest known head to the newest one that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.chain.chain import Chain, Lag, behind, joined, valid_heads
from holdfast.backup.chain.heads import HEADS, HeadFile, Held, parse_copy
from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.places import Place, check_there, repository_of
from holdfast.errors import HoldfastError, PlaceUnreachable
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import Escrow

HOME = "the agent's folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One place as it was found."""

    place: Place
    archives: frozenset[str] = frozenset()
    known: Held = field(default_factory=Held)  # heads in its companion files
    error: HoldfastError | None = None  # its repository could not be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One place, judged."""

    place: Place
    held: tuple[Signed[Head], ...]  # oldest first
    lag: Lag | None  # behind the newest head of all; None where it has that one, or none at all
    unnamed: int  # archives that no head names
    findings: tuple[str, ...]
    error: HoldfastError | None

    @property
    def newest(self) -> Signed[Head] | None:
        return self.held[-1] if self.held else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    chain: Chain
    places: tuple[Standing, ...]
    findings: tuple[str, ...]  # of the other sources, and forks


async def look_at(engine: BackupEngine, place: Place, escrow: Escrow) -> Listed:
    """A place's archives and the heads beside it. Never raises for what is wrong there."""
    try:
        await asyncio.to_thread(check_there, place)
    except HoldfastError as error:
        return Listed(place=place, error=error)
    known = await _companion_heads(engine, place)
    if isinstance(known, PlaceUnreachable):
        return Listed(place=place, error=known)  # do not ask a silent host twice
    try:
        listing = await engine.list_archives(repository_of(place, escrow), rescue=True)
    except HoldfastError as error:
        return Listed(place=place, known=known, error=error)
    return Listed(place=place, known=known, archives=frozenset(one.name for one in listing.archives))


async def look_around(engine: BackupEngine, places: Sequence[Place], escrow: Escrow) -> list[Listed]:
    return list(await asyncio.gather(*(look_at(engine, place, escrow) for place in places)))


def overview(listed: Sequence[Listed], others: Mapping[str, Held], log: KeyLog, *, port: Signatures) -> Overview:
    """Everything together. `others`: heads of the agent's folder and of witnesses, by name."""
    good: dict[str, list[Signed[Head]]] = {}
    faults: dict[str, tuple[str, ...]] = {}
    for name, held in {**others, **{f"place {one.place.name}": one.known for one in listed}}.items():
        good[name], wrong = valid_heads(held.heads, log, port=port)
        faults[name] = (*held.findings, *wrong)
    chain = joined(good.values())
    findings = [f"{name}: {text}" for name in others for text in faults[name]]
    findings += [_fork_text(fork.seq, after_restore=fork.after_restore) for fork in chain.forks]
    return Overview(
        chain=chain,
        places=tuple(_judged(one, chain, faults[f"place {one.place.name}"]) for one in listed),
        findings=tuple(findings),
    )


def _judged(one: Listed, chain: Chain, faults: tuple[str, ...]) -> Standing:
    held = tuple(head for head in chain.heads if head.record.archive in one.archives)
    named = {head.record.archive for head in held}
    newest = chain.newest
    lag = None
    if newest is not None and held:
        lag = behind(newest.record, held[-1].record)
    return Standing(
        place=one.place, held=held, lag=lag, unnamed=len(one.archives - named), findings=faults, error=one.error
    )


def _fork_text(seq: int, *, after_restore: bool) -> str:
    if after_restore:
        return f"two heads with number {seq}: one was made before a restore that did not know it"
    why = "two copies of the agent were running, or someone else has its key"
    return f"two heads with number {seq} of one incarnation: {why}"


async def _companion_heads(engine: BackupEngine, place: Place) -> Held | PlaceUnreachable:
    try:
        files = await read_companions(engine, place)
    except PlaceUnreachable as error:
        return error
    except HoldfastError as error:
        return Held(findings=(f"its companion files cannot be read: {error.message}",))
    return parse_copy(files.get(HEADS))


def witness_file(folder: Path, agent_id: str) -> HeadFile:
    """Where a witness in a folder keeps the heads of this agent."""
    return HeadFile(folder / f"{agent_id}.{HEADS}")
