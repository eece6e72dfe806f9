"""Defences of the attack table, taken out one at a time: the test of the row must turn red.

A defence is one or more small edits of the source (a text that occurs once, and what stands in
its place) and the test that shows it. The edits are made in a copy of the package, because the
tests of some rows start processes of their own: these must see the same code. The tests are the
clone's own, run with the copy before everything else on the path.

A test counts as red only where pytest says that a test failed; one that could not be collected,
was skipped or is gone is trouble, and so is an edit whose text is not there exactly once. So a
defence that was rewritten is noticed here, and not taken for one that still holds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

REGISTER = Path(__file__).with_name("defences.toml")
PAGE = Path("docs/formats/attack-table.md")
TEST_S_MAX = 300.0
_FAILED = 1  # of pytest: tests ran, and some failed

Verdict = Literal["red", "green", "trouble"]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    module: str  # below holdfast
    old: str
    new: str


class Defence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    row: int
    what: str  # what is taken out
    test: str  # the name of its function
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    defence: Defence
    verdict: Verdict
    seconds: float
    said: str

    def to_json(self) -> dict[str, object]:
        one = self.defence
        return {
            "row": one.row,
            "removed": one.what,
            "test": one.test,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "said": self.said,
        }


def read_defences(path: Path = REGISTER) -> tuple[Defence, ...]:
    found = tomllib.loads(path.read_text())["defence"]
    return msgspec.convert(found, tuple[Defence, ...])


def rows_shown(page: str) -> dict[int, list[str]]:
    """The rows of the table that have a test, with the names of their tests."""
    rows: dict[int, list[str]] = {}
    for line in page.splitlines():
        found = re.match(r"\| ([0-9]+) \|", line)
        names = re.findall(r"`(test_row_\w+)`", line)
        if found and names:
            rows[int(found[1])] = names
    return rows


def edited(source: str, edits: Sequence[Edit]) -> str:
    """The source without the defence. Raises ValueError where a text is not there once."""
    for edit in edits:
        if source.count(edit.old) != 1:
            raise ValueError(f"{edit.module}: {source.count(edit.old)} times: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    compile(source, "<edited>", "exec")
    return source


def stale(defences: Sequence[Defence], root: Path) -> list[str]:
    """Edits whose text is not there exactly once any more."""
    found: list[str] = []
    for one in defences:
        try:
            _apply(one, root, write=False)
        except (ValueError, OSError, SyntaxError) as error:
            found.append(f"row {one.row}, {one.what}: {error}")
    return found


def run_defences(
    defences: Sequence[Defence], *, root: Path, each: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Take out each in turn, after all the tests were green on the code as it is."""
    places = find_tests(root / "tests")
    with tempfile.TemporaryDirectory(prefix="holdfast-defences-") as folder:
        copy = Path(folder) / "src"
        # With its bytecode, which saves most of a start. None is written for a file that is changed,
        # and a changed file is never as old as the bytecode of what it was.
        shutil.copytree(root / "src", copy)
        named = sorted({one.test for one in defences})
        code, said = _pytest([places[name] for name in named if name in places], copy, root)
        if code != 0 or any(name not in places for name in named):
            raise SystemExit(f"the tests of the rows fail on the code as it is:\n{said}")
        outcomes: list[Outcome] = []
        for one in defences:
            outcomes.append(_tried(one, places[one.test], copy, root))
            each(outcomes[-1])
        return outcomes


def find_tests(folder: Path) -> dict[str, str]:
    """Where each test of a row is, as pytest names it."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_row_\w+)", file.read_text(), re.M):
            found[name] = f"{file}::{name}"
    return found


def _tried(defence: Defence, test: str, copy: Path, root: Path) -> Outcome:
    began = time.monotonic()
    before = {file: file.read_text() for file in _files(defence, copy)}
    try:
        _apply(defence, copy.parent, write=True)
        code, said = _pytest([test], copy, root)
    finally:
        for file, text in before.items():
            file.write_text(text)
    failures = re.findall(r"^(?:E  .*|FAILED .*)$", said, re.M)
    verdict: Verdict = "red" if code == _FAILED and failures else "green" if not code else "trouble"
    line = failures[0][:160] if failures else said.strip().rpartition("\n")[2][:160]
    return Outcome(defence=defence, verdict=verdict, seconds=time.monotonic() - began, said=line.strip())


def _apply(defence: Defence, root: Path, *, write: bool) -> None:
    for file in _files(defence, root / "src"):
        edits = [one for one in defence.edits if _file(one, root / "src") == file]
        text = edited(file.read_text(), edits)
        if write:
            file.write_text(text)


def _files(defence: Defence, src: Path) -> list[Path]:
    return sorted({_file(edit, src) for edit in defence.edits})


def _file(edit: Edit, src: Path) -> Path:
    return src / "holdfast" / f"{edit.module.replace('.', '/')}.py"


def _pytest(tests: Sequence[str], copy: Path, root: Path) -> tuple[int, str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=root,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
            timeout=TEST_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"took more than {TEST_S_MAX:.0f} s"
    return done.returncode, done.stdout[-20_000:] + done.stderr[-2_000:]
