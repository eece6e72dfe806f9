"""`python -m holdfast_proofs.texts --seed N`: texts that people read, drawn for a fresh pair of eyes.

Draws messages, hints, help texts, findings and notices out of the source, and pages out of docs/.
A reader who has not seen them says of each whether it is understood at the first reading. The
seed makes the draw repeatable; a new round takes a new seed.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast_proofs.runner import Proof, Result, at_least_one

PACKAGE = Path("src") / "holdfast"
KEYWORDS = ("hint", "help", "purpose", "summary", "text", "fix", "mend", "message", "question", "description", "epilog")
WORDS_MIN = 4


def find_texts(package: Path) -> list[tuple[str, str]]:
    """(where, text) of what a person may read, each text once."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        if "testing" in path.parts:
            continue
        for line, text in _texts(ast.parse(path.read_text())):
            clean = " ".join(text.split())
            if len(clean.split()) >= WORDS_MIN and not clean.upper().startswith(
                ("SELECT", "INSERT", "UPDATE", "CREATE")
            ):
                found.setdefault(clean, f"{path}:{line}")
    return [(where, text) for text, where in found.items()]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in KEYWORDS:
                    yield node.lineno, _shown(keyword.value)
            if node.args and _is_error(node.func):
                yield node.lineno, _shown(node.args[0])
            if node.args and _called(node.func) in ("talk", "say", "print"):
                yield node.lineno, _shown(node.args[0])
        elif isinstance(node, ast.Assign) and any(_target(one) == "default_hint" for one in node.targets):
            yield node.lineno, _shown(node.value)


def _is_error(func: ast.expr) -> bool:
    return _called(func)[:1].isupper()


def _called(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _target(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else ""


def _shown(node: ast.expr) -> str:
    """The text of a literal, with <...> for what is filled in; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"<{ast.unparse(one.value)}>" if isinstance(one, ast.FormattedValue) else _shown(one) for one in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _shown(node.left) + _shown(node.right)
    return ""


def _run(given: argparse.Namespace) -> Result:
    texts = find_texts(PACKAGE)
    pages = sorted(str(page) for page in Path("docs").rglob("*.md") if "decisions" not in page.parts)
    chance = random.Random(given.seed)
    drawn = chance.sample(texts, min(given.texts, len(texts)))
    read = chance.sample(pages, min(given.pages, len(pages)))
    if not given.json:
        for number, (where, text) in enumerate(drawn, start=1):
            print(f"{number:>3}. {where}\n     {text}")
        print("\n".join(["pages:", *read]))
    return Result(
        green=bool(drawn),
        figures={"seed": given.seed, "of": len(texts), "texts": drawn, "pages": read},
        summary=f"seed {given.seed}: {len(drawn)} of {len(texts):,} texts, {len(read)} of {len(pages)} pages",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=at_least_one, default=50)
    parser.add_argument("--pages", type=at_least_one, default=10)


PROOF = Proof(name="texts", purpose="Draw texts for a fresh pair of eyes.", add_options=_options, run=_run)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
