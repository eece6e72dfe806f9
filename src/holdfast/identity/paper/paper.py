"""The recovery document: what is on the secret sheet and on the public card, and how it is read.

    sheet   the words of one phrase or of one share, as words and as a code
    card    public: the id, where to look, the signed records that begin the identity

Paper plus card bring an agent back when every relay and every backup's index is gone. Nothing
printed points to something that only the vault holds. Output depends on the arguments alone, so
that a sheet can be made again and compared.

The code of a sheet is text that any telephone shows as usable words:

    HF1R:HF1QABCD:WORD WORD ...     the phrase; the part in the middle is the id's beginning
    HF1S:HF1QABCD:WORD WORD ...     a share
    HF1C:BASE32                     the card: log lines, joined by newlines, compressed

The check line ends a Bech32m text over the SHA-256 of the words: 40 bits, on the secret side.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import BadSheet
from holdfast.identity.paper.phrase import Phrase, read_phrase
from holdfast.identity.paper.shares import Share, read_share
from holdfast.identity.records import bech32

PHRASE_CODE, SHARE_CODE, CARD_CODE = "HF1R", "HF1S", "HF1C"
ID_START_CHARS = 8
CHECK_CHARS = 8
CARD_BYTES_MAX = 16 * 1024  # of log lines; a code holds about 1,300 compressed
CODE_CHARS_MAX = 4_296  # of letters and digits in the largest code

_SECRET = re.compile(r"(HF1[RS]):([A-Z0-9]{8}):((?:[A-Z]+ ){11,32}[A-Z]+)(?![A-Z ])")
_CARD = re.compile(r"HF1C:([A-Z2-7]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One secret page. `words` are never shown by repr."""

    name: str
    agent_id: str
    number: int
    date: str  # as printed
    generation: int
    words: tuple[str, ...] = field(repr=False)
    has_passphrase: bool = False
    share: Share | None = None
    total: int = 1
    holder: str = ""
    backups: tuple[str, ...] = ()  # addresses of places, as `holdfast recover` takes them

    @property
    def code(self) -> str:
        kind = PHRASE_CODE if self.share is None else SHARE_CODE
        start = self.agent_id[:ID_START_CHARS].upper()
        return f"{kind}:{start}:{' '.join(self.words).upper()}"

    @property
    def check(self) -> str:
        return check_line(self.words)

    @property
    def part(self) -> str:
        if self.share is None:
            return "1 of 1"
        return f"share {self.share.number} of {self.total}, any {self.share.needed} needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The public page. May be copied freely."""

    name: str
    agent_id: str
    date: str
    generation: int
    records: tuple[bytes, ...]  # lines of kel.jsonl: the inception, and the latest recovery
    handles: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    backups: tuple[str, ...] = ()
    contact: str = ""

    @property
    def code(self) -> str:
        packed = zlib.compress(b"\n".join(self.records), 9)
        return f"{CARD_CODE}:{base64.b32encode(packed).decode().rstrip('=')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSecret:
    """What a secret code held: a phrase or one share, and which agent it is for."""

    id_start: str
    phrase: Phrase | None = None
    share: Share | None = None


def phrase_sheet(phrase: Phrase, **shown: Any) -> Sheet:  # Any: the other fields of a Sheet
    return Sheet(words=phrase.words, **shown)


def share_sheets(shares: Sequence[Share], *, number: int, holders: Sequence[str] = (), **shown: Any) -> list[Sheet]:
    """One page for each share, numbered from `number` on. Never two in one envelope."""
    names = [*holders, *[""] * len(shares)]
    return [
        Sheet(words=share.words, share=share, total=len(shares), number=number + at, holder=names[at], **shown)
        for at, share in enumerate(shares)
    ]


def check_line(words: Sequence[str]) -> str:
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return bech32.encode("hfc", digest)[-CHECK_CHARS:]


def read_secret(text: str) -> ScannedSecret:
    """The phrase or share in a scanned code, or in the text form of a sheet.

    Raises BadSheet where there is none or several; BadPhrase or BadShare where it is damaged.
    """
    found = set(_SECRET.findall(text[: 4 * CODE_CHARS_MAX]))
    if len(found) != 1:
        count = "no QR code" if not found else f"{len(found)} different QR codes"
        raise BadSheet(f"the input has {count} of a recovery sheet; give exactly one")
    kind, start, words = found.pop()
    if kind == PHRASE_CODE:
        return ScannedSecret(id_start=start.lower(), phrase=read_phrase(words))
    return ScannedSecret(id_start=start.lower(), share=read_share(words))


def read_card(text: str) -> tuple[bytes, ...]:
    """The log lines of a card's code or text form. They prove nothing before they are verified.

    Raises BadSheet.
    """
    found = set(_CARD.findall(text[: 4 * CODE_CHARS_MAX]))
    if len(found) != 1:
        raise BadSheet("the input must have exactly one QR code of a public card")
    packed = found.pop()
    try:
        raw = base64.b32decode(packed + "=" * (-len(packed) % 8))
        reader = zlib.decompressobj()
        lines = reader.decompress(raw, CARD_BYTES_MAX)
    except (binascii.Error, zlib.error):
        raise BadSheet("the QR code of the public card is damaged") from None
    if not reader.eof or reader.unused_data or not lines:
        raise BadSheet("the QR code of the public card is damaged or too large")
    return tuple(lines.split(b"\n"))


def grouped(text: str, size: int = 4) -> str:
    """Groups that an eye can follow."""
    return " ".join(text[at : at + size] for at in range(0, len(text), size))
