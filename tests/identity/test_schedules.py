"""Random schedules: no two finals, the owner regains, spent keys change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast_proofs.identity_schedules.__main__ import main
from holdfast_proofs.identity_schedules.campaign import find_breach, find_weakness, run
from holdfast_proofs.identity_schedules.weakened import WEAKENED

SCHEDULES = 120
ACTS = {
    "owner rotated",
    "owner rotated and changed witnesses",
    "owner recovered",
    "owner recovered with new witnesses",
    "thief rotated",
    "thief rotated to witnesses of his own",
    "thief tried with the operational key alone",
    "thief reused a spent next key",
    "thief reused a spent recovery key",
    "letter",
    "receipts travelled",
    "peer looked",
}


def test_the_promises_hold_in_every_schedule(measured: Callable[[str], None]) -> None:
    campaign = run(range(SCHEDULES))
    assert campaign.broken == {}
    assert set(campaign.acts) >= ACTS
    measured(f"identity schedules: {SCHEDULES} in {campaign.cpu_s:.1f} s of one core")


# Found by long runs: a witness asked once, learned of further witnesses, and did not ask these.
FOUND = (20065, 26728, 53843, 65967, 72816, 77054, 86978, 89186)


@pytest.mark.parametrize("seed", FOUND)
def test_schedules_that_broke_once_hold(seed: int) -> None:
    assert find_breach(seed) is None


@pytest.mark.parametrize("name", WEAKENED)
def test_a_rule_that_is_taken_out_is_noticed(name: str) -> None:
    assert find_weakness(name, schedules_max=400) is not None


def test_the_command_shows_one_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7"]) == 0
    assert main(["--schedules", "3", "--json"]) == 0
    assert '"broken": {}' in capsys.readouterr().out
