"""What a person still has of an agent, and what can be known from it before anything is changed.

From words, shares, an open vault or a rescue key, and the addresses of places: the log from every
source, the escrow, the heads of all places, and from these the newest snapshot that anybody is known
to have made. Nothing is written; recover_agent.py acts on it. A rescue key gives no escrow, only
passphrases and what reads a journal: rescued_copy.py makes a copy to look at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.backup.backups import ring_of
from holdfast.backup.chain.heads import HEADS, HeadFile, Held, parse_copy
from holdfast.backup.chain.sources import HOME, Listed, Overview, heads_elsewhere, overview, with_inner_heads
from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.companion_files import FoundPlace, FoundPlaces, find_sources, read_companions
from holdfast.backup.places.places import Passphrases, Place, read_places, repository_of
from holdfast.backup.restore.restore_home import Means
from holdfast.core.reading_ring import refuse
from holdfast.errors import BadInput, HoldfastError, LogMissing, VaultLocked
from holdfast.identity.acts.paper_acts import check_paper, choose_log, find_phrase
from holdfast.identity.files.own_log import read_logs
from holdfast.identity.files.public_file import find_relays
from holdfast.identity.files.roster_file import ROSTER
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, key_bytes
from holdfast.identity.records.records import Inception, id_of, parse_record
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.keyset import get_op
from holdfast.identity.vault.mail_keys import joined
from holdfast.identity.vault.rescue import Rescue, RescueKey, open_rescue
from holdfast.identity.vault.ring import Escrow, open_escrow, read_escrow
from holdfast.identity.vault.vault import Vault
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.agent_home import find_home, home_in
from holdfast.layout.witness_address import WitnessAddress

LOOKED = "the look before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a person still has. Paper, an open vault, or a rescue key."""

    places: tuple[str, ...]  # addresses
    words: str = field(default="", repr=False)
    shares: tuple[str, ...] = field(default=(), repr=False)
    passphrase: str = field(default="", repr=False)  # of the sheet
    vault: Vault | None = None
    rescue: RescueKey | None = None
    copies: tuple[LogCopy, ...] = ()  # of the log: from the card, from a file
    witnesses: tuple[WitnessAddress, ...] = ()
    agent: str = ""  # its name, where a place holds several
    id: str = ""  # where the words fit several logs
    rsh: str = ""
    remote_program: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What there is. Nothing was changed to find it out."""

    name: str  # of the agent, as the places say it; "" if none does
    log: KeyLog
    change: str  # what was wrong with the words
    key_used: str  # words, shares, vault, or rescue key
    opened: Escrow | Rescue = field(repr=False)
    overview: Overview
    places: tuple[Place, ...]
    chosen: Signed[Head] | None  # the newest that some place holds
    failed: dict[str, str]  # places that could not be read
    unplaced: tuple[str, ...]  # heads of later positions than the log at hand has
    engine: BackupEngine
    rosters: tuple[bytes, ...] = ()  # lines of the rosters that the places have, unchecked
    at: int | None = None

    @property
    def escrow(self) -> Escrow:
        """Raises RescuedCopy: a rescue key has none."""
        return refuse() if isinstance(self.opened, Rescue) else self.opened

    def means(self, port: Signatures) -> Means:
        opened = self.opened
        return Means(
            engine=self.engine,
            places=self.places,
            escrow=opened,
            log=self.log,
            keys=opened.keys.ring() if isinstance(opened, Rescue) else ring_of(opened),
            port=port,
            # The heads that were read out of archives are not read again.
            others={LOOKED: Held(heads=self.overview.chain.heads)},
        )

    @property
    def above(self) -> int:
        """The highest incarnation that a head speaks of."""
        heads = [one.record for one in self.overview.chain.heads]
        marks = [one.journal.incarnation for one in heads if one.journal is not None]
        return max([0, *(one.e for one in heads), *marks])


async def survey_evidence(
    evidence: Evidence,
    folder: Path,
    *,
    engine: BackupEngine,
    port: Signatures,
    at: int | None = None,
    sources: FoundPlaces | None = None,
) -> Survey:
    """Everything that can be known before anything is changed; `sources` where the places were looked at already.
    Raises PlaceMissing: none of the places could be read, or none holds a snapshot; LogMissing, BadPhrase, BadShare,
    VaultLocked, NotNow."""
    if sources is None:
        sources = await find_sources(
            engine, evidence.places, agent=evidence.agent, rsh=evidence.rsh, remote_program=evidence.remote_program
        )
        sources = await with_own_places(sources, folder, engine)
    folder = home_in(folder)
    copies = (*evidence.copies, *(one.log for one in sources.found))
    logs = await read_logs(copies, open_witnesses(evidence.witnesses, port=port), port=port)
    if not logs:
        raise LogMissing(
            "none of the places has the key log of an agent",
            hint="give the public card with --card FILE, or a witness with --witness",
        )
    with ExitStack() as stack:
        if evidence.vault is not None:
            log, change, used = _log_of_vault(evidence.vault, [one.log for one in logs]), "", "vault"
            escrow = read_escrow(evidence.vault)
        elif evidence.rescue is not None:
            log, change, used = _log_of_id(evidence.rescue.agent, [one.log for one in logs]), "", "rescue key"
            escrow = open_rescue([one.rescue for one in sources.found if one.rescue], evidence.rescue)
        else:
            used = "shares" if evidence.shares else "words"
            phrase, change = find_phrase(
                [one.log for one in logs], words=evidence.words, shares=evidence.shares, passphrase=evidence.passphrase
            )
            stack.enter_context(phrase)
            paper = stack.enter_context(PaperKeys(phrase, evidence.passphrase))
            log = choose_log(logs, paper, id=evidence.id).completed(paper, port=port)
            check_paper(log, paper)
            escrow = _open_escrow(sources, log, paper)
    own = [one for one in sources.found if _agent_of(one) in (log.id, None)]
    listed = await asyncio.gather(*(_listed(engine, one, escrow) for one in own))
    others = {HOME: _heads_at(folder)} | await heads_elsewhere(_head_keepers(evidence, folder), log.id)
    listed = await with_inner_heads(engine, listed, others, log, escrow, port=port)
    seen = overview(listed, others, log, port=port)
    failed = {address: error.message for address, error in sources.failed.items()}
    failed |= {one.place.name: one.error.message for one in seen.places if one.error is not None}
    return Survey(
        name=next((one.agent for one in own if one.agent), ""),
        log=log,
        change=change,
        key_used=used,
        opened=escrow,
        overview=seen,
        failed=failed,
        unplaced=_unplaced(listed, log),
        places=tuple(one.place for one in own),
        chosen=_chosen(seen, at=at),
        engine=engine,
        rosters=tuple(line for one in own for line in one.files.get(ROSTER, b"").splitlines() if line),
        at=at,
    )


def _unplaced(listed: Sequence[Listed], log: KeyLog) -> tuple[str, ...]:
    """Heads that were signed after the log at hand ends: it may be an old copy."""
    return tuple(
        f"place {one.place.name} has head {head.record.seq}, signed at "
        f"{head.record.position}, but the key log found here ends at {log.position}"
        for one in listed
        for head in one.known.heads
        if head.record.id == log.id and head.record.position > log.position
    )


def _chosen(seen: Overview, *, at: int | None) -> Signed[Head] | None:
    held = {one.digest for standing in seen.places for one in standing.held}
    old_enough = (head for head in reversed(seen.chain.heads) if at is None or head.record.at <= at)
    return next((head for head in old_enough if head.digest in held), None)


def _open_escrow(sources: FoundPlaces, log: KeyLog, paper: PaperKeys) -> Escrow:
    """What those escrows know together that this paper opens: one place may have an older one than another."""
    opened: list[Escrow] = []
    with paper.escrow() as identity:
        for source in sources.found:
            if source.escrow is None or _agent_of(source) not in (log.id, None):
                continue
            with suppress(HoldfastError):
                opened.append(open_escrow(source.escrow, identity))
    if not opened:
        raise VaultLocked(
            "these words or shares do not open the escrow.age of any given place",
            hint="try another place; without escrow.age Holdfast can read neither the backup nor the journal",
        )
    return joined(opened)


def _log_of_id(agent: AgentId, logs: Sequence[KeyLog]) -> KeyLog:
    """The log of the agent that the rescue key's own file names: what a place says of it is not believed."""
    found = next((one for one in logs if one.id == agent), None)
    if found is None:
        raise LogMissing(
            f"none of the places has the key log of {agent}, the agent of this rescue key",
            hint="give a place of that agent, or a witness with --witness",
        )
    return found


def _log_of_vault(vault: Vault, logs: Sequence[KeyLog]) -> KeyLog:
    """The log whose operational key this vault holds."""
    for log in logs:
        for entry in log.entries():
            keys = getattr(entry.record, "op", None)
            if keys is None:
                continue
            try:
                get_op(vault, key_bytes(keys.members[0])).wipe()
            except HoldfastError:
                continue
            return log
    raise BadInput(
        "the vault does not hold the keys of any of these agents", hint="give another place, or another vault"
    )


def _agent_of(source: FoundPlace) -> str | None:
    """The agent whose log lies beside; None where none does."""
    for line in source.log.records:
        try:
            signed = parse_record(line)
        except HoldfastError:
            continue
        if isinstance(signed.record, Inception):
            return id_of(signed)
    return None


async def _listed(engine: BackupEngine, source: FoundPlace, escrow: Passphrases) -> Listed:
    known = parse_copy(source.files.get(HEADS))
    try:
        listing = await engine.list_archives(repository_of(source.place, escrow), rescue=True)
    except HoldfastError as error:
        return Listed(place=source.place, known=known, error=error)
    return Listed(place=source.place, known=known, archives=frozenset(one.name for one in listing.archives))


async def with_own_places(sources: FoundPlaces, folder: Path, engine: BackupEngine) -> FoundPlaces:
    """Also the places that a folder which survived still names. Raises what the first one raised if none answers."""
    found, failed = list(sources.found), dict(sources.failed)
    there = {one.place.repository for one in found}
    named = [one for one in read_places(home_in(folder) / "places.json") if one.repository not in there]
    answers = await asyncio.gather(*(_read_beside(engine, one) for one in named))
    for place, answer in zip(named, answers, strict=True):
        if isinstance(answer, HoldfastError):
            failed[place.name] = answer
        else:
            found.append(FoundPlace(place=place, files=answer, agent=place.agent))
    if not found and failed:
        raise next(iter(failed.values()))
    return replace(sources, found=tuple(found), failed=failed)


async def _read_beside(engine: BackupEngine, place: Place) -> dict[str, bytes] | HoldfastError:
    try:
        return await read_companions(engine, place, rescue=True)
    except HoldfastError as error:
        return error


def _head_keepers(evidence: Evidence, folder: Path) -> tuple[WitnessAddress, ...]:
    """Witnesses and relays that may know of newer snapshots: named by the person, or by a folder that survived."""
    with suppress(HoldfastError, OSError):
        home = find_home(folder)
        if home is not None:
            return (*evidence.witnesses, *home.witnesses, *find_relays(home))
    return evidence.witnesses


def _heads_at(folder: Path) -> Held:
    try:
        return HeadFile(folder / HEADS).read()
    except (HoldfastError, OSError):
        return Held()
