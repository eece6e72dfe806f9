"""The JSON values that arguments and results are, checked once at the border.

What a task sees the first time must be what its replay sees, so `checked` returns the value as
it will be read back: tuples become lists, everything that JSON cannot keep exactly is refused.
`canonical` is the RFC 8785 form, used for fingerprints; whole numbers beyond 2^53, which that
RFC leaves to the double, are written with all their digits so that two of them never look alike.
"""

from __future__ import annotations

import marshal  # noqa: TID251 - it only looks at types: nothing is stored or read
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.errors import BadValue, TooLarge

PAYLOAD_BYTES_MAX = 16 * 1024 * 1024  # one argument list or result; larger things are blobs
DEPTH_MAX = 200  # well below the recursion limit of every reader
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

Json = object  # a JSON value; narrowed where it is used

_KIND: Callable[[object], type] = type
_SIMPLE = frozenset((bool, type(None)))
_SMALL = 2**53
_FIXED = frozenset((str, int, float, bool, type(None)))
_EXACT = _FIXED - {float}  # written by our encoder as RFC 8785 has them
_SHAPE = bytes.maketrans(b"123456789.E", b"000000000ee")  # every digit is a 0, point and exponent an e
_LONG_NUMBER = b"0" * 19
_FLOAT = b"0e"
_sorted_encode = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode
_decode = json_decoder().decode


def checked(value: Any, *, what: str) -> Json:
    """The value as it will be read back, or BadValue naming the place that cannot be kept."""
    kind = _KIND(value)
    if kind is dict:
        items: dict[Any, Any] = value  # no `cast`, which is a call: every step passes here
        if _FIXED.issuperset(map(type, items.values())):
            return _checked_object(items, what, 0)
        found = _read_back(items)
        return _checked_object(items, what, 0) if found is None else found[0]
    return _checked(value, what, 0)


def checked_json(value: Any, *, what: str) -> tuple[Json, bytes]:
    """The same of any value, and its JSON. What comes back shares nothing with what went in. Raises TooLarge too."""
    if _KIND(value) is dict:
        items: dict[Any, Any] = value
        found = None if _FIXED.issuperset(map(type, items.values())) else _read_back(items)
        if found is not None:
            return found[0], _within(found[1], what, PAYLOAD_BYTES_MAX)
        kept = _checked_object(items, what, 0)
    else:
        kept = _checked(value, what, 0)
    return kept, encode(kept, what=what)


def checked_forms(
    value: dict[str, object], *, what: str, bytes_max: int = PAYLOAD_BYTES_MAX
) -> tuple[dict[str, object], bytes, bytes]:
    """The same of an object, its JSON and its RFC 8785 bytes. What comes back shares nothing with what went in."""
    items: dict[Any, Any] = value
    found = None if _FIXED.issuperset(map(type, items.values())) else _read_back(items)
    if found is None:
        kept: Any = _checked_object(items, what, 0)
        raw, sorted_raw = _encode(kept), canonical(kept)
    else:
        kept, raw, shape = found
        plain = raw.isascii() and _FLOAT not in shape  # as in `canonical`: the order of the keys changes neither
        sorted_raw = _sorted_encode(kept) if plain else canonical(kept)
    if len(sorted_raw) > bytes_max:
        _within(sorted_raw, what, bytes_max)
    return kept, raw, sorted_raw


def _read_back(items: dict[object, object]) -> tuple[dict[str, object], bytes, bytes] | None:
    """The nested value as it comes back from JSON, if that is as good as a walk through it; None where in doubt. With
    its JSON, and the shape of that (_SHAPE).

    Equal to what went in: JSON has changed nothing. `marshal` refuses subclasses of the plain types, which would be
    equal too. Whole numbers of more than 64 bits and too deep a nesting would come back as well."""
    try:
        marshal.dumps(items)
        raw = _encode(items)
        back = _decode(raw)
        same = back == items
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    deep = len(raw) > 2 * DEPTH_MAX and raw.count(b"{") + raw.count(b"[") > DEPTH_MAX
    shape = raw.translate(_SHAPE)
    if not same or deep or _LONG_NUMBER in shape:
        return None
    return back, raw, shape


def encode(value: Json, *, what: str, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """Compact JSON of a checked value."""
    raw = _encode(value)
    return raw if len(raw) <= bytes_max else _within(raw, what, bytes_max)


def encode_unchecked(value: Json) -> bytes:
    """Compact JSON of a checked value, however large."""
    return _encode(value)


def canonical_within(value: Json, *, what: str, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """RFC 8785 bytes of a checked value, if they are not too many."""
    return _within(canonical(value), what, bytes_max)


def _within(raw: bytes, what: str, bytes_max: int) -> bytes:
    if len(raw) > bytes_max:
        raise TooLarge(f"{what} has {len(raw):,} bytes of JSON; the limit is {bytes_max:,}")
    return raw


def decode(raw: bytes) -> Json:
    return _decode(raw)


def copied(value: Any) -> Json:
    """The same checked value, sharing nothing that can be changed."""
    kind = _KIND(value)
    if kind is dict:
        items: dict[Any, Any] = value
        if _FIXED.issuperset(map(type, items.values())):
            return items.copy()
        return _decode(_encode(items))
    return _decode(_encode(value)) if isinstance(value, list) else value


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of a checked value."""
    kind = _KIND(value)
    if kind is dict:
        items: dict[Any, Any] = value
        raw = _sorted_encode(items)
        # Sorted by bytes is then sorted as the RFC wants it, and numbers without point and exponent are as it has them.
        if raw.isascii() and (_EXACT.issuperset(map(type, items.values())) or not _may_hold_floats(raw)):
            return raw
    if _plain(value):
        return _sorted_encode(value)
    out: list[str] = []
    _write(value, out)
    return "".join(out).encode()


def _may_hold_floats(raw: bytes) -> bool:
    """Whether a digit is followed by a point or an exponent; also in a text: then it is looked at more closely."""
    return _FLOAT in raw.translate(_SHAPE)


def _checked(value: object, place: str, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        _check_text(cast(str, value), place)
        return value
    if kind in _SIMPLE:
        return value
    if kind is int:
        if not INT_MIN <= cast(int, value) <= INT_MAX:
            raise BadValue(f"{place}: the whole number has more than 64 bits", hint="pass it as text")
        return value
    if kind is float:
        if not math.isfinite(cast(float, value)):
            raise BadValue(f"{place}: {value} is not a JSON number")
        return value
    if depth >= DEPTH_MAX:
        raise BadValue(f"{place}: nested deeper than {DEPTH_MAX} levels")
    if kind is dict:
        return _checked_object(cast("dict[object, object]", value), place, depth)
    if kind is list or kind is tuple:
        items = cast("list[object]", value)
        return [_checked(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(items)]
    return _checked_subclass(value, place, depth)


def _checked_object(value: dict[object, object], place: str, depth: int) -> Json:
    kept: dict[str, object] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise BadValue(f"{place}: key {key!r} is not text")
        if not key.isascii():
            _check_text(key, place)
        # Most values are short text or small numbers: the other checks are for the rest.
        if (type(item) is str and item.isascii()) or (type(item) is int and -_SMALL < item < _SMALL):
            kept[key] = item
        else:
            kept[key] = _checked(item, f"{place}.{key}", depth + 1)
    return kept


def _checked_subclass(value: object, place: str, depth: int) -> Json:
    """Text enums, named tuples and the like become the plain value they are."""
    # By the base's own method: a subclass may show itself as something else than it is.
    if isinstance(value, str):
        return _checked(str.__str__(value), place, depth)
    if isinstance(value, int):
        return _checked(int.__int__(value), place, depth)
    if isinstance(value, float):
        return _checked(float.__float__(value), place, depth)
    if isinstance(value, dict):
        return _checked(dict(cast("dict[object, object]", value)), place, depth)
    if isinstance(value, (list, tuple)):
        return _checked(list(cast("list[object]", value)), place, depth)
    raise BadValue(f"{place}: {type(value).__name__} is not a JSON value")


def _check_text(text: str, place: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValue(
            f"{place}: character {error.start} of the text is a lone surrogate, which is not valid Unicode"
        ) from None


def _plain(value: Json) -> bool:
    """True where sorting by bytes and our encoder's numbers already are the RFC's."""
    kind = type(value)
    if kind is float:
        return False
    if kind is str:
        return cast(str, value).isascii()
    if kind is dict:
        for key, item in cast("dict[str, object]", value).items():
            if not key.isascii() or not (item.isascii() if type(item) is str else _plain(item)):
                return False
    elif kind is list:
        for item in cast("list[object]", value):
            if not _plain(item):
                return False
    return True


def _write(value: Json, out: list[str]) -> None:
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        out.append("{")
        for i, key in enumerate(sorted(items, key=lambda text: text.encode("utf-16-be"))):
            out.append("," if i else "")
            out.append(_encode(key).decode())
            out.append(":")
            _write(items[key], out)
        out.append("}")
    elif isinstance(value, list):
        out.append("[")
        for i, item in enumerate(cast("list[object]", value)):
            out.append("," if i else "")
            _write(item, out)
        out.append("]")
    elif isinstance(value, float):
        out.append(_number(value))
    else:
        out.append(_encode(value).decode())


def _number(value: float) -> str:
    """ECMAScript's Number::toString, which RFC 8785 prescribes."""
    if value == 0:
        return "0"
    sign, figures, exponent = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, figures))
    point = len(digits) + cast(int, exponent)  # the value is 0.DIGITS x 10^point
    if 0 < point <= 21:
        whole, rest, power = digits[:point].ljust(point, "0"), digits[point:], ""
    elif -6 < point <= 0:
        whole, rest, power = "0", "0" * -point + digits, ""
    else:
        whole, rest, power = digits[0], digits[1:], f"e{point - 1:+d}"
    return "-" * sign + (f"{whole}.{rest}" if rest else whole) + power
