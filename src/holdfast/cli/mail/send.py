"""`holdfast mail send`: a message is a task of its own, stored before anything is sent."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from holdfast.app.open import open as open_holdfast
from holdfast.cli.command import acting_home
from holdfast.cli.input.input_values import parse_json, read_text
from holdfast.cli.screen.screen import print_json, talk
from holdfast.core.values import checked
from holdfast.errors import BadInput, TaskUnfinished
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.settings import find_settings
from holdfast.runtime.task.mail_task import SEND_TASK
from holdfast.runtime.tool.mail_tool import check_mail


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.timeout <= 31_536_000:
        raise BadInput("--timeout must be between 0 seconds and a year")
    home = acting_home(args)
    text = read_text(args.body, what="BODY")
    body = parse_json(text, what="BODY") if args.json_body else text
    check_mail(to=args.to, body=checked(body, what="BODY"), thread=args.thread)
    return asyncio.run(_send(home, body, args))


async def _send(home: AgentHome, body: Any, args: argparse.Namespace) -> int:  # Any: JSON
    async with open_holdfast(
        home.journal, tasks=[SEND_TASK], settings=find_settings(home.journal), serve=not args.no_follow
    ) as hf:
        values = {"to": args.to, "body": body, **({"thread": args.thread} if args.thread else {})}
        handle = await hf.submit(SEND_TASK, request_id=args.request_id, **values)
        sent: dict[str, Any] | None = None
        if not args.no_follow:
            try:
                sent = await handle.result(args.timeout)
            except TaskUnfinished as error:
                talk(f"the message is stored, and a worker of the agent sends it: {error.message}")
        fields = {"task_id": handle.id, "created": handle.created, "sent": sent}
        if args.json:
            print_json(fields)
        elif sent is None:
            print(handle.id)
        else:
            talk(f"sent to {sent['to']}: held by {', '.join(sent['relays'])}")
            print(handle.id)
    return 0
