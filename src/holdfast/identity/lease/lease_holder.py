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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.core.clock import Clock
from holdfast.errors import HoldfastError, KeysReplaced, NotNow
from holdfast.identity.lease.arbiter import LeaseArbiter
from holdfast.identity.lease.arbiter_state import Contender, LeaseGrant, LeaseView
from holdfast.identity.lease.instance import (
    Instance,
    LeaseRequest,
    Origin,
    WaitReason,
    after_grant,
    after_message,
    waiting_request,
    what_to_ask,
)
from holdfast.identity.lease.instance_file import InstanceFile, host_digest
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.records import Reason, Refusal
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.claim import ClaimBasis, LeaseClaim
from holdfast.identity.witness.witness import copy_of

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
    """Keeps the lease of one folder. `incarnation` reads the journal's, 0 where there is none;
    `raise_incarnation` makes it at least so high before anybody acts under it; `state_root` is the
    digest of the agent's state, sealed into every claim."""

    file: InstanceFile
    speaker: Speaker
    arbiter: LeaseArbiter
    clock: Clock
    incarnation: Callable[[], int]
    raise_incarnation: Callable[[int], None]
    state_root: Callable[[], Digest]
    reread: Callable[[], KeyLog] | None = None
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
        wish = what_to_ask(instance, seen, incarnation=self.incarnation(), position=log.position)
        if wish is WaitReason.FROZEN:
            return wish
        answer = self._send(log, waiting_request(seen) if isinstance(wish, WaitReason) else wish)
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
        self.file.keep(after_message(instance, counter=claim.ctr, digest=signed.digest, e=e))
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
            same = (record.inst, record.e, record.position) == (self._get().key, e, log.position)
            if fresh and same:
                return held
        self._certificate = self.speaker.certify(
            inst=self._get().key, role=Role.PRIMARY, incarnation=e, host=host_digest(self.clock), life_s=CERTIFICATE_S
        )
        return self._certificate

    def _held(self, granted: LeaseGrant, began_ms: int) -> LeaseHeld:
        if self.incarnation() < granted.e:
            self.raise_incarnation(granted.e)
        instance = self._get()
        if after_grant(instance) is not instance:
            self.file.keep(after_grant(instance))
        life_ms = granted.life_ms
        return LeaseHeld(
            e=granted.e,
            until_boot_ms=began_ms + life_ms - life_ms // MARGIN_PART,
            renew_in_ms=life_ms // 4,
            contender=granted.contender,
        )

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
            raise NotNow("the instance was not opened")
        return instance


def _is_fork(answer: LeaseGrant | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.reason in (Reason.FORK, Reason.FROZEN)


_TEXTS: dict[WaitReason, str] = {
    WaitReason.ELSEWHERE: "another instance of the agent holds the lease",
    WaitReason.COPY: "this folder is a copy: another folder held the agent's lease last",
    WaitReason.BEHIND: "another instance acted under a higher incarnation than this journal has",
    WaitReason.OLDER: "this folder is an older copy of itself: its instance was used since",
    WaitReason.FROZEN: "two copies of the instance's key were used: both are frozen until you rotate the keys",
    WaitReason.SILENT: "the log allows no one to act with these keys",
    WaitReason.TROUBLE: "the lease could not be requested",
}
