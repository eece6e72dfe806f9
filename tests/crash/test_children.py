"""The process of a blocking tool is killed in a call: its worker lives on, nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Children, run_job
from holdfast_proofs.crash.subjects import ClassName


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queryable", "unrepeatable"])
def test_a_child_is_killed_in_a_call(name: ClassName, shim: Path) -> None:
    """A sample: a few of its calls and one instant; `make crash` leaves out no call."""
    figures = run_job(Children(name=name, points=3, instants=1), shim)

    assert figures.findings == []
    assert figures.green
    assert figures.distinct >= 3
    if name == "unrepeatable":
        assert figures.parked == figures.in_doubt >= 3
    else:
        assert figures.parked == 0
