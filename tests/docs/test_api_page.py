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
import holdfast.testing
from holdfast.errors import HoldfastError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
GROUPS = {
    "Opening a journal": ("open", "Holdfast", "TaskHandle", "App", "Settings", "Log"),
    "Tasks": ("task", "TaskType", "Run", "Approval", "Scratch", "Plan", "PlanItem", "Scope"),
    "Tools": ("tool", "Tool", "Call", "Field", "Apply", "Found", "Absent", "Many", "Unsure"),
    "Effect classes": ("Read", "Transactional", "Fenced", "Keyed", "Queryable", "Idempotent", "Unrepeatable"),
    "Mail": ("on_mail", "Letter", "send_mail"),
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
# Names of holdfast.testing; they are loaded by themselves.
TESTING = ("crash_everywhere", "crash_everywhere_async", "CrashReport", "Trial")
# Objects that you are given and do not make: where they come from, and what may be read of them.
GIVEN = {
    "Holdfast": ("holdfast.open", ""),
    "TaskHandle": ("hf.submit, hf.task", "task_id, created"),
    "TaskType": ("@holdfast.task", "name"),
    "Run": ("the first argument of a task", ""),
    "Approval": ("run.approve", "granted, by, note"),
    "Scratch": ("run.scratch", ""),
    "Plan": ("run.plan", ""),
    "PlanItem": ("run.plan.items", ""),
    "Scope": ("hf.scope", "name"),
    "Tool": ("@holdfast.tool", "name, effect"),
    "Call": ("the argument `call` of a tool", "task_id, ordinal, fence, attempt, sent_ago_s"),
    "Letter": ("the second argument of a mail handler", ""),
    "Conversation": ("agent.chat", "name"),
    "Answer": ("conversation.wait", ""),
    "Talk": ("run.talk", "prefix"),
    "Reply": ("run.ask", ""),
    "ToolCall": ("reply.tool_calls", ""),
    "Usage": ("reply.usage", ""),
    "TextDelta": ("the function `show`", ""),
    "Restarted": ("the function `show`", ""),
    "CrashReport": ("crash_everywhere", ""),
    "Trial": ("report.trials", ""),
}
# For the runtime alone: no promise is made about these.
INNER = {
    "Holdfast": {"drop"},
    "TaskHandle": {"id"},
    "TaskType": {"digests"},
    "Run": {"signal"},
    "Scratch": {"caught_up"},
    "Tool": {"takes", "target", "check_args"},
    "Field": {"words"},
    "Apply": {"parsed"},
    "Gate": {"allows", "looks_back", "counted", "decide"},
    "Agent": {"digests"},
    "Model": {"places"},
    "Talk": {"new"},
}
LINE_MAX = 100  # a longer signature has one parameter a line
_INNER = re.compile(r"^    # used by ", re.M)  # what follows is for the runtime alone
_LINKED = re.compile(r"docs/([\w/-]+)\.md")
_PATH = re.compile(r"\b(?:holdfast|collections|typing)\.(?:\w+\.)*(\w+)")


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == render(), "run `python tests/docs/test_api_page.py`"


def test_every_public_name_is_on_a_page() -> None:
    """Errors have a page of their own."""
    named = {name for names in GROUPS.values() for name in names}
    errors = {name for name in holdfast.__all__ if _is_error(getattr(holdfast, name))}
    assert named | errors == set(holdfast.__all__)
    assert not named & errors


def test_errors_that_a_program_handles_are_public() -> None:
    for name in ("TaskUnfinished", "NotNow", "NotSettleable", "ScopeBusy", "ApprovalNotFound", "JournalStopped"):
        assert name in holdfast.__all__
        assert issubclass(getattr(holdfast, name), HoldfastError)


def test_what_is_named_here_exists() -> None:
    for name, inner in INNER.items():
        assert [one for one in inner if not hasattr(getattr(holdfast, name), one)] == [], name
    assert set(GIVEN) <= {*holdfast.__all__, *TESTING}
    assert set(TESTING) == set(holdfast.testing.__all__)


def test_every_public_name_says_what_it_is() -> None:
    for names in GROUPS.values():
        for name in names:
            assert _doc(getattr(holdfast, name)), name


def render() -> str:
    lines = [
        "# Python",
        "",
        "The public names of `holdfast`, made from their docstrings; see also [errors](errors.md).",
        "Objects that Holdfast gives you are shown with where they come from instead of a constructor.",
        "",
    ]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _entry(name, getattr(holdfast, name))
    lines += [
        "## Testing your tools",
        "",
        "From `holdfast.testing`; see [prove your own tool](../how-to/prove-your-own-tool.md).",
        "",
    ]
    for name in TESTING:
        lines += _entry(name, getattr(holdfast.testing, name), room="holdfast.testing")
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any, *, room: str = "holdfast") -> Iterator[str]:  # Any: whatever is public
    yield f"### {name}"
    yield ""
    yield from _given(name, value) if name in GIVEN else _code(f"{room}.{name}", value)
    yield from _text(value)
    if inspect.isclass(value):
        for member, found in _members(name, value):
            wait = "await " if inspect.iscoroutinefunction(inspect.unwrap(found)) else ""
            yield f"#### {name}.{member}"
            yield ""
            yield from _code(wait + member, found, method=True)
            yield from _text(found)


def _given(name: str, value: type) -> Iterator[str]:
    origin, attributes = GIVEN[name]
    yield f"Comes from {origin if '`' in origin or ' ' in origin else f'`{origin}`'}."
    fields = attributes.split(", ") if attributes else list(inspect.get_annotations(value))
    fields += [one for one, found in vars(value).items() if isinstance(found, property)]
    shown = [one for one in fields if one not in ("format", *INNER.get(name, ())) and one[0] != "_"]
    if shown:
        yield f"Attributes: {', '.join(f'`{one}`' for one in shown)}."
    yield ""


def _members(name: str, value: type) -> Iterator[tuple[str, Any]]:  # Any: functions, properties
    inner = _inner_names(value) | INNER.get(name, set())
    for member, found in vars(value).items():
        shown = inspect.isfunction(found) or isinstance(found, property)
        if shown and not member.startswith("_") and member not in inner and _doc(found):
            yield member, found


def _inner_names(value: type) -> set[str]:
    source = inspect.getsource(value)
    found = _INNER.search(source)
    return set() if found is None else set(re.findall(r"def (\w+)", source[found.start() :]))


def _code(name: str, value: Any, *, method: bool = False) -> Iterator[str]:  # Any: as above
    line = name if isinstance(value, property) else f"{name}{_signature(value, method=method)}"
    yield "```text"
    yield line if len(line) <= LINE_MAX else f"{name}{_signature(value, method=method, wrap=True)}"
    yield "```"
    yield ""


def _signature(value: Any, *, method: bool, wrap: bool = False) -> str:  # Any: as above
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    text = str(inspect.Signature([_plain(one) for one in parameters]))
    if wrap:
        each = str.join("", (f"    {one},\n" for one in _each(parameters)))
        text = f"(\n{each})"
    returned = signature.return_annotation
    is_none = returned in (inspect.Signature.empty, None, "None")
    return text if is_none else f"{text} -> {_type(returned)}"


def _each(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter as it is written, and the marks `*` and `/` between them."""
    kinds = [one.kind for one in parameters]
    for number, one in enumerate(parameters):
        first_keyword = one.kind is one.KEYWORD_ONLY and one.KEYWORD_ONLY not in kinds[:number]
        if first_keyword and one.VAR_POSITIONAL not in kinds:
            yield "*"
        yield str(_plain(one))
        if one.kind is one.POSITIONAL_ONLY and one.POSITIONAL_ONLY not in kinds[number + 1 :]:
            yield "/"


def _plain(one: inspect.Parameter) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return one.replace(
        annotation=one.annotation if one.annotation is empty else _As(_type(one.annotation)),
        default=one.default if one.default is empty else _As(_default(one.default)),
    )


class _As:
    """Is shown as this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _type(value: object) -> str:
    if isinstance(value, str):
        return value.replace("'", '"')
    return _PATH.sub(r"\1", inspect.formatannotation(value))


def _default(value: object) -> str:
    """As it is written; one that shows an address is left as dots."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


def _text(value: Any) -> Iterator[str]:  # Any: as above
    """The docstring: its paragraphs, and its sections (Args, Raises) as lists."""
    section = False
    for line in _LINKED.sub(_link, _doc(value)).split("\n"):
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


def _link(found: re.Match[str]) -> str:
    return f"[{found[1].rpartition('/')[2]}](../{found[1]}.md)"


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
