"""Mail between agents, as the runtime sees it: values, and the two ports that a relay client gives.

Sending is a step: `Post.send` under the step's effect key. Every relay of the recipient keeps one message for each
(sender, recipient, key), so a repeat with the same key is the same message, whatever its words are. It succeeds when as
many relays as are asked for have signed that they hold it.

Receiving is a submit: a delivery is committed in the journal under the request id (sender, key), and only then
`received` is said to every relay that has it. The relay keeps such mail as *held mail* until `secured`. With both a
*mark* goes along: the number of the journal's last record, after the commit. So nothing about held mail is kept on the
agent's side: `secured(up_to)` names the mark that a verified backup covers, and after a restore `rewind(after)` names
the mark of the journal that was restored: all held mail with a higher mark is delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from holdfast.core.ids import EffectKey
from holdfast.core.values import Json

BODY_BYTES_MAX = 60_000  # of the JSON of a body: an envelope has at most 64 KiB in all
THREAD_CHARS_MAX = 200
AFTER_MAX = 4  # messages that one message names as those before it
ECHO_CHARS_MAX = 64
TTL_S = 7 * 86_400
TTL_S_MIN, TTL_S_MAX = 60, 30 * 86_400


def id_in(to: str) -> str:
    """What an address names without its hints: an id (`hf:ID?r=...` or `ID`) or a handle."""
    return to.removeprefix("hf:").partition("?")[0]


class MailKind(StrEnum):
    MESSAGE = "msg"
    NOTE = "note"  # a delivery note: the recipient's signed word that messages were committed; it needs none itself


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the recipient's code sees it. The sender's keys signed all of it."""

    sender: str  # id of the agent
    key: EffectKey  # the sender's; (sender, key) is handled once
    thread: str = ""
    body: Json = None
    at_ms: int = 0  # when it was sent, on the sender's clock
    number: int = 0  # of those that its task sent in this thread, 1, 2, 3; 0: not numbered
    handles: tuple[str, ...] = ()  # names of the sender, as it gives them: not checked
    after: tuple[EffectKey, ...] = ()  # keys of messages that were sent before it in its thread: those next to it
    missing: tuple[EffectKey, ...] = ()  # those of them that had not come when it was handled


class DeliveryNote(msgspec.Struct, frozen=True, kw_only=True):
    """Another agent's word that it has committed messages of ours."""

    sender: str  # the agent that received them
    keys: tuple[EffectKey, ...]
    proof: str  # the signed note, as text: evidence that others can check


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One envelope, wherever it came from. Exactly one of `letter`, `note` and `fault` is there."""

    id: str  # of the envelope
    # Key of each relay that delivered it, its number in the mailbox there, and the id that the relay lists under it.
    at: tuple[tuple[str, int, str], ...]
    letter: Letter | None = None
    note: DeliveryNote | None = None
    fault: str = ""  # why it cannot be read: a dead letter. `received` takes it from the relays too.
    sender: str = ""  # of a dead letter, as it claims: not checked
    echo: str = ""  # of a letter: what this agent's profile asked for when the message was planned

    @property
    def in_thread(self) -> tuple[str, str, int, int]:
        """Sorts messages of one thread in their order."""
        letter = self.letter
        return ("", "", 0, 0) if letter is None else (letter.sender, letter.thread, letter.number, letter.at_ms)


class SentMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a sent message; a JSON value, so that it can be a step's result."""

    to: str
    key: EffectKey
    relays: tuple[str, ...]  # urls of those that signed that they hold it
    stored: tuple[str, ...]  # what they signed: evidence, if one of them loses it
    trouble: dict[str, str] = {}  # by url: a relay that says, alone and without proof, that the key has other words


class Post(Protocol):
    """Sends mail. Several tasks may send at the same time."""

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
        """On return two relays of the recipient have signed that they hold the message, or all of them if it has fewer.
        `to` is an id, a handle (`ada@relay.example`) or an address with hints. `after` names messages of the same
        thread that the recipient is to handle first. `echo` is what `echo_of` said when the message was planned: no
        message under this key was sent before. `first_byte` is called before the first byte of the message
        leaves. Safe to repeat with the same key.

        Raises:
            MailUnsent: no byte of the message left this process.
            MailRefused: every relay that could hold it has refused it for good, so none holds it.
            MailKeyReused: a relay shows other words of this agent under this key, or two relays say that they have
                them; they keep those.
            MailUnconfirmed: fewer relays than needed have confirmed it. It may be delivered; send it again.
            BadInput, TooLarge: the values cannot be sent.
        """
        ...

    async def echo_of(self, to: str) -> str:
        """What the recipient asks to be told in messages that are planned from now on; empty where it asks for nothing,
        or cannot be found now."""
        ...

    async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
        """Send a delivery note: these messages of `to` are committed here. One relay is enough. Raises what `send`
        raises."""
        ...


class Mailbox(Protocol):
    """Takes mail from all relays of the agent. Used by one process of a folder at a time."""

    async def next(self) -> list[Delivery]:
        """Waits until there is mail, at most for `wait_s` of the mailbox; then an empty list. The same (sender, key)
        may come again, from another relay or after a new login; each delivery is committed and acknowledged. Mail that
        was given out and never acknowledged comes again from a new mailbox. A relay that does not answer is left out.
        Raises KeysReplaced where a relay proves that other keys speak for the agent now, and AgentElsewhere where it
        proves that a newer incarnation does."""
        ...

    async def received(self, deliveries: Sequence[Delivery], *, mark: int) -> None:
        """They are committed, and the journal's newest record then had the number `mark`. Says so to
        every relay that delivered one; a relay that does not answer delivers it again."""
        ...

    async def secured(self, *, up_to: int) -> None:
        """All mail that was received with a mark of at most `up_to` is safe here: relays delete it."""
        ...

    async def rewind(
        self, *, after: int, done: Collection[str] = (), on_done: Callable[[str], None] = lambda _relay: None
    ) -> None:
        """After a restore of a journal whose last record has this number: held mail with a higher mark is delivered
        again. On return every relay that answers has done it; the others do it at the next login. `done` has the keys
        of relays that need not be asked; `on_done` gets the key of each that has done it."""
        ...

    @property
    def state(self) -> Mapping[str, str]:
        """Why each relay gives no mail now, by url; empty where nothing is wrong."""
        ...

    @property
    def fill(self) -> Mapping[str, int]:
        """Percent of the room for mail that is used at each relay, by url: at 100 it refuses new mail. Mail that was
        received and is not secured counts."""
        ...

    async def close(self) -> None: ...
