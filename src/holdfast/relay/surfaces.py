"""How the agent is reached, as rows and facts for the register: profile, relays, mail that waits, held mail.

The relays are asked, because one that does not answer, or holds an older profile, is one that other agents do not find
the agent by. An agent without relays has no rows here.
"""

from __future__ import annotations

import os

import msgspec

from holdfast.core.surfaces import DAY_MS, Cover, Fact, Found, Surface, Verdict, day_of
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.layout.agent_home import AgentHome
from holdfast.relay.client.profile import find_own_profile
from holdfast.relay.client.status import RelayStatus, look_at_relays

DOCTOR = "holdfast relay doctor"
ADD = "holdfast relay add ADDRESS"
NEEDED = 2  # relays that hold a message before it counts as sent
SOON_MS = 7 * DAY_MS  # the profile is published daily, so one that ends sooner was not


async def found_relays(home: AgentHome, cover: Cover, *, now_ms: int, port: Signatures | None = None) -> Found:
    """Raises LogMissing, LogDamaged."""
    held = find_own_profile(home) if os.path.lexists(home.log_file) else None
    if held is None or not held.record.relays:
        return Found()
    found = [one for one in await look_at_relays(home, port=port or Sodium()) if one.listed]
    well = [one for one in found if one.good]
    facts = [
        Fact(
            name="relay",
            about=one.address.url,
            value=one.operator if one.good else "",
            at_ms=now_ms,
            source=_state(one),
        )
        for one in found
    ]
    rows = (
        _profile_row(home, held.record.exp * 1000, well, found, now_ms),
        *(_relay_row(one) for one in found),
        _mail_row(well, found),
        _held_row(cover),
    )
    return Found(surfaces=rows, facts=tuple(facts))


def _profile_row(
    home: AgentHome, expires_ms: int, well: list[RelayStatus], found: list[RelayStatus], now_ms: int
) -> Surface:
    fresh = expires_ms - now_ms > SOON_MS
    good = fresh and len(well) >= min(NEEDED, len(found))
    why = f"{len(well)} of {len(found)} relays hold it; valid until {day_of(expires_ms)}"
    return Surface(
        id="profile",
        kind="profile",
        holds="where other agents reach this one, and with which mail keys",
        where=str(home.profile_file),
        protection="relays, backup",
        evidence=why,
        evidence_ms=now_ms,
        verdict=Verdict.COVERED if good else Verdict.AT_RISK,
        why=why if fresh else f"{why}: no worker publishes it",
        fix="" if good else DOCTOR,
    )


def _relay_row(one: RelayStatus) -> Surface:
    return Surface(
        id=f"relay/{one.address.url}",
        kind="relay",
        holds="profile, newest backup head, mail that waits",
        where=one.address.url,
        owner=one.operator,
        protection="other relays",
        domain=one.operator,
        verdict=Verdict.COVERED if one.good else Verdict.AT_RISK,
        why=_state(one),
        fix="" if one.good else DOCTOR,
    )


def _state(one: RelayStatus) -> str:
    if one.proof is not None:
        return f"contradicts itself: {one.proof.why}"
    if one.evidence:
        return f"{one.evidence} lines there contradict each other"
    return one.error or ("holds the newest profile" if one.newest else "holds an older profile, or none")


def _mail_row(well: list[RelayStatus], found: list[RelayStatus]) -> Surface:
    operators = {one.operator for one in well}
    good = len(well) > NEEDED and len(operators) > 1
    if good:
        why = "a message is on two relays before it counts as sent; any one of them may be lost"
    elif len(well) <= NEEDED:
        why = f"{len(well)} of {len(found)} relays can be relied on: one more loss delays or loses mail"
    else:
        why = f"all relays depend on {operators.pop()}"
    return Surface(
        id="mail",
        kind="mail",
        holds="messages that wait for the agent",
        where=", ".join(one.address.url for one in found),
        owner="relays, until it is received",
        protection="two of the relays, the sender's journal",
        domain="relays",
        verdict=Verdict.COVERED if good else Verdict.AT_RISK,
        why=why,
        fix="" if good else ADD,
    )


def _held_row(cover: Cover) -> Surface:
    """Held until a tested snapshot has it; without a place, twice watch_s."""
    row = Surface(
        id="held-mail",
        kind="held mail",
        holds="messages that were received since the newest tested snapshot",
        where="relays",
        owner="relays, for 7 days",
        protection="relays, backup",
        domain="relays",
        evidence=cover.evidence,
        evidence_ms=cover.evidence_ms,
        verdict=cover.verdict,
        why=cover.why,
        fix=cover.fix,
    )
    if cover.verdict is Verdict.COVERED:
        why = "relays keep them until a tested snapshot has them"
        return msgspec.structs.replace(row, why=why)
    return row
