"""Mail without relays: a post that acts by a script, and a mailbox in memory; for tests of tasks that send or receive.

    post = ScriptedPost(MailUnsent("no relay answers"))
    async with holdfast.open(path, tasks=[task], post=post) as hf: ...
    assert [one.body for one in post.sent.values()] == ["hello"]

Like a real one it keeps one message for each (recipient, key), the first; `tries` counts every sending.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from holdfast.core.ids import EffectKey
from holdfast.core.mail import Delivery, DeliveryNote, Letter, SentMail
from holdfast.core.values import Json
from holdfast.errors import MailUnsent

RELAYS = ("https://relay-a.example", "https://relay-b.example")
Act = BaseException | Callable[[], Awaitable[None]]


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    to: str
    key: EffectKey
    body: Json
    thread: str
    number: int = 0
    after: tuple[EffectKey, ...] = ()
    echo: str = ""


class ScriptedPost:
    """Each act is for one try: an error is raised, a function is awaited once the first byte has left; then all tries
    succeed. An error that is no MailUnsent is raised after the first byte."""

    def __init__(self, *acts: Act) -> None:
        self.acts = list(acts)
        self.tries: list[Posted] = []
        self.sent: dict[tuple[str, EffectKey], Posted] = {}
        self.notes: list[tuple[str, tuple[EffectKey, ...]]] = []
        self.echo = ""  # what every recipient asks to be told

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
        posted = Posted(to=to, key=key, body=body, thread=thread, number=number, after=tuple(after), echo=echo)
        self.tries.append(posted)
        act = self.acts.pop(0) if self.acts else None
        if isinstance(act, MailUnsent):
            raise act
        first_byte()
        if isinstance(act, BaseException):
            raise act
        self.sent.setdefault((to, key), posted)
        if act is not None:
            await act()
        return SentMail(to=to, key=key, relays=RELAYS, stored=())

    async def echo_of(self, to: str) -> str:
        return self.echo

    async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
        self.notes.append((to, tuple(keys)))


class Kept(msgspec.Struct, kw_only=True):
    """One message at the relay."""

    delivery: Delivery
    state: str = "stored"  # stored, held, deleted
    mark: int = 0


class MemoryRelay:
    """What a relay keeps of one agent's mail; it outlives its mailboxes."""

    def __init__(self) -> None:
        self.mail: list[Kept] = []
        self.came = asyncio.Event()

    def put(self, item: Letter | DeliveryNote | str) -> Delivery:
        """Store a letter, a note, or an envelope that cannot be read, with the reason."""
        number = len(self.mail) + 1
        delivery = Delivery(
            id=f"env-{number}",
            at=(("relay", number, f"env-{number}"),),
            letter=item if isinstance(item, Letter) else None,
            note=item if isinstance(item, DeliveryNote) else None,
            fault=item if isinstance(item, str) else "",
        )
        self.mail.append(Kept(delivery=delivery))
        self.came.set()
        return delivery

    def count(self, state: str) -> int:
        return sum(one.state == state for one in self.mail)


class MemoryMailbox:
    """A mailbox at one such relay. Like a real one it gives a message out once, and again after a rewind."""

    def __init__(self, relay: MemoryRelay, *, wait_s: float = 0.05) -> None:
        self._relay = relay
        self._wait_s = wait_s
        self._given: set[str] = set()
        self.fill: dict[str, int] = {}
        self.state: dict[str, str] = {}

    async def next(self) -> list[Delivery]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._relay.came.wait()
        self._relay.came.clear()
        new = [one.delivery for one in self._relay.mail if one.state == "stored" and one.delivery.id not in self._given]
        self._given |= {one.id for one in new}
        return new

    async def received(self, deliveries: Sequence[Delivery], *, mark: int) -> None:
        ids = {one.id for one in deliveries}
        for one in self._relay.mail:
            if one.delivery.id in ids and one.state == "stored":
                one.state, one.mark = "held", mark

    async def secured(self, *, up_to: int) -> None:
        for one in self._relay.mail:
            if one.state == "held" and one.mark <= up_to:
                one.state = "deleted"

    async def rewind(
        self, *, after: int, done: Collection[str] = (), on_done: Callable[[str], None] = lambda _relay: None
    ) -> None:
        if "relay" in done:
            return
        for one in self._relay.mail:
            if one.state == "held" and one.mark > after:
                one.state = "stored"
                self._given.discard(one.delivery.id)
        self._relay.came.set()
        on_done("relay")

    async def close(self) -> None: ...
