"""`holdfast explain NAME`: the section of an error, or a whole page of the documents, without a clone.

A wheel carries the pages inside the package; in a clone they are the documents themselves. So a hint may always name a
page: `holdfast explain settings` shows it wherever Holdfast is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.cli.command import Commands, add_options, nearest, new_command
from holdfast.cli.screen.wrapping import screen_width, split_lines
from holdfast.errors import BadInput

FOLDERS = ("reference", "how-to", "explanation", "tutorial", "formats")  # the first one wins where two share a name
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "explain", run).help("""
        Explain an error by its code: what it means, its exit code, what to do. Also prints any page of the
        documents by its name. Needs no network and no clone. Without a name, lists everything it can explain.
        examples:
          holdfast explain bad-input
          holdfast explain settings
        """)
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the code of an error, or a page")
    add_options(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import print_json

    errors, pages = read_errors(), find_pages()
    if not args.name:
        names = [name for name, path in pages.items() if pages[name.rpartition("/")[2]] != path or "/" not in name]
        if args.json:
            print_json({"errors": list(errors), "pages": names})
        else:
            _print_names("errors", errors)
            for folder in ("", *FOLDERS):
                own = [one for one in names if _folder_of(pages[one]) == folder]
                _print_names(f"pages ({folder})" if folder else "pages", own)
        return 0
    name = args.name.removeprefix("docs/").removesuffix(".md").rpartition("#")[2]
    if name in errors:
        kind, text = "error", errors[name]
    elif name in pages:
        kind, text = "page", pages[name].read_text()
    else:
        near = nearest(name, (*errors, *pages), before="holdfast explain ")
        raise BadInput(f"there is no error and no page {args.name!r}", hint=f"{near}`holdfast explain` lists all names")
    if args.json:
        print_json({"name": name, "kind": kind, "text": text})
    else:
        _print_page(linked(text, pages.get(name, pages["reference/errors"]), pages) if sys.stdout.isatty() else text)
    return 0


def pages_folder() -> Path:
    package = Path(__file__).parents[1]
    inside = package / "pages"
    return inside if inside.is_dir() else package.parents[1] / "docs"


def find_pages() -> dict[str, Path]:
    """Every page by its name, with its folder and, where no page before has the same name, without."""
    found: dict[str, Path] = {}
    root = pages_folder()
    for path in (one for pattern in ("*.md", *(f"{name}/**/*.md" for name in FOLDERS)) for one in root.glob(pattern)):
        name = path.relative_to(root).with_suffix("").as_posix().removesuffix("/README")
        found[name] = path
        found.setdefault(name.rpartition("/")[2], path)
    return dict(sorted(found.items()))


def _folder_of(page: Path) -> str:
    """The part of the documents that a page is in; empty at the top."""
    return "" if page.parent == pages_folder() else page.relative_to(pages_folder()).parts[0]


def read_errors() -> dict[str, str]:
    """The section of each error, by its code."""
    page = (pages_folder() / "reference" / "errors.md").read_text()
    parts = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    sections = (re.split(r"^## ", part, flags=re.MULTILINE)[0].partition("\n") for part in parts)
    return {code: f"# {code}\n{text.rstrip()}\n" for code, _, text in sections}


def linked(text: str, page: Path, pages: Mapping[str, Path]) -> str:
    """The text of this page with a command instead of each link to another page, and without the other links."""
    names = {path.resolve(): name for name, path in sorted(pages.items(), key=lambda one: -len(one[0]))}

    def said(link: re.Match[str]) -> str:
        target = (page.parent / link[2].partition("#")[0]).resolve()
        name = names.get(target, "") if target != page.resolve() else ""
        if not name:
            return link[1]
        return f"`holdfast explain {name}`" if link[1] == name else f"{link[1]} (`holdfast explain {name}`)"

    return _LINK.sub(said, text)


def _print_names(title: str, names: Iterable[str]) -> None:
    print(f"{title}:", *split_lines(" ".join(names), screen_width(), indent="  "), sep="\n")


def _print_page(text: str) -> None:
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    console.print(Markdown(text, hyperlinks=False), width=min(console.width, 100))
