"""The pytest plugin: a fixture `crash_everywhere`, and `--crash-point NAME` to repeat one point of it.

pytest loads this file wherever Holdfast is installed; it loads nothing else of Holdfast until a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing.crash import CrashReport

OPTION = "--crash-point"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("holdfast").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="NAME",
        help="crash_everywhere: kill at this point only, such as commit-4-before; may be given several times",
    )


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., CrashReport]:
    """`holdfast.testing.crash_everywhere` that fails the test unless every kill ended with each effect once.

    `parks=True` lets a task end parked, as is right for an Unrepeatable tool. Journals of bad trials are kept in
    `tmp_path`. See docs/how-to/prove-your-own-tool.md.
    """
    from holdfast.testing import crash

    def run(task: Any, far_end: Any, *, parks: bool = False, **options: Any) -> CrashReport:  # Any: passed on as it is
        chosen: list[str] = request.config.getoption(OPTION) or []
        options = {"folder": tmp_path, **options}
        if chosen:
            options["points"] = chosen
        report = crash.crash_everywhere(task, far_end, **options)
        report.check(parks=parks)
        request.node.add_report_section("call", "crash_everywhere", str(report))
        return report

    return run
