"""The key that signs this process's mail: made in memory, certified by the agent's speaker, never written anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.clock import Clock, SystemClock, SystemEntropy
from holdfast.identity.lease.lease_holder import host_digest
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.open_speaker import CERTIFICATE_S
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.vault.mail_keys import MailKey


def _new_key() -> KeyPair:
    return KeyPair.new(SystemEntropy())


@dataclass
class InstanceKey:
    """`incarnation` is the journal's, read each time that a certificate is made."""

    speaker: Speaker
    incarnation: Callable[[], int]
    clock: Clock = field(default_factory=SystemClock)
    key: KeyPair = field(default_factory=_new_key)
    began: int = -1  # unix seconds, when the key was made
    _held: Signed[Certificate] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.began = self._now() if self.began < 0 else self.began

    @property
    def id(self) -> AgentId:
        return self.speaker.id

    async def certificate(self, *, fresh: bool = False) -> Signed[Certificate]:
        """One that is valid for some minutes more; a new one if `fresh`. Raises what the speaker raises."""
        async with self._turn:
            left_s = 0 if self._held is None else self._held.record.exp - self._now()
            if self._held is None or fresh or not CERTIFICATE_S // 3 < left_s <= CERTIFICATE_S:
                self._held = await asyncio.to_thread(self._certified)
            return self._held

    async def log(self) -> KeyLog:
        return await asyncio.to_thread(self.speaker.log)

    async def mail_keys(self) -> tuple[MailKey, ...]:
        return await asyncio.to_thread(self.speaker.mail_keys)

    def is_alive(self, other: Certificate) -> bool:
        """Whether this certificate shows that another instance lives: its signer made it after this one began. An older
        one may be that of an instance that was killed, shown again by a relay that lies."""
        return self.began <= other.iat and self._now() < other.exp

    def _now(self) -> int:
        return self.clock.wall_ms() // 1000

    def _certified(self) -> Signed[Certificate]:
        return self.speaker.certify(
            inst=self.key.public,
            role=Role.PRIMARY,
            incarnation=self.incarnation(),
            host=host_digest(self.clock),
            life_s=CERTIFICATE_S,
        )
