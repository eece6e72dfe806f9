"""What may be asked of the operational key: a short list of acts, never a signature over bytes.

Whoever runs tools that a model drives gets a `Speaker` and nothing more. Each act builds its own
record from values that it has checked, so nobody can have something else signed. `VaultSpeaker`
opens the vault in this process; a signer process gives the same acts through a socket, so that
the key is in no process that runs tools.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.identity.certificate import Certificate, Role
from holdfast.identity.encodings import AgentId, Digest, PublicKey
from holdfast.identity.log_state import Log
from holdfast.identity.signed import Signed


class Speaker(Protocol):
    """Speaks for one agent as long as its operational key is the one that the log names.

    Every act raises KeysReplaced where the log says that another key speaks now, and NotNow
    where nobody does (locked, contested, retired).
    """

    @property
    def id(self) -> AgentId: ...

    def log(self) -> Log:
        """The agent's own copy of its log, as far as it was read."""
        ...

    def certify(
        self, *, inst: PublicKey, role: Role, incarnation: int, host: Digest, life_s: int
    ) -> Signed[Certificate]:
        """A certificate for an instance key, from now on, for an hour at most."""
        ...
