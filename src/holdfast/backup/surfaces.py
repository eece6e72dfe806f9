"""What backups cover, as rows and facts for the register: places, escrow beside them, the agent's folder.

Nothing is opened and nothing is asked over a network: what the last runs recorded counts (`PlaceState`), and of a place
that is a folder also what is there now. A snapshot is dated by when it was made, also where it was tested later: what
a restore gives back is as old as that. Made and verified are two facts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from holdfast.backup.archive.manifest import is_lock
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.open_engine import holds_data
from holdfast.backup.places.address import PlaceKind, parse_address
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.companion_files import read_folder
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import Place, check_there, find_place_id, read_places
from holdfast.backup.places.rescue_file import find_fix, opened_by, read_register
from holdfast.backup.restore.restore_home import find_mark
from holdfast.backup.upkeep.due import find_trouble
from holdfast.core.notices import counted
from holdfast.core.surfaces import (
    HOUR_MS,
    Cover,
    Fact,
    Found,
    Surface,
    Targets,
    Verdict,
    age_text,
    day_of,
    in_backups,
    minute_of,
)
from holdfast.errors import HoldfastError
from holdfast.host.private_files import is_in_memory, read_plain
from holdfast.identity.vault.age import FILE_BYTES_MAX
from holdfast.identity.vault.rescue import RescueEntry
from holdfast.identity.vault.ring import ESCROW
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.covered import look
from holdfast.layout.covering import CoveredKind, Reason, is_no_loss

ADD = "holdfast place add NAME ADDRESS"
NOW = "holdfast backup now"
MEMORY = "memory"  # the device of what is gone with the power
NAMES_SHOWN = 5
_LOST = (Reason.SECRET, Reason.LARGE, Reason.UNREADABLE, Reason.UNKEEPABLE)


class Absence(NamedTuple):
    """Why the repository of a place is not there now."""

    gone: bool  # the place is there, its repository is not; else the disk may be unplugged
    why: str


def find_absence(place: Place) -> Absence | None:
    """Looks at a place that is a folder. None where its repository is there, and of a far place: only a connection
    would show that, so there the last runs count."""
    if place.kind is not PlaceKind.FOLDER or not place.place_id:
        return None
    try:
        check_there(place)
    except HoldfastError:
        found = find_place_id(place.root)
        other = "another place is mounted" if found else "plug in or mount its disk"
        return Absence(False, f"not there now: {other} at {place.address}; if it is lost, add another place")
    if holds_data(Path(place.repository), id=place.repository_id):
        return None
    return Absence(True, f"not there now: {place.repository} is missing, or holds no backups of this agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPlace:
    """A place, and what is known of it without opening it."""

    place: Place
    state: PlaceState
    device: str  # the disk or host that it is on
    off: bool  # another one than the agent's folder is on
    absent: Absence | None
    snapshot_ms: int | None  # when the newest tested snapshot was made
    escrow_ms: int | None  # when escrow.age was seen beside it, equal to the vault's

    @property
    def name(self) -> str:
        return self.place.name


def see_places(home: AgentHome, *, now_ms: int) -> tuple[SeenPlace, ...]:
    """Every place of the agent. Raises BadPlace and what a file of another user does."""
    places, states = read_places(home.places_file), states_of(home).read()
    return tuple(_see(home, one, states.get(one.name, PlaceState()), now_ms=now_ms) for one in places)


def _see(home: AgentHome, place: Place, state: PlaceState, *, now_ms: int) -> SeenPlace:
    device = device_of(place)
    return SeenPlace(
        place=place,
        state=state,
        device=device,
        off=device not in (MEMORY, _device(home.state)),
        absent=find_absence(place),
        snapshot_ms=_made_ms(state.verified),
        escrow_ms=_escrow_seen(home, place, state, now_ms=now_ms),
    )


def _made_ms(archive: str) -> int | None:
    """When a snapshot was made, by its name: another host may have made it, then its head is not in this folder."""
    try:
        return round(datetime.strptime(archive.rpartition("-")[2] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp() * 1000)
    except ValueError:
        return None


def device_of(place: Place) -> str:
    """Names the disk or host that the place is on. One that is not mounted now is on none that is here."""
    if place.kind is not PlaceKind.FOLDER:
        return f"{place.kind} {parse_address(place.address).host}"
    if place.place_id and find_place_id(place.root) != place.place_id:
        return f"not mounted: {place.address}"
    return _device(place.root) or f"not reachable: {place.address}"


def is_on_disk_of(folder: Path, place: Place) -> bool:
    return device_of(place) == _device(folder)


def _device(folder: Path) -> str:
    try:
        return MEMORY if is_in_memory(folder) else f"device {os.stat(folder).st_dev}"
    except OSError:
        return ""


def _escrow_seen(home: AgentHome, place: Place, state: PlaceState, *, now_ms: int) -> int | None:
    """A test restore compares it too; in a folder it can be seen now."""
    if place.kind is not PlaceKind.FOLDER or home.vault is None:
        return state.verified_ms or None
    try:
        beside = read_folder(place.own).get(f"{ESCROW}.age")
        same = beside is not None and beside == read_plain(home.vault / f"{ESCROW}.age", FILE_BYTES_MAX)
    except (HoldfastError, OSError):
        return state.verified_ms or None  # away now, or the vault is another user's
    return now_ms if same else None


def check_of(place: str) -> str:
    return f"holdfast place check {place}"


def cover_of(seen: tuple[SeenPlace, ...], *, now_ms: int, targets: Targets) -> Cover:
    """What the backups do for a file of the agent's folder."""
    if not seen:
        return Cover(verdict=Verdict.UNCOVERED, why="there is no place for backups", fix=ADD)
    tested = [one for one in seen if one.snapshot_ms]
    if not tested:
        verdict = Verdict.AT_RISK if any(one.state.made_ms for one in seen) else Verdict.UNCOVERED
        return Cover(verdict=verdict, why="no snapshot was restored for a test yet", fix=NOW)
    there = [one for one in tested if one.absent is None]
    if not there:
        lost = all(one.absent is not None and one.absent.gone for one in tested)
        why = f"no place that holds a tested snapshot is there now: {', '.join(one.name for one in tested)}"
        verdict = Verdict.UNCOVERED if lost else Verdict.AT_RISK
        return Cover(verdict=verdict, why=why, fix=check_of(tested[0].name))
    best = max(there, key=lambda one: one.snapshot_ms or 0)
    at_ms = best.snapshot_ms or 0
    evidence = f"snapshot {best.state.verified} at {best.name}, restored for a test"
    old = now_ms - at_ms
    if old > targets.rpo_s * 1000:
        why = f"the newest tested snapshot is {age_text(old)} old; the target is {targets.rpo_s:,} s"
        return Cover(evidence=evidence, evidence_ms=at_ms, verdict=Verdict.AT_RISK, why=why, fix=NOW)
    if not any(one.off and one.absent is None for one in seen):
        why = "every place that is there now is on the agent's own disk or in memory"
        return Cover(evidence=evidence, evidence_ms=at_ms, verdict=Verdict.AT_RISK, why=why, fix=ADD)
    why = f"a tested snapshot of {minute_of(at_ms)} is within the RPO target; newer changes are not in it"
    return Cover(evidence=evidence, evidence_ms=at_ms, verdict=Verdict.COVERED, why=why)


def found_places(home: AgentHome, seen: tuple[SeenPlace, ...], *, now_ms: int) -> Found:
    surfaces = [row for one in seen for row in (_place_row(home, one, now_ms=now_ms), _escrow_row(one))]
    surfaces += [_rescue_row(one, [each.place for each in seen]) for one in read_register(home)]
    return Found(surfaces=tuple(surfaces), facts=tuple(fact for one in seen for fact in _facts(one, now_ms=now_ms)))


def _facts(one: SeenPlace, *, now_ms: int) -> list[Fact]:
    name, state = one.name, one.state
    found = [
        Fact(name="place", about=name, value=one.place.domain.casefold() or name, at_ms=now_ms, source="places.json"),
        Fact(name="place.device", about=name, value=one.device, at_ms=now_ms, source=one.place.address),
    ]
    if one.absent is not None:
        found.append(Fact(name="place.away", about=name, value=one.absent.why, at_ms=now_ms, source=one.place.address))
        if one.absent.gone:
            return found
    if one.off and (state.made_ms or one.absent is None):  # away, and never with a snapshot: it helps in nothing
        found.append(Fact(name="place.off", about=name, value=True, at_ms=now_ms, source=f"{name} is on {one.device}"))
    if state.made_ms and state.made not in state.missing:
        source = f"{state.made} at {name}"
        found.append(Fact(name="place.made", about=name, value=state.made, at_ms=state.made_ms, source=source))
    if state.verified and one.snapshot_ms:
        source = f"{state.verified} at {name}, compared on {day_of(state.verified_ms)}"
        found.append(
            Fact(name="place.verified", about=name, value=state.verified, at_ms=one.snapshot_ms, source=source)
        )
    if state.made_ms and state.made != state.verified:
        source = f"{state.made} at {name}"
        found.append(Fact(name="place.unverified", about=name, value=state.made, at_ms=state.made_ms, source=source))
    if one.escrow_ms:
        found.append(Fact(name="place.escrow", about=name, value=True, at_ms=one.escrow_ms, source=f"beside {name}"))
    return found


def _place_row(home: AgentHome, one: SeenPlace, *, now_ms: int) -> Surface:
    state, place = one.state, one.place
    stale_ms = round(home.settings.backup.stale_after_h * HOUR_MS)
    trouble = find_trouble(one.name, state, added_ms=place.added_ms, now_ms=now_ms, stale_after_ms=stale_ms)
    made = f"made {day_of(state.made_ms)}" if state.made_ms else "never made"
    tested = f"tested {day_of(state.verified_ms)}" if state.verified_ms else "never tested"
    if one.absent is not None:
        verdict = Verdict.UNCOVERED if one.absent.gone else Verdict.AT_RISK
        why, fix = one.absent.why, check_of(one.name)
    elif trouble is not None:
        verdict, why, fix = Verdict.AT_RISK, trouble.text, check_of(one.name)
    elif not state.verified_ms:
        verdict, why, fix = Verdict.AT_RISK, "no snapshot here was restored for a test", NOW
    else:
        verdict, why, fix = Verdict.COVERED, "restored for a test and compared with the signed head", ""
    away = ", not there now" if one.absent is not None else ""
    return Surface(
        id=f"place/{one.name}",
        kind="backup place",
        holds=counted(len(state.snapshots), "snapshot", "snapshots"),
        where=place.address,
        protection="encrypted, append-only" if place.append_only else "encrypted",
        domain=place.domain or one.device,
        evidence=f"{made}, {tested}{away}",
        evidence_ms=state.verified_ms or None,
        verdict=verdict,
        why=why,
        fix=fix,
    )


def _escrow_row(one: SeenPlace) -> Surface:
    there = one.escrow_ms is not None and one.absent is None
    lacking = "no equal copy was seen here" if one.absent is None else "the place is not there now"
    return Surface(
        id=f"escrow/{one.name}",
        kind="escrow",
        holds="the keys that open backups and journal, sealed for the paper",
        where=f"escrow.age beside {one.name}",
        protection="sealed for the vault and the paper",
        domain=one.place.domain or one.device,
        evidence="equal to escrow.age in the vault" if there else "",
        evidence_ms=one.escrow_ms,
        verdict=Verdict.COVERED if there else Verdict.AT_RISK,
        why="the paper and this place are enough for a recovery" if there else lacking,
        fix="" if there else NOW if one.absent is None else check_of(one.name),
    )


def _rescue_row(entry: RescueEntry, places: Sequence[Place]) -> Surface:
    """A rescue key: who holds it can read backups, also after it was revoked, until a new repository is begun."""
    opens = opened_by(entry, places)
    left = bool(entry.revoked_ms and opens)
    text = "; ".join(one.text for one in opens) or "nothing"
    why = f"revoked, and it still opens: {text}" if left else "it reads backups, and signs nothing"
    return Surface(
        id=f"rescue/{entry.name}",
        kind="rescue key",
        holds=f"a key that opens: {text}",
        where="with the person or machine that you gave it to",
        owner=entry.name,
        protection="it can be revoked",
        domain=f"rescue key {entry.name}",
        verdict=Verdict.AT_RISK if left else Verdict.COVERED,
        why=why,
        fix=find_fix(entry, places).strip("`"),
    )


def found_folder(home: AgentHome, cover: Cover) -> Found:
    """The agent's folder: what backups cover, what they leave out, which files pin packages. Reads names alone."""
    sealing = home.settings.adopted.seal_secrets
    files = 0
    left, locks = list[str](), list[str]()
    for entry in look(home.state, home.covering()):
        if entry.kind is None and entry.left_out is not None:
            sealed = sealing and entry.left_out.sealable
            if entry.left_out.reason in _LOST and not sealed and not is_no_loss(entry.left_out.text):
                left.append(entry.path)
        elif entry.kind is not CoveredKind.FOLDER:
            files += 1
            if entry.size and is_lock(entry.path) and not os.path.basename(entry.path).startswith("."):
                locks.append(entry.path)
    adopted = home.state != home.folder
    kind, where = ("adopted folder" if adopted else "agent's folder"), str(home.state)
    rows = [in_backups("folder", kind, cover, holds=f"{files:,} files", where=where)]
    if left:
        rows.append(_left_out(home, left, adopted=adopted))
    if locks:
        rows.append(in_backups("packages", "package lock", cover, holds=", ".join(locks[:NAMES_SHOWN]), where=where))
    return Found(surfaces=tuple(rows))


def _left_out(home: AgentHome, paths: list[str], *, adopted: bool) -> Surface:
    more = f" and {len(paths) - NAMES_SHOWN:,} more" if len(paths) > NAMES_SHOWN else ""
    return Surface(
        id="left-out",
        kind="files in no backup",
        holds=", ".join(paths[:NAMES_SHOWN]) + more,
        where=str(home.state),
        verdict=Verdict.UNCOVERED,
        why="backups leave out secrets in the clear, and files that cannot be read or are too large",
        fix=f"holdfast adopt {home.state} --seal-secrets" if adopted else "holdfast secret set NAME",
    )


def recovered_ms(home: AgentHome, generation: int) -> int:
    """When this agent was last recovered or restored, as far as its folder shows; 0: never. `generation` is that of its
    key log: each recovery begins one, and the first backup after it says when."""
    heads = HeadFile(home.heads_file).read().heads if generation else ()
    first = min((one.record.at * 1000 for one in heads if one.record.g == generation), default=0)
    mark = find_mark(home.instance)
    return max(first, 0 if mark is None else mark.restored_ms)
