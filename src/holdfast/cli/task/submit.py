"""`holdfast submit APP REQUEST`: store a task durably, then follow it until it ends."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import Commands, add_flag, add_options, new_command
from holdfast.cli.input.input_journal import journal_of, unserved_text
from holdfast.cli.screen.screen import print_json, talk
from holdfast.errors import BadInput, CommitUnknown, HoldfastError, Misuse

if TYPE_CHECKING:
    from holdfast.app.handle import TaskHandle
    from holdfast.app.holdfast import Holdfast
    from holdfast.app.loading import App
    from holdfast.core.journal_address import JournalAddress
    from holdfast.layout.engine_settings import Settings
    from holdfast.runtime.task.task import TaskType

ACCEPT_S_MIN = 5.0  # for the journal to accept a task: --timeout is about following it
WHY_S = 2.0
_NOT_KNOWN = "it is not known whether the request was accepted"


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "submit", run).help("""
        Submit a task and follow it until it ends: progress on standard error, the result as JSON on standard
        output. REQUEST is a JSON object with the task's arguments, or any other text, which becomes the task's only
        argument; @file and - (standard input) work too. With --request-id, the same command again finds the same
        task.
        columns:
          step   ordinal
          tool   what is called
          class  effect class
          state  planned, started, unknown, succeeded, failed, skipped, parked
          took   from the start of the newest attempt to its end
        examples:
          holdfast submit trip.py:tasks 'LIS to BER' --request-id order-77
          holdfast submit orders.app:app '{"order": 77}' --task ship --json
        """)
    parser.add_argument("app", metavar="APP", help="where the task is: module:attribute or path/file.py:attribute")
    parser.add_argument("request", metavar="REQUEST", help="a JSON object, text, @file, or - for standard input")
    parser.add_argument("--task", metavar="NAME", default="", help="which task, if APP has several")
    parser.add_argument("--request-id", metavar="ID", help="your own request id; the same id is the same task")
    parser.add_argument("--run", action="store_true", dest="run_here", help="also run a worker in this process")
    add_flag(parser, "--no-follow", "print the task id and do not wait")
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="stop following after S seconds, or waiting for the journal after 5 at least; the task is not stopped",
    )
    add_options(parser, "--config", "--journal", "--home", "--new-journal", "--json")


def run(args: argparse.Namespace) -> int:
    from holdfast.app.loading import load_app

    if args.timeout is not None and not 0 <= args.timeout <= 31_536_000:
        raise BadInput("--timeout must be between 0 seconds and a year")
    if args.run_here and args.no_follow:
        raise BadInput("--run runs a worker here until the task ends: leave out --run or --no-follow")
    app = load_app(args.app)
    task = app.task(args.task)
    values = arguments_of(task, args.request)
    return asyncio.run(_submit(journal_of(args), app, task, values, args))


def arguments_of(task: TaskType, request: str) -> dict[str, Any]:  # Any: JSON, checked on submit
    """The task's arguments from what a person typed. Raises BadInput."""
    from holdfast.cli.input.input_values import parse_json, read_text

    text = read_text(request, what="REQUEST")
    names = list(task.signature.parameters)
    values = parse_json(text, what="REQUEST") if text.lstrip().startswith("{") else {_only_parameter(task): text}
    try:
        task.check_args(values)
    except Misuse as error:
        takes = f"{task.name} takes: {', '.join(names) or 'nothing; give {}'}"
        given = "; a JSON object gives the arguments by name" if names and text.lstrip().startswith("{") else ""
        raise BadInput(error.message, hint=f"{takes}{given}") from error
    return values


def _only_parameter(task: TaskType) -> str:
    parameters = list(task.signature.parameters.values())
    required = [one.name for one in parameters if one.default is one.empty]
    if len(required) == 1:
        return required[0]
    if not required and len(parameters) == 1:
        return parameters[0].name
    names = ", ".join(one.name for one in parameters)
    raise BadInput(
        f"{task.name} takes {'several arguments' if parameters else 'no argument'}, but REQUEST is a plain text",
        hint=f"give a JSON object with: {names}" if names else "give {} as REQUEST",
    )


async def _submit(
    address: JournalAddress, app: App, task: TaskType, values: dict[str, Any], args: argparse.Namespace
) -> int:
    import holdfast
    from holdfast.host.log import Log
    from holdfast.layout.settings import find_settings

    settings = find_settings(address, config=args.config)
    async with holdfast.open(
        address,
        tasks=app.tasks.values(),
        tools=app.tools.values(),
        settings=settings,
        serve=args.run_here,
        new_journal=args.new_journal,
        log=Log(None if args.json else RunWarnings()),
    ) as hf:
        began = time.monotonic()
        try:
            accepting = hf.submit(task, request_id=args.request_id, **values)
            within_s = None if args.timeout is None else max(args.timeout, ACCEPT_S_MIN)
            handle = await asyncio.wait_for(accepting, within_s)
        except TimeoutError:
            raise await _not_known(hf, settings, args) from None
        except asyncio.CancelledError:
            if not args.json:
                talk(f"{_NOT_KNOWN}: {_find_out(args)}")
            raise
        if args.timeout is not None:
            args.timeout = max(0.0, args.timeout - (time.monotonic() - began))
        return await _after_submit(hf, handle, args)


async def _not_known(hf: Holdfast, settings: Settings, args: argparse.Namespace) -> HoldfastError:
    """The journal has not answered in time: why, as far as it can be seen."""
    from holdfast.journal.durability import Kept

    why = "the journal has not answered in time"
    with suppress(HoldfastError, TimeoutError):
        found = await asyncio.wait_for(
            hf.journal.find_durability(provider=settings.journal_durability == "provider"), WHY_S
        )
        if hf.journal.full:
            why = "there is no space left on the journal's disk"
        elif found.kept in (Kept.GONE, Kept.READ_ONLY):
            why = found.text
        elif found.kept is Kept.UNKNOWN:
            why = f"{why}, and {found.text}"
    return CommitUnknown(f"{why}: {_NOT_KNOWN}", hint=_find_out(args))


def _find_out(args: argparse.Namespace) -> str:
    if args.request_id is not None:
        return "submit it again with the same --request-id: if it was accepted, you get the same task, and it runs once"
    return "`holdfast task list` shows whether it was; with --request-id you could simply submit it again"


class RunWarnings(io.StringIO):
    """A stream for host.log.Log that prints the problems of the worker in this process."""

    def write(self, text: str, /) -> int:
        fields = json.loads(text)
        if fields.get("event") in ("trouble", "session-lost", "clock-behind"):
            talk(f"warning: {fields.get('error') or fields['event']}")
            if fields.get("hint"):
                talk(f"hint: {fields['hint']}")
        return len(text)


async def _after_submit(hf: Holdfast, handle: TaskHandle, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.follow import follow
    from holdfast.journal.records import TaskState

    if args.no_follow:
        row = await handle.row()
        if args.json:
            print_json({"task_id": handle.id, "created": handle.created, "state": row.state.value})
        else:
            print(handle.id)
            if row.state is TaskState.QUEUED and (text := await unserved_text(hf, row)) is not None:
                talk(text)
                talk(f"hint: run `holdfast worker {args.app}` in another terminal, unless one is just starting")
        return 0
    if not args.json:
        known = "" if handle.created else ", submitted before with this request id"
        talk(f"task {handle.id}{known}")
    try:
        result = await follow(hf, handle, app=args.app, quiet=args.json, timeout_s=args.timeout)
    except asyncio.CancelledError:
        if not args.json:
            if args.run_here:
                talk("Holdfast lets calls in flight finish; press Ctrl-C again to stop now. Nothing is lost")
            talk(f"the task stays in the journal, and any worker continues it: `holdfast task show {handle.id}`")
        raise
    if args.json:
        fields = {"task_id": handle.id, "created": handle.created, "state": "succeeded"}
        print_json({**fields, "result": result})
    else:
        print_json(result)
    return 0
