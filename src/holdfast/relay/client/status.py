"""How an agent's relays are: which answer, which are behind, and what contradicts itself there."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from holdfast.errors import HoldfastError
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Profile, parse_head, parse_profile
from holdfast.identity.witness.relay_link import open_link
from holdfast.identity.witness.witness_relay import split_copy
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.chain_check import KeptProof, find_proofs
from holdfast.relay.client.profile import DAY_S, find_own_profile, is_signed_by, operator_of, own_relays

SOON_S = 7 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatus:
    address: WitnessRelay
    operator: str
    witness: bool  # the newest record of the key log names it
    listed: bool  # the agent's profile names it
    handles: tuple[str, ...]
    proof: KeptProof | None = None  # that it contradicts itself
    error: str = ""  # why it does not answer; then the rest is unknown
    log: bool = False  # it holds the newest record of the key log
    profile: tuple[int, int, int] | None = None  # the rank of the profile that it holds
    newest: bool = False  # that profile is the newest one here
    newer: bool = False  # it is newer than the one here: signed by another host, by new keys, or by a thief
    evidence: int = 0  # lines that contradict each other
    head: int = 0  # the number of the newest backup head that it holds
    region: str = ""  # where it runs, as it says

    @property
    def good(self) -> bool:
        """It answers with the newest profile, and nothing there or said before contradicts itself."""
        return self.newest and not self.evidence and self.proof is None


async def look_at_relays(home: AgentHome, *, port: Signatures) -> list[RelayStatus]:
    """Every relay of the agent. Raises LogMissing, LogDamaged."""
    log = read_own_log(home.folder, port)
    own = find_own_profile(home)
    proofs = find_proofs(home.relay_proofs)
    looks = (_look(one, log, own, proofs.get(one.key), port) for one in own_relays(home))
    return list(await asyncio.gather(*looks))


def find_stale_profile(home: AgentHome, *, port: Signatures) -> str:
    """Why others may no longer use the agent's newest profile, or soon will not; empty where they may."""
    own = find_own_profile(home)
    if own is None:
        return ""
    if own.record.position != read_own_log(home.folder, port).position:
        return "the profile was signed by keys that are replaced now"
    now = time.time()
    if own.record.exp < now + SOON_S:
        return "the profile ends within a week"
    key_exp = max((one.exp for one in own.record.enc), default=None)
    if key_exp is None or key_exp >= now + SOON_S:
        return ""
    ends = "has ended" if key_exp <= now else "ends within a week"
    return f"the newest mail key of the profile {ends}: others cannot write without one"


def shared_fates(found: list[RelayStatus]) -> list[str]:
    """What all of several relays depend on: one operator, one domain of their hosts, one region."""
    if len(found) < 2:
        return []
    named = [
        ("are run by", {one.operator for one in found}),
        ("are in the domain", {_domain(one.address.host) for one in found}),
        ("are in the region", {one.region for one in found}),
    ]
    alone = [(what, *names) for what, names in named if len(names) == 1 and any(names)]
    return [f"{what} {name}" for n, (what, name) in enumerate(alone) if name not in [one for _, one in alone[:n]]]


def _domain(host: str) -> str:
    """Empty for a network address, which is in none."""
    found = operator_of(host)
    return "" if found == host and not host[-1].isalpha() else found


async def _look(
    relay: WitnessRelay, log: KeyLog, own: Signed[Profile] | None, proof: KeptProof | None, port: Signatures
) -> RelayStatus:
    listed = None if own is None else next((one for one in own.record.relays if one.wit == relay.key), None)
    handles = () if own is None else tuple(one for one in own.record.handles if one.endswith(f"@{relay.host}"))
    found = RelayStatus(
        address=relay,
        operator=operator_of(relay.host) if listed is None else listed.domain,
        witness=relay.key in log.head.witnesses.members,
        listed=listed is not None,
        handles=handles,
        proof=proof,
    )
    link = open_link(relay, port=port)
    try:
        raw, profile, lines, head, about = await asyncio.gather(
            link.find_log(log.id),
            link.find_profile(log.id),
            link.find_evidence(log.id),
            link.find_head(log.id),
            link.describe(),
        )
        held = None if profile is None else parse_profile(profile)
        seq = 0 if head is None else parse_head(head).record.seq
    except (HoldfastError, OSError) as error:
        return replace(found, error=str(error))
    later = held is not None and held.record.position > log.position  # its keys are not in the log here
    if held is not None and not is_signed_by(held, log, port):
        held = None
    return replace(
        found,
        log=log.head.signed.line() in split_copy(raw or b"").records,
        profile=None if held is None else held.record.rank,
        newest=own is not None and held is not None and held.digest == own.digest,
        newer=later or (own is not None and held is not None and held.record.rank > own.record.rank),
        evidence=len(lines),
        head=seq,
        region=about.region,
    )
