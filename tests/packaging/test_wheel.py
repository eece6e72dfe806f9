"""The wheel installs the way a user installs it, and what it installs works."""

from __future__ import annotations

import faulthandler
import os
import statistics
import subprocess
import sys
import tarfile
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

pytestmark = pytest.mark.slow


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


def test_wheel_holds_no_proofs(wheel: Path) -> None:
    """What proves Holdfast itself stays in the repository; the wheel is for users."""
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "proofs" in name or name.startswith("tests")]


def test_sdist_holds_what_a_packager_needs(tmp_path: Path) -> None:
    """Sources, proofs with their C, tests, locks and pages; nothing that was built."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, PROJECT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "src/holdfast/py.typed",
        "src/holdfast/journal/sqlite/schema_1.sql",
        "proofs/holdfast_proofs/shim/crash_shim.c",
        "proofs/README.md",
        "tests/conftest.py",
        "requirements/runtime.lock",
        "docs/README.md",
        "Makefile",
        "scripts/setup",
        "LICENSE",
    ):
        assert wanted in names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc", ".db")) or name.startswith("build/")]


def test_testing_works_from_the_wheel(installed: Path) -> None:
    """Every module of holdfast.testing loads without the repository, and no module needs the proofs."""
    program = (
        "import importlib, pkgutil, sys, holdfast.testing as t\n"
        "names = [m.name for m in pkgutil.walk_packages(t.__path__, 'holdfast.testing.') if '__main__' not in m.name]\n"
        "[importlib.import_module(n) for n in names if 'contract' not in n and 'pytest' not in n]\n"
        "print(len(names), 'holdfast_proofs' in sys.modules)"
    )
    count, proofs = run(installed.resolve().with_name("python"), "-P", "-c", program).split()
    assert int(count) > 10
    assert proofs == "False"


def test_crash_everywhere_works_from_the_wheel(installed: Path, wheel: Path) -> None:
    """Without a compiler, the proofs or this repository: it finds a double charge, and none where the key is sent."""
    app = PROJECT / "tests" / "crash_everywhere" / "shop.py"
    program = (
        "import sys\n"
        "from holdfast.downstream.process import start_blocking\n"
        "from holdfast.testing import crash_everywhere\n"
        "for kind, task in (('unrepeatable', 'naive'), ('keyed', 'keyed')):\n"
        "    with start_blocking(kind) as bank:\n"
        "        report = crash_everywhere(f'{sys.argv[1]}:{task}', bank, args={'cents': 5},\n"
        "                                  env={'BANK_URL': bank.url}, points=['commit-4-before'])\n"
        "    print(report.trials[0].verdict)\n"
    )
    python = installed.resolve().with_name("python")
    assert run(python, "-P", "-c", program, app).split() == ["duplicate", "ok"]
    entries = zipfile.ZipFile(wheel).read(f"holdfast-{wheel.name.split('-')[1]}.dist-info/entry_points.txt").decode()
    assert "[pytest11]\nholdfast = holdfast.testing.pytest_plugin" in entries


def test_wheel_carries_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_pipx_installs_the_version_of_the_project(installed: Path, project: dict[str, object]) -> None:
    assert run(installed, "--version").split() == ["holdfast", project["version"]]


def test_errors_and_pages_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    """A hint that names `holdfast explain` leads somewhere, far from any clone."""
    for name, begin in (("engine-missing", "# engine-missing"), ("settings", "# Settings"), ("back-up", "# Back up")):
        done = subprocess.run([installed, "explain", name], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.startswith(begin), done.stderr


def test_what_is_missing_is_said_and_installed(installed: Path, tmp_path: Path) -> None:
    """Without Borg, doctor names the command that builds it; the command works, from the wheel alone. Where pip keeps
    what scripts/setup compiled from the same hashed source, by the same script, it is not compiled a second time."""
    faulthandler.cancel_dump_traceback_later()  # a compiler on a busy machine takes minutes
    tmp_path.chmod(0o700)
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
    if cache.returncode == 0:
        pip["PIP_CACHE_DIR"] = cache.stdout.strip()

    def said(*words: str) -> str:
        done = subprocess.run([installed, *words], cwd=tmp_path, env=alone | pip, capture_output=True, text=True)
        return done.stdout + done.stderr

    if "Borg is not installed" not in said("doctor"):
        pytest.skip("this machine has a Borg of its own")
    assert "holdfast doctor --install-borg" in said("doctor")
    ready = said("doctor", "--install-borg")
    assert "Borg is ready: " in ready, ready
    assert "Borg is not installed" not in said("doctor")


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
