"""The convention of commands, and the table of them.

A command is a module with two functions:

    def add_parser(commands: Commands) -> None      # calls new_command(...).help(...), adds its arguments
    def run(args: argparse.Namespace) -> int        # does it; returns the exit code

`main` imports only the module of the command that was asked for, so at its top a module imports only argparse, this
file and what is as cheap; the rest is imported inside `run`. A command with verbs (`holdfast task list`) gives each
verb's parser its own `run` by `parser.set_defaults(run=...)`.

`run` prints data to standard output and messages to standard error. It lets HoldfastErrors pass:
`main` prints them (`error:`, `hint:`, `see:`) and exits with their code.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.cli.screen.wrapping import help_width, split_lines, wrapped

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.layout.agent_home import AgentHome


class Help(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal: its texts are wrapped between words."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=help_width(), max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return split_lines(text, width)


class Entry(NamedTuple):
    module: str
    summary: str


# The groups of `holdfast --help`, in the order in which a person meets them.
GROUPS: dict[str, dict[str, Entry]] = {
    "start here": {
        "demo": Entry("holdfast.cli.demo", "kill an agent inside a payment: one charge, one mail"),
        "doctor": Entry("holdfast.cli.doctor", "find what is wrong, and the command that fixes it"),
        "explain": Entry("holdfast.cli.explain", "what an error means; any page of the documents"),
        "completion": Entry("holdfast.cli.completion", "let your shell complete commands and options"),
    },
    "run tasks": {
        "todo": Entry("holdfast.cli.task.todo", "everything that waits for a person, with the command for each"),
        "submit": Entry("holdfast.cli.task.submit", "submit a task and follow it until it ends"),
        "worker": Entry("holdfast.cli.task.worker", "run the tasks of an app"),
        "task": Entry("holdfast.cli.task.task", "list, show, cancel and retry tasks"),
        "effect": Entry("holdfast.cli.effect.effect", "effects in doubt: list, show the evidence, decide"),
        "approval": Entry("holdfast.cli.task.approval", "questions that wait for a person's yes or no"),
        "tool": Entry("holdfast.cli.task.tool", "test whether a tool's far end keeps its promises"),
    },
    "the agent": {
        "init": Entry("holdfast.cli.agent.init", "make an agent: folder, identity, vault, recovery words"),
        "adopt": Entry("holdfast.cli.agent.adopt", "protect an existing agent; none of its files moves"),
        "memory": Entry("holdfast.cli.agent.memory", "the agent's memory: add, search, show"),
        "handoff": Entry("holdfast.cli.agent.handoff", "show what is done, pending, decided and changed"),
        "secret": Entry("holdfast.cli.agent.secret", "secrets of tools: set, list, rotate, remove"),
    },
    "backups": {
        "place": Entry("holdfast.cli.backup.places", "places for backups: add, list, check, remove"),
        "backup": Entry("holdfast.cli.backup.backup", "snapshots: make, list, test"),
        "recover": Entry("holdfast.cli.recover.recover", "restore an agent from its recovery sheet and one backup"),
        "rescue": Entry("holdfast.cli.backup.rescue", "keys that read backups without a person: add, list, revoke"),
        "journal": Entry("holdfast.cli.journal.journal", "where tasks are kept: show, move to PostgreSQL, check"),
        "migrate": Entry("holdfast.cli.recover.migrate", "move an agent to another host: export, import"),
        "instance": Entry("holdfast.cli.agent.instance", "several instances of one agent: invite, join, list, promote"),
    },
    "prove it": {
        "level": Entry("holdfast.cli.surfaces.level", "what the agent survives, 0 to 4, and whether it is proven"),
        "surface": Entry("holdfast.cli.surfaces.surface", "every place where state of the agent is, and its risk"),
        "target": Entry("holdfast.cli.surfaces.target", "how long a recovery may take, and how much may be lost"),
        "runbook": Entry("holdfast.cli.surfaces.runbook", "what to do per failure, with real names; print it"),
        "drill": Entry("holdfast.cli.drill.drill", "rehearse a failure, measure the recovery, sign the report"),
    },
    "identity": {
        "identity": Entry("holdfast.cli.identity.identity", "who the agent is: show, rotate, evict, recover"),
        "paper": Entry("holdfast.cli.paper.paper", "recovery sheets and public card: print, verify, revoke"),
        "relay": Entry("holdfast.cli.relay.relay", "run a relay; the relays of an agent"),
        "mail": Entry("holdfast.cli.mail.mail", "messages between agents: send, inbox, outbox, dead letters"),
        "share": Entry("holdfast.cli.paper.share", "shares of a recovery phrase: split, combine"),
    },
}
COMMANDS: dict[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}


# Where there are many options, these come first in the help.
COMMON: dict[str, tuple[str, ...]] = {
    "recover": ("--place", "--home", "--agent", "--second", "--dry-run"),
    "init": ("--home", "--second", "--unlock-file", "--words-fd", "--json"),
}

# Verbs by their older names, which scripts may use.
OLDER_NAMES = {("place", "mend-key"): ("place", "fix-key")}


class Commands(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

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


def home_of(args: argparse.Namespace) -> AgentHome:
    """The agent of --home, else of $HOLDFAST_HOME, else of this folder."""
    from holdfast.layout.agent_home import home_folder, load_home

    return load_home(home_folder(args.home))


def acting_home(args: argparse.Namespace) -> AgentHome:
    """The same for what acts as the agent. Raises RescuedCopy where the folder was restored with a rescue key."""
    from holdfast.layout.rescued import check_not_rescued

    home = home_of(args)
    check_not_rescued(home.folder)
    return home


class New(NamedTuple):
    """A command or verb that has no help yet; `help` adds it to its parser."""

    commands: Commands
    name: str
    run: Run | None
    summary: str = ""

    def help(self, text: str) -> argparse.ArgumentParser:
        """The purpose, `columns:` that explain what the table shows, `examples:` of command lines that work.
        The text of a verb starts with its summary, in a paragraph of its own. The summary of a
        top-level command is in COMMANDS, so that `holdfast --help` loads nothing."""
        first, _, rest = text.partition("\n")
        lines = [first, *dedent(rest).rstrip().split("\n")]
        end = next(i for i, line in enumerate(lines) if line in ("columns:", "examples:"))
        paragraphs = [one.strip() for one in "\n".join(lines[:end]).split("\n\n")]
        parser = self.commands.add_parser(
            self.name,
            help=self.summary or paragraphs.pop(0),
            description="\n\n".join(" ".join(one.split()) for one in paragraphs),
            epilog="\n".join(lines[end:]).replace("\nexamples:", "\n\nexamples:"),
            formatter_class=Help,
            allow_abbrev=False,
        )
        if self.run is not None:
            parser.set_defaults(run=self.run)
        return parser


class NewNoun(NamedTuple):
    """A command with verbs, one of which is required; `help` returns where its verbs are added."""

    commands: Commands
    name: str

    def help(self, text: str) -> Commands:
        parser = New(self.commands, self.name, None, COMMANDS[self.name].summary).help(text)
        return parser.add_subparsers(
            dest="verb", metavar="VERB", required=True, title="verbs", parser_class=type(parser)
        )


new_noun, new_verb = NewNoun, New


def new_command(commands: Commands, name: str, run: Run) -> New:
    return New(commands, name, run, COMMANDS[name].summary)


def imported(module: str, name: str = "run") -> Run:
    """The `run` of a verb whose module is imported only when it runs."""

    def run(args: argparse.Namespace) -> int:
        from importlib import import_module

        return getattr(import_module(f"holdfast.cli.{module}"), name)(args)

    return run


def nearest(word: str, known: Iterable[str], *, before: str = "") -> str:
    """A question that names the nearest known word; empty if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f"did you mean `{before}{near[0]}`? " if near else ""


# Options that several commands share. Any: keyword arguments of argparse itself
_OPTIONS: dict[str, dict[str, Any]] = {
    "--journal": {
        "metavar": "PATH",
        "help": "the journal's file or its folder, or postgresql://USER@HOST/DATABASE without a password (default: the "
        "journal of --home, else $HOLDFAST_JOURNAL, else the journal in $HOLDFAST_HOME, else in this folder)",
    },
    "--home": {"metavar": "DIR", "help": "the agent's folder (default: $HOLDFAST_HOME, else this folder)"},
    "--config": {
        "metavar": "FILE",
        "default": "",
        "help": "settings file (default: holdfast.toml next to the journal)",
    },
    "--new-journal": {
        "action": "store_true",
        "help": "create the journal, with tasks of its own, even if the keys in its folder serve another one that is "
        "missing there",
    },
    "--json": {"action": "store_true", "help": "print JSON (`holdfast explain json`) instead of a table"},
    "--yes": {"action": "store_true", "help": "do not ask for confirmation"},
    "--dry-run": {"action": "store_true", "help": "only say what would happen"},
    "--by": {"default": "", "metavar": "NAME", "help": "who decides, for the record (default: user@host)"},
    "--note": {"default": "", "help": "why, for the record"},
    "--vault": {"metavar": "DIR", "help": "default: ~/.config/holdfast/vault/NAME"},
    "--second": {"metavar": "DIR", "help": "where the next key is kept: another disk, or another user's folder"},
    "--invite": {
        "metavar": "FILE",
        "action": "append",
        "default": [],
        "help": "an invite of a relay's operator, in a file: the invite alone, or lines of HOST[:PORT] INVITE where "
        "you name several relays",
    },
    "--id": {"metavar": "ID", "default": "", "help": "the agent's id (hf1...), if the words fit several key logs"},
    "--passphrase-fd": {"metavar": "N", "help": "read the vault's passphrase from this descriptor"},
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add shared options, by name."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])


class _Arguments(Protocol):
    """A parser, or a group of one."""

    # Any: argparse's own arguments
    def add_argument(self, *args: Any, **kwargs: Any) -> Any: ...


def add_flag(parser: _Arguments, name: str, help: str) -> None:
    parser.add_argument(name, action="store_true", help=help)


WITNESS = "a folder, or a relay's address https://host#z6Mk..."


def add_witnesses(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    """An option that names witnesses, each a folder or a relay."""
    add_list(parser, name, "ADDRESS", f"{help}: {WITNESS}")


def add_list(parser: argparse.ArgumentParser, name: str, metavar: str, help: str) -> None:
    """An option that may be repeated; a list."""
    parser.add_argument(name, metavar=metavar, action="append", default=[], help=help)
