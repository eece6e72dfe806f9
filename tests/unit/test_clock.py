"""Clocks and entropy are arguments: the real ones tell the truth, the manual ones obey."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from holdfast.core import clock
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.errors import BootIdMissing
from holdfast.testing.clocks import ManualClock, SeededEntropy


def test_the_system_clock_reads_wall_time_boot_time_and_the_kernels_boot_id() -> None:
    system: Clock = SystemClock()
    assert abs(system.wall_ms() - time.time() * 1000) < 5_000
    first, second = system.boot_ms(), system.boot_ms()
    assert 0 < first <= second
    if sys.platform == "linux":
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        assert system.boot_id == kernel
        assert first >= time.monotonic() * 1000 - 5_000  # boot time includes sleep


def test_a_machine_that_hides_its_boot_id_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A made-up id would let living sessions of other processes look dead."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(clock, "_BOOT_ID_FILE", tmp_path / "missing")
    with pytest.raises(BootIdMissing):
        SystemClock()
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setattr(clock, "_BOOT_ID_FILE", tmp_path / "empty")
    with pytest.raises(BootIdMissing):
        SystemClock()


def test_a_manual_clock_moves_only_by_hand() -> None:
    manual = ManualClock(wall_ms=50, boot_ms=10, boot_id="a")
    clocked: Clock = manual
    manual.advance(5)
    assert (clocked.wall_ms(), clocked.boot_ms()) == (55, 15)
    manual.set_wall_ms(1)
    assert (clocked.wall_ms(), clocked.boot_ms()) == (1, 15)
    manual.reboot(boot_id="b")
    assert (clocked.boot_ms(), clocked.boot_id) == (0, "b")
    with pytest.raises(ValueError, match="backwards"):
        manual.advance(-1)


def test_seeded_entropy_repeats_and_system_entropy_does_not() -> None:
    def drawn(entropy: Entropy) -> list[bytes]:
        return [entropy.bytes(16), entropy.bytes(16), entropy.bytes(40)]

    assert drawn(SeededEntropy(1)) == drawn(SeededEntropy(1))
    assert drawn(SeededEntropy(1)) != drawn(SeededEntropy(2))
    assert len(set(drawn(SeededEntropy(1)))) == 3
    assert SeededEntropy(7).bytes(4).hex() == SEED_7  # the same in every Python version
    assert drawn(SystemEntropy()) != drawn(SystemEntropy())


SEED_7 = "dc0514db"
