"""docs/reference/errors.md is what the error classes say: code, class, exit code, docstring, hint.

`python tests/docs/test_error_page.py` writes it again.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import HoldfastError, Retryable, Unresolved

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = REFERENCE / "errors.md"
GROUPS = {
    "base": "General",
    "runtime": "Tasks",
    "step": "Steps and calls",
    "model": "Models",
    "journal": "Journal",
    "host": "Disks and files",
    "agent": "The agent's folder",
    "identity": "Identity",
    "instances": "Instances",
    "relay": "Relays",
    "backup": "Backups",
    "": "Others",
}
HEAD = """# Errors

Every error has a code, an exit code and, if you can act, a hint.
The command line prints them as

```text
error: no task 7ZZZZZZZZZZZZZZZZZZZZZZZZZ in this journal
hint: `holdfast task list` shows the tasks of this journal
see: holdfast explain task-not-found
```

and with `--json` as one object on standard error ([JSON](json.md#errors)).
In Python they are classes of `holdfast.errors`. Decide by class or code, never by the text of the message:

| Class | Means |
|---|---|
| `Retryable` | nothing was done; the same call may succeed later |
| `Terminal` | trying again changes nothing |
| `Unresolved` | a worker or a person must settle an effect or a task |

This page is made from the error classes.
"""
TAIL = """### internal

An error that Holdfast does not know, exit code 1.
The command line prints it in one line; `HOLDFAST_TRACE=1` shows where it came from.
This is a defect: please report it.
"""
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")


@functools.cache
def every_error() -> list[type[HoldfastError]]:
    """The classes with a code of their own, in the order of the files and of their lines."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith("holdfast.testing") and "__main__" not in module.name:
            importlib.import_module(module.name)
    found: list[type[HoldfastError]] = []
    waiting = [HoldfastError]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one is not HoldfastError and "code" in vars(one) and _is_ours(one):
            found.append(one)
    return sorted(set(found), key=lambda one: (one.__module__, inspect.getsourcelines(one)[1]))


def _is_ours(error: type) -> bool:
    return error.__module__.startswith("holdfast.") and not error.__module__.startswith("holdfast.testing")


def test_the_page_is_what_the_classes_say() -> None:
    assert PAGE.read_text() == render(), "run `python tests/docs/test_error_page.py`"


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_an_error_says_what_happened(error: type[HoldfastError]) -> None:
    assert vars(error).get("__doc__"), error
    assert sum(one.code == error.code for one in every_error()) == 1


def test_every_exit_code_is_in_the_table() -> None:
    exit_codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = re.findall(r"^\| (\d+) \|", (REFERENCE / "exit-codes.md").read_text(), re.MULTILINE)
    assert {int(code) for code in table} == exit_codes | {0, 1, 130, 137, 141}
    assert {error.exit_code for error in every_error()} <= exit_codes | {1}


def render() -> str:
    lines = [HEAD]
    for group, title in GROUPS.items():
        lines += [f"## {title}", ""]
        for error in every_error():
            if _group(error) == group:
                lines += _section(error)
    return "\n".join(lines) + TAIL


def _group(error: type) -> str:
    package, _, name = error.__module__.rpartition(".")
    return name if package == "holdfast.errors" else ""


def _section(error: type[HoldfastError]) -> Iterator[str]:
    again = ", retryable" if issubclass(error, Retryable) else ""
    again = ", unresolved" if issubclass(error, Unresolved) else again
    yield f"### {error.code}"
    yield ""
    yield f"`{error.__name__}`, exit code {error.exit_code}{again}."
    yield _linked(" ".join(_doc(error).split("\n\n")[0].split()))
    for paragraph in _doc(error).split("\n\n")[1:]:
        yield _linked(" ".join(paragraph.split()))
    yield ""
    if error.default_hint:
        yield f"**Hint:** {_linked(error.default_hint)}"
        yield ""


def _doc(error: type) -> str:
    return inspect.cleandoc(error.__doc__ or "")


def _linked(text: str) -> str:
    """Names of pages and of other errors become links."""
    codes = {one.code for one in every_error()}
    text = _PAGE.sub(lambda found: f"[{_title(found[1])}](../{found[1]}.md{found[2] or ''})", text)
    return re.sub(r"(?<![\w`#/-])[a-z]+(?:-[a-z]+)+(?![\w`-])", lambda it: _code_link(it[0], codes), text)


def _title(path: str) -> str:
    return path.removesuffix("/README").rpartition("/")[2]


def _code_link(word: str, codes: set[str]) -> str:
    return f"[{word}](#{word})" if word in codes else word


if __name__ == "__main__":
    PAGE.write_text(render())
