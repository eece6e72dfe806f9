"""What is wrong with this machine, journal or identity, and the one command that fixes it.

Changes nothing: a journal that stopped at a failed sync is not opened, because the first process that opens it alone
repairs it, and a person who only looks has not asked for that. Every check reports something, so that a clean result
shows what it is based on. A record of the identity that the home did not make is a sign of stolen recovery words or a
stolen next key, so every witness is asked, and one that does not answer is reported.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from holdfast.app.binder import KEYS, open_journal
from holdfast.backup.chain.chain import joined, valid_heads
from holdfast.backup.chain.heads import HEADS, HeadFile, parse_copy
from holdfast.backup.chain.sources import FORK_HINT, fork_text
from holdfast.backup.open_engine import describe_engine, is_engine_installed
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.companion_files import log_in_companions, read_folder
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import Place, check_there, read_places, shared_domains
from holdfast.backup.places.published import check_not_replaced
from holdfast.backup.places.rescue_file import rescue_findings
from holdfast.backup.surfaces import find_absence, is_on_disk_of
from holdfast.backup.upkeep.due import find_trouble
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import CLOCK_HINT, clock_off_text, counted
from holdfast.core.reading_ring import ReadingRing
from holdfast.errors import EXIT_JOURNAL, EngineMissing, HoldfastError, JournalDamaged, JournalFull, KeysReplaced
from holdfast.host.version import find_version
from holdfast.identity.acts.paper_sheets import today
from holdfast.identity.files.own_log import find_own_log, find_pending
from holdfast.identity.files.paper_readings import believed
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.journal_keys.keyfile import is_pointer, load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.surfaces import look_at_vault, watch_log
from holdfast.identity.witness.observe import SigningPower
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.durability import Kept
from holdfast.journal.records import TaskState
from holdfast.journal.unserved import find_unserved
from holdfast.layout.agent_home import BY_JOURNAL, AgentHome, find_home, load_home
from holdfast.layout.engine_settings import Settings
from holdfast.layout.fleet import find_left_out
from holdfast.layout.moved import STANDBY
from holdfast.layout.settings import NAME, BackupSettings

NO_JOURNAL = "journal"  # the check that fails where neither a journal nor an agent is
FREE_BYTES_MIN = 64 * 1024 * 1024
FREE_FILES_MIN = 100
HOUR_MS = 3_600_000
CLOCK_BEHIND_MS_MAX = 60_000
NOTICE_AGE_MS_MAX = 60_000
NOTICES_MAX = 1_000
REMARKS_MAX = 1_000
REMARK_AGE_MS_MAX = 60_000
PARKED_SHOWN_MAX = 20
UNSERVED_SHOWN_MAX = 20
_MEND = {
    SigningPower.PAPER: "if you recovered the agent elsewhere, stop this copy. If not, someone else has the recovery "
    "words; recover with newer words if you have them, and see `holdfast explain recovery`",
    SigningPower.NEXT: "if you rotated the keys elsewhere, stop this copy. If not: `holdfast identity recover` evicts "
    "the thief",
}


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to fix
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    mend: str = ""  # the command that fixes it


def _maker(level: Level) -> Callable[..., Finding]:
    def make(check: str, text: str, mend: str = "") -> Finding:
        return Finding(check=check, level=level, text=text, mend=mend)

    return make


ok, note, warning, damage = map(_maker, Level)


def _warning_if(bad: object, check: str, text: str, fix: str) -> Finding:
    return warning(check, text, fix) if bad else ok(check, text)


async def examine(address: JournalAddress, *, settings: Settings, deep: bool) -> AsyncIterator[Finding]:
    """Every finding about the journal at this address, in the order a person would look."""
    admin = journal_at(address)
    yield ok("versions", f"Holdfast {find_version()}, Python {platform.python_version()}, {admin.engine}")
    async for finding in examine_backups(address.folder):
        yield finding
    left_out = find_left_out(address.instance)
    if left_out is not None:
        at = datetime.fromtimestamp(left_out.at_ms / 1000, UTC).isoformat(timespec="seconds")
        text = f"the worker that serves several agents left this agent out at {at}: {left_out.error}"
        yield warning("worker", text, "fix it, then start that worker again")
    if sys.platform != "linux":
        yield note("platform", "this system cannot kill a stopped worker: see `holdfast explain platforms`")
    try:
        if not admin.exists():
            admin.check_not_lost()
            yield _no_journal(address)
            return
        yield ok("place", admin.check_place(allow_network_fs=settings.allow_network_fs))
        yield _keys(address.folder)
        yield _secrets(address.folder)
        for finding in _arbiter(address.folder, hosts=admin.hosts):
            yield finding
        stopped = admin.find_stopped()
        if stopped is not None:
            yield damage(
                "stop flag",
                f"no new step starts: {stopped}",
                "check the disk. Then open the journal again (`holdfast worker APP`): the first process that opens it "
                "rewrites it to a new file",
            )
            return
        journal, _ = await open_journal(address, create=False, network_fs=settings.allow_network_fs)
    except HoldfastError as error:
        yield _failed(error)
        return
    try:
        async for finding in _examine_open(address, admin, journal, settings, deep=deep):
            yield finding
    except HoldfastError as error:
        yield _failed(error)
    finally:
        await journal.close()


async def _examine_open(
    address: JournalAddress, admin: JournalAdmin, journal: Journal, settings: Settings, *, deep: bool
) -> AsyncIterator[Finding]:
    yield ok(
        "journal",
        f"journal {journal.journal_id}, incarnation {journal.incarnation}, has every record that "
        f"this machine has committed (up to {admin.high_water().sequence})",
    )
    yield _space(address.instance)
    try:
        reserved = admin.has_reserve()
        if reserved is not None:
            yield _reserve(reserved)
    except JournalFull as error:
        yield _failed(error)
    yield _clock(journal)
    yield await _durability(journal, settings)
    if journal.capabilities.statements_off:
        yield note("transactional tools", journal.capabilities.statements_off)
    async for finding in _sessions(journal):
        yield finding
    async for finding in _parked(journal):
        yield finding
    yield await _notices(journal, settings)
    memory = await _memory(address.folder, journal)
    if memory is not None:
        yield memory
    if deep:
        async for finding in _deep(journal):
            yield finding


def _is_standby(home: AgentHome) -> bool:
    return os.path.lexists(home.instance / STANDBY)  # with a journal of its own


def _no_journal(address: JournalAddress) -> Finding:
    home = find_home(address.folder)
    if home is not None and home.state != home.folder:
        return ok("journal", "none: an adopted agent gets one when it uses Holdfast's durable calls")
    if home is not None and _is_standby(home):
        return ok("journal", "none: a standby gets the agent's when it takes over")
    if home is not None:
        return note("journal", f"there is no journal at {address} yet; `holdfast worker APP` creates it")
    return warning(
        NO_JOURNAL,
        f"there is no journal at {address}",
        "name it with --journal or --home; `holdfast worker APP` makes one",
    )


def _keys(folder: Path) -> Finding:
    keys = load_or_create(folder / KEYS, journal_exists=True, entropy=SystemEntropy())
    if isinstance(keys, ReadingRing):
        return note("keys", "this folder was restored with a rescue key: Holdfast only reads it")
    kept = "in the vault" if is_pointer((folder / KEYS).read_bytes()) else f"in {KEYS}; keep a copy elsewhere"
    return ok("keys", kept)


def _secrets(folder: Path) -> Finding:
    entropy = SystemEntropy()
    try:
        keys = load_or_create(folder / KEYS, journal_exists=True, entropy=entropy)
        if isinstance(keys, ReadingRing):
            return ok("secrets", "a rescue key does not open them")
        store = SecretFile(folder, keys=keys, clock=SystemClock(), entropy=entropy)
    except HoldfastError as error:
        return _failed(error)  # the journal itself may be fine: check it too
    return ok("secrets", f"{len(store.list_secrets())} set (`holdfast secret list`)")


def _arbiter(folder: Path, *, hosts: bool) -> list[Finding]:
    """Whether what says which copy of the agent may act fits the journal."""
    home = find_home(folder)
    if home is None or not home.settings.identity.arbiter or home.by_journal == hosts:
        return []
    if hosts:
        text = "it is a folder of this machine, but hosts share the journal: after a reboot this host waits for them"
        return [warning("arbiter", text, f'set arbiter = "{BY_JOURNAL}" under [identity] in {home.settings_file}')]
    text = f'it is "{BY_JOURNAL}", but this journal is a file of this machine: no worker starts'
    return [warning("arbiter", text, f"set arbiter to a folder under [identity] in {home.settings_file}")]


def _failed(error: HoldfastError) -> Finding:
    level = Level.DAMAGE if error.exit_code == EXIT_JOURNAL else Level.WARNING
    return Finding(check=error.code, level=level, text=error.message, mend=error.hint or f"see `{error.explained_by}`")


def _space(folder: Path) -> Finding:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    short = free < FREE_BYTES_MIN or (room.f_files and room.f_favail < FREE_FILES_MIN)
    text = f"{free // (1024 * 1024):,} MiB free on the disk of {folder.parent}"
    return _warning_if(short, "space", text, f"free some space: `df -h {folder}`")


def _reserve(reserved: bool) -> Finding:
    if reserved:
        return ok("reserve", "space is reserved for the results of calls in flight")
    return warning(
        "reserve",
        "could not reserve space: no new step starts while the disk is full",
        "free some space; work then resumes by itself",
    )


def _clock(journal: Journal) -> Finding:
    behind, ahead = journal.clock_behind_ms, journal.clock_ahead_ms
    if abs(ahead) >= CLOCK_BEHIND_MS_MAX:
        return warning("clock", clock_off_text(ahead / 1000), CLOCK_HINT)
    if behind < CLOCK_BEHIND_MS_MAX:
        return ok("clock", "not behind the newest record")
    return warning(
        "clock",
        f"the machine's clock is {behind / 1000:,.0f} s behind the newest record: key windows "
        "may close early and sleeping tasks may wake late, but nothing is repeated",
        CLOCK_HINT,
    )


async def _durability(journal: Journal, settings: Settings) -> Finding:
    found = await journal.find_durability(provider=settings.journal_durability == "provider")
    match found.kept:
        case Kept.ONE_DISK | Kept.STANDBY:
            return ok("durability", found.text)
        case Kept.PROVIDER | Kept.NO_STANDBY | Kept.UNKNOWN:
            return note("durability", found.text, found.hint)
        case Kept.GONE | Kept.READ_ONLY:
            return warning("durability", found.text, found.hint)


async def _sessions(journal: Journal) -> AsyncIterator[Finding]:
    sessions = await journal.list_sessions()
    alive = [one for one in sessions if one.alive]
    names = ", ".join(one.worker for one in alive) or "none"
    hosts = len({one.host_id for one in alive})
    on_hosts = f" on {hosts} hosts" if hosts > 1 else ""
    yield ok("sessions", f"{len(alive)} alive{on_hosts}: {names}")
    orphans = sum(one.tasks for one in sessions if not one.alive)
    waiting = (await journal.count_tasks()).get(TaskState.QUEUED, 0)
    if orphans:
        text = f"{counted(orphans, 'task belongs', 'tasks belong')} to workers that died"
        yield note("orphans", text) if alive else warning("orphans", text, "`holdfast worker APP` resumes them")
    if waiting and not alive:
        text = f"{counted(waiting, 'task waits', 'tasks wait')} and no worker serves this journal"
        yield warning("queue", text, "`holdfast worker APP`")
    lacking = [one for one in await find_unserved(journal, parked=True) if alive or one.build]
    for one in lacking[:UNSERVED_SHOWN_MAX]:
        yield warning("queue", one.text, one.hint)


async def _parked(journal: Journal) -> AsyncIterator[Finding]:
    states = frozenset((TaskState.PARKED,))
    count = (await journal.count_tasks()).get(TaskState.PARKED, 0)
    if not count:
        yield ok("parked", "no task needs a person")
    for row in await journal.list_tasks(Filter(states=states, limit=PARKED_SHOWN_MAX)):
        try:
            rest = (await journal.read_task(row.task_id)).rest
        except JournalDamaged as error:
            yield _failed(error)
            continue
        show = f"effect show {row.task_id}/{rest.ordinal}" if rest.ordinal else f"task show {row.task_id}"
        yield warning(
            "parked", f"task {row.task_id} ({row.name}): {rest.question or 'is parked'}", f"`holdfast {show}`"
        )
    if count > PARKED_SHOWN_MAX:
        yield warning("parked", f"{count} tasks are parked in total", "`holdfast task list --state parked`")


async def _notices(journal: Journal, settings: Settings) -> Finding:
    untold = await journal.pending_notices(limit=NOTICES_MAX)
    if not untold:
        return ok("notices", "all sent")
    count = counted(len(untold), "notice is", "notices are")
    text = f"{count} not sent yet; the oldest: {untold[0].text}"
    if not settings.notice_command and not settings.notice_webhook:
        return note("notices", text, "set a command or a webhook under [notices] in holdfast.toml")
    fix = "try the command or webhook of [notices] by hand; the worker's log says why (`notice-failed`)"
    return _warning_if(journal.now_ms() - untold[0].at_ms > NOTICE_AGE_MS_MAX, "notices", text, fix)


async def _memory(folder: Path, journal: Journal) -> Finding | None:
    """Whether lines wait to be written to the agent's memory files."""
    if find_home(folder) is None:
        return None
    from holdfast.layout.agent_home import MemoryPlace
    from holdfast.memory.journal_position import find_position

    position = await find_position(journal, MemoryPlace(folder=folder))
    waiting = await journal.remarks_after(position, limit=REMARKS_MAX)
    old = waiting and journal.now_ms() - waiting[0].at_ms > REMARK_AGE_MS_MAX
    count = counted(len(waiting), "line waits", "lines wait")
    text = f"{count} to be written into memory files" if waiting else "all written"
    fix = "`holdfast memory add TEXT` or a worker writes them; its log says why it could not (`memory-not-written`)"
    return _warning_if(old, "memory", text, fix)


async def _deep(journal: Journal) -> AsyncIterator[Finding]:
    sound = True
    async for finding in journal.check():
        sound = False
        yield damage("records", finding, JournalDamaged.default_hint)
    if sound:
        yield ok("records", "read every record, chain and seal, and their running total: all intact")
    yield note(
        "limits",
        "this check cannot see: a deleted inbox item or notice, a changed due time or crash count, the newest lines "
        "for memory files put back, the journal and instance/ put back together, or what someone with the keys does",
    )


async def examine_backups(folder: Path) -> AsyncIterator[Finding]:
    """Engine, places and their last verified backups; without an agent, only whether the engine is missing."""
    try:
        home = load_home(folder) if (folder / NAME).exists() else None
        places = () if home is None else read_places(home.places_file)
        states = {} if home is None else states_of(home).read()
    except HoldfastError:
        return  # a folder with settings and no agent; other checks say what is wrong with it
    if home is None or (not places and home.vault is None):  # a journal has no keys that could open a backup
        if not is_engine_installed(BackupSettings()):
            yield note("borg", "Borg is not installed; only backups need it", EngineMissing.default_hint)
        return
    yield await _engine(home)
    if not places:
        yield warning("backups", "this agent has no place for backups", "`holdfast place add NAME FOLDER`")
        return
    for place in places if not _is_standby(home) else ():  # the instance that acts makes backups
        yield _backup_place(place, states.get(place.name, PlaceState()), home)
    if all(is_on_disk_of(home.state, place) for place in places):
        yield warning(
            "backups",
            "every place is on the disk that the agent's folder is on: if that disk fails, the agent and its backups "
            "are lost",
            "add a place on another disk or host: `holdfast place add NAME ADDRESS`",
        )
    for finding in _second_copies(home, places):
        yield finding
    for level, text, fix in rescue_findings(home, places):
        yield Finding(check="rescue", level=Level(level), text=text, mend=fix)
    for names in shared_domains(places).values():
        yield note("backups", f"{', '.join(names)} share a failure domain: one failure can destroy all of them")


def _second_copies(home: AgentHome, places: tuple[Place, ...]) -> list[Finding]:
    """Whether another copy of the agent has left records or heads beside the places that are folders."""
    port, found = Sodium(), list[Finding]()
    try:
        log, pending = find_own_log(home.folder, port), find_pending(home.folder)
        heads = [HeadFile(home.heads_file).read().heads]
    except HoldfastError:
        return found  # the check of the identity says what is wrong
    if log is None:
        return found
    for place in places:
        try:
            files = read_folder(place.own) if place.kind is PlaceKind.FOLDER else {}
        except (HoldfastError, OSError):
            continue  # its own line says so
        heads.append(parse_copy(files.get(HEADS)).heads)
        try:
            mine = () if pending is None else (pending.digest,)
            log = check_not_replaced(
                log, log_in_companions(files), where=f"place {place.name}", port=port, pending=mine, home=home
            )
        except KeysReplaced as error:
            found.append(damage("identity", error.message, error.hint))
    chain = joined(valid_heads(one, log, port=port)[0] for one in heads)
    found += [damage("backups", fork_text(one), FORK_HINT) for one in chain.forks if not one.after_restore]
    return found


async def _engine(home: AgentHome) -> Finding:
    settings = home.settings.backup
    try:
        shown = await describe_engine(settings)
    except HoldfastError as error:
        accepted = settings.accept_old_borg and error.code == "engine-too-old"
        return (note if accepted else warning)("borg", error.message, error.hint)
    return ok("borg", shown)


def _backup_place(place: Place, state: PlaceState, home: AgentHome) -> Finding:
    now_ms = round(time.time() * 1000)
    stale_ms = round(home.settings.backup.stale_after_h * HOUR_MS)
    trouble = find_trouble(place.name, state, added_ms=place.added_ms, now_ms=now_ms, stale_after_ms=stale_ms)
    if trouble is not None:
        return warning("backups", trouble.text, trouble.hint)
    absent = find_absence(place)
    if absent is not None and (state.made_ms or state.verified_ms):
        return warning("backups", f"place {place.name}: {absent.why}", f"`holdfast place check {place.name}`")
    try:
        check_there(place)
        away = ""
    except HoldfastError as error:
        away = f"; not reachable now ({error.code})"
    if not state.verified_ms:
        return note("backups", f"place {place.name}: no verified backup yet{away}", "`holdfast backup now`")
    hours = (now_ms - state.verified_ms) / HOUR_MS
    kind = ", append-only (not immutable)" if place.append_only else ""
    return ok("backups", f"place {place.name}{kind}: {state.verified} verified {hours:.1f} h ago{away}")


async def examine_identity(home: AgentHome) -> AsyncIterator[Finding]:
    """Findings about log, witnesses and paper, for an agent that has an identity."""
    try:
        watched = await watch_log(home)
        identity = read_identity(home.identity_file)
    except HoldfastError as error:
        yield damage("identity", error.message, error.hint)
        return
    for one in watched.strange:
        text = f"{one.what} at {one.position} was not made here"
        yield damage("identity", text if one.stands else f"{text}, and is not valid", _MEND[one.power])
    for place, why in watched.silent.items():
        text = f"{place} does not answer: {why}"
        yield warning("witness", text, "mount or start it, or name other witnesses at the next rotation")
    if watched.silent and not watched.answered:
        text = "no witness answers: this machine would not notice that its keys were replaced, and continues to work"
        yield warning("identity", text, "make one of them reachable; a running worker looks again by itself")
    elif not watched.strange:
        agree = "1 witness agrees" if watched.answered == 1 else f"{watched.answered} witnesses agree"
        short = f"{identity.id[:6]} ... {identity.id[-6:]}"  # as on the sheet; the whole id is wider than the column
        yield ok("identity", f"{identity.standing}; {agree}; id {short}")
    vault = _vault(home)
    if vault is not None:
        yield vault
    if believed(home, watched.log, identity.paper, port=Sodium()).is_fresh(today()):
        yield ok("paper", "read back within 90 days")
    else:
        why = "no sheet was read back" + (" in 90 days" if identity.paper.sheets else "")
        yield warning("paper", why, "`holdfast paper verify`" if identity.paper.sheets else "`holdfast paper print`")


def _vault(home: AgentHome) -> Finding | None:
    """Whether the vault is where the settings say, and private; does not open it."""
    if home.vault is None or home.signer is not None:
        return None
    try:
        found = look_at_vault(home.vault)
    except HoldfastError as error:
        return warning("vault", error.message, error.hint)
    if found.opens_here:
        return ok("vault", f"{home.vault}: opened by {found.kinds}")
    return warning("vault", f"{home.vault}: this machine has nothing that opens it", found.hint)
