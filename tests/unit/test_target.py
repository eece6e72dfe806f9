"""A function is named so that another process finds the same one, or refused with a reason."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.errors import ToolNotImportable
from holdfast.runtime.tool.child import Target, locate, resolve

SOURCE = """
class Tool:
    def __init__(self, function):
        self.function = function

def plain(x):
    return x + 1

def wrapped(x):
    return x + 2
kept = wrapped
wrapped = Tool(wrapped)

class Desk:
    @staticmethod
    def stamp(x):
        return x + 3

def renamed(x):
    return x
other = renamed
renamed = None
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: a module made here
    (tmp_path / "hf_shop.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "hf_shop", raising=False)
    module = importlib.import_module("hf_shop")
    yield module
    sys.modules.pop("hf_shop", None)


def test_a_module_level_function_is_named_by_its_module(shop: Any) -> None:
    target = locate(shop.plain)
    assert target == Target(module="hf_shop", name="plain")
    assert resolve(target) is shop.plain


def test_a_tool_object_is_looked_through(shop: Any) -> None:
    target = locate(shop.kept)
    assert target == Target(module="hf_shop", name="wrapped")
    assert resolve(target)(1) == 3


def test_a_static_method_is_found_by_its_qualified_name(shop: Any) -> None:
    assert resolve(locate(shop.Desk.stamp))(1) == 4


def test_an_app_loaded_from_a_path_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("def go():\n    return __name__\n")
    spec = importlib.util.spec_from_file_location("loaded_app", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded_app"] = module
    try:
        spec.loader.exec_module(module)
        target = locate(module.go)
        assert target == Target(module="loaded_app", name="go", file=str(file.resolve()))
        del sys.modules["loaded_app"]
        assert resolve(target)() == "loaded_app"
        assert resolve(target) is resolve(target)  # loaded once
    finally:
        sys.modules.pop("loaded_app", None)


def test_a_script_is_named_by_its_file_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "script.py"
    file.write_text("def go():\n    return 5\nif __name__ == '__main__':\n    raise SystemExit\n")
    script = ModuleType("__main__")
    script.__file__ = str(file)
    exec("def go(): return 5", script.__dict__)  # noqa: S102 - stands for the running script
    monkeypatch.setitem(sys.modules, "__main__", script)
    target = locate(script.go)
    assert target.file == str(file.resolve())
    assert resolve(target)() == 5
    sys.modules.pop(target.module)


def test_what_was_typed_in_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ModuleType("__main__")
    exec("def go(): return 5", typed.__dict__)  # noqa: S102 - stands for an interactive session
    monkeypatch.setitem(sys.modules, "__main__", typed)
    with pytest.raises(ToolNotImportable, match="is not defined in a file"):
        locate(typed.go)


def test_lambdas_inner_functions_and_renamed_ones_are_refused_with_a_hint(shop: Any) -> None:
    def inner() -> None: ...

    refused = [lambda: 1, inner, functools.partial(shop.plain, 1), shop.other]
    for function in refused:
        with pytest.raises(ToolNotImportable) as error:
            locate(function)
        assert error.value.code == "tool-not-importable"
        assert "top level of a module" in error.value.hint or "top level of its" in error.value.hint


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    with pytest.raises(ToolNotImportable, match="no_such_module"):
        resolve(Target(module="no_such_module", name="go"))
    with pytest.raises(ToolNotImportable, match="has no function"):
        resolve(Target(module="json", name="nothing"))
    (tmp_path / "broken.py").write_text("1/0")
    target = Target(module="broken_app", name="go", file=str(tmp_path / "broken.py"))
    with pytest.raises(ToolNotImportable, match="ZeroDivisionError"):
        resolve(target)
    assert "broken_app" not in sys.modules
