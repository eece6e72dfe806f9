"""`holdfast mail send`: a message is a task of its own, stored before anything is sent."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from holdfast.app.handle import TaskHandle
from holdfast.app.holdfast import Holdfast
from holdfast.app.open import open as open_holdfast
from holdfast.cli.command import acting_home
from holdfast.cli.input.input_values import parse_json, read_text
from holdfast.cli.screen.follow import follow
from holdfast.cli.screen.progress import Progress
from holdfast.cli.screen.screen import print_json, talk
from holdfast.core.values import checked
from holdfast.errors import BadInput, LogMissing, MailRefused, MailUnsent, TaskUnfinished
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.settings import find_settings
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.profile import own_relays
from holdfast.runtime.task.mail_task import SEND_TASK
from holdfast.runtime.tool.mail_tool import check_mail
from holdfast.views.mail import sent_lines


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.timeout <= 31_536_000:
        raise BadInput("--timeout must be between 0 seconds and a year")
    home = acting_home(args)
    text = read_text(args.body, what="BODY")
    body = parse_json(text, what="BODY") if args.json_body else text
    check_mail(to=args.to, body=checked(body, what="BODY"), thread=args.thread)
    return asyncio.run(_checked_and_sent(home, body, args))


async def _checked_and_sent(home: AgentHome, body: Any, args: argparse.Namespace) -> int:  # Any: JSON
    if not args.no_follow:
        with Progress() as news:
            if not args.json:
                news.waits(f"looking for {args.to} at relays")
            await check_recipient(home, args.to)
    return await _send(home, body, args)


async def check_recipient(home: AgentHome, to: str) -> None:
    """A name that relays answer for and do not know is a mistake to be told now, not a message that waits for days. If
    no relay answers it proves nothing, and the message waits. Raises BadInput, MailRefused."""
    book = AddressBook(home.peers_file, lambda: own_relays(home), Sodium())
    try:
        await book.find(to)
    except MailUnsent as error:
        if isinstance(error.__cause__, LogMissing):
            raise MailRefused(
                f"no relay that was asked knows {to}: the message was not stored",
                hint="check the name: `holdfast relay find NAME`; with --no-follow the message waits until it is known",
            ) from error


async def _send(home: AgentHome, body: Any, args: argparse.Namespace) -> int:  # Any: JSON
    async with open_holdfast(
        home.journal, tasks=[SEND_TASK], settings=find_settings(home.journal), serve=not args.no_follow
    ) as hf:
        values = {"to": args.to, "body": body, **({"thread": args.thread} if args.thread else {})}
        handle = await hf.submit(SEND_TASK, request_id=args.request_id, **values)
        sent: dict[str, Any] | None = None
        code = 0
        if not args.no_follow:
            try:
                quiet = args.json or not sys.stderr.isatty()
                sent = await follow(hf, handle, app="APP", quiet=quiet, timeout_s=args.timeout)
            except TaskUnfinished as error:
                code, why = error.exit_code, await _last_trouble(hf, handle)
                talk(f"the message is stored, and a worker of the agent sends it: {error.message}{why}")
        fields = {"task_id": handle.id, "created": handle.created, "sent": sent}
        if args.json:
            print_json(fields)
        elif sent is None:
            print(handle.id)
        else:
            talk(told(sent))
            print(handle.id)
    return code


async def _last_trouble(hf: Holdfast, handle: TaskHandle) -> str:
    found = sent_lines(await handle.view(), (), now_ms=hf.journal.now_ms())
    return "".join(f"; so far: {one['reason']}" for one in found if one["reason"])


def told(sent: dict[str, Any]) -> str:  # Any: JSON
    """A step that ended with the recipient's note may have no confirmation of a relay."""
    held = ", ".join(sent["relays"])
    return f"sent to {sent['to']}: held by {held}" if held else f"sent to {sent['to']}: it has confirmed the message"
