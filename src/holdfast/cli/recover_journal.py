"""`holdfast recover --journal FILE`: a journal that was put back becomes a proper restore."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from holdfast.app.recover import recover_journal
from holdfast.cli.confirm import confirm
from holdfast.cli.place import journal_of
from holdfast.cli.screen import print_json

WORD = "restore"


def run(args: argparse.Namespace) -> int:
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
        confirm(WORD, f"{path} becomes the journal from now on", yes=args.yes)
        plan = asyncio.run(recover_journal(path))
    fields = {**msgspec.to_builtins(plan), "records_lost": lost, "done": not args.dry_run}
    if args.json:
        print_json(fields)
    elif not args.dry_run:
        print(f"restored: incarnation {plan.incarnation}, {plan.open_tasks} tasks suspect")
    return 0
