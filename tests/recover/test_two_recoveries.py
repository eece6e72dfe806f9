"""A small sample of `make twin-recoveries`: two machines recover one agent; the old one stops."""

from __future__ import annotations

from pathlib import Path

from holdfast_proofs.twin_recoveries import run


def test_of_two_machines_that_recover_at_once_one_has_the_agent(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    report = run(rounds=1, workers=0, seed=7, folder=tmp_path)
    assert (report.rounds, report.findings) == (1, [])


def test_the_old_worker_stops_when_the_agent_was_recovered_elsewhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    report = run(rounds=0, workers=1, seed=7, folder=tmp_path)
    assert report.findings == []
    assert len(report.stopped_s) == 1
