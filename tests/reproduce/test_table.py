"""The reproduction table: every entry is a test that there is, and stands on its page."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from holdfast_proofs.reproduce.__main__ import main
from holdfast_proofs.reproduce.table import TABLE, Reproduction
from holdfast_proofs.simulate.bugs import BUGS

ROOT = Path(__file__).parents[2]
_NODE = re.compile(r"(tests/[a-z_/]+\.py)(?:::(test_[a-z_0-9]+)(?:\[(.+)\])?)?")


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_its_test_is_there(one: Reproduction) -> None:
    node = _NODE.fullmatch(one.test)
    assert node, one.test
    file, function, parameter = node.groups()
    tree = ast.parse((ROOT / file).read_text())
    tests = {found.name for found in ast.walk(tree) if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function is None or function in tests
    assert parameter is None or parameter in BUGS


def test_names_are_unique_and_say_what_was_wrong() -> None:
    names = [one.name for one in TABLE]
    assert len(set(names)) == len(names)
    assert [one.name for one in TABLE if not one.what.endswith(".") or not one.found_by] == []


def test_what_is_left_out_of_the_tests_says_why() -> None:
    assert [one.name for one in TABLE if one.left_out and len(one.left_out) < 10] == []


def test_one_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["swallowed-cancel"]) == 0
    assert "green: 1 of 1 hold" in capsys.readouterr().out


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == [x.name for x in TABLE]


def test_a_name_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "not in the table: nothing" in capsys.readouterr().err
