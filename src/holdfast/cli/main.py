"""`holdfast`: find the command, run it, print what went wrong in one form.

The parser loads the module of the command that was asked for, and only names the others. Exit codes are those of
holdfast.errors (docs/reference/exit-codes.md), and 130 after Ctrl-C, 143 after SIGTERM, 141 after a closed pipe, 1 for
a bug of ours.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from holdfast.cli.command import COMMANDS, OLDER_NAMES, Commands
from holdfast.cli.signals import Ended, report_ended
from holdfast.errors import EXIT_USAGE, BadInput, HoldfastError

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


# Commands whose stray arguments may be secrets.
READ_FROM_FD = ("secret ", "share ")  # their option is --from-fd; others have several
SECRETIVE = ("secret ", "share ", "paper ", "identity ", "init ", "recover ", "migrate ")
EXIT_INTERNAL = 1
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows its number instead of failing.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
    as_json = "--json" in words
    if argv is None and command_of(words) in SECRETIVE:
        from holdfast.host.hardening import harden

        harden()  # no core dump of this process: it may have words and keys in its memory
    try:
        return _run(words)
    except HoldfastError as error:
        if not error.hint and error.exit_code == EXIT_USAGE:
            error.hint = f"see `holdfast {command_of(words)}--help`"
        return _report(error, as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_PIPE
    except OSError as error:
        from holdfast.host.private_files import find_disk_error

        known = find_disk_error(error)
        code = _report(known or error, as_json=as_json)
        if known is not None:
            _discard_output()
        return code
    except Ended as ended:
        report_ended(ended)
        return ended.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, a person gets one line and a hint
        return _report(error, as_json=as_json)


def _report(error: Exception, *, as_json: bool) -> int:
    from holdfast.cli.screen.screen import report_error, report_internal

    if isinstance(error, HoldfastError):
        report_error(error, as_json=as_json)
        return error.exit_code
    report_internal(error, as_json=as_json)
    return EXIT_INTERNAL


def _run(words: list[str]) -> int:
    check_words(words)
    words[:2] = OLDER_NAMES.get((words[0], words[1]), words[:2]) if len(words) > 1 else words
    parser = build_parser(words)
    try:
        args = parser.parse_args(words)
    except BadInput as error:
        if command_of(words) in SECRETIVE and "unrecognized" in error.message:
            # Not repeated: it may be a value.
            way = "with --from-fd" if command_of(words) in READ_FROM_FD else "from a descriptor"
            raise BadInput(
                "unexpected argument or unknown option",
                hint=f"see `holdfast {command_of(words)}--help`. Never put a secret on the command line: "
                f"type it when asked, or pass it {way}",
            ) from None
        raise
    except SystemExit as stop:  # --help and --version
        code = stop.code if isinstance(stop.code, int) else 0
    else:
        code = int(args.run(args))
    sys.stdout.flush()
    return code


def command_of(words: Sequence[str]) -> str:
    """The command these words name, with a blank behind it; empty where they name none."""
    return f"{words[0]} " if words and words[0] in COMMANDS else ""


def check_words(words: Sequence[str]) -> None:
    """Reject arguments that are not text: bytes that are not UTF-8 arrive here as lone surrogates."""
    for number, word in enumerate(words, start=1):
        if "\0" in word:
            raise BadInput(f"argument {number} contains a NUL character", hint="pass the contents as @file")
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"argument {number} is not UTF-8 text: {ascii(word)[:80]}",
                hint="check the encoding of the terminal or script that wrote it",
            ) from None


def _discard_output() -> None:
    """So that the interpreter's last flush does not fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(main())
