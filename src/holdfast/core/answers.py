"""What an HTTP answer proves about an effect, and how long Retry-After makes us wait: one pure table.

Only two answers close a step: a 2xx (it took place) and a status that says the far end did not act (a refusal).
Everything the table does not name is unknown, because a wrong "failed" makes the journal wrong, while a needless
"unknown" only costs a question.

|                             | Keyed, Fenced      | Queryable, Idempotent, Unrepeatable | Read    |
|-----------------------------|--------------------|-------------------------------------|---------|
| 2xx                         | success            | success                             | success |
| 409                         | busy, same key     | unknown, unless declared            | refused |
| 422                         | key reused         | unknown, unless declared            | refused |
| 412                         | unknown: the fence | unknown, unless declared            | refused |
| 400 401 402 403 404 405 ... | refused            | refused                             | refused |
| 429, 503 with Retry-After   | busy               | unknown, unless declared (429)      | busy    |
| 3xx, 408, 5xx, the rest     | unknown            | unknown                             | unknown |

A stale fence (412) is no refusal: the owner of the step draws a higher fence and sends again, and a worker that is no
owner any more cannot. Redirects are never followed and prove nothing. A tool's author may declare further 4xx as
refusals, because only they know that far end; the meanings that the key gives to 409 and 422 cannot be declared away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from holdfast.core.effect import Effect, Fenced, Keyed, Read, Transactional
from holdfast.errors import Misuse

# Statuses by which a server says that it did not act on the request (RFC 9110, section 15.5).
REFUSALS = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 417, 421, 426, 428, 431, 451})
NEVER_DECLARED = frozenset({408, 425, 499})  # the far end gave up waiting; it may have acted
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_MAX_S = 86_400.0


class MeansDone(msgspec.Struct, frozen=True, kw_only=True):
    """The effect took place."""


class MeansRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The far end did not act on this request."""


class MeansBusy(msgspec.Struct, frozen=True, kw_only=True):
    """The far end works on this key, or asks to come back; never a failure."""

    retry_after_s: float


class MeansKeyReused(msgspec.Struct, frozen=True, kw_only=True):
    """The far end knows this key with another body."""


class MeansUnknown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer proves nothing."""

    reason: str


Meaning = MeansDone | MeansRefused | MeansBusy | MeansKeyReused | MeansUnknown


def read_answer(
    effect: Effect, status: int, headers: Mapping[str, str], *, refused_on: frozenset[int] = frozenset()
) -> Meaning:
    """Return what this answer proves. Header names are lower case. Pass `refused_on` through `check_refused_on`
    first."""
    if 200 <= status <= 299:
        return MeansDone()
    if isinstance(effect, Read | Transactional):
        return _read_plain(status, headers)
    if isinstance(effect, Keyed | Fenced):
        found = _read_keyed(effect, status, headers, refused_on)
        if found is not None:
            return found
    if status in REFUSALS or status in refused_on:
        return MeansRefused()
    return MeansUnknown(reason=_reason(status))


def check_refused_on(statuses: Iterable[int]) -> frozenset[int]:
    """Check the statuses that a tool's author declares to be refusals. Raises Misuse: a status by which no server can
    say that it did not act."""
    declared = frozenset(statuses)
    for status in sorted(declared):
        if not 400 <= status <= 499 or status in NEVER_DECLARED:
            never = ", ".join(map(str, sorted(NEVER_DECLARED)))
            raise Misuse(f"refused_on: {status} does not prove a refusal; use statuses from 400 to 499, except {never}")
    return declared


def _read_keyed(
    effect: Keyed | Fenced, status: int, headers: Mapping[str, str], refused_on: frozenset[int]
) -> Meaning | None:
    if status == 409:
        return MeansBusy(retry_after_s=retry_after_s(headers) or RETRY_AFTER_DEFAULT_S)
    if status == 422:
        # A far end that ignores fingerprints cannot mean the key by its 422.
        declared = isinstance(effect, Keyed) and effect.fingerprint == "ignored"
        return MeansRefused() if declared and 422 in refused_on else MeansKeyReused()
    if status == 412 and isinstance(effect, Fenced):
        return MeansUnknown(reason="412: a higher fence holds the resource")
    return _read_later(status, headers)


def _read_plain(status: int, headers: Mapping[str, str]) -> Meaning:
    later = _read_later(status, headers)
    if later is not None:
        return later
    if 400 <= status <= 499 and status not in NEVER_DECLARED and status != 429:
        return MeansRefused()
    return MeansUnknown(reason=_reason(status))


def _read_later(status: int, headers: Mapping[str, str]) -> MeansBusy | None:
    wait_s = retry_after_s(headers) if status in (429, 503) else None
    return None if wait_s is None else MeansBusy(retry_after_s=wait_s)


def _reason(status: int) -> str:
    if 300 <= status <= 399:
        return f"{status}: redirects are not followed"
    return f"{status} does not say whether it was done"


# Retry-After


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = re.compile(r"[A-Za-z]{3}, (\d{2}) ([A-Za-z]{3}) (\d{4}) (\d{2}):(\d{2}):(\d{2}) GMT", re.ASCII)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that Retry-After asks for, or None where it is missing or unreadable. A date is taken relative to
    the answer's own Date header, so that no clock of ours counts."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return min(float(text), RETRY_AFTER_MAX_S)
    until, sent = _find_time(text), _find_time(headers.get("date", "").strip())
    if until is None or sent is None:
        return None
    return min(max((until - sent).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def _find_time(text: str) -> datetime | None:
    match = _DATE.fullmatch(text)
    if match is None or match[2].lower() not in _MONTHS:
        return None
    try:
        day, hour, minute, second = map(int, match.group(1, 4, 5, 6))
        return datetime(int(match[3]), _MONTHS.index(match[2].lower()) + 1, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
