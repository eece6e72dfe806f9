"""The witnesses that an agent can reach: today folders, on this machine or mounted from another.

A folder is made into a witness only where a person names it as a new one. A known one that is
not there is reported as gone and never made anew: a fresh folder would have another key, and
nobody would notice that the witness had been lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.host.private_files import check_place
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.records.records import Keys
from holdfast.identity.witness.witness import Witness
from holdfast.identity.witness.witness_folder import SEED, FolderShelf, witness_signer
from holdfast.identity.witness.witness_service import Clock, KeepingWitness


@dataclass(frozen=True, slots=True)
class Reached:
    """Witnesses by their key, and those that could not be reached, with the reason."""

    by_key: dict[PublicKey, Witness] = field(default_factory=dict[PublicKey, Witness])
    places: dict[PublicKey, str] = field(default_factory=dict[PublicKey, str])
    gone: dict[str, str] = field(default_factory=dict[str, str])

    def keys(self) -> Keys:
        """All of them as the witnesses of a record: more than half must vouch."""
        members = tuple(self.by_key)
        return Keys(members, enough_of(len(members)))


def enough_of(count: int) -> int:
    """How many of so many must vouch: 1 of 1, 2 of 3 (one down), 3 of 4 (one liar)."""
    return count // 2 + 1


def reach(folders: Sequence[Path], *, port: Signatures, clock: Clock | None = None, make: bool = False) -> Reached:
    """The witnesses of these folders. They know each other, as a recovery needs it."""
    found = Reached()
    for folder in folders:
        try:
            check_place(folder, allow_network_fs=True)
            if not make and not os.path.lexists(folder / SEED):
                found.gone[str(folder)] = "no witness is there"
                continue
            signer = witness_signer(folder)
            shelf = FolderShelf(folder, port=port)
        except (HoldfastError, OSError) as error:
            if make:
                raise
            found.gone[str(folder)] = str(error)
            continue
        found.by_key[signer.public] = KeepingWitness(shelf, signer, port=port, clock=clock or _now, peers=found.by_key)
        found.places[signer.public] = str(folder)
    return found


def _now() -> int:
    return int(time.time())
