"""`python -m holdfast_proofs.house [ROOT]`: how the house stands, in figures.

Counts what a stranger meets: files per folder, sizes, modules with one importer, imports against
the line, lines of each room beside its aim, words of the pages. It reads files and runs none of
them, so it can be pointed at any checkout, also one from before the rooms; `--rooms` prints the
table of rooms alone, as `make check` does. An aim that is passed is
printed with the sentence in `WHY`; what is red is the layout: imports, crowded folders, long files.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TypedDict

from holdfast_proofs.runner import Proof, Result

FILES_MAX, LINES_MAX = 20, 500
PRODUCT_LINES_AIM, PACKAGE_LINES_AIM = 62_000, 67_000
LINE = (
    ("errors",),
    ("core",),
    ("host",),
    ("layout", "journal"),
    ("runtime", "identity", "memory", "downstream"),
    ("contracts", "backup", "relay"),
    ("instances",),
    ("app", "views"),
    ("recovery", "adapters"),
    ("surfaces",),
    ("drills",),
    ("demo",),
    ("cli", "web", "testing"),
)
AIMS = {
    "errors": 1_350,
    "core": 1_900,
    "host": 1_300,
    "layout": 1_150,
    "journal": 6_400,
    "runtime": 12_800,
    "identity": 10_400,
    "memory": 2_200,
    "downstream": 1_950,
    "contracts": 2_050,
    "backup": 6_900,
    "instances": 2_000,
    "app": 3_300,
    "views": 400,
    "recovery": 1_850,
    "surfaces": 1_750,
    "drills": 1_750,
    "demo": 900,
    "cli": 6_900,
    "testing": 5_000,
}
WHY = {
    "errors": "each class explains itself: the page of errors is made from the docstrings",
    "core": "typed rests and the list of notices moved in",
    "identity": "rescue keys, and what the register shows of keys, paper and witnesses, moved in",
    "runtime": "renamed public names keep their old ones until 0.2",
    "instances": "who had seen which line is followed through kills, restores and lost documents",
    "memory": "a line that an editor and the agent write at once is merged here, and that takes its room",
    "testing": "the contract suite of journals that several hosts share, and crash_everywhere, moved in",
    "host": "opening of SQLite and mounts moved in, and the shadow of a drill",
    "downstream": "the one small HTTP server for tests moved in",
    "contracts": "each far end's own words for outcomes are said in full",
    "drills": "nineteen drills: each breaks, recovers by commands and compares, and each check says what it saw",
    "surfaces": "files that tools leave elsewhere are rows of the register",
    "demo": "the judge of the demo is part of it",
    "app": "declarations and what workers serve are checked here; all who wait share one look",
    "backup": "published recoveries, cloud copies, sealed secrets, the kept staging folder and rescue keys moved in",
    "cli": "todo, explain, completion and tables that fit 80 columns moved in",
    "journal": "the journal in PostgreSQL moved in",
    "layout": "which files of an adopted agent are secret is decided here",
    "recovery": "a recovery is published and ends with a first backup",
    "views": "what waits for a person, and why, is shown from here",
}
_SKIP = "# fmt:" + " skip"
USER_PAGES = ("tutorial", "how-to", "explanation", "reference", "")
GENERATED = ("reference/cli.md", "reference/errors.md", "reference/api.md", "README.md")


class Room(TypedDict):
    files: int
    lines: int
    aim: int | None


class Figures(TypedDict):
    folders_over_20_files: dict[str, int]
    files_over_500_lines: dict[str, int]
    modules: int
    lines_median: float
    lines_largest: int
    modules_with_one_importer: int
    imports_upward: list[str]
    journal_sqlite_above_binder: list[str]
    fmt_skips: int
    product_lines: int
    package_lines: int
    wheel_lines: int | None
    wheel_bytes: int | None
    words_of_user_pages: int
    words_generated: int
    words_for_contributors: int
    rooms: dict[str, Room]


def _run(given: argparse.Namespace) -> Result:
    figures = measure(given.root)
    if not given.json:
        print(_table(figures["rooms"]))
        if not given.rooms:
            _print(figures)
    over = [
        f"{name}: {room['lines']:,} lines, aim {room['aim']:,}; {WHY.get(name, 'no reason is given in WHY')}"
        for name, room in figures["rooms"].items()
        if room["aim"] is not None and room["lines"] > room["aim"]
    ]
    for name, lines, aim in (
        ("product", figures["product_lines"], PRODUCT_LINES_AIM),
        ("package", figures["package_lines"], PACKAGE_LINES_AIM),
    ):
        if lines > aim:
            over.append(f"{name}: {lines:,} lines, aim {aim:,}")
    broken = [
        *(f"upward import: {one}" for one in figures["imports_upward"]),
        *(f"journal.sqlite imported above the binder: {one}" for one in figures["journal_sqlite_above_binder"]),
        *(f"folder {name} has {count} files" for name, count in figures["folders_over_20_files"].items()),
        *(f"{name} has {count} lines" for name, count in figures["files_over_500_lines"].items()),
        *([f"{_SKIP} stands {figures['fmt_skips']} times"] if figures["fmt_skips"] else []),
    ]
    return Result(
        green=not broken,
        figures=figures,
        findings=broken + over,
        summary=f"{figures['product_lines']:,} lines of product in {figures['modules']} modules, "
        f"{figures['package_lines']:,} with holdfast.testing, {figures['words_of_user_pages']:,} words for users",
    )


def measure(root: Path) -> Figures:
    package = root / "src" / "holdfast"
    files = sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)
    lines = {_name(path, package): _lines(path) for path in files}
    product = {name: count for name, count in lines.items() if _room(name) != "testing"}
    imports = {_name(path, package): set(_imports(path, set(lines))) for path in files}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, found in imports.items():
        for one in found:
            importers[one].add(name)
    wheel = _wheel(root)
    sizes = [_lines(path) for path in files if path.name != "__init__.py" and _room(_name(path, package)) != "testing"]
    return Figures(
        folders_over_20_files=_crowded([*files, *(root / "proofs").rglob("*.py")], root),
        files_over_500_lines={str(path.relative_to(root)): _lines(path) for path in files if _lines(path) > LINES_MAX},
        modules=len(product),
        lines_median=median(sizes),
        lines_largest=max(sizes),
        modules_with_one_importer=sum(len(importers[name]) == 1 for name in product),
        imports_upward=sorted(_upward(imports)),
        journal_sqlite_above_binder=sorted(
            f"{name} -> {one}"
            for name, found in imports.items()
            for one in found
            if one.startswith("holdfast.journal.sqlite") and not _may_bind(name)
        ),
        fmt_skips=sum(
            path.read_text().count(_SKIP)
            for folder in ("src", "proofs", "tests", "bench", "examples")
            for path in (root / folder).rglob("*.py")
        ),
        product_lines=sum(product.values()),
        package_lines=sum(lines.values()),
        wheel_lines=wheel and wheel[0],
        wheel_bytes=wheel and wheel[1],
        **_words(root / "docs"),
        rooms={
            room: Room(
                files=sum(_room(name) == room for name in lines),
                lines=sum(count for name, count in lines.items() if _room(name) == room),
                aim=AIMS.get(room),
            )
            for room in sorted({_room(name) for name in lines if _room(name)})
        },
    )


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _imports(path: Path, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules:
                    yield full
                elif node.module in modules:
                    yield node.module


def _upward(imports: dict[str, set[str]]) -> Iterator[str]:
    rank = {room: number for number, rooms in enumerate(LINE) for room in rooms}
    for name, found in imports.items():
        here = rank.get(_room(name))
        for one in found:
            there = rank.get(_room(one))
            if here is not None and there is not None and _room(one) != _room(name) and there >= here:
                yield f"{name} -> {one}"


def _may_bind(name: str) -> bool:
    return _room(name) in ("journal", "testing") or name == "holdfast.journal.bind"


def _crowded(files: list[Path], root: Path) -> dict[str, int]:
    folders = Counter(str(path.parent.relative_to(root)) for path in files)
    return {name: count for name, count in sorted(folders.items()) if count > FILES_MAX}


def _wheel(root: Path) -> tuple[int, int] | None:
    found = sorted((root / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        return None
    with zipfile.ZipFile(found[-1]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".py")]
        return sum(wheel.read(name).count(b"\n") for name in names), found[-1].stat().st_size


class Words(TypedDict):
    words_of_user_pages: int
    words_generated: int
    words_for_contributors: int


def _words(docs: Path) -> Words:
    counts = Words(words_of_user_pages=0, words_generated=0, words_for_contributors=0)
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).as_posix()
        words = len(re.findall(r"\S+", page.read_text()))
        section = name.split("/")[0] if "/" in name else ""
        if name in GENERATED:
            counts["words_generated"] += words
        elif section in USER_PAGES:
            counts["words_of_user_pages"] += words
        else:
            counts["words_for_contributors"] += words
    return counts


def _table(rooms: dict[str, Room]) -> str:
    rows = [f"{'room':<12} {'files':>5} {'lines':>7} {'aim':>7}"]
    for name, room in rooms.items():
        aim = "" if room["aim"] is None else f"{room['aim']:,}"
        over = " over" if room["aim"] is not None and room["lines"] > room["aim"] else ""
        rows.append(f"{name:<12} {room['files']:>5} {room['lines']:>7,} {aim:>7}{over}")
    return "\n".join(rows)


def _print(figures: Figures) -> None:
    for name, value in figures.items():
        if name == "rooms":
            continue
        shown = f"{len(value)}: {value}" if isinstance(value, (dict, list)) and value else value or 0  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        print(f"{name.replace('_', ' '):<32} {shown}")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, nargs="?", default=Path(), help="the checkout (this folder)")
    parser.add_argument("--rooms", action="store_true", help="only the table of rooms")


PROOF = Proof(name="house", purpose="How the house stands, in figures.", add_options=_options, run=_run)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
