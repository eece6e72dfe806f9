"""The agent's own copy of its key log in its home (`kel.jsonl`, `receipts.jsonl`), and a lost log put together again.

    kel.jsonl        one record in a line, in the order in which they were taken
    receipts.jsonl   one receipt of a witness in a line

True at all times: every whole line stands on those before it, and a receipt is for a record that is in
kel.jsonl. Both files only grow. Records are appended and synced before their receipts are; a crash inside an
append leaves a last line without its end, which says nothing and is cut off before the next one. Whatever
else does not read back is damage and is refused: an agent that misread its own log might speak with keys that
no longer count. `mend_own_log` then rewrites both files from what the witnesses hold.

A rotation or recovery enters after enough witnesses have vouched for it. Until then it waits in
`pending.jsonl`, so that a record which never became final never stood here.

The copy proves nothing to others and nothing in it is secret; it is 0600 like its neighbours.

Of an agent that was lost the log is put together from whatever has survived. Sources are witnesses, a copy in
a backup, and the public card, which holds the inception and the newest recovery alone. Nothing of it is
believed: every record is verified, and those in between that the card leaves out are made again from the
paper, which gives the same bytes, or the chain does not close and the card is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadRecord, BadSheet, HoldfastError, LogDamaged, LogMissing
from holdfast.host.private_files import explained, read_private, remove_durably, write_atomically
from holdfast.identity.log import drafts
from holdfast.identity.log.log import Numbered, accept, replay, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import Inception, Keys, Record, Recovery, Retirement, id_of, parse_record
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.witness.observe import merge_copies, records_of
from holdfast.identity.witness.open_witnesses import OpenWitnesses, list_agents
from holdfast.identity.witness.witness import LogCopy, copy_of
from holdfast.identity.witness.witness_folder import append_at

LOG = "kel.jsonl"
RECEIPTS = "receipts.jsonl"
FILE_BYTES_MAX = 64 * 1024 * 1024  # the longest generation has a tenth of it


def read_own_log(home_folder: Path, port: Signatures) -> KeyLog:
    """The agent's log as its home has it, every signature checked. Raises LogMissing, LogDamaged (a line does not
    follow from those before it), ModeTooWide, WrongOwner, SymlinkRefused."""
    log = find_own_log(home_folder, port)
    if log is None:
        raise LogMissing(f"there is no {LOG} in {home_folder}")
    return log


def find_own_log(home_folder: Path, port: Signatures) -> KeyLog | None:
    """As read_own_log, but None where there is none."""
    lines = {name: _whole(home_folder / name)[1] for name in (LOG, RECEIPTS)}
    try:
        return replay(lines[LOG], lines[RECEIPTS], port=port)
    except BadRecord as error:
        raise LogDamaged(f"{home_folder / LOG}: {error.message}") from error


def read_lines(home_folder: Path) -> LogCopy:
    """The lines as they are stored, unchecked: for a copy elsewhere."""
    records, receipts = (_whole(home_folder / name)[1] for name in (LOG, RECEIPTS))
    return LogCopy(records=tuple(line for _, line in records), receipts=tuple(line for _, line in receipts))


def extend_own_log(home_folder: Path, log: KeyLog, port: Signatures) -> KeyLog:
    """Append what the stored copy lacks of this log, records first. Safe to repeat. The log given must hold all that is
    stored; a caller reads, adds, and gives it back. On return the files were read again and say what the log says."""
    with home_lock(home_folder):
        new = copy_of(log)
        for name, lines in ((LOG, new.records), (RECEIPTS, new.receipts)):
            _append(home_folder / name, lines)
        stored = find_own_log(home_folder, port)
    if stored is None or set(copy_of(stored).records) != set(new.records):
        raise LogDamaged(f"the records in {home_folder / LOG} differ from the key log that Holdfast wrote")
    return stored


def rewrite_own_log(home_folder: Path, log: KeyLog) -> None:
    """Rewrite both files. Receipts go first to nothing, so that none is without its record."""
    new = copy_of(log)
    with home_lock(home_folder):
        write_atomically(home_folder / RECEIPTS, b"")
        for name, lines in ((LOG, new.records), (RECEIPTS, new.receipts)):
            write_atomically(home_folder / name, b"".join(line + b"\n" for line in lines))


@contextmanager
def home_lock(home_folder: Path) -> Generator[None]:
    """One process at a time changes the public files of a home."""
    try:
        fd = os.open(home_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise explained(error, home_folder) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _append(path: Path, lines: tuple[bytes, ...]) -> None:
    size, stored = _whole(path)
    known = {line for _, line in stored}
    data = b"".join(line + b"\n" for line in lines if line not in known)
    if data:
        append_at(path, size, data)


def _whole(path: Path) -> tuple[int, list[Numbered]]:
    """The bytes that whole lines take, and these lines."""
    try:
        raw = read_private(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return 0, []
    if len(raw) > FILE_BYTES_MAX:
        raise LogDamaged(f"{path} is larger than {FILE_BYTES_MAX:,} bytes, the limit for a key log")
    whole = raw[: raw.rfind(b"\n") + 1]
    return len(whole), list(enumerate(whole.split(b"\n")[:-1], 1))


PENDING = "pending.jsonl"


def find_pending(home_folder: Path) -> Signed[Record] | None:
    """The record that may have been sent already. Raises LogDamaged."""
    path = home_folder / PENDING
    try:
        raw = read_private(path, LINE_BYTES_MAX + 2)
    except FileNotFoundError:
        return None
    try:
        return parse_record(raw.removesuffix(b"\n"))
    except BadRecord as error:
        raise LogDamaged(
            f"{path}: {error.message}",
            hint="the witnesses may already have this record: run `holdfast identity show --fetch` to get it, "
            "then remove this file",
        ) from error


def write_pending(home_folder: Path, signed: Signed[Record]) -> None:
    write_atomically(home_folder / PENDING, signed.line() + b"\n")


def clear_pending(home_folder: Path) -> None:
    """Safe to repeat."""
    if os.path.lexists(home_folder / PENDING):
        remove_durably(home_folder / PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """One agent's log, as far as it could be joined, and all records that were seen of it."""

    log: KeyLog
    records: tuple[Signed[Record], ...]

    def completed(self, paper: PaperKeys, *, port: Signatures) -> KeyLog:
        """With the recoveries that a card leaves out. Raises BadSheet where they do not fit."""
        tiers = {one.record.g: one for one in self.records if isinstance(one.record, Recovery | Retirement)}
        log = self.log
        while max(tiers, default=0) >= len(log.generations):
            g = len(log.generations)
            signed = tiers.get(g) or recovery_of(log, paper)
            after = accept(log, signed, port=port, asked=witnesses_to_ask(log, signed.record))
            if isinstance(after, Refusal):
                raise BadSheet(
                    f"the key log lacks the record of the recovery of generation {g}: {after.message}",
                    hint="give a copy of kel.jsonl from a backup, or a witness that holds the log",
                )
            log = after
        return log


async def read_logs(
    copies: Sequence[LogCopy], reached: OpenWitnesses, *, port: Signatures, ids: Sequence[AgentId] = ()
) -> list[FoundLog]:
    """Every agent of which these sources hold the beginning. `ids` are asked for besides: a relay lists none."""
    by_agent: dict[AgentId, list[LogCopy]] = {}
    for copy in copies:
        for id_ in {id_of(one) for one in records_of(copy) if isinstance(one.record, Inception)}:
            by_agent.setdefault(id_, []).append(copy)
    for key, witness in reached.by_key.items():
        for id_ in dict.fromkeys((*by_agent, *ids, *list_agents(reached.addresses[key]))):
            try:
                held = await asyncio.wait_for(witness.fetch(id_), 10)
            except (HoldfastError, OSError, TimeoutError):
                continue
            if held is not None:
                by_agent.setdefault(id_, []).append(held)
    found: list[FoundLog] = []
    for id_, served in by_agent.items():
        records = tuple(one for copy in served for one in records_of(copy) if id_of(one) == id_)
        asked = frozenset(key for one in records if one.record.wit for key in one.record.wit.members)
        log = merge_copies(None, served, id=id_, port=port, asked=asked)
        if log is not None:
            found.append(FoundLog(log=log, records=records))
    return found


def recovery_of(
    log: KeyLog, paper: PaperKeys, *, wit: Keys | None = None, successor: PaperKeys | None = None
) -> Signed[Record]:
    """The recovery that follows the log's last generation. With a successor everything that comes after it is the
    successor's: the end of the lock too, or anyone who has the old paper could be quicker at that."""
    g = len(log.generations)
    heir, rp = successor or paper, log.generations[-1].tier.digest
    with paper.recovery(g) as by, heir.next(g) as following, heir.recovery(g + 1) as later:
        nxt, rec = (drafts.committed((key.public,)) for key in (following, later))
        return drafts.recovery(id=log.id, g=g, rp=rp, by=(by,), nxt=nxt, rec=rec, wit=wit)
