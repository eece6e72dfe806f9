"""The locks are complete, and name no machine."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LOCKS = sorted((PROJECT / "requirements").glob("*.lock"))
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\]+)", re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    return dict(PIN.findall(lock.read_text()))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_names_no_host_and_no_path(lock: Path) -> None:
    suspects = r"://|--(?:extra-)?index|--find-links|--trusted-host|(?:^|[\s@=])/\w"
    assert re.findall(suspects, lock.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_of_a_lock_has_hashes(lock: Path) -> None:
    blocks = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)
    named = [block for block in blocks if PIN.match(block)]
    assert named
    assert [block for block in named if "--hash=sha256:" not in block] == []


def test_tests_run_with_the_versions_users_get() -> None:
    everything = pins(PROJECT / "requirements" / "dev.lock")
    for name in ("runtime", "build", "postgres"):
        assert pins(PROJECT / "requirements" / f"{name}.lock").items() <= everything.items()


def test_runtime_lock_holds_every_declared_dependency() -> None:
    """A dependency added to pyproject.toml without `make lock` would break a fresh clone."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=!~\[ ;]", text)[0].lower() for text in project["dependencies"]}
    assert declared <= pins(PROJECT / "requirements" / "runtime.lock").keys()


@pytest.mark.parametrize("name", ["instances", "postgres", "relay"])
def test_the_lock_of_an_extra_holds_it(name: str) -> None:
    whole = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extra = whole["project"]["optional-dependencies"][name]
    assert extra == whole["dependency-groups"][name]
    assert {re.split(r"[<>=!~\[ ;]", text)[0] for text in extra} <= pins(PROJECT / f"requirements/{name}.lock").keys()


def test_the_product_imports_only_declared_dependencies() -> None:
    """An import inside a function too: it would fail where only the wheel is installed. What an extra brings is
    imported in the one folder that the extra is for."""
    of_extras = (("journal", "postgres"), ("relay", "server"), ("instances",))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=!~\[ ;]", text)[0].lower() for text in project["dependencies"]}
    sources = PROJECT / "src" / "holdfast"
    found = {
        name
        for path in sources.rglob("*.py")
        if path.relative_to(sources).parts[0] != "testing"  # its contracts are pytest suites
        and not any(path.is_relative_to(sources.joinpath(*one)) for one in of_extras)
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imported(node)
    }
    homes = packages_distributions()
    outside = found - sys.stdlib_module_names - {"holdfast"}
    assert {name for name in outside if not declared & {home.lower() for home in homes.get(name, ())}} == set()


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [one.name.partition(".")[0] for one in node.names]
        case ast.ImportFrom():
            return [str(node.module).partition(".")[0]]
        case _:
            return []
