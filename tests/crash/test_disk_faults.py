"""Power lost, a sync that fails, a full disk: a sample of each; `make crash` leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_proofs.crash.disk_faults.disk_jobs import FullDisk, Power, SyncError
from holdfast_proofs.crash.disk_faults.disk_lives import Synchronous
from holdfast_proofs.crash.disk_faults.full_disk import RESUMED_S_MAX
from holdfast_proofs.crash.disk_faults.sync_error import Story
from holdfast_proofs.crash.jobs import run_job
from holdfast_proofs.crash.subjects import ClassName

SAMPLE = 16


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wal_pages"), [("unrepeatable", 0), ("keyed", 4)])
def test_after_a_power_cut_every_effect_has_its_intent(
    name: ClassName, wal_pages: int, shim: Path, measured: Callable[[str], None]
) -> None:
    figures = run_job(Power(name=name, points=SAMPLE, wal_pages=wal_pages), shim)

    measured(f"power, {name}: {figures.points} cuts, {figures.distinct} disks")
    assert figures.findings == []
    assert figures.green
    assert figures.points + figures.unreached == SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_without_the_syncs_the_suite_is_red(synchronous: Synchronous, shim: Path) -> None:
    """The suite is not blind: with a weaker pragma effects are found without their intent."""
    figures = run_job(Power(name="unrepeatable", points=SAMPLE, synchronous=synchronous), shim)

    assert not figures.green
    assert figures.breaches > 0, figures.findings
    assert any("its intent is not on the disk" in one for one in figures.findings)
    assert figures.lost > 0, "an accepted task may be missing, or the journal refused"


@pytest.mark.slow
def test_one_failed_sync_loses_nothing_and_is_not_tried_again(shim: Path, measured: Callable[[str], None]) -> None:
    figures = run_job(SyncError(name="unrepeatable", points=SAMPLE), shim)

    measured(f"failed syncs: {figures.points}, {figures.parked} parked")
    assert figures.findings == []
    assert figures.green
    assert figures.points > SAMPLE / 2


@pytest.mark.slow
@pytest.mark.parametrize("story", [Story.SUBMITTED, Story.REPAIRED])
def test_no_sync_fails_unnoticed_while_a_journal_is_made_and_opened(story: Story, shim: Path) -> None:
    figures = run_job(SyncError(name="unrepeatable", syncs=32, stories=(story,)), shim)

    assert figures.findings == []
    assert figures.green


@pytest.mark.slow
def test_a_full_disk_holds_steps_back_and_lets_them_go_on(shim: Path, measured: Callable[[str], None]) -> None:
    figures = run_job(FullDisk(name="unrepeatable", points=SAMPLE), shim)

    measured(f"full disk: on its way {figures.resumed_after_s_max:.1f} s after room came back")
    assert figures.findings == []
    assert figures.green
    assert figures.parked == 0
    assert 0 < figures.resumed_after_s_max < RESUMED_S_MAX
