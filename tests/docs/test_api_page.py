"""docs/reference/api.md is what the docstrings say.

`python tests/docs/test_api_page.py` writes it anew.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.errors import HoldfastError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
GROUPS = {
    "Opening a journal": ("open", "Holdfast", "TaskHandle", "App", "Settings", "Log"),
    "Tasks": ("task", "TaskType", "Run", "Approval", "Scratch", "Plan", "PlanItem", "Scope"),
    "Tools": ("tool", "Tool", "Call", "Field", "Apply", "Found", "Absent", "Many", "Unsure"),
    "Effect classes": ("Read", "Transactional", "Fenced", "Keyed", "Queryable", "Idempotent", "Unrepeatable"),
    "Limits": ("Gate", "Limit", "Above"),
    "Agents": ("Agent", "Conversation", "Answer", "remember", "recall"),
    "Models": (
        "Model",
        "Endpoint",
        "Endpoints",
        "Price",
        "Talk",
        "Reply",
        "ToolCall",
        "Usage",
        "TextDelta",
        "Restarted",
    ),
}
_QUOTED = re.compile(r'(: |-> )"([^"]*)"')  # annotations are texts here
_INNER = re.compile(r"^    # used by ", re.M)  # what follows is for the runtime alone


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == render(), "run `python tests/docs/test_api_page.py`"


def test_every_public_name_is_on_a_page() -> None:
    """Errors have a page of their own."""
    named = {name for names in GROUPS.values() for name in names}
    errors = {name for name in holdfast.__all__ if _is_error(getattr(holdfast, name))}
    assert named | errors == set(holdfast.__all__)
    assert not named & errors


def test_every_public_name_says_what_it_is() -> None:
    for names in GROUPS.values():
        for name in names:
            assert _doc(getattr(holdfast, name)), name


def render() -> str:
    lines = [
        "# Python",
        "",
        "The public names of `holdfast`, as their docstrings have them; errors are on a "
        "[page of their own](errors.md).",
        "Written by `python tests/docs/test_api_page.py`.",
        "",
    ]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _entry(name, getattr(holdfast, name))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:  # Any: whatever is public
    yield f"### {name}"
    yield ""
    yield from _code(f"holdfast.{name}{_signature(value)}")
    yield from _text(value)
    if inspect.isclass(value):
        for member, found in _members(value):
            what = "" if isinstance(found, property) else _signature(found, method=True)
            wait = "await " if inspect.iscoroutinefunction(found) else ""
            yield f"#### {name}.{member}"
            yield ""
            yield from _code(f"{wait}{member}{what}")
            yield from _text(found)


def _members(value: type) -> Iterator[tuple[str, Any]]:  # Any: functions and properties
    inner = _inner_names(value)
    for name, found in vars(value).items():
        shown = inspect.isfunction(found) or isinstance(found, property)
        if shown and not name.startswith("_") and name not in inner and _doc(found):
            yield name, found


def _inner_names(value: type) -> set[str]:
    source = inspect.getsource(value)
    found = _INNER.search(source)
    return set() if found is None else set(re.findall(r"def (\w+)", source[found.start() :]))


def _signature(value: Any, *, method: bool = False) -> str:  # Any: as above
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    plain = [one.replace(default=_Shown(one.default)) for one in parameters]
    text = str(signature.replace(parameters=plain)).replace("'", '"')
    return _QUOTED.sub(r"\1\2", text)


class _Shown:
    """A default as it is written; one that shows an address is left as dots."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __new__(cls, value: object) -> Any:  # Any: the marker of no default stays itself
        return value if value is inspect.Parameter.empty else super().__new__(cls)

    def __repr__(self) -> str:
        text = repr(self._value)
        return "..." if " at 0x" in text or text.startswith("<") else text


def _code(text: str) -> Iterator[str]:
    yield "```text"
    yield text
    yield "```"
    yield ""


def _text(value: Any) -> Iterator[str]:  # Any: as above
    """The docstring: its paragraphs, and its sections (Args, Raises) as lists."""
    section = False
    for line in _doc(value).split("\n"):
        if line in ("Args:", "Raises:", "Returns:"):
            section = True
            yield f"**{line[:-1]}**"
            yield ""
        elif section and re.match(r"    \S", line):
            yield f"- {line.strip()}"
        elif section and line.strip():
            yield f"  {line.strip()}"
        else:
            yield line
    yield ""


def _doc(value: Any) -> str:  # Any: as above
    if inspect.isclass(value) and "__doc__" not in vars(value):
        return ""
    own = value.fget if isinstance(value, property) else value
    text = inspect.getdoc(own) or ""
    return "" if text == inspect.getdoc(msgspec.Struct) else text


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, (HoldfastError, BaseException))


if __name__ == "__main__":
    PAGE.write_text(render())
