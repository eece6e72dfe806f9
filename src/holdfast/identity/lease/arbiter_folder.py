"""An arbiter in a folder: for the processes and copies of an agent that share one machine.

    arbiter.seed   32 bytes from which challenges are derived
    lock           held while anything is read or changed
    logs/          the key logs that it was told of (witness_folder.py)
    ID.json        the lease that was granted last, and the counters of instances

Anyone who uses the folder is the arbiter while it holds the lock; a process that dies gives the lock
back. ID.json is replaced in one durable act before the answer is given. A folder that is put back
from an older copy may grant an incarnation twice: it must not be part of the agent's backup, and
it is refused on a network file system, because the boot clocks of two machines do not compare.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.core.clock import Clock
from holdfast.errors import ArbiterDamaged, BadRecord
from holdfast.host.private_files import (
    check_place,
    check_private_folder,
    create_durably,
    ensure_private_folder,
    locked,
    open_private,
    write_atomically,
)
from holdfast.identity.lease.arbiter import SECRET_BYTES, StoredArbiter
from holdfast.identity.lease.arbiter_state import ArbiterState, Contender, Hearing, learn_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, Digest, parse_agent_id, parse_digest, parse_key
from holdfast.identity.records.records import LogPosition, Reason, Refusal
from holdfast.identity.statements.claim import LEASE_MS, WINDOW, AgentLease, ClaimBasis, MessageChain
from holdfast.identity.witness.witness import LogCopy, WitnessVerdict
from holdfast.identity.witness.witness_folder import FolderLogStore

FORMAT = 1
FILE_BYTES_MAX = 4 << 20
_SEED = "arbiter.seed"
_LOCK = "lock"
_LOGS = "logs"


class _Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    e: int
    inst: str
    g: int
    s: int
    until_boot_ms: int
    state_root: str
    yielded_to: str = ""
    frozen: bool = False


class _Chain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inst: str
    seen: tuple[tuple[int, str], ...]
    frozen: bool = False


class _Contender(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inst: str
    e: int
    how: str
    at: int


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    id: str
    boot: str
    head: str = ""
    head_seen_at: int = 0
    lease: _Lease | None = None
    chains: tuple[_Chain, ...] = ()
    contender: _Contender | None = None


class FolderArbiter(StoredArbiter):
    """arbiter.LeaseArbiter over a folder."""

    def __init__(self, folder: Path, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        check_place(folder)
        ensure_private_folder(folder)
        super().__init__(clock=clock, life_ms=life_ms, secret=_secret(folder))
        self._folder = folder
        self._logs = FolderLogStore(folder / _LOGS, port=self._port)
        self._threads = threading.Lock()

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        def change(log: KeyLog | None) -> WitnessVerdict | Refusal:
            after = learn_log(log, copy, id, self._port)
            known = Refusal(Reason.NOT_A_WITNESS, "kept")
            return known if after is None else WitnessVerdict(log=after, answer=known)

        self._logs.change(id, change)

    def _find_log(self, id_: AgentId) -> KeyLog | None:
        return self._logs.find(id_)

    def _keep(self, id_: AgentId, before: ArbiterState, after: ArbiterState) -> None:
        if after != before:
            write_atomically(self._path(id_), _packed(id_, after))

    def _load(self, id_: AgentId) -> ArbiterState:
        path = self._path(id_)
        try:
            fd = open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return ArbiterState()
        with open(fd, "rb") as file:
            raw = file.read(FILE_BYTES_MAX)
        try:
            return _unpacked(msgspec.json.decode(raw, type=_File), id_)
        except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
            raise ArbiterDamaged(f"{path} is malformed: {error}") from error

    def _path(self, id_: AgentId) -> Path:
        return self._folder / f"{parse_agent_id(id_)}.json"

    @contextmanager
    def _alone(self) -> Generator[Hearing]:
        with self._threads:
            check_private_folder(self._folder)
            with locked(self._folder / _LOCK):
                yield self._hearing()


def _secret(folder: Path) -> bytes:
    path = folder / _SEED
    create_durably(path, os.urandom(SECRET_BYTES))
    fd = open_private(path, os.O_RDONLY)
    try:
        found = os.read(fd, SECRET_BYTES + 1)
    finally:
        os.close(fd)
    if len(found) != SECRET_BYTES:
        raise ArbiterDamaged(f"{path} does not hold {SECRET_BYTES} bytes")
    return found


def _packed(id_: AgentId, state: ArbiterState) -> bytes:
    lease, contender = state.lease, state.contender
    whole = _File(
        format=FORMAT,
        id=id_,
        boot=state.boot,
        head=state.head or "",
        head_seen_at=state.head_seen_at,
        lease=None
        if lease is None
        else _Lease(
            e=lease.e,
            inst=lease.inst,
            g=lease.position.g,
            s=lease.position.s,
            until_boot_ms=lease.until_ms,
            state_root=lease.state_root,
            yielded_to=lease.yielded_to or "",
            frozen=lease.frozen,
        ),
        chains=tuple(_Chain(inst=inst, seen=chain.seen, frozen=chain.frozen) for inst, chain in state.chains.items()),
        contender=None
        if contender is None
        else _Contender(inst=contender.inst, e=contender.e, how=contender.how.value, at=contender.at),
    )
    return msgspec.json.encode(whole) + b"\n"


def _unpacked(found: _File, id_: AgentId) -> ArbiterState:
    if found.format != FORMAT or found.id != id_:
        raise ValueError("another format, or of another agent")
    lease, contender = found.lease, found.contender
    return ArbiterState(
        boot=found.boot,
        lease=None
        if lease is None
        else AgentLease(
            id=id_,
            e=lease.e,
            inst=parse_key(lease.inst),
            position=LogPosition(lease.g, lease.s),
            until_ms=lease.until_boot_ms,
            state_root=parse_digest(lease.state_root),
            yielded_to=parse_key(lease.yielded_to) if lease.yielded_to else None,
            frozen=lease.frozen,
        ),
        chains={parse_key(one.inst): MessageChain(seen=_seen(one.seen), frozen=one.frozen) for one in found.chains},
        contender=None
        if contender is None
        else Contender(inst=parse_key(contender.inst), e=contender.e, how=ClaimBasis(contender.how), at=contender.at),
        head=parse_digest(found.head) if found.head else None,
        head_seen_at=found.head_seen_at,
    )


def _seen(pairs: tuple[tuple[int, str], ...]) -> tuple[tuple[int, Digest], ...]:
    if len(pairs) > WINDOW or list(pairs) != sorted(pairs):
        raise ValueError("a chain that is too long or out of order")
    return tuple((number, parse_digest(digest)) for number, digest in pairs)
