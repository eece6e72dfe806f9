"""A witness, and its logs in a folder: one file for each agent, appended and synced, never rewritten.

True at all times: a receipt that left this process is in the file, behind the record that it is
for. Each change is one append of whole lines, synced before the answer. A crash inside an append
leaves a last line without its end; what such a line would have said was never answered, so it is
cut off before the next append. Anything else that does not read back is damage, and the witness
then refuses to sign for that agent: it might vouch twice for one position.

A folder that is put back from an older copy has the same effect as a lie: a witness restored that
way must take a new key. The folder is private (0700, files 0600), and one lock file in it keeps
two processes from changing one log at once.

What every witness does around its decision (read, ask the old witnesses, sign, keep, answer) is
`WitnessService`; where it keeps the log is a `LogStore`'s matter.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.errors import BadRecord, HoldfastError, InvariantViolated, WitnessDamaged
from holdfast.host import private_files
from holdfast.identity.log.log import NOBODY, Receipts, WitnessKeys, add_receipt, replay, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, PublicKey, parse_agent_id
from holdfast.identity.records.records import Receipt, Record, id_of, parse_receipt, parse_record, sign_receipt
from holdfast.identity.records.secret_bytes import SEED_BYTES, KeyPair, SecretBytes
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.witness import LogCopy, Witness, WitnessVerdict, copy_of, is_receipt, judge_record

FILE_BYTES_MAX = 256 * 1024 * 1024  # a log of the longest generation is a hundredth of it
SEED = "witness.seed"
_LOCK = "lock"


class FolderLogStore:
    def __init__(self, folder: Path, *, port: Signatures) -> None:
        private_files.ensure_private_folder(folder)
        self._folder = folder
        self._port = port
        self._read: dict[AgentId, tuple[int, KeyLog]] = {}  # by agent: bytes read, and their log
        self._threads = threading.Lock()

    def find(self, id: AgentId) -> KeyLog | None:
        with self._alone():
            return self._load(id)[1]

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal:
        with self._alone():
            size, before = self._load(id)
            judged = change(before)
            if isinstance(judged, WitnessVerdict) and judged.log is not before:
                size = self._append(id, size, added_lines(before, judged.log))
                self._read[id] = (size, judged.log)
            return judged

    def _load(self, id: AgentId) -> tuple[int, KeyLog | None]:
        path = self._path(id)
        try:
            fd = private_files.open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return 0, None
        try:
            size = os.fstat(fd).st_size
            known = self._read.get(id)
            if known is not None and known[0] == size:
                return known
            if size > FILE_BYTES_MAX:
                raise WitnessDamaged(f"{path} has {size:,} bytes; a witness writes at most {FILE_BYTES_MAX:,}")
            with os.fdopen(os.dup(fd), "rb") as file:
                raw = file.read(size)
        finally:
            os.close(fd)
        whole = raw[: raw.rfind(b"\n") + 1]
        if not whole:
            return 0, None
        log = replayed(whole, path, self._port)
        self._read[id] = (len(whole), log)
        return len(whole), log

    def _append(self, id: AgentId, size: int, lines: list[bytes]) -> int:
        data = b"".join(line + b"\n" for line in lines)
        try:
            append_at(self._path(id), size, data)
        except (HoldfastError, OSError):
            self._read.pop(id, None)
            raise
        return size + len(data)

    def _path(self, id: AgentId) -> Path:
        return self._folder / f"{parse_agent_id(id)}.jsonl"

    @contextmanager
    def _alone(self) -> Generator[None]:
        with self._threads:
            private_files.check_private_folder(self._folder)
            with private_files.locked(self._folder / _LOCK):
                yield


def append_at(path: Path, size: int, data: bytes) -> None:
    """Write behind the whole lines, which have this size; a line that a crash cut short goes."""
    fresh = not path.exists()
    fd = private_files.open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(fd, size)
        os.lseek(fd, size, os.SEEK_SET)
        private_files.write_all(fd, data)
        private_files.sync(fd)
    except OSError as error:
        raise private_files.explained(error, path) from error
    finally:
        os.close(fd)
    if fresh:
        private_files.sync_folder(path.parent)


def witness_signer(folder: Path) -> KeyPair:
    """The witness's own key, made on first use; it signs receipts and nothing else."""
    private_files.ensure_private_folder(folder)
    path = folder / SEED
    private_files.create_durably(path, os.urandom(SEED_BYTES))
    seed = private_files.read_private(path, SEED_BYTES + 1)
    if len(seed) != SEED_BYTES:
        raise WitnessDamaged(f"{path} is not a key: it must have {SEED_BYTES} bytes")
    return KeyPair(SecretBytes(seed))


def replayed(raw: bytes, where: Path | str, port: Signatures) -> KeyLog:
    """The log that a witness has stored, every signature checked. Raises WitnessDamaged."""
    lines = list(enumerate(raw.splitlines(), 1))
    receipts = [one for one in lines if is_receipt(one[1])]
    records = [one for one in lines if not is_receipt(one[1])]
    try:
        log = replay(records, receipts, port=port)
    except BadRecord as error:
        raise WitnessDamaged(f"{where}: {error.message}") from error
    if log is None:
        raise WitnessDamaged(f"{where} has no record of a key log")
    return log


def added_lines(before: KeyLog | None, after: KeyLog) -> list[bytes]:
    """The lines of the new log that the old one lacks, records first."""
    new = copy_of(after)
    if before is None:
        return [*new.records, *new.receipts]
    old = copy_of(before)
    records, receipts = set(old.records), set(old.receipts)
    return [
        *(line for line in new.records if line not in records),
        *(line for line in new.receipts if line not in receipts),
    ]


Clock = Callable[[], int]
Change = Callable[[KeyLog | None], WitnessVerdict | Refusal]
ASK_ROUNDS_MAX = 4  # changes of witnesses that an answer may reveal, one after the other
ASK_S_MAX = 10.0  # an old witness that has not answered by then counts as asked


class LogStore(Protocol):
    """Keeps one log for each agent. `change` is atomic, alone and durable when it returns."""

    def find(self, id: AgentId) -> KeyLog | None: ...

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal: ...


@dataclass(frozen=True, slots=True)
class WitnessService:
    """A witness over a log store. `peers` are the other witnesses it can ask, by key."""

    store: LogStore
    signer: Signer
    port: Signatures
    clock: Clock
    peers: Mapping[PublicKey, Witness] = field(default_factory=dict[PublicKey, Witness])

    @property
    def key(self) -> PublicKey:
        return self.signer.public

    async def submit(self, line: bytes, receipts: Sequence[bytes] = ()) -> bytes | Refusal:
        try:
            signed = parse_record(line)
            vouched = tuple(map(parse_receipt, receipts))
        except BadRecord as error:
            return Refusal(Reason.MALFORMED, error.message)
        id_ = id_of(signed)
        answers, asked = await self._ask(id_, signed)
        judged = await asyncio.to_thread(
            self.store.change, id_, lambda log: self._judged(log, signed, vouched, answers, asked)
        )
        if isinstance(judged, Refusal):
            return judged
        answer = judged.answer
        if isinstance(answer, Receipt):
            raise InvariantViolated("Holdfast kept a receipt before the witness signed it", detail=id_)
        return answer if isinstance(answer, Refusal) else answer.line()

    async def fetch(self, id: AgentId) -> LogCopy | None:
        return await asyncio.to_thread(self.find_copy, id)

    def find_copy(self, id: AgentId) -> LogCopy | None:
        log = self.store.find(id)
        return None if log is None else copy_of(log)

    def _judged(
        self,
        log: KeyLog | None,
        signed: Signed[Record],
        receipts: Receipts,
        copies: Sequence[LogCopy],
        asked: WitnessKeys,
    ) -> WitnessVerdict | Refusal:
        log = merge_copies(log, copies, id=id_of(signed), port=self.port, asked=asked)
        judged = judge_record(
            log, signed, key=self.key, port=self.port, now=self.clock(), receipts=receipts, asked=asked
        )
        if isinstance(judged, Refusal) or not isinstance(judged.answer, Receipt):
            return judged
        return _with_own(judged.log, sign_receipt(judged.answer, self.signer), self.port)

    async def _ask(self, id_: AgentId, signed: Signed[Record]) -> tuple[tuple[LogCopy, ...], WitnessKeys]:
        """What the old witnesses hold, and who was asked: also those of which only an answer told this one."""
        log = await asyncio.to_thread(self.store.find, id_)
        asked = NOBODY
        answers: tuple[LogCopy, ...] = ()
        for _ in range(ASK_ROUNDS_MAX):
            missing = NOBODY if log is None else witnesses_to_ask(log, signed.record) - asked
            if not missing:
                break
            asked |= missing
            peers = [self.peers[key] for key in sorted(missing) if key in self.peers]
            copies = await asyncio.gather(*(_answer(peer.fetch(id_)) for peer in peers))
            answers += tuple(copy for copy in copies if copy is not None)
            log = merge_copies(log, answers, id=id_, port=self.port, asked=asked)
        return answers, asked


def _with_own(log: KeyLog, receipt: Signed[Receipt], port: Signatures) -> WitnessVerdict | Refusal:
    """The log with the witness's own receipt in it, and that receipt as the answer."""
    after = add_receipt(log, receipt, port=port)
    return after if isinstance(after, Refusal) else WitnessVerdict(log=after, answer=receipt)


async def _answer(asking: Awaitable[LogCopy | None]) -> LogCopy | None:
    try:
        return await asyncio.wait_for(asking, ASK_S_MAX)
    except (HoldfastError, OSError, TimeoutError):
        return None
