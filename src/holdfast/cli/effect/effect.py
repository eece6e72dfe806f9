"""`holdfast effect`: effects in doubt, with evidence; decide them; report what is known from elsewhere."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, imported, new_noun, new_verb, over_journal
from holdfast.cli.screen.screen import ago, print_json, print_table, talk
from holdfast.errors import JournalDamaged

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

TASKS_MAX = 100_000  # looked through for one list


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "effect").help("""
        Effects in doubt: what may or may not have happened at a far end, what is known, and how to decide.
        examples:
          holdfast effect list
          holdfast effect show 01J9ZK/4
        """)
    parser = new_verb(verbs, "list", over_journal(_list)).help("""list effects in doubt

        List every effect in doubt: unknown, parked, or started by a worker that died.
        columns:
          effect    TASK/ORDINAL, as the other verbs take it
          tool      what was called
          class     effect class
          state     unknown: a worker reconciles it; parked: a person decides; started
          since     how long ago its newest attempt began
          question  what a person must find out, or why there is doubt
        examples:
          holdfast effect list
          holdfast effect list --all --json
        """)
    add_flag(parser, "--all", "every effect of every task, also closed ones")
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "show", over_journal(_show)).help("""show one effect: question, evidence, what to do

        Show one effect: the question, the evidence, its effect key, every attempt, when it may be decided, and the
        commands that decide it.
        examples:
          holdfast effect show 01J9ZK/4
          holdfast effect show 01J9ZK/4 --json
        """)
    parser.add_argument("effect", metavar="TASK/ORDINAL", help="the step")
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "settle", imported("effect.settle", "run_settle")).help("""decide a parked effect

        Decide a parked effect, after you have checked the far end yourself. Either it was done (you give its
        result), or Holdfast runs it now, or Holdfast skips it. The first decision counts: Holdfast refuses every later
        one.
        examples:
          holdfast effect settle 01J9ZK/4 --done --result '{"id": "ch_1"}'
          holdfast effect settle 01J9ZK/4 --run --by ops --note 'not in the ledger'
        """)
    parser.add_argument("effect", metavar="TASK/ORDINAL", help="the step")
    decision = parser.add_mutually_exclusive_group(required=True)
    add_flag(decision, "--done", "the effect happened; the task continues")
    decision.add_argument("--run", action="store_true", dest="run_now", help="the effect did not happen: run it now")
    add_flag(decision, "--skip", "skip the step; the task gets StepSkipped")
    parser.add_argument(
        "--result", metavar="JSON", help="with --done: result as JSON, @file, or - for standard input (default: null)"
    )
    add_options(parser, "--by", "--note", "--yes", "--dry-run", "--journal", "--home", "--json")
    parser = new_verb(verbs, "evidence", imported("effect.settle", "run_evidence")).help("""
        report what is known of an effect

        Report what is known of an effect from elsewhere, for example from a webhook. If you report
        that it happened, Holdfast closes an effect in doubt. If you report that it did not happen, Holdfast shows
        your report to the person who decides.
        examples:
          holdfast effect evidence --effect-key 6f1c2a9e-9d3b-8f00-a1b2-0123456789ab --result @body.json
          holdfast effect evidence 01J9ZK/4 --did-not-happen --source 'support call'
        """)
    parser.add_argument("effect", metavar="TASK/ORDINAL", nargs="?", help="the step")
    parser.add_argument("--effect-key", metavar="KEY", help="effect key of the step, instead of TASK/ORDINAL")
    parser.add_argument("--result", metavar="JSON", help="the call's result: JSON, @file, or - for standard input")
    add_flag(parser, "--did-not-happen", "the effect did not happen")
    parser.add_argument("--source", default="command line", help="how you know what happened")
    add_options(parser, "--journal", "--home", "--json")


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.journal.contract import Filter
    from holdfast.journal.records import ENDED, TaskState
    from holdfast.views.tasks import effect_line, is_in_doubt

    states = None if args.all else frozenset(TaskState) - ENDED
    rows = await hf.journal.list_tasks(Filter(states=states, limit=TASKS_MAX, newest_first=False))
    sessions = {session.session_id: session for session in await hf.journal.list_sessions()}
    effects: list[dict[str, object]] = []
    unreadable: list[dict[str, object]] = []
    table: list[tuple[str, ...]] = []
    for row in rows:
        # Accepted and claimed only: no step yet. A parked one may be damaged.
        if row.records < 3 and row.state is not TaskState.PARKED:
            continue
        try:
            view = await hf.journal.read_task(row.task_id)
        except JournalDamaged as error:
            unreadable.append({"task_id": row.task_id, "message": error.message})
            continue
        for step in view.steps.values():
            if args.all or is_in_doubt(view, step, sessions):
                line = effect_line(view, step, sessions)
                effects.append(line)
                table.append(_table_row(line, step.attempts[-1].at_ms if step.attempts else 0, hf))
    if args.json:
        print_json({"effects": effects, "unreadable": unreadable})
        return 0
    print_table(
        ("effect", "tool", "class", "state", "since", "question"),
        table,
        empty="no effect is in doubt; unknown and parked effects would appear here",
    )
    for one in unreadable:
        talk(f"warning: task {one['task_id']} cannot be read: {one['message']}")
    return 0


def _table_row(line: dict[str, object], started_ms: int, hf: Holdfast) -> tuple[str, ...]:
    why = line["question"] or line["doubt"]
    if line["orphaned"]:
        why = why or "its worker is dead"
    since = ago(hf.journal.now_ms() - started_ms) if started_ms else "-"
    cells = (line["effect"], line["tool"], line["class"], line["state"], since, why)
    return tuple(str(cell) for cell in cells)


async def _show(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.app.holdfast import get_step
    from holdfast.cli.effect.settle import print_effect, ways
    from holdfast.cli.input.input_journal import get_step_place
    from holdfast.runtime.step.facts import is_answer
    from holdfast.views.tasks import decisions_of, effect_line, item_shape

    task_id, ordinal = await get_step_place(hf, args.effect)
    view, step = await get_step(hf.journal, task_id, ordinal)
    sessions = {session.session_id: session for session in await hf.journal.list_sessions()}
    items = [item for item in await hf.journal.inbox_of(task_id) if item.ordinal == ordinal]
    decided = any(is_answer(item, step) for item in items if not item.applied)
    shape = {
        **effect_line(view, step, sessions),
        "facts": [item_shape(item) for item in items],
        "decisions": decisions_of(items),
        "ways": ways(f"{task_id}/{ordinal}", step, decided=decided),
    }
    if args.json:
        print_json(shape)
    else:
        print_effect(shape, step, now_ms=hf.journal.now_ms(), decided=decided)
    return 0
