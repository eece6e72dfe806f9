"""The keeper of an instance: asks for the agent's lease, renews it, and says until when to act.

One round is `turn`. What it answers holds on this machine's boot clock, counted from before the
arbiter was asked, less a margin: anyone who acts only until then stops before the arbiter gives the
lease to someone else, however long the answer took.

The order of one round: read the log and the file of the instance (another process of this folder may have
kept the lease meanwhile, and its counter is the one that counts), look at the lease, decide what may be asked
(instance.py), have a certificate, write down counter and incarnation durably, send, raise the journal to the
incarnation, and only then answer "held". A crash after the writing leaves a counter that was perhaps never
sent; the next message has the one after it, and no one takes that for a fork. A crash after the grant leaves
a lease of this very key, which the next round renews.

The file: `instance/key.json`: the instance's key and its counter, on this host alone.

The folder is 0700 and the file 0600; it is excluded from every backup. It is replaced in one
durable act before a message with the next counter leaves, so that a crash can lose a message but
never send two under one counter. A key that is found in another place than it was made is
overwritten on the disk, removed, and never used again; a disk that copies on write may keep the
bytes, which is why the key counts for nothing without a certificate of at most an hour.

A crash between the removal and the new file leaves no file: the folder then counts as a copy,
which is the careful side. So the new file takes the place of the old one in one rename, and the
old bytes are overwritten through a descriptor that was opened before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from holdfast.core.clock import Clock, Entropy
from holdfast.core.decoding import decode_json
from holdfast.errors import BadRecord, HoldfastError, InstanceDamaged, InvariantViolated, KeysReplaced, NotNow
from holdfast.host.machine import machine_id
from holdfast.host.private_files import check_place, destroying, ensure_private_folder, read_private, write_atomically
from holdfast.identity.lease import instance as decide
from holdfast.identity.lease.arbiter import LeaseArbiter
from holdfast.identity.lease.arbiter_state import Contender, LeaseGrant, LeaseView
from holdfast.identity.lease.instance import BEFORE_MAX, Instance, LeaseRequest, Origin, Site, WaitReason
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, Digest, digest_of, parse_agent_id, parse_digest, parse_key
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, sealed
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.claim import ClaimBasis, LeaseClaim
from holdfast.identity.witness.witness import copy_of

FORMAT = 1
NAME = "key.json"
FILE_BYTES_MAX = 16 * 1024


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    id: str
    public: str
    seed: str
    site: Site
    e: int
    counter: int
    last: str = ""
    frozen: tuple[int, int] | None = None
    before: tuple[tuple[str, int], ...] = ()


class InstanceFile:
    """The instance of the agent in this folder. One process at a time changes it (the keeper)."""

    def __init__(self, folder: Path, *, id: AgentId, clock: Clock, entropy: Entropy) -> None:
        check_place(folder)
        ensure_private_folder(folder)
        self.folder, self._id = folder, id
        self._clock, self._entropy = clock, entropy
        self._key: KeyPair | None = None
        self.instance: Instance | None = None

    def open(self, position: LogPosition) -> tuple[Instance, Origin | None]:
        """The instance that signs from here on: the kept one if it is of this place, else a new one.
        Also what the kept one was; None where there was none. `position` is that of the log now."""
        site = site_of(self.folder, self._clock)
        found = self._read()
        kept = found and found[0]
        origin = None if kept is None else decide.origin_of(kept, site, self._id)
        if found is not None and origin is not None and decide.may_sign(found[0], origin, position):
            self.instance, self._key = found[0], KeyPair(found[1])
            return self.instance, origin
        key = KeyPair.new(self._entropy)
        made = decide.successor(kept, origin, id=self._id, key=key.public, site=site, position=position)
        self._replace(made, key)
        return made, origin

    def start_over(self) -> Instance:
        """A new key that follows nothing: for one whose twin has said more."""
        key = KeyPair.new(self._entropy)
        made = Instance(id=self._id, key=key.public, site=site_of(self.folder, self._clock))
        self._replace(made, key)
        return made

    def adopt(self, made: Instance, key: KeyPair) -> None:
        """From here on this folder is that instance; its key came from the host that gave its lease to it."""
        self._replace(made, KeyPair(SecretBytes(key.seed())))

    def _replace(self, made: Instance, key: KeyPair) -> None:
        self._key = key
        with destroying(self.folder / NAME):
            self.keep(made)

    def keep(self, instance: Instance) -> None:
        """Durable on return."""
        if self._key is None or self._key.public != instance.key:
            raise InstanceDamaged("the key of this instance is not open", hint=InvariantViolated.default_hint)
        position = instance.frozen
        whole = _File(
            format=FORMAT,
            id=instance.id,
            public=instance.key,
            seed=self._key.seed().hex(),
            site=instance.site,
            e=instance.e,
            counter=instance.counter,
            last=instance.last or "",
            frozen=None if position is None else (position.g, position.s),
            before=instance.before,
        )
        write_atomically(self.folder / NAME, msgspec.json.encode(whole) + b"\n")
        self.instance = instance

    @property
    def signer(self) -> KeyPair:
        if self._key is None:
            raise InstanceDamaged("the key of this instance is not open", hint=InvariantViolated.default_hint)
        return self._key

    def wipe(self) -> None:
        if self._key is not None:
            self._key.wipe()

    def _read(self) -> tuple[Instance, SecretBytes] | None:
        path = self.folder / NAME
        try:
            raw = read_private(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            return _parsed(decode_json(raw, _File))
        except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
            raise InstanceDamaged(f"{path} is malformed: {type(error).__name__}") from None


def site_of(folder: Path, clock: Clock) -> Site:
    found = os.stat(folder)
    return Site(machine=machine_digest(), boot=clock.boot_id, device=found.st_dev, inode=found.st_ino)


def machine_digest() -> Digest:
    return digest_of(f"holdfast/machine/1\0{machine_id()}".encode())


def host_digest(clock: Clock) -> Digest:
    """`host` of a certificate: this machine, as it was started last."""
    return digest_of(f"holdfast/host/1\0{machine_digest()}\0{clock.boot_id}".encode())


def _parsed(found: _File) -> tuple[Instance, SecretBytes]:
    seed = SecretBytes(bytes.fromhex(found.seed))
    key = KeyPair(SecretBytes(seed.reveal())).public
    if found.format != FORMAT or key != found.public:
        raise ValueError("it has another format, or its public key does not match its seed")
    if min(found.e, found.counter, *(number for _, number in found.before), 0) < 0:
        raise ValueError("it has a number below zero")
    parse_digest(found.site.machine)
    instance = Instance(
        id=parse_agent_id(found.id),
        key=key,
        site=found.site,
        e=found.e,
        counter=found.counter,
        last=parse_digest(found.last) if found.last else None,
        frozen=None if found.frozen is None else LogPosition(*found.frozen),
        before=tuple((parse_key(key), number) for key, number in found.before[:BEFORE_MAX]),
    )
    return instance, seed


CERTIFICATE_S = 900  # a peer may believe a stale primary for this long
MARGIN_PART = 10  # of a lease: its tenth is left unused


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHeld:
    e: int
    until_boot_ms: int
    renew_in_ms: int
    contender: Contender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseNotHeld:
    why: WaitReason
    text: str
    seen: LeaseView | None = None


@dataclass(slots=True, kw_only=True)
class LeaseHolder:
    """Keeps the lease of one folder. `incarnation` reads the journal's, 0 where there is none; `raise_incarnation`
    makes it at least so high before anyone acts under it; `state_root` is the digest of the agent's state, which
    every claim holds."""

    file: InstanceFile
    speaker: Speaker
    arbiter: LeaseArbiter
    clock: Clock
    incarnation: Callable[[], int]
    raise_incarnation: Callable[[int], None]
    state_root: Callable[[], Digest]
    reread: Callable[[], KeyLog] | None = None
    role: Callable[[], Role | None] = lambda: Role.PRIMARY  # by the roster; None: this folder is not enrolled
    origin: Origin | None = None
    _certificate: Signed[Certificate] | None = None
    _begun: bool = False

    @property
    def instance(self) -> Instance | None:
        return self.file.instance

    def turn(self) -> LeaseHeld | LeaseNotHeld:
        """Ask once. Raises nothing that another round may fix."""
        try:
            return self._turn()
        except (KeysReplaced, NotNow) as error:
            return LeaseNotHeld(why=WaitReason.SILENT, text=error.message)
        except HoldfastError as error:
            return LeaseNotHeld(why=WaitReason.TROUBLE, text=f"{error.code}: {error.message}")
        except OSError as error:
            return LeaseNotHeld(why=WaitReason.TROUBLE, text=str(error))

    def claim(self, ask: LeaseRequest) -> LeaseHeld | LeaseNotHeld:
        """Make this one claim, which a person has decided on, and no other."""
        log = self._read()
        self.file.open(log.position)
        self._begun = True
        self.arbiter.learn(copy_of(log), log.id)
        began_ms = self.clock.boot_ms()
        answer = self._send(log, ask)
        if isinstance(answer, LeaseGrant):
            return self._held(answer, began_ms)
        return self._not_held(log, self.arbiter.look(log.id), answer)

    def _turn(self) -> LeaseHeld | LeaseNotHeld:
        log = self._read()
        _, origin = self.file.open(log.position)
        if not self._begun:
            self._begun, self.origin = True, origin
        self.arbiter.learn(copy_of(log), log.id)
        began_ms = self.clock.boot_ms()
        seen = self.arbiter.look(log.id)
        answer = self._ask(log, seen)
        if isinstance(answer, LeaseGrant):
            return self._held(answer, began_ms)
        return self._not_held(log, seen, answer)

    def _read(self) -> KeyLog:
        """Before this instance first speaks the witnesses are asked too: a copy has an old log."""
        if self.reread is not None and not self._begun:
            return self.reread()
        return self.speaker.log()

    def _ask(self, log: KeyLog, seen: LeaseView | None) -> LeaseGrant | Refusal | WaitReason:
        instance = self._get()
        wish = decide.what_to_ask(instance, seen, incarnation=self.incarnation(), position=log.position)
        if self.role() is not Role.PRIMARY and wish is not WaitReason.FROZEN:
            wish = WaitReason.COPY if self.role() is None else WaitReason.ELSEWHERE
        if wish is WaitReason.FROZEN:
            return wish
        answer = self._send(log, decide.waiting_request(seen) if isinstance(wish, WaitReason) else wish)
        return wish if isinstance(wish, WaitReason) and not _is_fork(answer) else answer

    def _send(self, log: KeyLog, ask: LeaseRequest) -> LeaseGrant | Refusal:
        instance = self._get()
        certificate = self._certified(ask.e, log)
        claim = LeaseClaim(
            id=log.id,
            e=ask.e,
            inst=instance.key,
            crt=certificate.digest,
            after_e=ask.after_e,
            after_how=ask.how,
            state_root=self.state_root(),
            chal=self.arbiter.challenge(log.id, instance.key),
            ctr=instance.counter + 1,
            chain=instance.last or certificate.digest,
        )
        signed = sealed(claim, Family.LEASE, (self.file.signer,))
        e = 0 if ask.how is ClaimBasis.WAITING else ask.e
        self.file.keep(decide.after_message(instance, counter=claim.ctr, digest=signed.digest, e=e))
        if ask.how is ClaimBasis.RENEW:
            return self.arbiter.renew(signed.line(), certificate.line())
        return self.arbiter.grant(signed.line(), certificate.line())

    def _certified(self, e: int, log: KeyLog) -> Signed[Certificate]:
        """The certificate in hand while half of its life is left and it is of these keys."""
        held = self._certificate
        now = self.clock.wall_ms() // 1000
        if held is not None:
            record = held.record
            fresh = record.iat <= now < record.iat + (record.exp - record.iat) // 2
            role = self.role() or Role.STANDBY
            same = (record.inst, record.e, record.position, record.role) == (self._get().key, e, log.position, role)
            if fresh and same:
                return held
        self._certificate = self.speaker.certify(
            inst=self._get().key,
            role=self.role() or Role.STANDBY,
            incarnation=e,
            host=host_digest(self.clock),
            life_s=CERTIFICATE_S,
        )
        return self._certificate

    def _held(self, granted: LeaseGrant, began_ms: int) -> LeaseHeld:
        if self.incarnation() < granted.e:
            self.raise_incarnation(granted.e)
        instance = self._get()
        if instance.before:  # the keys before this one hold nothing any more
            self.file.keep(replace(instance, before=()))
        life_ms = granted.life_ms
        until_ms = began_ms + life_ms - life_ms // MARGIN_PART
        return LeaseHeld(e=granted.e, until_boot_ms=until_ms, renew_in_ms=life_ms // 4, contender=granted.contender)

    def _not_held(self, log: KeyLog, seen: LeaseView | None, answer: Refusal | WaitReason) -> LeaseNotHeld:
        if isinstance(answer, WaitReason):
            return LeaseNotHeld(why=answer, text=_TEXTS[answer], seen=seen)
        if _is_fork(answer):
            self.file.keep(replace(self._get(), frozen=log.position))
            return LeaseNotHeld(why=WaitReason.FROZEN, text=answer.message, seen=seen)
        if answer.reason is Reason.OLD_VERSION:
            # A key that is behind what was heard of it has a twin: it is not used again.
            self.file.start_over()
            return LeaseNotHeld(why=WaitReason.OLDER, text=_TEXTS[WaitReason.OLDER], seen=seen)
        if answer.reason in (Reason.HELD, Reason.OLD_INCARNATION):
            return LeaseNotHeld(why=WaitReason.ELSEWHERE, text=answer.message, seen=seen)
        self._certificate = None
        return LeaseNotHeld(why=WaitReason.TROUBLE, text=f"{answer.reason}: {answer.message}", seen=seen)

    def _get(self) -> Instance:
        instance = self.file.instance
        if instance is None:
            raise NotNow("Holdfast has not opened this instance")
        return instance


def _is_fork(answer: LeaseGrant | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.reason in (Reason.FORK, Reason.FROZEN)


_TEXTS: dict[WaitReason, str] = {
    WaitReason.ELSEWHERE: "another instance of the agent holds the lease",
    WaitReason.COPY: "this folder is a copy: another folder held the agent's lease last",
    WaitReason.BEHIND: "another instance acted under a higher incarnation than this journal has",
    WaitReason.OLDER: "this folder was put back to an older state: its instance was used after that",
    WaitReason.FROZEN: "two copies of the instance's key were used: both are frozen until you rotate the keys",
    WaitReason.SILENT: "the key log does not allow this agent to act with these keys",
    WaitReason.TROUBLE: "the lease could not be requested",
}
