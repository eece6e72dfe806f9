"""Bech32 (BIP-173) and Bech32m (BIP-350): text that shows when it was mistyped.

Ids are Bech32m. The older form is here because age writes its keys in it. Both have one spelling
in lower case and one in capitals; a mix is refused. A decoder names the checksum it found, and
callers ask for the one they mean: a text that is valid in the other form is not theirs.
"""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import BadRecord

LENGTH_MAX = 90  # beyond it the checksum no longer finds four errors
_CHARSET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES = {char: value for value, char in enumerate(_CHARSET)}
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM_CHARS = 6


class Form(IntEnum):
    """The constant that a checksum ends in."""

    BECH32 = 1
    BECH32M = 0x2BC830A3


def encode(prefix: str, data: bytes, *, form: Form = Form.BECH32M) -> str:
    """The bytes as text under the prefix, in lower case."""
    return join(prefix, regroup(data, 8, 5, pad=True), form=form)


def decode(text: str, *, prefix: str, form: Form = Form.BECH32M) -> bytes:
    """The bytes of a text of this prefix and form; BadRecord where it is not one."""
    found, values, found_form = split(text)
    if found != prefix:
        raise BadRecord(f"the text begins with {found!r}, not with {prefix!r}")
    if found_form is not form:
        raise BadRecord(f"the text has a {found_form.name.lower()} checksum instead of {form.name.lower()}")
    return bytes(regroup(values, 5, 8, pad=False))


def join(prefix: str, values: bytes | list[int], *, form: Form) -> str:
    """The text of groups of five bits, with its checksum."""
    if not prefix or prefix != prefix.lower() or not all(33 <= ord(char) <= 126 for char in prefix):
        raise BadRecord("a prefix must be printable ASCII in lower case")
    if len(prefix) + 1 + len(values) + _CHECKSUM_CHARS > LENGTH_MAX:
        raise BadRecord(f"the text is longer than {LENGTH_MAX} characters")
    rest = _polymod([*_expanded(prefix), *values, *([0] * _CHECKSUM_CHARS)]) ^ form
    checksum = [(rest >> 5 * (5 - place)) & 31 for place in range(_CHECKSUM_CHARS)]
    return f"{prefix}1{''.join(_CHARSET[value] for value in [*values, *checksum])}"


def split(text: str) -> tuple[str, list[int], Form]:
    """Prefix, groups of five bits and form of a text whose checksum holds."""
    if len(text) > LENGTH_MAX:
        raise BadRecord(f"the text is longer than {LENGTH_MAX} characters")
    if not all(33 <= ord(char) <= 126 for char in text):
        raise BadRecord("the text has a character that is not printable ASCII")
    if text not in (text.lower(), text.upper()):
        raise BadRecord("the text mixes lower and upper case")
    prefix, one, tail = text.lower().rpartition("1")
    if not one or not prefix:
        raise BadRecord('the text has no prefix: nothing is before its last digit "1"')
    if len(tail) < _CHECKSUM_CHARS:
        raise BadRecord("the text is too short for a checksum")
    if not all(char in _VALUES for char in tail):
        raise BadRecord("the text has a character that bech32 does not use")
    values = [_VALUES[char] for char in tail]
    rest = _polymod([*_expanded(prefix), *values])
    if rest not in (Form.BECH32, Form.BECH32M):
        raise BadRecord("the checksum is wrong: the text was mistyped or cut short")
    return prefix, values[:-_CHECKSUM_CHARS], Form(rest)


def regroup(values: bytes | list[int], size: int, to: int, *, pad: bool) -> list[int]:
    """The same bits in groups of another size; padding that is long or not zero is refused."""
    held = bits = 0
    groups: list[int] = []
    for value in values:
        held = (held << size) | value
        bits += size
        while bits >= to:
            bits -= to
            groups.append((held >> bits) & ((1 << to) - 1))
        held &= (1 << bits) - 1
    if pad and bits:
        groups.append((held << (to - bits)) & ((1 << to) - 1))
    elif not pad and (bits >= size or held):
        raise BadRecord("the text has bits left over after its last byte")
    return groups


def _polymod(values: list[int]) -> int:
    rest = 1
    for value in values:
        top = rest >> 25
        rest = (rest & 0x1FFFFFF) << 5 ^ value
        for place, generator in enumerate(_GENERATOR):
            if top >> place & 1:
                rest ^= generator
    return rest


def _expanded(prefix: str) -> list[int]:
    return [*(ord(char) >> 5 for char in prefix), 0, *(ord(char) & 31 for char in prefix)]
