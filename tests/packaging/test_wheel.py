"""The wheel installs the way a user installs it, and what it installs works."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "holdfast"

# Commands of this file end in seconds; a slow registry may take longer, a hang must not.
COMMAND_TIMEOUT_S = 180

pytestmark = [
    pytest.mark.slow,
    # The fixtures are dear and shared: keep them in one worker process.
    pytest.mark.xdist_group("wheel"),
]


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=PROJECT, env=env, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, PROJECT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `holdfast` command as pipx installs it: own environment, packages from the registry."""
    home = tmp_path_factory.mktemp("pipx")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PIPX_HOME": str(home / "home"),
        "PIPX_BIN_DIR": str(home / "bin"),
        "PIPX_MAN_DIR": str(home / "man"),
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "USE_EMOJI": "0",
    }
    run(sys.executable, "-m", "pipx", "install", wheel, env=env)
    return home / "bin" / "holdfast"


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


def package_files() -> Iterator[str]:
    for path in PACKAGE.rglob("*"):
        if path.suffix in {".py", ".sql", ".typed"} and path.is_file():
            yield path.relative_to(PACKAGE.parent).as_posix()


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """SQL and type marker travel along; tests, caches, C and built libraries do not."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names >= set(package_files())
    strangers = {name for name in names if not name.startswith("holdfast/")}
    leftovers = {name for name in names if name.endswith((".c", ".so", ".o", ".pyc", ".db"))}
    assert strangers | leftovers == set()


def test_wheel_carries_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_pipx_installs_the_version_of_the_project(installed: Path, project: dict[str, object]) -> None:
    assert run(installed, "--version").split() == ["holdfast", project["version"]]


def test_installed_command_explains_itself(installed: Path, measured: Callable[[str], None]) -> None:
    """`holdfast --help` names the demo; how long it takes is printed, not judged."""
    assert "demo" in run(installed, "--help")
    python = installed.resolve().with_name("python")
    measured(f"holdfast --help: {median_ms(installed, '--help'):.0f} ms (aim: under 300)")
    bare = median_ms(python, "-c", "pass")
    full = median_ms(python, "-c", "import holdfast")
    measured(f"import holdfast: {full - bare:.0f} ms more than a bare start (aim: at most 120)")


def median_ms(*command: str | Path, times: int = 7) -> float:
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        run(*command)
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)
