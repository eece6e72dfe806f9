"""The mutation tester itself: what it changes, and that it sees tests that notice nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_proofs.mutants.modules import MODULES, read_explained, stale
from holdfast_proofs.mutants.operators import find_mutants, mutated

PROJECT = Path(__file__).parents[2]
SOURCE = '''
"""A docstring is left alone."""
LIMIT: int = 3
KNOWN = frozenset(("a", "b"))

def allowed(n: int, name: str, *, open: bool = False) -> bool:
    """So is this one."""
    if n > LIMIT and not open:
        return False
    if name not in KNOWN:
        raise ValueError(f"{name} is not known")
    match n:
        case 0:
            log(n)
            return True
        case _:
            return min(n, 2) + 1 == 3
'''


def test_every_kind_of_change_is_found() -> None:
    keys = [mutant.key for mutant in find_mutants("sample", SOURCE)]
    for wanted in (
        "module: 3 -> 4",
        "module: left out of ('a', 'b'): 'a'",
        "module: 'a' -> 'another'",
        "allowed: False -> True",
        "allowed: guard left out: n > LIMIT and (not open)",
        "allowed: turned round: n > LIMIT and (not open)",
        "allowed: n > LIMIT and (not open) -> n > LIMIT or not open",
        "allowed: of n > LIMIT and (not open) left out: not open",
        "allowed: n > LIMIT -> n >= LIMIT",
        "allowed: not left out: not open",
        "allowed: None for: return False",
        "allowed: guard left out: name not in KNOWN",
        "allowed: name not in KNOWN -> name in KNOWN",
        "allowed: case left out: 0",
        "allowed: left out: log(n)",
        "allowed: max for: min(n, 2)",
        "allowed: min(n, 2) + 1 -> min(n, 2) - 1",
        "allowed: min(n, 2) + 1 == 3 -> min(n, 2) + 1 != 3",
    ):
        assert wanted in keys
    assert len(keys) == len(set(keys))
    assert not [key for key in keys if "docstring" in key or "So is" in key or "known" in key]


def test_each_mutant_is_another_program_that_compiles() -> None:
    plain = ast.unparse(ast.parse(SOURCE))
    shown = [ast.unparse(mutated(SOURCE, one.number)) for one in find_mutants("sample", SOURCE)]
    assert plain not in shown
    for text in shown:
        compile(text, "sample", "exec")


def test_the_change_is_the_one_that_is_shown() -> None:
    (number,) = [one.number for one in find_mutants("sample", SOURCE) if one.key == "allowed: n > LIMIT -> n >= LIMIT"]
    assert "n >= LIMIT and (not open)" in ast.unparse(mutated(SOURCE, number))


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_every_explanation_is_of_a_mutant_that_exists(module: object) -> None:
    name = str(getattr(module, "name"))  # noqa: B009 - a parameter of any type
    known = MODULES[name]
    mutants = find_mutants(name, (PROJECT / known.path).read_text())
    reasons = read_explained().get(name, {})
    assert stale(name, mutants, reasons) == []
    assert all(len(reason) > 20 for reason in reasons.values())
    assert len(reasons) <= len(mutants) // 10  # explaining is the exception
    assert all((PROJECT / test).exists() for test in (*known.quick, *known.wide))


CAMPAIGN = """
import json, sys
from dataclasses import replace
from holdfast_proofs.mutants.campaign import run_module
from holdfast_proofs.mutants.modules import MODULES
from holdfast_proofs.mutants.run import load_tools

load_tools()
module = replace(MODULES["journal.chain"], quick=(sys.argv[1],), wide=(), simulated=False)
print(json.dumps(run_module(module, {}, jobs=2, only=(0, 1, 2)).to_json()))
"""


@pytest.mark.parametrize(("tests", "killed"), [("tests/unit/test_chain.py", 3), ("tests/unit/test_clock.py", 0)])
def test_tests_that_notice_nothing_let_mutants_live(tests: str, killed: int) -> None:
    done = subprocess.run([sys.executable, "-c", CAMPAIGN, tests], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] == killed
    assert found["survived"] == 3 - killed
    assert all("--module journal.chain --mutant" in one["command"] for one in found["survivors"])
