"""ARCHITECTURE.md names files and rooms that exist, every room there is, and every file in a line.

`python tests/docs/test_architecture_page.py` writes the list of files again.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "holdfast"
FILE = PROJECT / "ARCHITECTURE.md"
PAGE = FILE.read_text()
LIST = "Made from the first line of each module.\n"
_PATH = re.compile(r"`([a-z_]+/[a-z_/0-9-]*(?:\.py|\.md)?)`|(?<=  )([a-z_]+/[a-z_/]+\.py)")


def named_paths(page: str) -> set[str]:
    return {one or two for one, two in _PATH.findall(page)}


def exists(path: str) -> bool:
    return (PACKAGE / path).exists() or (PROJECT / path).exists()


def test_every_file_it_names_is_there() -> None:
    named = named_paths(PAGE)
    assert len(named) > 100
    assert sorted(path for path in named if not exists(path)) == []
    assert not exists("runtime/no_such_file.py")


def test_every_binder_is_named() -> None:
    """Who adds an adapter looks for the one place that chooses it."""
    binders = [path for name in ("bind", "binder", "open_*") for path in PACKAGE.rglob(f"{name}.py")]
    assert len(binders) >= 5
    named = named_paths(PAGE)
    assert [str(path.relative_to(PACKAGE)) for path in binders if str(path.relative_to(PACKAGE)) not in named] == []


def test_every_room_is_in_its_table() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert sorted(room for room in rooms if f"| `{room}/` |" not in PAGE) == []


def test_every_file_is_listed() -> None:
    assert PAGE.partition(LIST)[2] == render(), "run `python tests/docs/test_architecture_page.py`"


def render() -> str:
    lines: list[str] = []
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = folder.relative_to(PACKAGE.parent).as_posix().removeprefix("holdfast/")
        modules = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
        if modules:
            lines += [f"**`{name}/`**", ""]
            lines += [f"- `{path.name}`: {purpose(path)}" for path in modules] + [""]
    return "\n" + "\n".join(lines).rstrip() + "\n"


def purpose(path: Path) -> str:
    """The first paragraph of the module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def test_every_room_says_what_it_is_for() -> None:
    """The `__init__.py` of each folder has a docstring of one or more sentences."""
    silent = [
        str(path.relative_to(PROJECT))
        for root in (PACKAGE, PROJECT / "proofs" / "holdfast_proofs")
        for path in root.rglob("__init__.py")
        if len(path.read_text().split('"""')) < 3
    ]
    assert silent == []


if __name__ == "__main__":
    FILE.write_text(PAGE.partition(LIST)[0] + LIST + render())
