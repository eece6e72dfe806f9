"""What may be asked of the operational key: a short list of acts, never a signature over bytes.

Anyone who runs tools that a model drives gets a `Speaker` and nothing more. Each act builds its own
record from values that it has checked, so no one can have something else signed. `VaultSpeaker`
(open_speaker.py) opens the vault in this process; `SignerSpeaker` (signer_client.py) gives the
same acts through the socket of a signer process, so that the key is in no process that runs tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.statements import ChallengeAnswer, EncryptionKey, Head, JournalMark, Profile, Relay
from holdfast.identity.vault.mail_keys import MailKey

Policy = Sequence[tuple[str, str | int | bool]]


class ProfileFacts(TypedDict):
    """What a profile says; the speaker adds position and time."""

    ver: int
    life_s: int
    relays: NotRequired[Sequence[Relay]]
    handles: NotRequired[Sequence[str]]
    enc: NotRequired[Sequence[EncryptionKey]]
    policy: NotRequired[Policy]
    left: NotRequired[Sequence[str]]


class HeadFacts(TypedDict):
    """What a head says of a snapshot that was made now; `prev` is the digest of the one before."""

    incarnation: int
    seq: int
    manifest: Digest
    archive: str
    size_bytes: int
    files: int
    journal: NotRequired[JournalMark | None]
    prev: NotRequired[Digest | None]


def head_fields(facts: HeadFacts) -> dict[str, Any]:  # Any: each of its field's type
    """The facts under the names that a head's record gives them, without those that are absent."""
    names = {"incarnation": "e", "size_bytes": "bytes"}
    return {names.get(name, name): value for name, value in facts.items() if value is not None}


class Speaker(Protocol):
    """Speaks for one agent as long as its operational key is the one that the log names.

    Every act raises KeysReplaced where the log says that another key speaks now, NotNow where
    no one does (locked, contested, retired), and BadInput for values that no record may hold.
    A signer process adds SignerUnavailable (no one answers there) and SignerRefused.
    """

    @property
    def id(self) -> AgentId: ...

    def log(self) -> KeyLog:
        """The agent's own copy of its log, read again."""
        ...

    def certify(
        self, *, inst: PublicKey, role: Role, incarnation: int, host: Digest, life_s: int
    ) -> Signed[Certificate]:
        """A certificate for an instance key, from now on, for an hour at most."""
        ...

    def answer(self, challenge: str, *, asker: str = "") -> Signed[ChallengeAnswer]:
        """Proof that the id answers: see statements.py for what it proves."""
        ...

    def profile(self, **facts: Unpack[ProfileFacts]) -> Signed[Profile]:
        """Where the agent is to be reached, from now on, for a year at most."""
        ...

    def seal_head(self, **facts: Unpack[HeadFacts]) -> Signed[Head]:
        """The head of a snapshot that was made now."""
        ...

    def mail_keys(self) -> tuple[MailKey, ...]:
        """The keys that open the agent's mail, the newest first; a new one is made when a week is over and a copy of
        the escrow can be written. Empty where the agent has no escrow."""
        ...
