"""The texts in a shared journal by which instances send each other their memory (`channels.JournalChannel`).

Apart from the channel, because to remove an instance needs no library of documents."""

from __future__ import annotations

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.journal.admin import SharedState

NEWEST = "newest"
SENT = "memory"  # the text that lists the others


class Sent(msgspec.Struct, frozen=True):
    """What the list says about one instance."""

    newest: str = ""  # its hash
    parts: tuple[str, ...] = ()


def text_name(instance: str, name: str) -> str:
    return f"{SENT}/{instance}" if name == NEWEST else f"{SENT}/{instance}/{name}"


def parse_sent(text: str) -> dict[str, Sent]:
    """Empty where it is damaged: each instance writes its own again."""
    try:
        return decode_json(text or "{}", dict[str, Sent])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def drop_texts(shared: SharedState, instance: str) -> None:
    """Remove all that this instance has sent. One that is enrolled sends it again. The list goes last, so that a kill
    leaves no text that it does not name."""
    sent = parse_sent(shared.read_text(SENT)).get(instance, Sent())
    for name in (*sent.parts, NEWEST):
        shared.drop_text(text_name(instance, name))

    def changed(text: str) -> str:
        return msgspec.json.encode({one: its for one, its in parse_sent(text).items() if one != instance}).decode()

    shared.change_text(SENT, changed)
