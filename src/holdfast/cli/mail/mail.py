"""`holdfast mail`: send a message, list received and sent ones, and those that did not arrive."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import Commands, add_flag, add_options, imported, new_noun, new_verb, over_journal
from holdfast.cli.screen.screen import ago, json_line, one_line, print_json, print_table, talk

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.core.ids import TaskId
    from holdfast.journal.contract import TaskRow

LIMIT = 50
LIMIT_MAX = 10_000
PAGE = 1_000  # tasks that are listed at a time
SHOWN_CHARS = 40


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "mail").help("""
        Messages between agents, through their relays. The app's function with @holdfast.on_mail handles each
        received message once; `run.send` in a task sends one. Relays cannot read them.
        examples:
          holdfast mail send ada@relay.example 'the report is ready'
          holdfast mail inbox
          holdfast mail outbox --json
        """)
    parser = new_verb(verbs, "send", imported("mail.send")).help("""send a message to another agent

        Send a message to another agent, and wait until two of its relays have signed that they hold it. The message is
        stored in the journal first: if this command is stopped, a worker of the agent sends it. If the relays have not
        answered when --timeout is over, the command ends with 8, and a worker sends the message later: to send it again
        without a second message, use the same --request-id. At a terminal it shows what it waits for. BODY is text, or
        JSON with --json-body; @file and - (standard input) work too.
        examples:
          holdfast mail send ada@relay.example 'the report is ready' --thread report-7
          holdfast mail send hf1... @order.json --json-body --request-id order-77 --json
        """)
    parser.add_argument("to", metavar="TO", help="the agent: id (hf1...), or a handle such as ada@relay.example")
    parser.add_argument("body", metavar="BODY", help="the message: text, @file, or - for standard input")
    parser.add_argument("--thread", metavar="NAME", default="", help="a name that messages of one exchange share")
    add_flag(parser, "--json-body", "BODY is JSON")
    parser.add_argument("--request-id", metavar="ID", help="your own id; the same id is the same message")
    add_flag(parser, "--no-follow", "store the message and do not wait; a worker of the agent sends it")
    parser.add_argument(
        "--timeout", type=float, metavar="S", default=60.0, help="stop waiting after S seconds (default: 60)"
    )
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "inbox", over_journal(_inbox)).help("""list received messages, newest first

        List the messages to this agent, newest first. Each is a task: `holdfast task show TASK` shows its steps.
        columns:
          task      the task that handles it
          from      the sender's id
          thread    name of the exchange
          state     of the task: queued, running, ..., succeeded: it is handled
          received  how long ago it was stored here
          message   its beginning
        examples:
          holdfast mail inbox
          holdfast mail inbox --limit 5 --json
        """)
    _add_limit(parser)
    parser = new_verb(verbs, "outbox", over_journal(_outbox)).help("""list sent messages, newest first

        List the messages of this agent, newest first.
        columns:
          effect   TASK/ORDINAL of the step that sends it
          to       the recipient
          thread   name of the exchange
          state    waiting: fewer than two relays hold it yet; sent; delivered: the recipient signed that it has
                   stored it; refused, parked, skipped, expired: see `holdfast mail dead`
          relays   how many have signed that they hold it; -: the recipient had it before enough of them had
          since    how long ago it was sent first
          message  its beginning
        examples:
          holdfast mail outbox
          holdfast mail outbox --json
        """)
    _add_limit(parser)
    parser = new_verb(verbs, "dead", over_journal(_dead)).help("""list messages that did not arrive

        List messages that need a person: sent ones that every relay refused, that found no relay in time, or that the
        recipient did not take within 7 days (expired); received ones whose handler failed or is parked; and received
        ones that cannot be read: no mail key opens them, or their sender's keys did not sign them. Send one again with
        `holdfast mail send`; run a handler again with `holdfast task retry TASK`.
        columns:
          mail     TASK/ORDINAL of a sent one; TASK of a received one
          with     recipient or sender
          state    refused, parked, skipped, expired; failed, cancelled; unreadable
          reason   what is known
        examples:
          holdfast mail dead
          holdfast mail dead --json
        """)
    _add_limit(parser)


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_limit, default=LIMIT, metavar="N", help=f"at most N (default: {LIMIT})")
    add_options(parser, "--journal", "--home", "--json")


def _limit(text: str) -> int:
    number = int(text)
    if not 1 <= number <= LIMIT_MAX:
        raise argparse.ArgumentTypeError(f"must be between 1 and {LIMIT_MAX:,}, not {number}")
    return number


async def _inbox(hf: Holdfast, args: argparse.Namespace) -> int:
    found = await _received(hf, args.limit)
    if args.json:
        print_json({"mail": found})
        return 0
    rows = [
        (
            one["task_id"],
            _short(one["sender"]),
            one_line(one["thread"]),
            one["state"],
            _ago(one["received_at"]),
            _text(one),
        )
        for one in found
    ]
    print_table(("task", "from", "thread", "state", "received", "message"), rows, empty="no message was received yet")
    return 0


async def _outbox(hf: Holdfast, args: argparse.Namespace) -> int:
    found = await _sent(hf, args.limit)
    if args.json:
        print_json({"mail": found})
        return 0
    rows = [
        (
            one["effect"],
            _short(one["to"]),
            one_line(one["thread"]),
            one["state"],
            str(len(one["relays"]) or ("-" if one["delivered_at"] else 0)),
            _ago(one["first_sent_at"]),
            _text(one),
        )
        for one in found
    ]
    head = ("effect", "to", "thread", "state", "relays", "since", "message")
    print_table(head, rows, empty="no message was sent yet")
    return 0


async def _dead(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.views.mail import DEAD_SENT

    sent = await _sent(hf, args.limit, states=DEAD_SENT)
    received = await _received(hf, args.limit, dead=True)
    unreadable = await _unreadable(hf, args.limit)
    if args.json:
        print_json({"sent": sent, "received": received, "unreadable": unreadable})
        return 0
    rows = [
        (one["effect"], _short(one["to"]), one["state"], one_line(one["reason"], chars_max=2 * SHOWN_CHARS))
        for one in sent
    ]
    rows += [
        (one["task_id"], _short(one["sender"]), one["state"], f"`holdfast task show {one['task_id']}`")
        for one in received
    ]
    rows += [
        (one["task_id"], _short(one["sender"]), "unreadable", one_line(one["reason"], chars_max=2 * SHOWN_CHARS))
        for one in unreadable
    ]
    print_table(("mail", "with", "state", "reason"), rows, empty="every message has arrived, or is on its way")
    if sent:
        talk("hint: `holdfast effect show TASK/ORDINAL`; or send it again with `holdfast mail send`")
    return 0


async def _received(hf: Holdfast, limit: int, *, dead: bool = False) -> list[dict[str, Any]]:  # Any: JSON
    from holdfast.journal.contract import Filter
    from holdfast.runtime.task.mail_task import MAIL_NAME
    from holdfast.views.mail import DEAD_RECEIVED, received_line

    states = DEAD_RECEIVED if dead else None
    rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME, states=states, limit=limit))
    return [received_line(row, await hf.journal.read_task(row.task_id)) for row in rows if not row.erased]


async def _unreadable(hf: Holdfast, limit: int) -> list[dict[str, Any]]:  # Any: JSON
    from holdfast.journal.contract import Filter
    from holdfast.runtime.task.mail_task import DEAD_NAME
    from holdfast.views.mail import dead_line

    rows = await hf.journal.list_tasks(Filter(name=DEAD_NAME, limit=limit))
    return [dead_line(row, await hf.journal.read_task(row.task_id)) for row in rows if not row.erased]


async def _sent(hf: Holdfast, limit: int, *, states: frozenset[str] | None = None) -> list[dict[str, Any]]:  # Any: JSON
    from holdfast.errors import JournalDamaged
    from holdfast.views.mail import sent_lines

    found: list[dict[str, Any]] = []
    async for row in _tasks(hf):
        if row.erased or row.records < 3:  # accepted and claimed only: no step yet
            continue
        try:
            view = await hf.journal.read_task(row.task_id)
        except JournalDamaged as error:
            talk(f"warning: task {row.task_id} cannot be read: {error.message}")
            continue
        now_ms = hf.journal.now_ms()
        lines = sent_lines(view, [], now_ms=now_ms)
        if lines:
            lines = sent_lines(view, await hf.journal.inbox_of(row.task_id), now_ms=now_ms)
        found += [one for one in reversed(lines) if states is None or one["state"] in states]
        if len(found) >= limit:
            break
        await asyncio.sleep(0)
    return found[:limit]


async def _tasks(hf: Holdfast) -> AsyncGenerator[TaskRow]:
    """All of them, newest first."""
    from holdfast.journal.contract import Filter

    last: TaskId | None = None
    while True:
        rows = await hf.journal.list_tasks(Filter(limit=PAGE, after=last))
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        last = rows[-1].task_id


def _short(name: str) -> str:
    return one_line(name if len(name) <= SHOWN_CHARS else f"{name[:16]}...{name[-8:]}")


def _text(one: dict[str, Any]) -> str:  # Any: JSON
    body = one["body"]
    return one_line(body, chars_max=SHOWN_CHARS) if isinstance(body, str) else json_line(body, chars_max=SHOWN_CHARS)


def _ago(iso_time: str) -> str:
    import time
    from datetime import datetime

    return ago(int((time.time() - datetime.fromisoformat(iso_time).timestamp()) * 1000)) if iso_time else "-"
