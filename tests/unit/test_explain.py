"""`holdfast explain`: every error and every page that a hint names can be shown, and no hint names a file."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.explain import find_pages, linked, read_errors
from holdfast.cli.main import main

PACKAGE = Path(holdfast.__file__).parent
PAGE_FIELD = "docs/reference/errors.md#"  # the field `page` of errors as JSON: older programs read it


def test_an_error_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "journal-busy"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# journal-busy\n")
    assert "exit code 8" in said
    assert "### " not in said


def test_the_last_error_of_a_group_ends_before_the_next_group() -> None:
    assert not [code for code, text in read_errors().items() if "\n## " in text]


def test_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("settings", "reference/settings", "docs/reference/settings.md"):
        assert main(["explain", name]) == 0
        assert capsys.readouterr().out.startswith("# Settings")
    assert main(["explain", "formats/keys", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "page"


def test_an_unknown_name_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "jurnal-busy"]) == 2
    assert "did you mean `holdfast explain journal-busy`?" in capsys.readouterr().err


def test_no_name_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    said = capsys.readouterr().out.split()
    assert {"bad-input", "settings", "internal", "formats/keys", "keys"} <= set(said)
    assert "reference/settings" not in said


def test_a_link_to_another_page_names_its_command() -> None:
    """On a screen a link cannot be followed."""
    pages = find_pages()
    text = "It stops ([clones](../explanation/clones.md)). See [the keys](keys.md#a), [here](errors.md#b), [x](y.png)."
    assert linked(text, pages["effect-key"], pages) == (
        "It stops (`holdfast explain clones`). See the keys (`holdfast explain formats/keys`), here, x."
    )


def test_codes_and_pages_have_different_names() -> None:
    assert not read_errors().keys() & find_pages().keys()


def texts() -> Iterator[tuple[Path, str]]:
    """Every text in the code that is not a docstring, from the files that may name a page."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "docs/" not in source and "explain" not in source:
            continue
        tree = ast.parse(source)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield path, node.value


def test_no_text_names_a_file_that_a_wheel_does_not_have() -> None:
    named = [(path, text) for path, text in texts() if re.search(r"docs/[\w-]+", text) and text != PAGE_FIELD]
    assert named == []


def test_every_page_that_a_text_names_exists() -> None:
    known = {*read_errors(), *find_pages()}
    named = {name for _, text in texts() for name in re.findall(r"`holdfast explain ([\w/-]+)`", text)}
    assert len(named) > 5
    assert named <= known
