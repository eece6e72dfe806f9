"""Redaction for logs and screens: known secrets by the swap, unknown ones by how they look.

By how they look only here, never in results: there it would eat charge ids, and a replay would
see something else than the first run. Whoever holds known values in this process registers; what
a person is shown passes `safe`.
"""

from __future__ import annotations

import re
import weakref
from typing import Protocol, cast

REDACTED = "[redacted]"
DEPTH_MAX = 20

_LOOKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # JWT
    r"|\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|\bwhsec_[A-Za-z0-9+/=]{16,}"
    r"|\bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{20,}"  # model providers
    r"|\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\bAIza[A-Za-z0-9_-]{30,}"  # Google
    r"|\bAGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r"|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    re.DOTALL,
)


class Knower(Protocol):
    def text(self, text: str) -> str: ...


_knowers: weakref.WeakSet[Knower] = weakref.WeakSet()


def register(knower: Knower) -> None:
    """Let what is shown in this process pass this one's swap, for as long as it lives."""
    _knowers.add(knower)


def safe(text: str) -> str:
    """The text as a person may see it."""
    for knower in _knowers:
        text = knower.text(text)
    return _LOOKS.sub(REDACTED, text)


def safe_value(value: object, depth: int = 0) -> object:
    """The same for every text inside a value."""
    if isinstance(value, str):
        return safe(value)
    if depth < DEPTH_MAX and isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return {key: safe_value(item, depth + 1) for key, item in items.items()}
    if depth < DEPTH_MAX and isinstance(value, (list, tuple)):
        return [safe_value(item, depth + 1) for item in cast("list[object]", value)]
    return value
