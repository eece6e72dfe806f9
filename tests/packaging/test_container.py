"""The Containerfile: what it copies is enough to build the wheel, and where a container tool answers, it builds."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FILE = PROJECT / "deploy" / "Containerfile"
BUILD_S = 900


def test_it_copies_what_the_wheel_is_made_of() -> None:
    copied = {
        word for line in re.findall(r"^COPY (?!--)(.+) \S+$", FILE.read_text(), re.MULTILINE) for word in line.split()
    }
    hatch = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*hatch["packages"], *hatch["force-include"], "README.md", "LICENSE", "pyproject.toml"}
    assert [path for path in needed if not any(path == one or path.startswith(f"{one}/") for one in copied)] == []


def test_every_copied_path_exists() -> None:
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", FILE.read_text(), re.MULTILINE):
        assert all((PROJECT / word).exists() for word in line.split())


def find_tool() -> tuple[str, str]:
    """A container tool that answers, and why there is none."""
    why = "neither podman nor docker is installed"
    for name in ("podman", "docker"):
        program = shutil.which(name)
        if program is None:
            continue
        if subprocess.run([program, "info"], capture_output=True, timeout=60).returncode == 0:
            return program, ""
        why = f"{name} does not answer"
    return "", why


@pytest.mark.slow
def test_the_image_has_all_parts() -> None:
    tool, why = find_tool()
    if not tool:
        pytest.skip(f"the image was not tried: {why}")
    bases = set(re.findall(r"^FROM (\S+)", FILE.read_text(), re.MULTILINE))
    for base in bases:
        if subprocess.run([tool, "image", "inspect", base], capture_output=True, timeout=60).returncode != 0:
            pytest.skip(f"the image was not tried: its base {base} is not at hand")
    image = "holdfast-tested"
    built = subprocess.run(
        [tool, "build", "-f", FILE, "-t", image, PROJECT], capture_output=True, text=True, timeout=BUILD_S
    )
    assert built.returncode == 0, built.stderr[-4_000:]
    try:
        for words, said in ((["--version"], "holdfast "), (["explain", "engine-missing"], "# engine-missing")):
            done = subprocess.run([tool, "run", "--rm", image, *words], capture_output=True, text=True, timeout=60)
            assert done.stdout.startswith(said), done.stderr
        borg = [tool, "run", "--rm", "--entrypoint", "borg", image, "--version"]
        assert subprocess.run(borg, capture_output=True, text=True, timeout=60).stdout.startswith("borg 1.4")
    finally:
        subprocess.run([tool, "image", "rm", image], capture_output=True, timeout=60)
