"""Mail without relays: a post that acts by a script, for tests of tasks that send.

    post = ScriptedPost(MailUnsent("no relay answers"))
    async with holdfast.open(path, tasks=[task], post=post) as hf: ...
    assert [one.body for one in post.sent.values()] == ["hello"]

Like a real one it keeps one message for each (recipient, key), the first; `tries` counts every sending.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.core.ids import EffectKey
from holdfast.core.mail import SentMail
from holdfast.core.values import Json

RELAYS = ("https://relay-a.example", "https://relay-b.example")
Act = BaseException | Callable[[], Awaitable[None]]


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    to: str
    key: EffectKey
    body: Json
    thread: str
    number: int = 0


class ScriptedPost:
    """Each act is for one try: an error is raised, a function is awaited once the first byte has left; then all tries
    succeed. An error that is no MailUnsent is raised after the first byte."""

    def __init__(self, *acts: Act) -> None:
        self._acts = list(acts)
        self.tries: list[Posted] = []
        self.sent: dict[tuple[str, EffectKey], Posted] = {}
        self.notes: list[tuple[str, tuple[EffectKey, ...]]] = []

    async def send(
        self,
        *,
        to: str,
        body: Json,
        key: EffectKey,
        thread: str = "",
        number: int = 0,
        first_byte: Callable[[], None] = lambda: None,
    ) -> SentMail:
        from holdfast.errors import MailUnsent

        posted = Posted(to=to, key=key, body=body, thread=thread, number=number)
        self.tries.append(posted)
        act = self._acts.pop(0) if self._acts else None
        if isinstance(act, MailUnsent):
            raise act
        first_byte()
        if isinstance(act, BaseException):
            raise act
        self.sent.setdefault((to, key), posted)
        if act is not None:
            await act()
        return SentMail(to=to, key=key, relays=RELAYS, stored=())

    async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
        self.notes.append((to, tuple(keys)))
