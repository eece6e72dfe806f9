"""Agents as a relay sees them: real keys and records, all in memory, with no folder, vault or journal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.clock import SystemEntropy
from holdfast.core.mail import MailKind
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, PublicKey, digest_of
from holdfast.identity.records.records import Keys, Record, RotationReason
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.statements import EncryptionKey, Head, Profile, Relay
from holdfast.relay.protocol.envelope import Inner, seal_envelope

PORT = Sodium()
ENTROPY = SystemEntropy()
DAY_S = 86_400


def _new() -> KeyPair:
    return KeyPair.new(ENTROPY)


@dataclass
class RelayAgent:
    """`log` is what its owner knows; `records` are sent to relays one by one."""

    op: KeyPair = field(default_factory=_new)
    next: KeyPair = field(default_factory=_new)
    paper: KeyPair = field(default_factory=_new)
    key: KeyPair = field(default_factory=_new)  # of its instance
    mail_private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    records: list[Signed[Record]] = field(default_factory=list[Signed[Record]])
    log: KeyLog = field(init=False)
    wit: Keys | None = None

    def __post_init__(self) -> None:
        first = drafts.inception(
            op=(self.op,),
            nxt=drafts.committed((self.next.public,)),
            rec=drafts.committed((self.paper.public,)),
            wit=self.wit or Keys((_new().public,), 1),
            nonce="nonce-nonce-nonce",
        )
        self._take(first, None)

    @property
    def id(self) -> AgentId:
        return self.log.id

    def rotate(self, why: RotationReason = RotationReason.PLANNED) -> Signed[Record]:
        by, self.op, self.next = self.next, _new(), _new()
        record = drafts.rotation(
            self.log, by=(by,), op=(self.op,), nxt=drafts.committed((self.next.public,)), why=why, wit=None
        )
        return self._take(record, self.log)

    def _take(self, record: Signed[Record], before: KeyLog | None) -> Signed[Record]:
        after = accept(before, record, port=PORT)
        assert isinstance(after, KeyLog), after
        self.log = after
        self.records.append(record)
        return record

    def certificate(self, *, e: int = 1, now: int = 0, lasts_s: int = 900) -> Signed[Certificate]:
        now = now or int(time.time())
        g, s = self.log.position
        made = Certificate(
            id=self.id,
            g=g,
            s=s,
            inst=self.key.public,
            role=Role.PRIMARY,
            e=e,
            iat=now,
            exp=now + lasts_s,
            host=digest_of(b"lab"),
        )
        return sealed(made, Family.CERT, (self.op,))

    @property
    def mail_key(self) -> EncryptionKey:
        public = self.mail_private.public_key().public_bytes_raw()
        return EncryptionKey(kid="k1", key=public.hex(), exp=int(time.time()) + 30 * DAY_S)

    def profile(
        self, ver: int, relays: Sequence[tuple[str, PublicKey]], *, handles: Sequence[str] = (), exp: int = 0
    ) -> bytes:
        """The line; `relays` are urls and keys."""
        g, s = self.log.position
        listed = tuple(Relay(url=url, wit=key, prio=n, domain=f"o{n}") for n, (url, key) in enumerate(relays))
        made = Profile(
            id=self.id,
            g=g,
            s=s,
            ver=ver,
            relays=listed,
            handles=tuple(handles),
            enc=(self.mail_key,),
            policy=(),
            exp=exp or int(time.time()) + 30 * DAY_S,
        )
        return sealed(made, Family.PROF, (self.op,)).line()

    def head(self, seq: int, archive: str) -> bytes:
        g, s = self.log.position
        made = Head(
            id=self.id,
            g=g,
            s=s,
            e=1,
            seq=seq,
            at=int(time.time()),
            manifest=digest_of(archive.encode()),
            archive=archive,
            bytes=1,
            files=1,
            prev=None if seq == 1 else digest_of(b"before"),
        )
        return sealed(made, Family.HEAD, (self.op,)).line()

    def envelope(self, to: RelayAgent, number: int, *, ttl_s: int = 7 * DAY_S) -> bytes:
        return self.envelope_for(to.id, to.mail_key, number, ttl_s=ttl_s)

    def envelope_for(
        self,
        to: AgentId,
        mail_key: EncryptionKey,
        number: int,
        *,
        body: bytes = b'"hello"',
        ttl_s: int = 7 * DAY_S,
        crt: Signed[Certificate] | None = None,
    ) -> bytes:
        """The same number is the same message, however often it is sealed."""
        return seal_envelope(
            Inner(key=number.to_bytes(16, "big"), body=body),
            kind=MailKind.MESSAGE,
            to=to,
            ttl_s=ttl_s,
            key=mail_key,
            crt=crt or self.certificate(),
            signer=self.key,
        )
