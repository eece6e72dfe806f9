"""A relay's store, an agent's send and its intake, killed at a sample of their calls; `make relay-kills` takes all."""

from __future__ import annotations

import pytest

from holdfast_proofs.relay_kills.__main__ import sweep
from holdfast_proofs.relay_kills.faults import EARLY


@pytest.mark.parametrize("parts", [("mail", "receive"), ("send", "intake")])
def test_nothing_that_was_acknowledged_is_lost(parts: tuple[str, ...]) -> None:
    found = sweep(parts, points=1)
    assert {name: one["wrong"] for name, one in found.items()} == {name: [] for name in parts}
    assert all(one["trials"]["KILL_BEFORE"] == one["trials"]["FULL_ANY"] == 1 for one in found.values())


def test_a_relay_that_answers_before_the_commit_is_found() -> None:
    assert sweep(["register"], points=1, fault=EARLY)["register"]["wrong"]
