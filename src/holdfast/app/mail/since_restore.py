"""Which mail cannot be mail that a timeline that is lost has handled.

After a restore a message may be one that the lost timeline has had, so its steps are asked about, or wait for a person
(docs/decisions/0114). A message that no one had sent by then cannot. So a restored agent makes a random word, asks for
it in its profile (`echo`), and a sender puts it into each message that it plans once it has seen the word: then nothing
was ever sent under that message's key before the word was made (0116).

The word is made when every relay of the profile has let this incarnation log in: none of them gives mail to an older
one any more. It is kept in the instance folder, which no backup has, for one life of the journal: after the next
restore it proves nothing, and the journal itself compares the two when it takes a message. What is not known leaves a
message suspect: no word yet, another word, a sender that says none.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.journal.durability import Life

FILE = "mail.json"
FILE_BYTES_MAX = 64 * 1024
WORD_BYTES = 12


class SinceRestore(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: int
    restored_ms: int = 0
    rewound: tuple[str, ...] = ()  # keys of relays that have delivered held mail again in this life of the journal
    echo: str = ""  # the word

    def may_ask(self, relays: Collection[str]) -> bool:
        """Whether a word may be made. `relays`: the keys of those in the agent's profile."""
        return not self.echo and bool(relays) and set(relays) <= set(self.rewound)

    def life_of(self, echo: str) -> Life | None:
        """The life of the journal in which a message with this word was first sent; None: perhaps in an earlier one."""
        return Life(self.incarnation, self.restored_ms) if self.echo and echo == self.echo else None


def find_since(instance: Path, life: Life) -> SinceRestore:
    """What is known of this life of the journal."""
    try:
        known = decode_json(read_private(instance / FILE, FILE_BYTES_MAX), SinceRestore)
    except (FileNotFoundError, msgspec.DecodeError, HoldfastError):
        known = None
    if known is not None and (known.incarnation, known.restored_ms) == life:
        return known
    return SinceRestore(incarnation=life.incarnation, restored_ms=life.restored_ms)


def keep_rewound(instance: Path, life: Life, relay: str) -> None:
    """The relay need not be asked again. A kill before this line: it is asked once more, which does no harm."""
    known = find_since(instance, life)
    _keep(instance, msgspec.structs.replace(known, rewound=tuple(dict.fromkeys((*known.rewound, relay)))))


def make_echo(instance: Path, life: Life, relays: Collection[str]) -> str:
    """The word to ask for; empty while there is none."""
    known = find_since(instance, life)
    if known.may_ask(relays):
        known = msgspec.structs.replace(known, echo=secrets.token_hex(WORD_BYTES))
        _keep(instance, known)
    return known.echo


def _keep(instance: Path, known: SinceRestore) -> None:
    ensure_private_folder(instance)
    write_atomically(instance / FILE, msgspec.json.encode(known))
