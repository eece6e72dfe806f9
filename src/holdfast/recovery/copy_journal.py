"""`holdfast journal copy`: the journal of a folder moves between a file and a database, and stays the same journal.

Id, records, chains, seals, salt and the keys that serve it stay, so the same request id gives the same task id and
effect keys afterwards. The order, and why: nobody else has the source open; it is checked whole; its copy is written at
the target and compared; then the source gets another name, and only then the target can be opened. So there is no
moment at which workers could run on both; after a kill in between, the source is whole under its new name. The target
has the next incarnation, and this machine's mark says so: should the old file get its name back, it is an older copy.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from holdfast.app.binder import KEYS
from holdfast.core.clock import Clock, SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.ports import KeyRing
from holdfast.errors import BadInput, HoldfastError, JournalBusy, JournalDamaged, NotAJournal, NotNow
from holdfast.host.private_files import ensure_private_folder, open_private
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.admin import ALONE_WAIT_S, JournalAdmin
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import peek_home
from holdfast.layout.moved import check_not_moved
from holdfast.layout.rescued import check_not_rescued
from holdfast.layout.settings import NAME, write_identity_settings, write_journal_url


class CopiedJournal(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy did, or with `dry_run` would do."""

    source: str
    target: str
    journal_id: str
    incarnation: int
    sequence: int  # the number of the newest record
    kept: str  # the name that the source has now
    tables_left: tuple[str, ...]  # of Transactional tools: they are only at the source
    done: bool


async def copy_journal(
    source: JournalAddress,
    target: JournalAddress,
    *,
    keys: KeyRing | None = None,
    clock: Clock | None = None,
    dry_run: bool = False,
    wait_s: float = ALONE_WAIT_S,
    arbiter: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> CopiedJournal:
    """Move the journal from one address to the other, which must be empty; the settings of the folder follow: its url,
    and who decides which copy of the agent may act. `arbiter`: the folder for that on this machine.
    Raises NotNow: the target is not empty; JournalBusy: a worker or another process has the source open;
    JournalDamaged, JournalOlderCopy, JournalNewer, ReadOnly, KeysWrong: then nothing was changed."""
    if source.folder != target.folder:
        raise BadInput(
            f"{target} does not go with the folder {source.folder}, which has the keys of the journal",
            hint=f"give a url, or the path of a new file in {source.folder}",
        )
    check_not_moved(source.instance)
    check_not_rescued(source.folder)
    origin, goal, clock = journal_at(source), journal_at(target), clock or SystemClock()
    if not origin.exists():
        raise NotAJournal(f"there is no journal at {source}")
    journal_id = origin.peek()
    if goal.exists():
        raise NotNow(
            f"there is something at {target} already", hint="give an empty target: Holdfast overwrites nothing"
        )
    goal.check_place()
    keys = keys or load_or_create(source.folder / KEYS, journal_exists=True, entropy=SystemEntropy())
    tell(f"waiting until no process uses {source}, for {wait_s:g} s at most")
    with await _alone(origin, keys, clock, wait_s):
        tell(f"checking {source}")
        findings = origin.find_damage(keys)
        if findings:
            raise JournalDamaged(f"Holdfast does not copy a damaged journal: {findings[0]}")
        if dry_run:
            return CopiedJournal(
                source=str(source),
                target=str(target),
                journal_id=journal_id,
                incarnation=origin.incarnation() + 1,
                sequence=origin.newest_record(),
                kept="",
                tables_left=(),
                done=False,
            )
        with tempfile.TemporaryDirectory(dir=_private(source.instance), prefix="copy-") as folder:
            done = await _copy(origin, goal, Path(folder) / "copy", source, target, keys, clock, tell)
    tell(f"checking {target}")
    findings = goal.find_damage(keys)
    if findings:
        raise JournalDamaged(f"the copy at {target} is damaged: {findings[0]}", hint=_back(done.kept, source))
    _set_arbiter(target.folder, hosts=goal.hosts, arbiter=arbiter)
    write_journal_url(target.folder / NAME, target.url)
    return done


def _set_arbiter(folder: Path, *, hosts: bool, arbiter: str) -> None:
    home = peek_home(folder)
    if home is None:
        return
    old = home.settings.identity
    new = msgspec.structs.replace(old, arbiter=home.arbiter_for(hosts=hosts, folder=arbiter))
    if new != old:
        write_identity_settings(home.settings_file, name=home.name, identity=new)


async def _alone(origin: JournalAdmin, keys: KeyRing, clock: Clock, wait_s: float) -> AbstractContextManager[object]:
    try:
        # Opened as a worker opens it: an older copy is refused, a promotion with loss becomes a restore.
        await (await origin.open(keys=keys, clock=clock, entropy=SystemEntropy(), create=False)).close()
        return await origin.use_alone(wait_s=wait_s)
    except JournalBusy as error:
        hint = "stop every worker and every other process that uses the journal. Then run the command again"
        raise JournalBusy(error.message, hint=hint) from error


async def _copy(
    origin: JournalAdmin,
    goal: JournalAdmin,
    file: Path,
    source: JournalAddress,
    target: JournalAddress,
    keys: KeyRing,
    clock: Clock,
    tell: Callable[[str], None],
) -> CopiedJournal:
    os.close(open_private(file, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    copied, kept = origin.copy(file), list[str]()
    tell(f"copying {copied.sequence:,} records")
    try:
        filled = await goal.fill(file, keys=keys, clock=clock, ready=lambda: kept.append(origin.set_aside()))
    except HoldfastError as error:
        if kept:
            raise type(error)(error.message, hint=_back(kept[0], source)) from error
        raise
    return CopiedJournal(
        source=str(source),
        target=str(target),
        journal_id=filled.journal_id,
        incarnation=filled.incarnation,
        sequence=filled.sequence,
        kept=kept[0],
        tables_left=(*copied.tables_left, *filled.tables_left),
        done=True,
    )


def _back(kept: str, source: JournalAddress) -> str:
    return f"{source} is now {kept}, and is whole: give it its name back, and run the command again"


def _private(folder: Path) -> Path:
    ensure_private_folder(folder)
    return folder
