"""`holdfast approval`: what waits for a person's yes or no."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_journal_option, add_json_option, add_verbs, new_command, over_journal

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "approval",
        run=None,
        purpose="What waits for a person's yes or no. An answer is bound to the question, the "
        "arguments, the effect key and the version of the code: it counts for nothing else.",
        examples=("holdfast approval list", "holdfast approval grant 01J9ZK/4 --by ada"),
    )
    verbs = add_verbs(parser)
    listing = new_command(
        verbs,
        "list",
        run=over_journal(_list),
        summary="every question that waits",
        purpose="Every question that waits for an answer, oldest first.",
        columns=(
            ("approval", "TASK/ORDINAL: what grant and refuse take"),
            ("task", "the task function"),
            ("asked", "how long ago"),
            ("question", "what the task asks, or the call that needs a yes"),
            ("details", "what the answer will be bound to"),
        ),
        examples=("holdfast approval list", "holdfast approval list --json"),
    )
    add_journal_option(listing)
    add_json_option(listing)
    for verb, run, what in (("grant", run_grant, "yes"), ("refuse", run_refuse, "no")):
        answer = new_command(
            verbs,
            verb,
            run=run,
            summary=f"say {what}",
            purpose=f"Say {what} to what a task waits for; it goes on at once.",
            examples=(
                f"holdfast approval {verb} 01J9ZK/4",
                f"holdfast approval {verb} 01J9ZK/4 --by ada --note 'as agreed'",
            ),
        )
        answer.add_argument("approval", metavar="TASK/ORDINAL", help="the step that waits")
        answer.add_argument("--by", default="", help="who answers, for the record")
        answer.add_argument("--note", default="", help="why, for the record")
        add_journal_option(answer)
        add_json_option(answer)


def run_grant(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import run_opened

    args.granted = True
    return run_opened(args, _answer)


def run_refuse(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import run_opened

    args.granted = False
    return run_opened(args, _answer)


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import ago, json_line, print_json, print_table
    from holdfast.core.clock import iso
    from holdfast.views.approvals import list_approvals

    found = await list_approvals(hf.journal)
    if args.json:
        print_json(
            {
                "approvals": [
                    {
                        "approval": f"{one.task_id}/{one.ordinal}",
                        "task_id": one.task_id,
                        "ordinal": one.ordinal,
                        "task_name": one.task_name,
                        "question": one.question,
                        "details": one.details,
                        "asked": iso(one.at_ms),
                    }
                    for one in found
                ]
            }
        )
        return 0
    now = hf.journal.now_ms()
    print_table(
        ("approval", "task", "asked", "question", "details"),
        [
            (f"{one.task_id}/{one.ordinal}", one.task_name, ago(now - one.at_ms), one.question, json_line(one.details))
            for one in found
        ],
        empty="nothing waits for an approval; what `run.approve(...)` asks appears here",
    )
    return 0


async def _answer(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.reference import get_step_place
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.cli.task.workers import hint_at_workers

    task_id, ordinal = await get_step_place(hf, args.approval)
    await hf.approve(task_id, ordinal, granted=args.granted, by=args.by, note=args.note)
    if args.json:
        print_json({"approval": f"{task_id}/{ordinal}", "granted": args.granted})
        return 0
    word = "granted" if args.granted else "refused"
    talk(f"recorded: {task_id}/{ordinal} is {word}; the task goes on")
    await hint_at_workers(hf)
    return 0
