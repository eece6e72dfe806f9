"""Several processes decide one doubt at the same instant: one decision counts, all others are refused."""

from __future__ import annotations

from pathlib import Path

from holdfast_proofs.decision_races import run_rounds


def test_one_of_several_decisions_counts(tmp_path: Path) -> None:
    """Settlements and approvals, with and without a worker."""
    assert run_rounds(tmp_path, rounds=12, deciders=4, seed=1) == []
