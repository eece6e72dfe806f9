"""The parser: it loads the module of the command that was asked for, and only names the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from holdfast.cli.command import COMMANDS, Commands
from holdfast.errors import BadInput

DESCRIPTION = """\
Holdfast keeps an AI agent alive through the loss of its process, disk, machine or region:
every side effect once.
"""
EPILOG = """\
examples:
  holdfast demo
  holdfast worker examples/trip.py:tasks

Data goes to standard output, messages to standard error. HOLDFAST_HOME is the agent's folder if
--home is not given; HOLDFAST_JOURNAL is the journal if neither --journal nor --home is given.
NO_COLOR turns colours off; HOLDFAST_TRACE=1 shows the traceback of a bug.
"""


class Parser(argparse.ArgumentParser):
    """Raises BadInput for wrong arguments, so that they are reported like every other error."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message, hint=f"see `{self.prog} --help`")


class Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    # Any: argparse's own signature
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from holdfast.core.version import find_version

        print(f"holdfast {find_version()}")
        parser.exit()


def build_parser(words: Sequence[str]) -> Parser:
    """The parser for these words: complete for the command they name, one line for each other."""
    parser = Parser(
        prog="holdfast",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=Version)
    asked = next((word for word in words if not word.startswith("-")), "")
    if asked and asked not in COMMANDS:
        raise BadInput(f"there is no command {asked!r}", hint=_suggestion(asked))
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", parser_class=Parser
    )
    for name, entry in COMMANDS.items():
        if find_spec(entry.module) is None:
            continue
        if name == asked:
            load_command(name, commands)
        else:
            commands.add_parser(name, help=entry.summary, add_help=False)
    return parser


def load_command(name: str, commands: Commands) -> None:
    import_module(COMMANDS[name].module).add_parser(commands)


def _suggestion(asked: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(asked, COMMANDS, n=1)
    meant = f"did you mean `holdfast {near[0]}`? " if near else ""
    return f"{meant}`holdfast --help` lists the commands"
