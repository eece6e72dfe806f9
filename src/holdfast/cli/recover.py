"""`holdfast recover`: the front door at night. In this version: a journal that was put back."""

from __future__ import annotations

import argparse
import sys

from holdfast.cli.command import Commands, add_journal_option, add_json_option, new_command
from holdfast.cli.place import journal_of

WORD = "restore"


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "recover",
        run=run,
        purpose=(
            "Make an older copy of the journal a proper restore.\n\n"
            "The incarnation rises, so that no epoch or fence is used twice. Every open task\n"
            "becomes suspect: what it may have done after the copy was made is looked up with\n"
            "its effect key, or parked for a person; nothing is repeated on a guess. So are\n"
            "tasks submitted again under an old request id."
        ),
        examples=(
            "holdfast recover --journal journal.db --dry-run",
            "holdfast recover --journal journal.db --yes",
        ),
    )
    add_journal_option(parser)
    add_json_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would happen, do nothing")
    parser.add_argument("--yes", action="store_true", help=f"do not ask for the word {WORD!r}")


def run(args: argparse.Namespace) -> int:
    import asyncio

    import msgspec

    from holdfast.app.recover import recover_journal
    from holdfast.errors import BadInput

    path = journal_of(args)
    plan = asyncio.run(recover_journal(path, dry_run=True))
    lost = max(plan.mark_sequence - plan.sequence, 0)
    if not args.json:
        print(
            f"{path} ends at record {plan.sequence}; this machine has committed "
            f"{plan.mark_sequence}: {lost} records are lost.\n"
            f"Incarnation {plan.incarnation} would begin; {plan.open_tasks} open tasks become "
            "suspect: looked up or parked before anything is sent.",
            file=sys.stderr,
        )
    if not args.dry_run:
        if not args.yes and not _agreed():
            raise BadInput("nothing was changed", hint=f"type {WORD!r}, or give --yes")
        plan = asyncio.run(recover_journal(path))
    fields = {**msgspec.to_builtins(plan), "records_lost": lost, "done": not args.dry_run}
    if args.json:
        print(msgspec.json.encode(fields).decode())
    elif not args.dry_run:
        print(f"restored: incarnation {plan.incarnation}, {plan.open_tasks} tasks suspect")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"type {WORD!r} to go on: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == WORD
