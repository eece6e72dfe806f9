"""Agents that wait at a relay and come back after its restart, and a reader that reads nothing; `make relay-idle` takes
2,000 of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs import relay_idle


def _soon(_tries: int) -> float:
    return 0.1


def test_waiting_agents_come_back_and_a_stalled_reader_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_idle, "QUIET_S", 0.2)
    monkeypatch.setattr(relay_idle, "STALLED_S", 0.2)
    monkeypatch.setattr(relay_idle, "backoff_s", _soon)
    report = relay_idle.run(agents=7, mails=300, folder=tmp_path, connections=3)
    assert report.findings == []
    assert report.mails == 300
    assert report.stalled_mib < relay_idle.STALLED_MIB_MAX
