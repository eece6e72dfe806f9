"""The laboratory of mail at its smallest: two agents, three relays, one of them killed, one cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast_proofs.relay_lab.__main__ import Plan, run_phases
from holdfast_proofs.relay_lab.live import Live
from holdfast_proofs.relay_lab.site import site

PLAN = Plan(
    messages=60,
    agents=2,
    workers=2,
    relays=3,
    rate=40.0,
    pace=20.0,
    phase_s=0.6,
    kill_every_s=0.3,
    patience_s=40.0,
    backlog=100,
    plant="",
    seed=7,
)


def test_every_message_is_handled_once_while_relays_fail(tmp_path: Path) -> None:
    with site(tmp_path, relays=PLAN.relays, seed=PLAN.seed) as found:
        asyncio.run(run_phases(PLAN, found))
    verdict = Live(tmp_path / "events.jsonl").verdict()
    assert verdict.findings == []
    assert (verdict.messages, verdict.handled) == (PLAN.messages, PLAN.messages)
    assert verdict.kills >= 1
    assert verdict.cuts == 1
