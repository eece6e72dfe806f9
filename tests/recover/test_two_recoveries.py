"""A small sample of `make twin-recoveries`: two machines recover one agent; the old one stops."""

from __future__ import annotations

from pathlib import Path

from holdfast_proofs.twin_recoveries import run


def test_one_of_two_machines_has_the_agent_and_the_old_worker_stops(tmp_path: Path) -> None:
    """One round of each, from one agent."""
    tmp_path.chmod(0o700)
    report = run(rounds=1, workers=1, seed=7, folder=tmp_path)
    assert (report.rounds, report.findings) == (2, [])
    assert len(report.stopped_s) == 1
