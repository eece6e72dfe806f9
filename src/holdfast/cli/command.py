"""The convention of commands, and the table of them.

A command is a module with two functions:

    def add_parser(commands: Commands) -> None      # calls new_command, adds its arguments
    def run(args: argparse.Namespace) -> int        # does it; returns the exit code

`main` imports only the module of the command that was asked for, so at its top a module imports
only argparse, this file and what is as cheap; the rest is imported inside `run`. A
command with verbs (`holdfast task list`) gives each verb's parser its own `run` by
`parser.set_defaults(run=...)`.

`run` prints data to standard output and talk to standard error. It lets HoldfastErrors pass:
`main` prints them (`error:`, `hint:`, `see:`) and exits with their code.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast

WIDTH = 96  # of help texts


class Entry(NamedTuple):
    module: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "demo": Entry("holdfast.cli.demo", "killed inside a payment, resumed: one charge, one mail"),
    "init": Entry("holdfast.cli.agent.init", "a new agent: folder, identity, vault, words for paper"),
    "adopt": Entry("holdfast.cli.agent.adopt", "cover an agent that was there before; nothing moves"),
    "submit": Entry("holdfast.cli.task.submit", "submit a task and follow it to its end"),
    "worker": Entry("holdfast.cli.task.worker", "serve the tasks of an app"),
    "task": Entry("holdfast.cli.task.task", "list, show, cancel and retry tasks"),
    "effect": Entry("holdfast.cli.effect.effect", "everything in doubt, with evidence; decide it"),
    "approval": Entry("holdfast.cli.task.approval", "what waits for a person's yes or no"),
    "tool": Entry("holdfast.cli.task.tool", "try whether a tool's far end keeps what it promises"),
    "secret": Entry("holdfast.cli.agent.secret", "the secrets of tools: set, list, rotate, remove"),
    "paper": Entry("holdfast.cli.paper.paper", "recovery sheets and public card: print, verify, revoke"),
    "share": Entry("holdfast.cli.paper.share", "shares of a recovery phrase: split, combine"),
    "identity": Entry("holdfast.cli.identity.identity", "who the agent is: show, rotate, evict, recover"),
    "place": Entry("holdfast.cli.backup.places", "where backups go: add, list, check, remove"),
    "doctor": Entry("holdfast.cli.doctor", "what is wrong here, and the command that mends it"),
    "handoff": Entry("holdfast.cli.agent.handoff", "where are we, what is pending, decided, changed"),
    "backup": Entry("holdfast.cli.backup.backup", "snapshots: made, listed, restored for a test"),
    "migrate": Entry("holdfast.cli.recover.migrate", "move an agent to another host: export, import"),
    "recover": Entry("holdfast.cli.recover.recover", "bring an agent back from paper and one backup"),
    "memory": Entry("holdfast.cli.agent.memory", "what the agent remembers: add, search, show"),
}


class Commands(Protocol):
    """Where parsers are added: what `ArgumentParser.add_subparsers` returns."""

    # Any: keyword arguments of argparse itself
    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser: ...


Run = Callable[[argparse.Namespace], int]
Work = Callable[["Holdfast", argparse.Namespace], Awaitable[int]]


def over_journal(work: Work) -> Run:
    """The `run` of a verb that works over the open journal."""

    def run(args: argparse.Namespace) -> int:
        from holdfast.cli.input.input_journal import run_opened

        return run_opened(args, work)

    return run


def new_command(
    commands: Commands,
    name: str,
    *,
    run: Run | None,
    purpose: str,
    examples: Sequence[str],
    columns: Sequence[tuple[str, str]] = (),
    summary: str = "",
) -> argparse.ArgumentParser:
    """Add the parser of a command or verb, with the help that every one has.

    `columns` explains what the table shows, `examples` are command lines that work. The one-line
    summary of a top-level command is in COMMANDS, so that `holdfast --help` loads nothing.
    """
    parser = commands.add_parser(
        name,
        help=summary or COMMANDS[name].summary,
        description=purpose if "\n" in purpose else fill(purpose, WIDTH),
        epilog=_epilog(columns, examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_verbs(parser: argparse.ArgumentParser) -> Commands:
    """The verbs of a noun; one is required."""
    return parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs", parser_class=type(parser))


def add_journal_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal",
        metavar="PATH",
        help="the journal's file, or the folder it lies in (default: that of --home, else "
        "$HOLDFAST_JOURNAL, else the one in the folder of $HOLDFAST_HOME, else in this folder)",
    )
    add_home_option(parser)


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", default="", help="settings (default: holdfast.toml beside the journal)"
    )


def add_home_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: $HOLDFAST_HOME, else this folder)")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (docs/reference/json.md) instead of a table")


def _epilog(columns: Sequence[tuple[str, str]], examples: Sequence[str]) -> str:
    lines: list[str] = []
    if columns:
        width = max(len(name) for name, _ in columns)
        lines += ["columns:", *(f"  {name:<{width}}  {what}" for name, what in columns), ""]
    lines += ["examples:", *(f"  {line}" for line in examples)]
    return "\n".join(lines)
