"""Every error that can be met has its section: code, class, exit code, what to do."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import HoldfastError

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
KINDS = ("BadUsage", "NotFound", "Conflict", "StateUnusable", "HostUnfit")
ABSTRACT = ("HoldfastError", "Retryable", "Terminal", "Unresolved", *KINDS)
EXIT_CODES = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def every_error() -> list[type[HoldfastError]]:
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith("holdfast.testing") and "__main__" not in module.name:
            importlib.import_module(module.name)
    found: list[type[HoldfastError]] = []
    waiting = [HoldfastError]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__name__ not in ABSTRACT and one.__module__.startswith("holdfast."):
            found.append(one)
    return sorted(
        {one for one in found if not one.__module__.startswith("holdfast.testing")}, key=lambda one: one.__name__
    )


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^#+ (.+)$", (REFERENCE / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_an_error_has_a_section_and_a_hint(error: type[HoldfastError]) -> None:
    section = sections("errors.md").get(error.code)
    assert section is not None, f"docs/reference/errors.md lacks {error.code}"
    assert f"exit code {error.exit_code}." in section
    assert error.default_hint or "No fixed hint:" in section
    assert not (error.default_hint and "No fixed hint:" in section)
    owner = next(one for one in inspect.getmro(error)[::-1] if vars(one).get("code") == error.code)
    assert f"`{owner.__name__}`" in section


def test_no_section_describes_an_error_that_is_gone() -> None:
    known = {error.code for error in every_error()} | {"internal"}
    headings = re.findall(r"^### (.+)$", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    assert set(headings) == known
    assert len(headings) == len(known)


def test_every_exit_code_is_in_the_table() -> None:
    table = re.findall(r"^\| (\d+) \|", (REFERENCE / "exit-codes.md").read_text(), re.MULTILINE)
    assert {int(code) for code in table} == EXIT_CODES | {0, 1, 130, 137, 141}
    assert {error.exit_code for error in every_error()} <= EXIT_CODES | {1}
