"""An arbiter in a folder: for the processes and copies of an agent that share one machine.

    arbiter.seed   32 bytes from which challenges are derived
    lock           held while anything is read or changed
    logs/          the key logs that it was told of (witness_folder.py)
    ID.json        the lease that was granted last, and the counters of instances

Whoever uses the folder is the arbiter while it holds the lock; a process that dies gives the lock
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
from holdfast.identity.lease.arbiter import SECRET_BYTES, bar_at
from holdfast.identity.lease.arbiter_state import (
    Bar,
    Bench,
    Contender,
    Granted,
    Seen,
    challenge_for,
    gave,
    id_of_claim,
    id_of_yield,
    judged,
    learned,
    seen,
)
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, key_bytes, parse_agent_id, parse_digest
from holdfast.identity.records.records import Position
from holdfast.identity.records.refusal import Reason, Refusal
from holdfast.identity.statements.claim import LEASE_MS, How, Lease
from holdfast.identity.statements.instance_chain import WINDOW, Chain
from holdfast.identity.witness.witness import Copy, Judged
from holdfast.identity.witness.witness_folder import FolderShelf

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


class FolderArbiter:
    """arbiter.LeaseArbiter over a folder."""

    def __init__(self, folder: Path, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        check_place(folder)
        ensure_private_folder(folder)
        self._folder = folder
        self._clock = clock
        self._life_ms = life_ms
        self._port = Sodium()
        self._logs = FolderShelf(folder / _LOGS, port=self._port)
        self._threads = threading.Lock()
        self._secret = _secret(folder)

    def learn(self, copy: Copy, id: AgentId) -> None:
        def change(log: Log | None) -> Judged | Refusal:
            after = learned(log, copy, id, self._port)
            known = Refusal(Reason.NOT_A_WITNESS, "kept")
            return known if after is None else Judged(log=after, answer=known)

        self._logs.change(id, change)

    def look(self, id: AgentId) -> Seen | None:
        with self._alone() as bar:
            return seen(self._load(id), bar)

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        with self._alone() as bar:
            return challenge_for(self._load(id), id, inst, bar)

    def grant(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        return self._judge(claim, certificate, renewal=False)

    def renew(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        return self._judge(claim, certificate, renewal=True)

    def yield_to(self, said: bytes) -> Refusal | None:
        id_ = id_of_yield(said)
        if isinstance(id_, Refusal):
            return id_
        with self._alone() as bar:
            before = self._load(id_)
            after, answer = gave(before, said, bar)
            self._keep(id_, before, after)
            return answer

    def _judge(self, claim: bytes, certificate: bytes, *, renewal: bool) -> Granted | Refusal:
        id_ = id_of_claim(claim)
        if isinstance(id_, Refusal):
            return id_
        log = self._logs.find(id_)
        with self._alone() as bar:
            before = self._load(id_)
            after, answer = judged(before, claim, certificate, log, bar, renewal=renewal)
            self._keep(id_, before, after)
            return answer

    def _keep(self, id_: AgentId, before: Bench, after: Bench) -> None:
        if after != before:
            write_atomically(self._path(id_), _packed(id_, after))

    def _load(self, id_: AgentId) -> Bench:
        path = self._path(id_)
        try:
            fd = open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return Bench()
        with open(fd, "rb") as file:
            raw = file.read(FILE_BYTES_MAX)
        try:
            return _unpacked(msgspec.json.decode(raw, type=_File), id_)
        except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
            raise ArbiterDamaged(f"{path} is malformed: {error}") from error

    def _path(self, id_: AgentId) -> Path:
        return self._folder / f"{parse_agent_id(id_)}.json"

    @contextmanager
    def _alone(self) -> Generator[Bar]:
        """The clock is read under the lock: what comes later is judged later."""
        with self._threads:
            check_private_folder(self._folder)
            with locked(self._folder / _LOCK):
                yield bar_at(self._clock, self._life_ms, self._secret, self._port)


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


def _packed(id_: AgentId, bench: Bench) -> bytes:
    lease, contender = bench.lease, bench.contender
    whole = _File(
        format=FORMAT,
        id=id_,
        boot=bench.boot,
        head=bench.head or "",
        head_seen_at=bench.head_seen_at,
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
        chains=tuple(_Chain(inst=inst, seen=chain.seen, frozen=chain.frozen) for inst, chain in bench.chains.items()),
        contender=None
        if contender is None
        else _Contender(inst=contender.inst, e=contender.e, how=contender.how.value, at=contender.at),
    )
    return msgspec.json.encode(whole) + b"\n"


def _unpacked(found: _File, id_: AgentId) -> Bench:
    if found.format != FORMAT or found.id != id_:
        raise ValueError("another format, or of another agent")
    lease, contender = found.lease, found.contender
    return Bench(
        boot=found.boot,
        lease=None
        if lease is None
        else Lease(
            id=id_,
            e=lease.e,
            inst=_key(lease.inst),
            position=Position(lease.g, lease.s),
            until_ms=lease.until_boot_ms,
            state_root=parse_digest(lease.state_root),
            yielded_to=_key(lease.yielded_to) if lease.yielded_to else None,
            frozen=lease.frozen,
        ),
        chains={_key(one.inst): Chain(seen=_seen(one.seen), frozen=one.frozen) for one in found.chains},
        contender=None
        if contender is None
        else Contender(inst=_key(contender.inst), e=contender.e, how=How(contender.how), at=contender.at),
        head=parse_digest(found.head) if found.head else None,
        head_seen_at=found.head_seen_at,
    )


def _seen(pairs: tuple[tuple[int, str], ...]) -> tuple[tuple[int, Digest], ...]:
    if len(pairs) > WINDOW or list(pairs) != sorted(pairs):
        raise ValueError("a chain that is too long or out of order")
    return tuple((number, parse_digest(digest)) for number, digest in pairs)


def _key(text: str) -> PublicKey:
    key_bytes(text)
    return PublicKey(text)
