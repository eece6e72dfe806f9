"""`holdfast recover --journal FILE`: turn an older copy of a journal into a proper restore."""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from holdfast.cli.input.input_journal import journal_of
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import print_json, talk
from holdfast.core.clock import iso
from holdfast.journal.admin import Restored
from holdfast.recovery.recover_journal import begin_anew, recover_journal

WORD = "restore"
WORD_ANEW = "forget"


def run(args: argparse.Namespace) -> int:
    if args.begin_anew:
        return _begin_anew(args)
    address = journal_of(args)
    plan = asyncio.run(recover_journal(address, dry_run=True))
    lost = max(plan.mark_sequence - plan.sequence, 0)
    if plan.put_back and not args.json:
        talk(
            f"The running total of {address} does not match its tasks: rows of a task were put back to an older state, "
            "or a task was deleted. Holdfast cannot tell which task."
        )
    if not args.json:
        talk(
            f"{address} ends at record {plan.sequence}; this machine has committed "
            f"{plan.mark_sequence}: {lost} records are lost.\n"
            f"Holdfast would begin incarnation {plan.incarnation}. {plan.open_tasks} open tasks would be in "
            "doubt: Holdfast looks up or parks their effects before it sends anything."
        )
    if not args.dry_run:
        confirm(WORD, f"{address} becomes the journal", yes=args.yes)
        plan = asyncio.run(recover_journal(address))
    done = f"restored: incarnation {plan.incarnation}, {plan.open_tasks} open tasks in doubt"
    return _report(args, plan, done)


def _begin_anew(args: argparse.Namespace) -> int:
    address = journal_of(args)
    plan = asyncio.run(begin_anew(address, dry_run=True))
    if not args.json:
        talk(
            f"{address} is missing; this machine has committed {plan.mark_sequence} records to it.\n"
            f"Holdfast would start an empty journal with incarnation {plan.incarnation}, and forget all open "
            "tasks.\nIf you then submit requests again with their old ids, Holdfast looks up or parks "
            "their effects before it sends anything."
        )
    if not args.dry_run:
        confirm(WORD_ANEW, f"Holdfast gives up the contents of {address}", yes=args.yes)
        plan = asyncio.run(begin_anew(address))
    return _report(args, plan, f"started an empty journal: incarnation {plan.incarnation}")


def _report(args: argparse.Namespace, plan: Restored, text: str) -> int:
    lost = max(plan.mark_sequence - plan.sequence, 0)
    if args.json:
        fields = msgspec.to_builtins(plan)
        lost_after = iso(plan.lost_after_ms)
        print_json({**fields, "lost_after": lost_after, "records_lost": lost, "done": not args.dry_run})
    elif not args.dry_run:
        print(text)
    return 0
