"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGES = sorted(page for place in (".", "changes", "proofs", "docs/**") for page in PROJECT.glob(f"{place}/*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_of_a_page_resolve(page: Path) -> None:
    """Each relative link names a file of the project, and each `#part` a heading in it."""
    broken: list[str] = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        target, _, part = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (part and part not in anchors(file)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The names under which a Markdown viewer offers the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
