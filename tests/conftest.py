"""What all tests share: the Hypothesis profile, and figures printed at the end of a run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs]
from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

from holdfast.host.hardening import IS_LINUX, PR_SET_PDEATHSIG, prctl

# Two cores shared with other tests make single examples slow now and then; that is no finding.
# Other examples are drawn in every run, so each law gets a sample here; mutants draw twice as many.
settings.register_profile(
    "project", max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")

BUILD = Path(__file__).parents[1] / "build"
_MEASURED = "measured"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
_SHARED = (
    "tests/drills/test_report.py",
    "tests/golden/",
    "tests/integration/cli/test_tool_check.py",
    "tests/packaging/test_wheel.py",
    "tests/recover/test_recover_agent.py",
    "tests/recover/test_recover_target.py",
    "tests/rescue/test_rescue_key.py",
    "tests/soak/",
)

# Whoever runs tests in the background may have them ignore Ctrl-C, and programs that they start
# would inherit it; some tests are about Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Together(LoadScopeScheduling):
    """Tests that share a dear fixture run in one process, all others wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in _SHARED if nodeid.startswith(shared)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Together:
    return _Together(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests are in memory, where thousands of syncs cost nothing and paths are short enough for sockets.
    Crashes of a disk are played by the shim, not by a disk. A process of tests ends with the one that started it, and
    so do the servers that it has started."""
    if hasattr(config, "workerinput") and IS_LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    if config.option.basetemp is None and not hasattr(config, "workerinput") and has_room:
        config.option.basetemp = tempfile.mkdtemp(prefix="hf-", dir=_MEMORY)


def pytest_unconfigure(config: pytest.Config) -> None:
    if str(config.option.basetemp).startswith(f"{_MEMORY}/hf-") and not hasattr(config, "workerinput"):
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def spared_borg() -> None:
    """Borg says its version once for all tests of a process, and does not test itself each time."""
    from holdfast_proofs.support.warm_start import spare_borg

    spare_borg()


@pytest.fixture(autouse=True)
def usual_umask() -> None:
    """Commands that ran in this process before have set their own."""
    os.umask(0o022)


@pytest.fixture(scope="session")
def shim() -> Path:
    """The crash shim, compiled once for each version of its source."""
    from holdfast_proofs.shim import build

    return build(BUILD / "shim")


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a figure after the run. A figure informs; it never fails a test on a busy machine."""

    def note(figure: str) -> None:
        record_property(_MEASURED, figure)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the figures of all tests, also those that ran in other processes."""
    figures = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == _MEASURED and report.when == "call"
    ]
    if figures:
        terminalreporter.section("measured on this machine")
        for figure in figures:
            terminalreporter.line(figure)
