"""`holdfast approval`: questions that wait for a person's yes or no."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, new_noun, new_verb, over_journal
from holdfast.cli.input.input_journal import finish_decision
from holdfast.cli.screen.screen import ago, json_line, print_json, print_table

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "approval").help("""
        Questions that wait for a person's yes or no. An answer is valid only for this question, these arguments,
        this effect key and this version of the code.
        examples:
          holdfast approval list
          holdfast approval grant 01J9ZK/4 --by ada
        """)
    listing = new_verb(verbs, "list", over_journal(_list)).help("""list open questions

        List every question that waits for an answer, oldest first.
        columns:
          approval  TASK/ORDINAL, as grant and refuse take it
          task      the task function
          asked     how long ago
          question  what the task asks, or the call that needs a yes
          details   what the answer is valid for
        examples:
          holdfast approval list
          holdfast approval list --json
        """)
    add_options(listing, "--journal", "--home", "--json")
    for verb, granted, what in (("grant", True, "yes"), ("refuse", False, "no")):
        answer = new_verb(verbs, verb, over_journal(_answer)).help(f"""say {what}

            Say {what} to the question of a task; the task continues at once. The first answer counts: Holdfast
            refuses every later one.
            examples:
              holdfast approval {verb} 01J9ZK/4
              holdfast approval {verb} 01J9ZK/4 --by ada --note 'as agreed'
            """)
        answer.set_defaults(granted=granted)
        answer.add_argument("approval", metavar="TASK/ORDINAL", help="the step that waits for an answer")
        add_options(answer, "--by", "--note", "--journal", "--home", "--json")


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.core.clock import iso
    from holdfast.views.unfinished import list_approvals

    found = await list_approvals(hf.journal)
    if args.json:
        shapes = [
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
        print_json({"approvals": shapes})
        return 0
    now = hf.journal.now_ms()
    print_table(
        ("approval", "task", "asked", "question", "details"),
        [
            (f"{one.task_id}/{one.ordinal}", one.task_name, ago(now - one.at_ms), one.question, json_line(one.details))
            for one in found
        ],
        empty="no question is open; questions of `run.approve(...)` appear here",
    )
    return 0


async def _answer(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import get_step_place, what_follows

    task_id, ordinal = await get_step_place(hf, args.approval)
    follows = await what_follows(hf, task_id)
    await hf.approve(task_id, ordinal, granted=args.granted, by=args.by, note=args.note)
    place, word = f"{task_id}/{ordinal}", "granted" if args.granted else "refused"
    fields = {"approval": place, "granted": args.granted}
    return await finish_decision(hf, args, fields, f"recorded: {place} is {word}; {follows}")
