"""What is known of an agent's snapshots, from everywhere: its folder, its places, its witnesses.

A place is asked two things, because either may be older than the other: which archives its
repository lists, and which heads its companion files hold. A place *holds* a snapshot if the
repository lists the archive that a valid head names; the head may come from any source. A place is
behind by the distance from the newest known head to the newest one that it holds.

The companion file of heads is a plain file: it can be torn, lost or older than the repository.
Every archive holds its own signed head, so a listed archive that no known head names is asked for
it. That head is believed no more than a line of the file: the agent's log judges its signature, and
it must name the archive it came from. An archive without such a head is foreign: it is reported and
never chosen.

One small member of each archive is read, newest first, of at most READ_MAX archives in a place: an
attacker could fill a place with archives. Archives that were not read are reported.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.backup.archive.reader import HEAD_NAME
from holdfast.backup.archive.tar_stream import Readable, TarStream, read_through
from holdfast.backup.chain.chain import Chain, Fork, Lag, behind, is_rival_head, joined, valid_heads
from holdfast.backup.chain.heads import HEADS, HeadFile, Held, parse_copy, parse_lines
from holdfast.backup.engine import SHORT_S, BackupEngine, Repository
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.places import Passphrases, Place, check_there, repository_of
from holdfast.errors import ArchiveRefused, BackupDamaged, HoldfastError, PlaceUnreachable, Retryable
from holdfast.identity.files.public_file import find_relays
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements.statements import Head, find_fault_in_head, parse_head
from holdfast.identity.witness.relay_link import open_link
from holdfast.identity.witness.witness_relay import bring_log
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessAddress, WitnessRelay, relays_of

HOME = "the agent's folder"
NO_RELAY = "no relay has the newest backup head: they get it with the next backup"
FORK_HINT = (
    "stop every copy of the agent but one. If you know of no other copy, a thief may have its keys: "
    "`holdfast identity evict --paper`"
)


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


async def look_at(engine: BackupEngine, place: Place, escrow: Passphrases) -> Listed:
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


async def look_around(engine: BackupEngine, places: Sequence[Place], escrow: Passphrases) -> list[Listed]:
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
    findings += [fork_text(fork) for fork in chain.forks]
    every = (*others.values(), *(one.known for one in listed))
    findings += _rival_texts((head for held in every for head in held.heads), chain, log)
    return Overview(
        chain=chain,
        places=tuple(_judged(one, chain, faults[f"place {one.place.name}"], log) for one in listed),
        findings=tuple(findings),
    )


def _judged(one: Listed, chain: Chain, faults: tuple[str, ...], log: KeyLog) -> Standing:
    # Two machines that recovered the agent in the same second gave their snapshots the same name.
    ours = {head.digest for head in chain.heads}
    theirs = {
        head.record.archive for head in one.known.heads if head.digest not in ours and is_rival_head(head.record, log)
    }
    theirs -= {head.record.archive for head in one.known.heads if head.digest in ours}
    held = tuple(head for head in chain.heads if head.record.archive in one.archives - theirs)
    named = {head.record.archive for head in held}
    lag = behind(chain.heads[-1].record, held[-1].record) if held else None
    unnamed = len(one.archives - named)
    return Standing(place=one.place, held=held, lag=lag, unnamed=unnamed, findings=faults, error=one.error)


def fork_text(fork: Fork) -> str:
    if fork.after_restore:
        return f"two heads with number {fork.seq}: one was made before a restore that did not know it"
    why = "two copies of the agent were running, or someone else has its key"
    return f"two heads with number {fork.seq} of one incarnation: {why}"


def _rival_texts(heads: Iterable[Signed[Head]], chain: Chain, log: KeyLog) -> list[str]:
    """Heads by keys that a second recovery made, where the log chose the other one."""
    good = {one.digest: one.record.seq for one in chain.heads}
    return [
        f"two heads with number {one.record.seq}: one is signed by keys of another recovery, also of generation "
        f"{one.record.g}; two machines recovered this agent"
        for one in {one.digest: one for one in heads}.values()
        if one.digest not in good and one.record.seq in good.values() and is_rival_head(one.record, log)
    ]


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


async def read_near(home: AgentHome, agent_id: AgentId) -> dict[str, Held]:
    """The heads that the agent's folder, its witnesses and its relays have, by name."""
    found = {HOME: await asyncio.to_thread(HeadFile(home.heads_file).read)}
    return found | await heads_elsewhere((*home.witnesses, *find_relays(home)), agent_id)


async def heads_elsewhere(addresses: Iterable[WitnessAddress], agent_id: AgentId) -> dict[str, Held]:
    """The heads that these witnesses and relays have, by name. A relay has the newest one alone; that one is enough to
    see that every place was put back to an older day."""
    asked = tuple(dict.fromkeys(addresses))
    answers = await asyncio.gather(*(_heads_at(one, agent_id) for one in asked))
    return dict(zip(map(_source, asked), answers, strict=True))


def _source(address: WitnessAddress) -> str:
    return f"relay {address.url}" if isinstance(address, WitnessRelay) else f"witness {address}"


async def _heads_at(address: WitnessAddress, agent_id: AgentId) -> Held:
    try:
        if isinstance(address, WitnessRelay):
            line = await open_link(address).find_head(agent_id)
            return Held() if line is None else parse_lines(line + b"\n", where=address.url)
        return await asyncio.to_thread(witness_file(address.folder, agent_id).read)
    except (HoldfastError, OSError) as error:
        return Held(findings=(f"cannot be read: {error}",))


class RelayHead(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a relay of the agent has the head that was made."""

    relay: str  # its url
    held: bool
    message: str = ""  # why not


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftHead:
    """Where a new head is now, apart from the places."""

    relays: tuple[RelayHead, ...] = ()
    troubles: tuple[str, ...] = ()  # what a person should hear of witnesses and relays that do not have it


async def leave_head(home: AgentHome, head: Signed[Head], log: KeyLog) -> LeftHead:
    """The head to all witnesses and relays of the agent. One that cannot be reached gets the next one. Nothing here is
    an error of the backup: its places have it."""
    asked = tuple(dict.fromkeys((*home.witnesses, *find_relays(home))))
    said = dict(zip(asked, await asyncio.gather(*(_left_at(one, head, log) for one in asked)), strict=True))
    held = tuple(RelayHead(relay=one.url, held=not said[one], message=said[one]) for one in relays_of(asked))
    troubles = [f"{_source(one)}: {why}" for one, why in said.items() if why]
    if held and not any(one.held for one in held):
        troubles.append(NO_RELAY)
    return LeftHead(relays=held, troubles=tuple(troubles))


async def leave_newest_head(home: AgentHome, log: KeyLog, relays: Sequence[WitnessRelay]) -> list[str]:
    """The newest head to relays that are new to the agent; what a person should hear of it. One whose snapshot no place
    has got stays here: outside it would tell of a snapshot that was lost."""
    try:
        held = {name for state in states_of(home).read().values() for name in state.snapshots}
    except HoldfastError as error:  # the server that hosts share
        return [f"cannot find the newest backup head: {error}"]
    heads = (one for one in HeadFile(home.heads_file).read().heads if one.record.archive in held)
    newest = max(heads, key=lambda one: one.record.rank, default=None)
    if newest is None:
        return []
    said = await asyncio.gather(*(_left_at(one, newest, log) for one in relays))
    return [
        f"{one.url} does not have the newest backup head: {why}" for one, why in zip(relays, said, strict=True) if why
    ]


async def _left_at(address: WitnessAddress, head: Signed[Head], log: KeyLog) -> str:
    """Empty where it has the head now; else why not."""
    try:
        if not isinstance(address, WitnessRelay):
            await asyncio.to_thread(witness_file(address.folder, head.record.id).append, head)
            return ""
        link = open_link(address)
        answer = await link.put_head(log.id, head.line())
        if isinstance(answer, Refusal) and answer.reason in (Reason.OLD_KEYS, Reason.NOT_BEGUN):
            await bring_log(link, log)  # no witness, so it has not heard of the newest keys; or it lost its disk
            answer = await link.put_head(log.id, head.line())
        return answer.message if isinstance(answer, Refusal) else ""
    except (HoldfastError, OSError) as error:
        return str(error)


READ_MAX = 64  # above what the usual rules keep in a place; each takes one run of the engine
SHOWN_MAX = 5
_FORM = re.compile(r".*-([0-9]{1,9})-([0-9]{1,12})-[0-9]{8}T[0-9]{6}Z")


async def survey(
    engine: BackupEngine,
    listed: Sequence[Listed],
    others: Mapping[str, Held],
    log: KeyLog,
    escrow: Passphrases,
    *,
    port: Signatures,
) -> Overview:
    """As `overview`, with the heads of archives that no other source names."""
    whole = await with_inner_heads(engine, listed, others, log, escrow, port=port)
    return overview(whole, others, log, port=port)


async def with_inner_heads(
    engine: BackupEngine,
    listed: Sequence[Listed],
    others: Mapping[str, Held],
    log: KeyLog,
    escrow: Passphrases,
    *,
    port: Signatures,
) -> list[Listed]:
    """The places with the heads that were read out of their archives, and what there is to say.
    Never raises for what is wrong at a place."""
    sources = (*others.values(), *(one.known for one in listed))
    good, _ = valid_heads((head for held in sources for head in held.heads), log, port=port)
    named = frozenset(head.record.archive for head in good)
    return list(await asyncio.gather(*(_completed(engine, one, named, log, escrow, port) for one in listed)))


async def _completed(
    engine: BackupEngine, one: Listed, named: frozenset[str], log: KeyLog, escrow: Passphrases, port: Signatures
) -> Listed:
    lost = (f"{HEADS} is missing from the companion files",) if one.known.absent else ()
    if one.error is not None or not one.archives:
        return one
    wanted = newest_first(one.archives - named)
    foreign = [name for name in one.archives - named if name not in wanted]
    if wanted:
        engine.progress.say(f"place {one.place.name}: reading the heads of {len(wanted)} archives")
    reading = _Reading(engine, repository_of(one.place, escrow), log, port)
    await reading.run(wanted[:READ_MAX])
    if len(wanted) > READ_MAX:
        reading.findings.append(f"{len(wanted) - READ_MAX} older archives were not read: {_shown(wanted[READ_MAX:])}")
    foreign += reading.foreign
    if foreign:
        reading.findings.append(f"archives without a valid head of this agent, never chosen: {_shown(sorted(foreign))}")
    findings = (*one.known.findings, *lost, *reading.told(), *reading.findings)
    return replace(one, known=replace(one.known, heads=(*one.known.heads, *reading.heads), findings=findings))


def newest_first(archives: Iterable[str]) -> list[str]:
    """Those that are named as snapshots are, by incarnation and number."""
    ranked = [(int(form[1]), int(form[2]), name) for name in archives if (form := _FORM.fullmatch(name))]
    return [name for _, _, name in sorted(ranked, reverse=True)]


@dataclass(slots=True)
class _Reading:
    """The archives of one place, one after another."""

    engine: BackupEngine
    repository: Repository
    log: KeyLog
    port: Signatures
    valid: list[int] = field(default_factory=list[int])
    heads: list[Signed[Head]] = field(default_factory=list[Signed[Head]])
    foreign: list[str] = field(default_factory=list[str])
    findings: list[str] = field(default_factory=list[str])

    async def run(self, archives: Sequence[str]) -> None:
        for number, archive in enumerate(archives):
            try:
                head = await read_inner_head(self.engine, self.repository, archive)
            except Retryable as error:
                self.findings.append(f"{len(archives) - number} archives were not read: {error.message}")
                return
            except HoldfastError as error:
                self.findings.append(f"archive {archive}: no head could be read: {error.message}")
                continue
            self._judge(archive, head)

    def _judge(self, archive: str, head: Signed[Head]) -> None:
        ours = head.record.id == self.log.id and head.record.archive == archive
        if ours:  # also of a later position than this log has, or forged: the overview says which
            self.heads.append(head)
        if ours and find_fault_in_head(head, self.log, port=self.port) is None:
            self.valid.append(head.record.seq)
        else:
            self.foreign.append(archive)

    def told(self) -> tuple[str, ...]:
        if not self.valid:
            return ()
        numbers = _shown([str(seq) for seq in sorted(self.valid, reverse=True)])
        return (
            f"{HEADS} in the companion files is damaged or old: the heads of snapshots {numbers} were read "
            "from the archives themselves",
        )


async def read_inner_head(engine: BackupEngine, repository: Repository, archive: str) -> Signed[Head]:
    """The head inside an archive; nothing of it is checked. Raises what is wrong."""
    async with engine.export_tar(repository, archive, paths=(HEAD_NAME,), rescue=True, timeout_s=SHORT_S) as pieces:
        raw = await read_through(pieces, _read_member)
    return parse_head(raw)


def _read_member(stream: Readable) -> bytes:
    tar = TarStream(stream, bytes_max=LINE_BYTES_MAX + 1, entries_max=1, depth_max=1)
    raw = b""
    for member in tar.members():
        if member.path != HEAD_NAME or member.is_folder:
            raise ArchiveRefused(f"the archive contains {member.path!r}, but Holdfast requested only the head")
        raw = b"".join(tar.content())
    if not raw.endswith(b"\n"):
        raise BackupDamaged(f"the {HEAD_NAME} in the archive is cut short")
    return raw[:-1]


def _shown(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
