"""The witnesses that an agent can reach, opened by their addresses.

Only here an address becomes a witness: a new kind of address needs a case in `_open` and, where it
can list the agents whose logs it keeps, one in `list_agents`.

A folder becomes a witness only where a person names it as a new one. A known witness that is
missing is reported and never created: a fresh folder would have another key, and the loss of the
witness would stay unnoticed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.errors import BadRecord, HoldfastError
from holdfast.host.private_files import check_place
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey, parse_agent_id
from holdfast.identity.records.records import Keys
from holdfast.identity.witness.witness import Witness
from holdfast.identity.witness.witness_folder import SEED, Clock, FolderLogStore, WitnessService, witness_signer
from holdfast.layout.witness_address import WitnessAddress

AGENTS_MAX = 64  # logs that one witness is asked for, when no one says which agent


@dataclass(frozen=True, slots=True)
class OpenWitnesses:
    """Witnesses by their key, and those that could not be opened, with the reason."""

    by_key: dict[PublicKey, Witness] = field(default_factory=dict[PublicKey, Witness])
    addresses: dict[PublicKey, WitnessAddress] = field(default_factory=dict[PublicKey, WitnessAddress])
    unreachable: dict[str, str] = field(default_factory=dict[str, str])

    def keys(self) -> Keys:
        """All of them as the witnesses of a record: more than half must vouch."""
        members = tuple(self.by_key)
        return Keys(members, majority_of(len(members)))


def majority_of(count: int) -> int:
    """How many of so many must vouch: 1 of 1, 2 of 3 (one offline), 3 of 4 (one liar)."""
    return count // 2 + 1


def open_witnesses(
    addresses: Sequence[WitnessAddress], *, port: Signatures, clock: Clock | None = None, make: bool = False
) -> OpenWitnesses:
    """The witnesses at these addresses. They know each other, as a recovery needs it."""
    found = OpenWitnesses()
    for address in addresses:
        try:
            witness = _open(address, found, port=port, clock=clock or _now, make=make)
        except (HoldfastError, OSError) as error:
            if make:
                raise
            found.unreachable[str(address)] = str(error)
            continue
        found.by_key[witness.key] = witness
        found.addresses[witness.key] = address
    return found


def list_agents(address: WitnessAddress) -> list[AgentId]:
    """The agents whose logs this witness keeps, as far as it lists them."""
    found: list[AgentId] = []
    try:
        for path in sorted(address.folder.glob("hf1*.jsonl"))[:AGENTS_MAX]:
            found.append(parse_agent_id(path.stem))
    except (BadRecord, OSError):
        pass
    return found


def _open(address: WitnessAddress, others: OpenWitnesses, *, port: Signatures, clock: Clock, make: bool) -> Witness:
    folder = address.folder
    check_place(folder, allow_network_fs=True)
    if not make and not os.path.lexists(folder / SEED):
        raise FileNotFoundError(f"there is no file {SEED} in this folder: is the disk mounted, and the path right?")
    store = FolderLogStore(folder, port=port)
    return WitnessService(store, witness_signer(folder), port=port, clock=clock, peers=others.by_key)


def _now() -> int:
    return int(time.time())
