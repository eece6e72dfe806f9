"""Text from outside, made safe to show on a terminal."""

from __future__ import annotations

import re

from holdfast.core.secret_handles import safe

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Control characters become visible escapes, secrets are hidden; line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", safe(text))


def one_line(text: str, *, chars_max: int = 100) -> str:
    """The text on one line, cut where it is long."""
    flat = shown(" ".join(text.split()))
    return flat if len(flat) <= chars_max else flat[: chars_max - 3] + "..."
