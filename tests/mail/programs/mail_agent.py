"""An agent in a process of its own, which stops at a chosen point of sending or receiving."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.app.mail.agent_post import AgentPost
from holdfast.layout.agent_home import load_home
from holdfast.relay.client.mailbox import RelayMailbox
from holdfast.testing.lab import fast

FOLDER, POINT, *REST = sys.argv[1:]


@holdfast.task
async def greet(run: holdfast.Run, to: str, body: Any) -> Any:
    return await run.send(to, body, thread="t1")


@holdfast.on_mail
async def handle(run: holdfast.Run, letter: holdfast.Letter) -> None:
    pass


class HangingPost(AgentPost):
    """The relays hold the message, and the answer never reaches the step."""

    async def send(self, **values: Any) -> Any:
        await super().send(**values)
        print("left", flush=True)
        await asyncio.Event().wait()


async def die(*_args: object, **_values: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    home = load_home(Path(FOLDER))
    post = HangingPost(home) if POINT == "hang-after-send" else None
    if POINT == "die-before-ack":
        RelayMailbox.received = die  # the point of the death
    async with holdfast.open(home.journal, tasks=[greet, handle], settings=fast(), post=post) as hf:
        if POINT == "hang-after-send":
            await hf.submit(greet, to=REST[0], body="hello")
        await asyncio.sleep(30)


asyncio.run(main())
