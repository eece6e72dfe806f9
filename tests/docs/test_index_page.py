"""docs/README.md lists every page, by the page's own title and first sentence.

`python tests/docs/test_index_page.py` writes it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGE = DOCS / "README.md"

# The order of reading; a page that no group names makes the test fail.
GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": (
        "concepts",
        "tutorial/first-task",
        "tutorial/first-agent",
        "tutorial/mail",
        "../examples/README",
        "why-not",
        "glossary",
    ),
    "Write tools, tasks and agents": (
        "how-to/write-a-tool",
        "how-to/retries-and-refusals",
        "how-to/test-your-tools",
        "how-to/prove-your-own-tool",
        "how-to/make-a-service-safe",
        "how-to/secrets",
        "how-to/agents",
        "how-to/model-calls",
        "how-to/limits",
        "how-to/memory",
        "how-to/scratch-files",
        "how-to/foreign-loops",
        "how-to/change-code",
    ),
    "Run them": (
        "how-to/run-a-worker",
        "how-to/postgres",
        "how-to/many-agents",
        "how-to/three-hosts",
        "how-to/lose-a-region",
        "how-to/rolling-deploys",
        "how-to/production-checklist",
        "how-to/debug",
        "how-to/unknown-effects",
        "how-to/upgrade",
        "how-to/disk-full-and-damage",
        "how-to/restore-an-older-journal",
    ),
    "Keep an agent alive": (
        "how-to/recovery",
        "how-to/make-an-agent",
        "how-to/adopt-an-agent",
        "how-to/back-up",
        "how-to/rescue-key",
        "how-to/print-the-sheet",
        "how-to/keys",
        "how-to/move-an-agent",
        "how-to/move-to-postgres",
        "how-to/two-hosts",
        "how-to/restore-with-borg",
        "how-to/print-the-runbook",
        "how-to/quarterly-test",
        "how-to/drills-in-ci",
        "how-to/run-a-relay",
    ),
    "Understand it": (
        "explanation/guarantees",
        "evidence",
        "explanation/levels",
        "explanation/backups",
        "explanation/mail",
        "explanation/clones",
        "explanation/what-a-relay-sees",
        "explanation/identity",
    ),
}
CONTRIBUTORS = ("../ARCHITECTURE", "../proofs/README", "decisions/README")
NOT_LISTED = ("README",)


def test_the_index_is_what_the_pages_say() -> None:
    assert PAGE.read_text() == render(), "run `python tests/docs/test_index_page.py`"


def test_every_page_is_in_the_index_once() -> None:
    listed = [name for names in sections().values() for name in names]
    assert sorted(listed) == sorted({*listed}), "a page is listed twice"
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob("**/*.md")}
    missing = {name for name in there - {*listed} - {*NOT_LISTED} if not is_decision(name)}
    assert missing == set(), "name the page in a group of this file"


def test_a_page_begins_with_its_title_and_its_purpose() -> None:
    for names in sections().values():
        for name in names:
            title, purpose = read_page(name)
            assert title, name
            assert purpose.endswith("."), name


def is_decision(name: str) -> bool:
    return re.fullmatch(r"decisions/\d{4}-.*", name) is not None


def sections() -> dict[str, tuple[str, ...]]:
    """Headings with the pages below them, in the order of the index."""
    return {
        **GROUPS,
        "Look it up": tuple(in_folder("reference")),
        "For contributors": (*CONTRIBUTORS, *in_folder("formats")),
    }


def in_folder(folder: str) -> Iterator[str]:
    for page in sorted((DOCS / folder).glob("**/*.md")):
        name = str(page.relative_to(DOCS).with_suffix(""))
        if name not in NOT_LISTED:
            yield name


def read_page(name: str) -> tuple[str, str]:
    """A page's first heading, and the first sentence below it, without links."""
    text = (DOCS / f"{name}.md").resolve().read_text()
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    title = next(line.removeprefix("# ") for line in lines if line.startswith("# "))
    prose = next((line for line in lines if line and not line.startswith(("#", "|", "- ", "!", "<"))), "")
    sentence = re.split(r"(?<=[.?])\s", prose, maxsplit=1)[0]
    return title, re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)


def render() -> str:
    lines = [
        "# Documents",
        "",
        "Every page and what it is for. If you are new, read [concepts in five minutes](concepts.md) first.",
        "",
        "This page is generated from the first lines of the other pages.",
    ]
    for heading, names in sections().items():
        lines += ["", f"## {heading}", ""]
        if heading == "For contributors":
            lines += [
                "You need none of these to use Holdfast; the formats are exact enough to write another implementation.",
                "",
            ]
        for name in names:
            title, purpose = read_page(name)
            lines.append(f"- [{title}]({name}.md): {purpose}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
