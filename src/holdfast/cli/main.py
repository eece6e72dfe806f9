"""`holdfast`: find the command, run it, print what went wrong in one form.

The parser loads the module of the command that was asked for, and only names the others. Exit codes are those of
holdfast.errors (docs/reference/exit-codes.md), and 130 after Ctrl-C, 143 after SIGTERM, 141 after a closed pipe, 1 for
a bug of ours.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, cast

from holdfast.cli.command import COMMANDS, COMMON, GROUPS, OLDER_NAMES, Commands, nearest
from holdfast.cli.screen.wrapping import help_width, wrapped
from holdfast.cli.signals import Ended, report_ended
from holdfast.errors import EXIT_USAGE, BadInput, HoldfastError

DESCRIPTION = """\
Holdfast keeps an AI agent alive through the loss of its process, disk, machine or region: every side effect once.
"""
EPILOG = """\
`holdfast COMMAND --help` explains a command; `holdfast --version` prints the version.

Data goes to standard output, messages to standard error. HOLDFAST_HOME is the agent's folder if --home is not \
given; HOLDFAST_JOURNAL is the journal if neither --journal nor --home is given. NO_COLOR turns colours off; \
HOLDFAST_TRACE=1 shows the traceback of a bug.

examples:
  holdfast demo
  holdfast worker trip.py:tasks
"""


class Parser(argparse.ArgumentParser):
    """Raises BadInput for wrong arguments, so that they are reported like every other error."""

    def error(self, message: str) -> NoReturn:
        # argparse names the function that reads the value; all of ours read numbers
        told = re.sub(r"invalid \w+ value: (.*)", r"\1 is not a valid number", message)
        raise BadInput(told, hint=f"see `{self.prog} --help`")

    @property
    def parts(self) -> dict[str, Parser]:
        """The parsers of its commands or verbs, by name."""
        known = [one.choices for one in self._actions if one.nargs == argparse.PARSER]
        return dict(cast("dict[str, Parser]", known[0])) if known else {}

    @property
    def words(self) -> tuple[str, ...]:
        """What its arguments may be, where that is a list."""
        return tuple(str(word) for one in self._actions if not one.option_strings for word in one.choices or ())

    @property
    def options(self) -> tuple[argparse.Action, ...]:
        return tuple(one for one in self._actions if one.option_strings)

    def format_help(self) -> str:
        """As argparse does; of many options, the common ones come first."""
        first = COMMON.get(self.prog.removeprefix("holdfast "), ())
        if first and self.usage is None:
            places = [str(one.metavar) for one in self._actions if not one.option_strings]
            self.usage = " ".join([self.prog, *places, "[OPTIONS]"])
            rest = self.add_argument_group("more options")
            mine = self._optionals._group_actions
            named = {name: one for one in mine for name in one.option_strings}
            rest._group_actions += [one for one in mine if not {*one.option_strings} & {*first, "--help"}]
            mine[:] = [named["--help"], *(named[name] for name in first)]
        return super().format_help()

    # Any: argparse's own signatures
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reports what is too much here, where the known options are at hand."""
        try:
            found, unknown = super().parse_known_args(args, namespace)
        except BadInput:  # argparse names a missing argument first; an unknown option is the likelier mistake
            if word := self._unknown_option(args or ()):
                raise _unexpected(word, tuple(self._option_string_actions), self.prog) from None
            raise
        if unknown:
            raise _unexpected(unknown[0], tuple(self._option_string_actions), self.prog)
        return found, unknown

    def _unknown_option(self, args: Sequence[str]) -> str | None:
        """The first option that neither this parser nor one of its verbs has, before the words of a command."""
        known = [name for one in (self, *self.parts.values()) for name in one._option_string_actions]
        for word in args:
            if word == "--" or (self.parts and not word.startswith("-")):
                return None
            name = word.partition("=")[0]
            if name.startswith("--") and not any(one.startswith(name) for one in known):
                return word
        return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(one) for one in action.choices]
        name = action.option_strings[-1] if action.option_strings else str(action.metavar)
        raise BadInput(
            f"{name}: {value!r} is not one of {', '.join(known)}",
            hint=f"{nearest(str(value), known)}see `{self.prog} --help`",
        )


def _unexpected(word: str, known: Sequence[str], prog: str) -> BadInput:
    """A word too many. It may be a secret, unless it looks like the name of an option."""
    option = OPTION.match(word)
    secretive = prog.removeprefix("holdfast ").split()[0] in SECRETIVE
    hint = f"{nearest(option[0], known) if option else ''}see `{prog} --help`"
    if secretive:
        way = "with --from-fd" if "--from-fd" in known else "from a descriptor"
        hint += f". Never put a secret on the command line: type it when asked, or pass it {way}"
    if option:
        return BadInput(f"unknown option {option[0]}", hint=hint)
    return BadInput("unexpected argument" + ("" if secretive else f" {word!r}"), hint=hint)


class Root(Parser):
    """`holdfast` itself: its help shows the commands in groups."""

    def format_help(self) -> str:
        lines = ["usage: holdfast COMMAND ...", "", DESCRIPTION]
        for title, group in GROUPS.items():
            lines += [f"{title}:", *(f"  {name:<{NAME_CHARS}}  {one.summary}" for name, one in group.items()), ""]
        return wrapped("\n".join([*lines, EPILOG]), help_width()) + "\n"


class Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    # Any: argparse's own signature
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from holdfast.host.version import find_version

        print(f"holdfast {find_version()}")
        parser.exit()


def build_parser(words: Sequence[str]) -> Parser:
    """The parser for these words: complete for the command they name, one line for each other."""
    parser = Root(prog="holdfast", allow_abbrev=False)
    parser.add_argument("--version", action=Version)
    option = OPTION.match(words[0]) if words and words[0] not in ("--help", "--version") else None
    if option and (command := next((word for word in words if word in COMMANDS), "")):
        raise BadInput(
            f"the option {option[0]} is before the command",
            hint=f"write the command first: `holdfast {command} {option[0]} ...`",
        )
    asked = next((word for word in words if not word.startswith("-")), "")
    if asked and asked not in COMMANDS:
        near = nearest(asked, COMMANDS, before="holdfast ")
        raise BadInput(f"there is no command {asked!r}", hint=f"{near}`holdfast --help` lists the commands")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", parser_class=Parser
    )
    if asked:
        load_command(asked, commands)
    return parser


def load_command(name: str, commands: Commands) -> None:
    import_module(COMMANDS[name].module).add_parser(commands)


OPTION = re.compile(r"-{1,2}[a-z][a-z-]*(?==|$)")
# Commands whose stray arguments may be secrets.
SECRETIVE = ("secret", "share", "paper", "identity", "init", "recover", "migrate", "drill")
NAME_CHARS = max(map(len, COMMANDS))
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    _fill_descriptors()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows its number instead of failing.
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
    as_json = "--json" in words
    if argv is None and command_of(words).strip() in SECRETIVE:
        from holdfast.host.hardening import harden

        harden()  # no core dump of this process: it may have words and keys in its memory
    try:
        return _run(words)
    except HoldfastError as error:
        if not error.hint and error.exit_code == EXIT_USAGE:
            error.hint = f"see `holdfast {command_of(words)}--help`"
        elif error.exit_code != EXIT_USAGE:
            error.hint = _named(error.hint, words)
        return _report(error, as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_PIPE
    except OSError as error:
        from holdfast.host.private_files import find_disk_error

        known = find_disk_error(error) or _find_folder_error()
        code = _report(known or error, as_json=as_json)
        if known is not None:
            _discard_output()
        return code
    except Ended as ended:
        report_ended(ended)
        return ended.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, a person gets one line and a hint
        return _report(error, as_json=as_json)


def _named(hint: str, words: Sequence[str]) -> str:
    from holdfast.cli.input.again import all_named, naming

    return all_named(hint, naming(words))


def _report(error: Exception, *, as_json: bool) -> int:
    from holdfast.cli.screen.screen import report_error

    return report_error(error, as_json=as_json)


def _run(words: list[str]) -> int:
    check_words(words)
    words[:2] = OLDER_NAMES.get((words[0], words[1]), words[:2]) if len(words) > 1 else words
    parser = build_parser(words)
    if not words:
        parser.print_help()
        return 0
    try:
        args = parser.parse_args(words)
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


def _fill_descriptors() -> None:
    """A standard stream that the caller closed goes nowhere; otherwise the next file that is opened would get its
    number, and output would be written into that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            setattr(sys, name, os.fdopen(opened, "w" if number else "r"))


def _find_folder_error() -> HoldfastError | None:
    """The error of a folder that was removed while a shell stood in it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return BadInput("the current folder was removed", hint="`cd` to a folder that exists")
    return None


def _discard_output() -> None:
    """So that the interpreter's last flush does not fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(main())
