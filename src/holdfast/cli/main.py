"""`holdfast`: find the command, run it, print what went wrong in one form.

Exit codes are those of holdfast.errors (docs/reference/exit-codes.md), and 130 after Ctrl-C, 143
after SIGTERM, 141 after a closed pipe, 1 for a bug of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from holdfast.cli.command import COMMANDS, OLDER_NAMES
from holdfast.cli.parser import build_parser
from holdfast.cli.signals import Ended, report_ended
from holdfast.errors import EXIT_USAGE, BadInput, HoldfastError

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
