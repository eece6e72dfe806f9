"""The example agents, killed at a sample of their calls and resumed on another disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.agent_kills.__main__ import main, sweep
from holdfast_proofs.agent_kills.server import Choice
from holdfast_proofs.weakened import Weakness

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("example", "points"), [("travel", 24), ("research", 12)])
def test_a_killed_agent_comes_to_the_same_end(example: str, points: int) -> None:
    figures = sweep(EXAMPLES / example, Choice(points=points))
    assert figures.findings == []
    assert figures.green
    assert figures.distinct >= points * 3 // 4
    assert figures.resumed >= points // 4


def test_keys_of_an_attempt_are_noticed() -> None:
    """Killed where an answer is awaited: the far end has done it, a second key does it twice."""
    choice = Choice(names=frozenset(("recv",)), weakness=Weakness.KEY_PER_ATTEMPT)
    sweeps = (sweep(EXAMPLES / "travel", choice) for _ in range(3))  # a kill and the far end race
    noticed = next((figures for figures in sweeps if figures.duplicates > 0), None)
    assert noticed is not None
    assert not noticed.green


def test_what_is_no_example_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "is no example of an agent" in capsys.readouterr().err
