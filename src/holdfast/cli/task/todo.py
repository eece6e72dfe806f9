"""`holdfast todo`: everything that waits for a person, in one list, with the command for each."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, new_command

if TYPE_CHECKING:
    from holdfast.app.doctor import Finding
    from holdfast.views.unfinished import Todo

STOPPED = "stop flag"  # the check of `doctor` that says: do not open this journal only to look


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "todo", run).help("""
        List everything that waits for a person: effects in doubt, questions that need a yes or no, parked tasks,
        and what `holdfast doctor` warns of. Below each is the command to begin with. Changes nothing. If the tasks
        cannot be listed, the exit code says why.
        columns:
          approval  a task asks for a yes or no
          effect    an effect may or may not have happened; you decide
          task      a task is parked for another reason
          worker    an effect is in doubt, and a worker would find out
          damage    the records of a task are damaged
          alarm     a warning of `holdfast doctor`
        examples:
          holdfast todo
          holdfast todo --home ~/agents/ada --json
        """)
    add_options(parser, "--journal", "--home", "--json")


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from holdfast.app.doctor import NO_JOURNAL, Level
    from holdfast.cli.doctor import every_finding
    from holdfast.cli.input.again import all_named, named, naming
    from holdfast.cli.input.input_journal import journal_of, opened
    from holdfast.cli.screen.screen import ago, print_json, print_lines, talk
    from holdfast.core.clock import SystemClock
    from holdfast.errors import HoldfastError, KeysReplaced, NotAJournal
    from holdfast.journal.bind import journal_at
    from holdfast.layout.settings import find_settings
    from holdfast.views.unfinished import list_todo

    address = journal_of(args)
    findings = [one async for one in every_finding(address, settings=find_settings(address), deep=False)]
    alarms = [one for one in findings if one.level in (Level.WARNING, Level.DAMAGE) and one.check != "parked"]
    if (gone := next((one for one in alarms if one.check == NO_JOURNAL), None)) is not None:
        raise NotAJournal(gone.text, hint=gone.mend)
    given = (("--journal", args.journal), ("--home", args.home))
    options = naming([word for name, value in given if value is not None for word in (name, value)])
    alarms = [dataclasses.replace(one, mend=all_named(one.mend, options)) for one in alarms]
    waiting: list[Todo] = []
    code = 0
    if journal_at(address).exists() and not any(one.check in (STOPPED, KeysReplaced.code) for one in alarms):
        try:
            async with opened(args) as hf:
                waiting = [
                    dataclasses.replace(one, command=named(one.command, options)) for one in await list_todo(hf.journal)
                ]
        except HoldfastError as error:
            if not alarms:
                raise
            talk(f"the tasks cannot be listed: {error.message}")
            code = error.exit_code
    if args.json:
        print_json({"todo": [*map(_shape, waiting), *map(_alarm, alarms)]})
        return code
    now_ms = SystemClock().wall_ms()
    for one in waiting:
        since = ago(now_ms - one.since_ms)
        print_lines(f"{one.kind:<8}  {one.about} {one.name}, since {since}: {one.text}", f"{'':10}{one.command}")
    for one in alarms:
        print_lines(f"alarm     {one.check}: {one.text}", *([f"{'':10}{one.mend}"] if one.mend else []))
    if not waiting and not alarms:
        talk("nothing waits for you")
    return code


def _shape(one: Todo) -> dict[str, object]:
    from holdfast.core.clock import iso

    fields = dataclasses.asdict(one)
    since_ms = fields.pop("since_ms")
    return {**fields, "since": iso(since_ms)}


def _alarm(one: Finding) -> dict[str, str]:
    return {"kind": "alarm", "about": one.check, "name": "", "text": one.text, "command": one.mend, "since": ""}
