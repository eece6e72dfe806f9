"""What an agent's tasks send mail with, and the tasks that every agent has.

Nothing is opened before the first message: most workers send none. What cannot be opened then (a locked vault, a signer
that is away) leaves the message unsent, and its step tries again.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.ids import EffectKey
from holdfast.core.mail import AFTER_MAX, Mailbox, Post, SentMail
from holdfast.core.values import Json
from holdfast.errors import HoldfastError, MailUnsent
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, find_home
from holdfast.relay.bounded import keep_newest
from holdfast.runtime.task.mail_task import DEAD_TASK, SEND_TASK
from holdfast.runtime.task.task import TaskType

if TYPE_CHECKING:
    from holdfast.relay.client.instance_key import InstanceKey
    from holdfast.relay.client.open_mail import AgentMail


THREADS_MAX = 1_024  # whose newest message this process remembers
SENT_MAX = 10_000  # messages that this process remembers to have sent


@asynccontextmanager
async def posting(folder: Path) -> AsyncGenerator[AgentPost | None]:
    """The post of the agent in this folder while the block runs; None where the folder has no identity."""
    try:
        home = find_home(folder)
    except HoldfastError:  # said elsewhere
        home = None
    if home is None or not os.path.lexists(home.log_file):
        yield None
        return
    post = AgentPost(home)
    try:
        yield post
    finally:
        await post.close()


def built_in_tasks(post: Post | None) -> list[TaskType]:
    """`holdfast mail send` and the intake submit them; every worker of the agent finishes them."""
    return [] if post is None else [SEND_TASK, DEAD_TASK]


class AgentPost:
    """core.mail.Post of the agent in this folder; opened at its first use, for one event loop."""

    def __init__(self, home: AgentHome) -> None:
        self._home = home
        self._opened: AgentMail | None = None
        self._before: InstanceKey | None = None
        self._newest = OrderedDict[tuple[str, str], EffectKey]()  # by recipient and thread
        self._sent = OrderedDict[EffectKey, str]()  # and to which agent
        self._turn = asyncio.Lock()

    async def send(
        self,
        *,
        to: str,
        body: Json,
        key: EffectKey,
        thread: str = "",
        number: int = 0,
        after: Sequence[EffectKey] = (),
        echo: str = "",
        first_byte: Callable[[], None] = lambda: None,
    ) -> SentMail:
        """Of the messages of a thread that other tasks of this process have sent, the newest one is named as one before
        this, too."""
        post = (await self._mail()).post
        again = key in self._sent  # then the newest one of the thread may name this one as one before it
        before = self._newest.get((to, thread)) if thread and not again else None
        named = list(after)
        if before is not None and before not in (key, *named):
            named.append(before)
        sent = await post.send(
            to=to,
            body=body,
            key=key,
            thread=thread,
            number=number,
            after=named[:AFTER_MAX],
            echo=echo,
            first_byte=first_byte,
        )
        keep_newest(self._sent, key, sent.to, most=SENT_MAX)
        if thread and not again:
            keep_newest(self._newest, (to, thread), key, most=THREADS_MAX)
        return sent

    def sent_to(self, key: EffectKey) -> str:
        """The agent that this process has sent the message to; "" says nothing of other processes and of long ago."""
        return self._sent.get(key, "")

    def known_id(self, to: str) -> str:
        """The agent of this address, if this process has looked it up lately."""
        return "" if self._opened is None else self._opened.post.book.known_id(to)

    async def echo_of(self, to: str) -> str:
        try:
            return await (await self._mail()).post.echo_of(to)
        except MailUnsent:
            return ""

    async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
        await (await self._mail()).post.note(to=to, keys=keys)

    async def mailbox(self) -> Mailbox:
        """The agent's mailbox at all of its relays: one for this process, which knows to whom it has written."""
        return (await self._mail()).mailbox

    def other_instances(self) -> dict[str, str]:
        """Live instances of this agent that the relays have shown: key, and url of a relay."""
        return {} if self._opened is None else dict(self._opened.mailbox.others)

    async def renew(self) -> None:
        """Opened again at the next use: mail that was given out and not acknowledged then comes again. It is the same
        instance: under a new key it would look like one that was started later, and take the mail from another copy of
        the agent that has just taken it."""
        async with self._turn:
            await self.close()
            self._before = self._before if self._opened is None else self._opened.post.instance
            self._opened = None

    async def close(self) -> None:
        if self._opened is not None:
            with suppress(HoldfastError, OSError):
                await self._opened.close()

    async def _mail(self) -> AgentMail:
        async with self._turn:
            if self._opened is None:
                try:
                    self._opened = await asyncio.to_thread(open_agent_mail, self._home, self._before)
                except (HoldfastError, OSError) as error:
                    raise MailUnsent(f"this agent cannot sign mail now: {error}") from error
            return self._opened


def open_agent_mail(home: AgentHome, before: InstanceKey | None = None) -> AgentMail:
    """Its post and mailbox. `before`: what this process was known by until now. Blocks. Raises what a locked vault or a
    signer that is away raises."""
    from holdfast.app.mail.shared_keys import mail_speaker  # the rooms of keys and relays: where they are used
    from holdfast.relay.client.open_mail import open_mail

    return open_mail(home, mail_speaker(home), incarnation=journal_at(home.journal).incarnation, before=before)
