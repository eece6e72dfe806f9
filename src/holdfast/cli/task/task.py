"""`holdfast task`: list, show, cancel, retry."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, new_noun, new_verb, over_journal
from holdfast.cli.input.input_journal import finish_decision
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import ago, finish, print_json, print_table, talk
from holdfast.errors import BlobNotFound, JournalDamaged, NotSettleable

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.journal.contract import TaskRow

STATES = ("queued", "running", "sleeping", "waiting", "parked", "succeeded", "failed", "cancelled")
LIMIT = 50
LIMIT_MAX = 100_000
TALKS_MAX = 1_000  # tasks of a list that are read for the name of their conversation


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "task").help("""
        Tasks and their steps.
        examples:
          holdfast task list --state parked
          holdfast task show 01J9ZK
        """)
    parser = new_verb(verbs, "list", over_journal(_list)).help(f"""list tasks, newest first

        List the tasks of the journal, newest first.
        columns:
          task     its id; every command accepts a unique beginning
          name     the task function; of an agent's conversation also its name
          state    {", ".join(STATES)}
          changed  how long ago something was last recorded
          worker   which worker runs it; (dead) if that process died
        examples:
          holdfast task list
          holdfast task list --state parked --json
        """)
    parser.add_argument("--state", action="append", choices=STATES, help="only tasks in this state (may be repeated)")
    parser.add_argument("--name", help="only tasks of this name")
    parser.add_argument("--limit", type=_limit, default=LIMIT, metavar="N", help=f"at most N tasks (default: {LIMIT})")
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "show", over_journal(_show)).help("""show one task with every step

        Show one task with every step: state, attempts, times, result. --all adds effect keys, and which worker
        claimed it when.
        columns:
          step     ordinal: 4; 4.2.1 in a gather; 4.r1 a retry slot; 4.c1 a compensation
          tool     what was called
          class    effect class: Read, Transactional, Fenced, Keyed, Queryable, ...
          state    planned, started, unknown, succeeded, failed, skipped, parked
          tries    number of attempts
          started  when the newest attempt started; with the date if it is not the day of `submitted`
          took     from its start to its end
          result   the recorded result, or why there is none
        examples:
          holdfast task show 01J9ZK
          holdfast task show 01J9ZK --all --trace
        """)
    parser.add_argument("task", metavar="TASK", help="task id, or its beginning")
    add_flag(parser, "--all", "also effect keys, and the workers that claimed it, by epoch")
    add_flag(parser, "--trace", "also print every recorded traceback")
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "cancel", over_journal(_cancel)).help("""ask a task to stop

        Ask a task to stop. Holdfast first finishes the calls in flight; it undoes nothing.
        examples:
          holdfast task cancel 01J9ZK
          holdfast task cancel 01J9ZK --yes --by ops
        """)
    parser.add_argument("task", metavar="TASK", help="task id, or its beginning")
    add_options(parser, "--by", "--yes", "--dry-run", "--journal", "--home", "--json")
    parser = new_verb(verbs, "retry", over_journal(_retry)).help("""run a parked or failed task again

        Run a parked or failed task again. Closed steps are not repeated; a parked step keeps its question.
        examples:
          holdfast task retry 01J9ZK
          holdfast task retry 01J9ZK --by ops
        """)
    parser.add_argument("task", metavar="TASK", help="task id, or its beginning")
    add_options(parser, "--by", "--dry-run", "--journal", "--home", "--json")


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.journal.contract import Filter
    from holdfast.journal.records import TaskState
    from holdfast.views.tasks import task_line

    states = frozenset(TaskState(state) for state in args.state) if args.state else None
    rows = await hf.journal.list_tasks(Filter(states=states, name=args.name, limit=args.limit + 1))
    more, rows = len(rows) > args.limit, rows[: args.limit]
    sessions = {session.session_id: session for session in await hf.journal.list_sessions()}
    talks = await _conversations(hf, rows)
    lines = [{**task_line(row, sessions), "conversation": talks.get(row.task_id, "")} for row in rows]
    if args.json:
        print_json({"tasks": lines, "more": more})
        return 0
    now = hf.journal.now_ms()
    print_table(
        ("task", "name", "state", "changed", "worker"),
        [
            (
                line["task_id"],
                line["name"] + (f" ({line['conversation']})" if line["conversation"] else ""),
                line["state"],
                ago(now - row.changed_ms),
                line["worker"] + (" (dead)" if line["worker"] and not line["worker_alive"] else ""),
            )
            for line, row in zip(lines, rows, strict=True)
        ],
        empty="no tasks" + (" match" if args.state or args.name else "; `holdfast submit` adds one"),
    )
    if more:
        talk(f"there are more than these {args.limit} tasks; --limit N shows more")
    return 0


async def _conversations(hf: Holdfast, rows: list[TaskRow]) -> dict[str, str]:
    """Names of the conversations among open tasks: else three of one agent look alike."""
    from holdfast.journal.records import TaskState
    from holdfast.views.tasks import conversation_of

    found: dict[str, str] = {}
    for row in rows[:TALKS_MAX]:
        if row.state in (TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING):
            with contextlib.suppress(JournalDamaged):
                found[row.task_id] = conversation_of(await hf.journal.read_task(row.task_id))
    return found


async def _show(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import get_task_id
    from holdfast.cli.task.page import print_task
    from holdfast.core.clock import iso
    from holdfast.runtime.scratch.store import load_manifest
    from holdfast.views.tasks import decisions_of, scratch_shape, task_shape
    from holdfast.views.unfinished import waits_of

    handle = hf.task(await get_task_id(hf, args.task))
    row = await handle.row()
    view = await handle.view()
    sessions = {session.session_id: session for session in await hf.journal.list_sessions()}
    items = await hf.journal.inbox_of(row.task_id)
    shape = task_shape(row, view, sessions)
    shape["decisions"] = decisions_of(items)
    waits = waits_of(row, view, items)
    shape["waits"] = [{"for": one.text, "commands": list(one.commands), "until": iso(one.due_ms)} for one in waits]
    if view.files is not None and view.files.newest:
        try:
            shape["scratch"] = scratch_shape(await load_manifest(hf.journal, view.files.newest))
        except (BlobNotFound, JournalDamaged) as error:
            talk(f"cannot list the task's scratch files: {error.message}")
    if args.json:
        print_json(shape)
    else:
        now_ms = hf.journal.now_ms()
        print_task(shape, view, waits, now_ms=now_ms, full=args.all, trace=args.trace)
    return 0


async def _cancel(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import get_task_id
    from holdfast.journal.records import ENDED

    handle = hf.task(await get_task_id(hf, args.task))
    row = await handle.row()
    if row.state in ENDED:
        raise NotSettleable(f"task {row.task_id} has already ended: {row.state}", hint="there is nothing to cancel")
    what = f"task {row.task_id} ({row.name}, {row.state})"
    fields = {"task_id": row.task_id, "state": row.state, "done": not args.dry_run}
    if args.dry_run:
        return finish(args, fields, f"{what} would be asked to stop")
    confirm("cancel", what, yes=args.yes)
    await handle.cancel(by=args.by)
    said = f"task {row.task_id} will stop after its calls in flight have finished"
    return await finish_decision(hf, args, fields, said)


async def _retry(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import get_task_id
    from holdfast.journal.records import TaskState

    handle = hf.task(await get_task_id(hf, args.task))
    row = await handle.row()
    if row.state not in (TaskState.PARKED, TaskState.FAILED):
        raise NotSettleable(
            f"task {row.task_id} is {row.state}: only a parked or failed task can be retried",
            hint="a running, sleeping or waiting task continues by itself",
        )
    fields = {"task_id": row.task_id, "state": row.state, "done": not args.dry_run}
    if args.dry_run:
        return finish(args, fields, f"task {row.task_id} ({row.name}, {row.state}) would run again")
    await hf.retry(row.task_id, by=args.by)
    return await finish_decision(hf, args, fields, f"task {row.task_id} runs again")


def _limit(text: str) -> int:
    number = int(text)
    if not 1 <= number <= LIMIT_MAX:
        raise argparse.ArgumentTypeError(f"must be between 1 and {LIMIT_MAX}, not {number}")
    return number
