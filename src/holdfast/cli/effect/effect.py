"""`holdfast effect`: what is in doubt, with evidence; a person's decision; facts from outside."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_journal_option, add_json_option, add_verbs, new_command, over_journal

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast

TASKS_MAX = 100_000  # looked through for one list


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "effect",
        run=None,
        purpose="Effects in doubt: what may or may not have happened at a downstream, what is "
        "known of it, and how it is settled.",
        examples=("holdfast effect list", "holdfast effect show 01J9ZK/4"),
    )
    verbs = add_verbs(parser)
    _add_list(verbs)
    _add_show(verbs)
    _add_settle(verbs)
    _add_evidence(verbs)


def _add_list(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "list",
        run=over_journal(_list),
        summary="every effect in doubt",
        purpose="Every effect in doubt: unknown, parked, or started by a worker that has died.",
        columns=(
            ("effect", "TASK/ORDINAL: what the other verbs take"),
            ("tool", "what was called"),
            ("class", "effect class"),
            ("state", "unknown: a worker reconciles it; parked: a person decides; started"),
            ("since", "how long ago its newest attempt began"),
            ("question", "what must be known, or why there is doubt"),
        ),
        examples=("holdfast effect list", "holdfast effect list --all --json"),
    )
    parser.add_argument("--all", action="store_true", help="every effect of every task, closed ones too")
    add_journal_option(parser)
    add_json_option(parser)


def _add_show(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "show",
        run=over_journal(_show),
        summary="one effect: question, evidence, what can be done",
        purpose="One effect: the question, the evidence, its key at the downstream, every "
        "attempt, when it may be decided, and the commands that decide it.",
        examples=("holdfast effect show 01J9ZK/4", "holdfast effect show 01J9ZK/4 --json"),
    )
    parser.add_argument("effect", metavar="TASK/ORDINAL", help="the step")
    add_journal_option(parser)
    add_json_option(parser)


def _add_settle(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "settle",
        run=run_settle,
        summary="decide a parked effect",
        purpose="Decide a parked effect, after looking at the downstream yourself. It was done "
        "(then its result is what you give), it is to be run now, or it is skipped.",
        examples=(
            'holdfast effect settle 01J9ZK/4 --done --result \'{"id": "ch_1"}\'',
            "holdfast effect settle 01J9ZK/4 --run --by ops --note 'not in the ledger'",
        ),
    )
    parser.add_argument("effect", metavar="TASK/ORDINAL", help="the step")
    decision = parser.add_mutually_exclusive_group(required=True)
    decision.add_argument("--done", action="store_true", help="it happened; the task goes on")
    decision.add_argument("--run", action="store_true", dest="run_now", help="it did not happen: run it now")
    decision.add_argument("--skip", action="store_true", help="it is not done; the task is told so")
    parser.add_argument("--result", metavar="JSON", help="with --done: its result; JSON, @file or - (null)")
    parser.add_argument("--by", default="", help="who decides, for the record")
    parser.add_argument("--note", default="", help="why, for the record")
    parser.add_argument("--yes", action="store_true", help="do not ask for a typed word")
    parser.add_argument("--dry-run", action="store_true", help="say what would be recorded")
    add_journal_option(parser)
    add_json_option(parser)


def _add_evidence(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "evidence",
        run=run_evidence,
        summary="tell what is known of an effect",
        purpose="Tell what is known of an effect from elsewhere, for example from a webhook. "
        "That it happened closes an effect in doubt; that it did not is shown to whoever decides.",
        examples=(
            "holdfast effect evidence --effect-key 6f1c2a9e-9d3b-8f00-a1b2-0123456789ab --result @body.json",
            "holdfast effect evidence 01J9ZK/4 --did-not-happen --source 'support call'",
        ),
    )
    parser.add_argument("effect", metavar="TASK/ORDINAL", nargs="?", help="the step")
    parser.add_argument("--effect-key", metavar="KEY", help="the step, by its effect key")
    parser.add_argument("--result", metavar="JSON", help="what the call would have returned: JSON, @file or -")
    parser.add_argument("--did-not-happen", action="store_true", help="it did not take place")
    parser.add_argument("--source", default="command line", help="where this is known from")
    add_journal_option(parser)
    add_json_option(parser)


def run_settle(args: argparse.Namespace) -> int:
    from holdfast.cli.effect.settle import settle
    from holdfast.cli.input.input_journal import run_opened

    return run_opened(args, settle)


def run_evidence(args: argparse.Namespace) -> int:
    from holdfast.cli.effect.settle import tell_evidence
    from holdfast.cli.input.input_journal import run_opened

    return run_opened(args, tell_evidence)


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import print_json, print_table, talk
    from holdfast.errors import JournalDamaged
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
        # Accepted and claimed only: no step yet. A parked one may rest because it is damaged.
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
        empty="no effect is in doubt; unknown and parked ones would appear here",
    )
    for one in unreadable:
        talk(f"warning: task {one['task_id']} cannot be read: {one['message']}")
    return 0


def _table_row(line: dict[str, object], started_ms: int, hf: Holdfast) -> tuple[str, ...]:
    from holdfast.cli.screen.screen import ago

    why = line["question"] or line["doubt"]
    if line["orphaned"]:
        why = why or "its worker is dead"
    since = ago(hf.journal.now_ms() - started_ms) if started_ms else "-"
    cells = (line["effect"], line["tool"], line["class"], line["state"], since, why)
    return tuple(str(cell) for cell in cells)


async def _show(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.app.open import get_step
    from holdfast.cli.effect.page import print_effect, ways
    from holdfast.cli.screen.reference import get_step_place
    from holdfast.cli.screen.screen import print_json
    from holdfast.views.tasks import effect_line, item_shape

    task_id, ordinal = await get_step_place(hf, args.effect)
    view, step = await get_step(hf.journal, task_id, ordinal)
    sessions = {session.session_id: session for session in await hf.journal.list_sessions()}
    items = [item_shape(item) for item in await hf.journal.inbox_of(task_id) if item.ordinal == ordinal]
    shape = {**effect_line(view, step, sessions), "facts": items, "ways": ways(f"{task_id}/{ordinal}", step)}
    if args.json:
        print_json(shape)
    else:
        print_effect(shape, step, now_ms=hf.journal.now_ms())
    return 0
