"""A process or a thread of a tool has yet to send when its worker dies or its attempt is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Outliving, run_job
from holdfast_proofs.crash.outliving.tools import Shape
from holdfast_proofs.crash.subjects import ClassName
from holdfast_proofs.weakened import Weakness

WAYS = 4  # with and without a namespace, with and without the keepers


@pytest.mark.slow
@pytest.mark.parametrize(  # queryable and subprocess: in test_weakened.py
    ("name", "shape"), [("queryable", "thread"), ("unrepeatable", "subprocess"), ("unrepeatable", "thread")]
)
def test_no_effect_is_doubled_by_code_that_runs_on(name: ClassName, shape: Shape, shim: Path) -> None:
    """A sample of each way to kill, and the same without the rule; `make crash` kills 500 workers for each."""
    figures = run_job(Outliving(name=name, shape=shape, count=WAYS), shim)
    assert figures.findings == []
    assert figures.green
    assert figures.points > 0

    weak = run_job(Outliving(name=name, shape=shape, count=WAYS, weakness=Weakness.OUTLIVED), shim)
    assert not weak.green
    assert weak.duplicates > 0, weak.findings
