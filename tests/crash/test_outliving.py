"""A process or a thread of a tool has yet to send when its worker dies or its attempt is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Outliving, run_job
from holdfast_proofs.crash.outliving.tools import SHAPES, Shape
from holdfast_proofs.crash.subjects import ClassName
from holdfast_proofs.weakened import Weakness


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["queryable", "unrepeatable"])
def test_no_effect_is_doubled_by_code_that_runs_on(name: ClassName, shape: Shape, shim: Path) -> None:
    """A sample, and the same without the rule; `make crash` kills 500 workers for each."""
    figures = run_job(Outliving(name=name, shape=shape, count=8), shim)
    assert figures.findings == []
    assert figures.green
    assert figures.points > 0

    weak = run_job(Outliving(name=name, shape=shape, count=8, weakness=Weakness.OUTLIVED), shim)
    assert not weak.green
    assert weak.duplicates > 0, weak.findings
