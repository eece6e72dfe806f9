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
    HF2C:2/5:ABCDEFGH:BASE32        one of several codes of a card; the part in the middle is the same in all of them

A card holds every record of the recovery tier. The present words could make some of them again, but not those that
other words signed, or that named witnesses; and a card is printed without the words, so it holds all. Each code has
whole lines. Only all codes of one card together are read, in any order: with the last one missing the log would
look shorter than it is, and a recovery from it would collide with one that was made.

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

PHRASE_CODE, SHARE_CODE, CARD_CODE, CARD_PART_CODE = "HF1R", "HF1S", "HF1C", "HF2C"
ID_START_CHARS = 8
CHECK_CHARS = 8
CARD_BYTES_MAX = 16 * 1024  # of log lines in one code
CARD_CODE_CHARS = 1_700  # of one code: about three generations, and still read from a poor copy
CARD_CODES_MAX = 64
CARD_TAG_CHARS = 8
CODE_CHARS_MAX = 4_296  # of letters and digits in the largest code

_SECRET = re.compile(r"(HF1[RS]):([A-Z0-9]{8}):((?:[A-Z]+ ){11,32}[A-Z]+)(?![A-Z ])")
_CARD = re.compile(r"HF1C:([A-Z2-7]+)")
_CARD_PART = re.compile(r"HF2C:([0-9]{1,2})/([0-9]{1,2}):([A-Z2-7]{8}):([A-Z2-7]+)")


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
    records: tuple[bytes, ...]  # lines of kel.jsonl: the inception, and every recovery
    handles: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    backups: tuple[str, ...] = ()
    contact: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        """The texts of its QR codes, in order. Raises BadSheet if there would be too many."""
        packed = [_packed(lines) for lines in _portions(self.records)]
        if len(packed) == 1:
            return (f"{CARD_CODE}:{packed[0]}",)
        if len(packed) > CARD_CODES_MAX:
            raise BadSheet(
                f"the public card would need {len(packed)} QR codes; Holdfast prints at most {CARD_CODES_MAX}",
                hint="keep a copy of kel.jsonl with the sheet instead",
            )
        tag = base64.b32encode(hashlib.sha256(b"\n".join(self.records)).digest()).decode()[:CARD_TAG_CHARS]
        return tuple(f"{CARD_PART_CODE}:{at}/{len(packed)}:{tag}:{one}" for at, one in enumerate(packed, 1))


def _portions(records: Sequence[bytes]) -> list[list[bytes]]:
    """The lines in as few portions as fit into one code each; a line is never cut."""
    portions: list[list[bytes]] = [[]]
    for line in records:
        if portions[-1] and len(_packed([*portions[-1], line])) > CARD_CODE_CHARS:
            portions.append([])
        portions[-1].append(line)
    return portions


def _packed(lines: Sequence[bytes]) -> str:
    return base64.b32encode(zlib.compress(b"\n".join(lines), 9)).decode().rstrip("=")


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


def read_card(*texts: str) -> tuple[bytes, ...]:
    """The log lines of a card's codes or text form; its codes may be spread over several texts. They prove nothing
    before they are verified. Raises BadSheet."""
    lines: list[bytes] = []
    parts: list[tuple[str, str, str, str]] = []
    for text in texts:
        read = text[: CARD_CODES_MAX * CODE_CHARS_MAX]
        wholes, some = set(_CARD.findall(read)), _CARD_PART.findall(read)
        if len(wholes) > 1 or not (wholes or some):
            raise BadSheet("the input must have exactly one QR code of a public card, or all codes of one card")
        lines += (line for packed in wholes for line in _unpacked(packed))
        parts += some
    return tuple(dict.fromkeys((*lines, *_joined_parts(parts))))


def _joined_parts(parts: Sequence[tuple[str, str, str, str]]) -> list[bytes]:
    cards: dict[tuple[str, str], dict[int, str]] = {}
    for number, total, tag, packed in parts:
        if cards.setdefault((total, tag), {}).setdefault(int(number), packed) != packed:
            raise BadSheet(f"two different QR codes of the public card have number {number}")
    lines: list[bytes] = []
    for (total, _), codes in cards.items():
        missing = [str(number) for number in range(1, int(total) + 1) if number not in codes]
        if missing or len(codes) != int(total):
            raise BadSheet(
                f"the public card has {total} QR codes, and these are missing: {', '.join(missing)}",
                hint="scan every page of the card, in any order",
            )
        lines += (line for number in sorted(codes) for line in _unpacked(codes[number]))
    return lines


def _unpacked(packed: str) -> tuple[bytes, ...]:
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
