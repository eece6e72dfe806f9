"""docs/reference/cli.md is what the parsers say.

`python tests/docs/test_cli_page.py` writes it again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, cast

from holdfast.cli.command import COMMANDS
from holdfast.cli.main import DESCRIPTION, Parser, load_command

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_what_the_parsers_say() -> None:
    assert PAGE.read_text() == render(), "run `python tests/docs/test_cli_page.py`"


def test_every_option_is_explained() -> None:
    """No option without a meaning, no command without examples."""
    for words, parser in every_parser():
        assert parser.description, words
        assert all(one.help for one in actions_of(parser)), words
        assert "examples:" in str(parser.epilog), words


class Collector:
    """Takes the place of argparse's subparsers and keeps what is added."""

    def __init__(self, before: str) -> None:
        self.before = before
        self.parsers: dict[str, argparse.ArgumentParser] = {}

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser:
        kwargs.pop("help")
        parser = Parser(prog=f"{self.before} {name}", **kwargs)
        self.parsers[name] = parser
        return parser


def every_parser() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, entry in COMMANDS.items():
        if find_spec(entry.module) is None:
            continue
        collector = Collector("holdfast")
        load_command(name, collector)
        parser = collector.parsers[name]
        yield f"holdfast {name}", parser
        for verb, inner in verbs_of(parser).items():
            yield f"holdfast {name} {verb}", inner


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            return dict(cast("dict[str, argparse.ArgumentParser]", action.choices))
    return {}


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Its own arguments and options, without --help and verbs."""
    return [one for one in parser._actions if one.dest not in ("help", "verb") and one.nargs != argparse.PARSER]


def render() -> str:
    lines = [
        "# Commands",
        "",
        DESCRIPTION.strip().replace("\n", " "),
        "Data goes to standard output, messages to standard error.",
        "See also [exit codes](exit-codes.md), [errors](errors.md), [JSON](json.md), [settings](settings.md).",
        "",
        "This page is made from the commands' own help.",
        "",
    ]
    for words, parser in every_parser():
        lines += section(words, parser)
    return "\n".join(lines).rstrip() + "\n"


def section(words: str, parser: argparse.ArgumentParser) -> list[str]:
    verbs = verbs_of(parser)
    depth = "###" if words.count(" ") == 2 else "##"
    usage = " ".join([words, *(shown(one) for one in actions_of(parser)), *(["VERB"] if verbs else [])])
    lines = [f"{depth} {words}", "", _filled(str(parser.description)), "", "```text", usage, "```", ""]
    if actions_of(parser):
        lines += ["| Argument | Means |", "|---|---|"]
        lines += [f"| `{title(one)}` | {meaning(one)} |" for one in actions_of(parser)]
        lines.append("")
    if parser.epilog:
        lines += ["```text", parser.epilog.strip(), "```", ""]
    return lines


def _filled(text: str) -> str:
    return "\n\n".join(fill(one, 96, break_on_hyphens=False) for one in text.split("\n\n"))


def title(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    word = ", ".join(action.option_strings)
    return word if action.nargs == 0 else f"{word} {action.metavar or action.dest.upper()}"


def shown(action: argparse.Action) -> str:
    if action.nargs == "*":
        return f"[{title(action)} ...]"
    return title(action) if action.required else f"[{title(action)}]"


def meaning(action: argparse.Action) -> str:
    text = str(action.help).replace("|", "\\|")
    if action.choices and not all(str(one) in text for one in action.choices):
        text += f": {', '.join(str(one) for one in action.choices)}"
    return text


if __name__ == "__main__":
    PAGE.write_text(render())
